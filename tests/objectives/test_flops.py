"""The FLOPs that objectives reckon with, against the products in their traced programs."""

import jax
import pytest

from tests import tiny
from tests.models.test_macs import count_products
from tests.objectives.test_distillation import save_teacher
from tests.objectives.test_self_supervised_runs import OPTIONS
from tests.stages import Setup, mesh_of
from vit_jax.training.step_log import open_log

HYBRID = {"model.name": "R+ViT-Ti/16", "model.image_size": 32, "model.patch_size": 1}


def make_experiment(name, **values):
    config = tiny.get_config()
    config.objective.name = name
    config.objective.update(OPTIONS.get(name, {}))
    config.update_from_flattened_dict(values)
    return Setup(config, mesh_of(1)).experiment


def products(experiment, function=None):
    """Of the forward pass of the loss, or of a function of its arguments, for one image."""
    function = function or experiment.objective.loss
    frozen = {**experiment.frozen, **experiment.state.objective}
    batch = jax.eval_shape(lambda b: experiment.objective.prepare(b, 0, 0), experiment.batch)
    program = jax.make_jaxpr(lambda *arguments: function(*arguments, None))
    return count_products(program(experiment.state.params, frozen, batch).jaxpr) / len(
        batch["mask"]
    )


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("classification", {}),
        ("masked_patches", {"objective.target": "pixels", "objective.corruption_rate": 0.15}),
        ("masked_patches", {"objective.target": "pixels", **HYBRID}),
        ("masked_autoencoder", {"model.num_registers": 2}),
        ("masked_autoencoder", {"objective.mask_ratio": 0.4, **HYBRID}),
    ],
)
def test_they_are_three_forward_passes(name, values):
    experiment = make_experiment(name, **values)
    assert experiment.objective.training_flops() == 6 * products(experiment)


def test_a_teacher_has_a_forward_pass_alone(tmp_path):
    path = save_teacher(tmp_path / "teacher.npz", depth=3)  # Of the size: resizing is products.
    experiment = make_experiment("distillation", init_teacher=path)
    objective = experiment.objective
    teacher = products(experiment, lambda p, f, b, k: objective._teach(f["teacher"], b["image"]))
    student = products(experiment) - teacher
    assert objective.training_flops() == 6 * student + 2 * teacher


def test_views_count_by_their_sizes_and_the_average_without_a_backward_pass():
    values = {"objective.local_views": 3, "model.distillation_token": True}
    # Without positions, as resampling them is products.
    experiment = make_experiment("self_distillation", **values, **{"model.positions": "none"})
    objective = experiment.objective
    view = products(experiment, lambda p, f, b, k: objective._answer(p, b["globals"][:, 0], None))
    student = products(experiment) - 2 * view
    assert objective.training_flops() == 6 * student + 2 * 2 * view


def test_sharpness_takes_two_gradients_and_the_log_reckons_with_them(tmp_path):
    experiment = make_experiment("masked_autoencoder", **{"optimizer.sharpness.rho": 0.1})
    assert experiment.flops_per_image == 2 * experiment.objective.training_flops()
    log = open_log(experiment, tmp_path, 0)
    assert log._throughput.flops_per_image == experiment.flops_per_image
    assert log._max_skipped is None, "nothing is skipped"
    log.close()
