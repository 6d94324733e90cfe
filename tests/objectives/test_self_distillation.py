"""DINO's loss against a plain numpy form; its views; its teacher."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import tiny
from tests.stages import Setup, mesh_of
from vit_jax import train
from vit_jax.errors import ConfigError
from vit_jax.objectives.self_distillation import random_views


def make_config(**values):
    config = tiny.get_config()
    config.objective.name = "self_distillation"
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
    teacher = jax.tree.map(lambda x: x + 0.05, params)
    center = jnp.linspace(-0.1, 0.1, 8)
    loss, _ = jax.jit(objective.loss)(params, {"teacher": teacher, "center": center}, batch, None)

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
