"""DINO's loss against a plain numpy form; its views; its teacher."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

from tests import tiny
from tests.stages import Setup, mesh_of
from vit_jax import train
from vit_jax.errors import ConfigError
from vit_jax.models import model_options
from vit_jax.objectives import self_distillation
from vit_jax.objectives.base import Labels
from vit_jax.objectives.self_distillation import SelfDistillation, random_views


def make_config(**values):
    config = tiny.get_config()
    config.objective.name, config.model.depth = "self_distillation", 1
    config.objective.update(prototypes=8, head_width=8, bottleneck_width=4, local_views=2)
    config.objective.local_size = 4
    config.update_from_flattened_dict(values)
    return config


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_the_loss_against_numpy_and_the_next_state():
    setup = Setup(make_config(**{"objective.center_momentum": 0.75}), mesh_of(1))
    objective, params = setup.experiment.objective, setup.state.params
    batch, answer = setup.prepared(), jax.jit(objective._answer)
    teacher = jax.tree.map(lambda x: np.asarray(x) + np.float32(0.05), params)
    center = np.linspace(-0.1, 0.1, 8, dtype=np.float32)
    loss, values = jax.jit(objective.loss)(
        params, {"teacher": teacher, "center": center}, batch, None
    )

    views = [batch["globals"][:, 0], batch["globals"][:, 1]]
    views += [batch["locals"][:, 0], batch["locals"][:, 1]]
    student = [np.float64(answer(params, view, None)) for view in views]
    taught = [np.float64(answer(teacher, view, None)) for view in views[:2]]
    terms = []
    for t in range(2):
        target = softmax((taught[t] - np.float64(center)) / 0.04)
        for s in range(4):
            if s != t:
                terms.append(-(target * np.log(softmax(student[s] / 0.1))).sum(-1))
    assert len(terms) == 6
    np.testing.assert_allclose(loss, np.mean(terms, axis=0), rtol=1e-4)
    assert np.abs(student[2]).max() <= 1 + 1e-6, "cosines to the prototypes"
    np.testing.assert_allclose(values["answers"], np.mean(taught, axis=0), rtol=1e-4, atol=1e-6)
    target = softmax((taught[0] - np.float64(center)) / 0.04)
    entropy = -(target * np.log(target)).sum(-1)
    np.testing.assert_allclose(values["teacher_entropy"], entropy, rtol=1e-3, atol=1e-5)

    # The head: GELU between its layers, a bottleneck of length 1, cosines to unit prototypes.
    x, own = (
        np.float64(jax.jit(objective._representation)(params, views[0], None)),
        params["objective"],
    )
    for layer in range(3):
        x = x * (1 + erf(x / np.sqrt(2))) / 2 if layer else x
        x = x @ np.float64(own[f"dense{layer}"]["kernel"]) + own[f"dense{layer}"]["bias"]
    prototypes = np.float64(own["prototypes"]["kernel"])
    cosines = x / np.linalg.norm(x, axis=-1, keepdims=True) @ prototypes
    cosines /= np.linalg.norm(prototypes, axis=0)
    np.testing.assert_allclose(student[0], cosines, rtol=1e-3, atol=1e-4)

    means = {"answers": jnp.float32(np.mean(taught, axis=(0, 1)))}
    state = jax.jit(objective.update)({"teacher": teacher, "center": center}, params, means)
    expected = 0.75 * np.float64(center) + 0.25 * np.mean(taught, axis=(0, 1))
    np.testing.assert_allclose(state["center"], expected, rtol=1e-5)
    old, new = teacher["norm"]["scale"], params["norm"]["scale"]
    np.testing.assert_allclose(state["teacher"]["norm"]["scale"], 0.996 * old + 0.004 * new)


cut = jax.jit(random_views, static_argnums=(2, 3))


def test_views_show_a_box_of_the_image():
    """On an image whose pixels are their own coordinates, a view is a box, mirrored or not."""
    y, x = np.mgrid[:32, :32]
    images = jnp.asarray(np.stack([y, x], -1)[None].repeat(256, 0), jnp.float32)
    views = np.asarray(cut(images, jax.random.key(0), (0.25, 0.49), (16, 16)))
    step_y = (views[:, -3, 8, 0] - views[:, 2, 8, 0]) / 11  # Away from the borders.
    step_x = (views[:, 8, -3, 1] - views[:, 8, 2, 1]) / 11
    sides = 16 * step_y / 32
    np.testing.assert_allclose(np.abs(16 * step_x / 32), sides, atol=0.02)
    assert (np.abs(np.diff(views[..., 0], axis=2)) < 1e-3).all(), "rows stay rows"
    assert 0.25 - 0.03 < (sides**2).min() < 0.3
    assert 0.44 < (sides**2).max() < 0.49 + 0.03
    mirrored = (step_x < 0).mean()
    assert abs(mirrored - 0.5) < 3 * 0.5 / 16
    assert views.min() >= -1e-3
    assert views.max() <= 31 + 1e-3


def objective_of(image_size, **values):
    """Nothing but the views: of a model of this size, with 2×2 patches."""
    options = SelfDistillation.Options(prototypes=8, local_views=3, global_share=0.3, **values)
    sizes = {"width": 32, "depth": 1, "mlp_width": 32, "num_heads": 2}
    model = model_options("ViT-Ti/16", image_size=image_size, patch_size=2, **sizes)
    network = types.SimpleNamespace(options=model)
    return SelfDistillation(options, network, Labels((), 0))


def test_views_are_cut_by_their_own_keys_shares_and_sizes(monkeypatch):
    cuts = []

    def record(images, key, shares, size):
        cuts.append((tuple(jax.random.key_data(key).tolist()), shares, size))
        return jnp.zeros((len(images), *size, 1))

    monkeypatch.setattr(self_distillation, "random_views", record)
    objective = objective_of((28, 56), local_size=6)
    batch = {"image": jnp.zeros((2, 28, 56, 1), jnp.uint8)}
    views = objective.prepare(batch, 0, 0)
    large, small = ((0.3, 1.0), (28, 56)), ((0.05, 0.3), (6, 6))
    assert [(shares, size) for _, shares, size in cuts] == [large] * 2 + [small] * 3
    assert views["globals"].shape == (2, 2, 28, 56, 1)
    assert views["locals"].shape == (2, 3, 6, 6, 1)
    for seed, step in ((1, 0), (0, 1)):
        objective.prepare(batch, seed, step)
    assert len({key for key, *_ in cuts}) == 15


def test_local_views_have_three_sevenths_of_the_height_unless_said():
    assert objective_of((28, 56)).local_size == (12, 12)
    assert objective_of((56, 28)).local_size == (24, 24)
    assert objective_of((30, 30)).local_size == (12, 12), "whole patches"


def test_the_whole_image_is_a_view_of_itself():
    images = jnp.asarray(np.random.default_rng(0).uniform(0, 255, (1, 8, 8, 1)), jnp.float32)
    view = cut(images, jax.random.key(0), (1.0, 1.0), (8, 8))
    view = view if np.allclose(view, images, atol=1e-3) else view[:, :, ::-1]
    np.testing.assert_allclose(view, images, atol=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"objective.local_size": 3}, "multiple of the 2x2 pixels"),
        ({"model.positions": "relative"}, "needs all of them"),
    ],
)
def test_what_does_not_fit_is_refused(change, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        train.run(make_config(**change), tmp_path, dry_run=True)
