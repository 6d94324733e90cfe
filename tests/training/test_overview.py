"""What a run says of itself before it starts."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import tiny
from tests.states import mesh_of
from vit_jax.config import default_config
from vit_jax.data.dataset import open_dataset
from vit_jax.durations import Durations
from vit_jax.errors import DataError
from vit_jax.model_file import Preprocessing
from vit_jax.optimizer.schedules import make_schedule
from vit_jax.training import overview
from vit_jax.training.experiment import make_experiment


@functools.cache
def experiment_of(mesh, **values):
    config = tiny.get_config()
    given = {"optimizer.grad_clip_norm": 0.0, "total_steps": 100, "warmup_steps": 10}
    config.update_from_flattened_dict({**given, "eval_every_steps": 25, **values})
    return make_experiment(config, mesh, open_dataset(config))


def describe(mesh, **values):
    return overview.describe_run(experiment_of(mesh, **values))


@pytest.mark.parametrize(
    "text",
    [
        "model     ViT-Ti/2 for 10 classes at 8x8 px: 18.2k parameters, 0.000318 GMACs per image",
        "computing in float32",
        "data      digits, 1,437 examples an epoch",
        "images    pad(padding=1): The whole image resized, bordered",
        "\n          flip: every other image mirrored",
        "\n          normalised: (pixel / 255 - mean) / deviation, mean 0.5, deviation 0.5\n",
        "batch     32 per update, 32 on each of 1 cpu devices (data=1 x fsdp=1 x tensor=1)",
        "length    100 updates (2.227 epochs), warm-up 10, evaluation every 25 and at the end, "
        "checkpoint at the end",
        "optimizer adamw (b1=0.9, b2=0.999, momentum_dtype=float32)",
        "schedule  cosine (end=0.0): 0 (update 1), 0.001 (update 11)",
        "decay_multipliers 'kernel$' x 1: 14 names, ",
        "blocks/attention/query/kernel",
        "18,218",
    ],
)
def test_a_run_is_described(text):
    assert text in describe(mesh_of(1))


def test_the_augmentation_is_described_in_order():
    text = describe(mesh_of(1), **{"data.augmentation": "autoaugment | random_erasing(0.1)"})
    places = [text.index(f"\n          {name}") for name in ("flip:", "autoaugment:", "random_e")]
    assert places == sorted(places)


def test_the_loss_and_what_is_done_to_gradients_are_described():
    given = {"objective.loss": "sigmoid", "optimizer.grad_clip_norm": 0.0}
    assert "objective classification, sigmoid\n" in describe(mesh_of(1), **given)
    given = {"objective.label_smoothing": 0.1, "optimizer.grad_clip_norm": 1.0, "ema_decay": 0.99}
    assert (
        "objective classification, softmax, label smoothing 0.1, gradients clipped at norm 1.0, "
        "parameters averaged by 0.99\n"
    ) in describe(mesh_of(1), **given)


@pytest.mark.parametrize(
    ("values", "axes"),
    [
        ({}, ""),
        ({"optimizer.gradient_dtype": "model"}, "data and fsdp"),
        ({"optimizer.sharpness.rho": 0.1, "optimizer.sharpness.shares": 4}, "fsdp"),
    ],
)
def test_sums_in_bfloat16_are_told(values, axes):
    mesh = mesh_of(4, data=2, fsdp=2)
    text = describe(mesh, **{"model.dtype": "bfloat16", **values})
    assert ("reduced in bfloat16" in text) == bool(axes)
    assert not axes or f"gradients reduced in bfloat16 along {axes}\n" in text
    assert "reduced in bfloat16" not in describe(mesh, **values)


def test_sharpness_aware_training_is_described():
    assert "sharpness" not in describe(mesh_of(1))
    text = describe(
        mesh_of(1), **{"optimizer.sharpness.rho": 0.6, "optimizer.sharpness.alpha": 0.5}
    )
    assert (
        "sharpness rho 0.6 at the peak rate, 0.6 at the lowest, alpha 0.5, 1 share of the batch: two"
        in text
    )
    sharpness = default_config().optimizer.sharpness
    sharpness.update(rho=0.6, rho_min=0.0, alpha=0.5, shares=4)
    assert overview.describe_sharpness(sharpness).startswith(
        "rho 0.6 at the peak rate, 0.0 at the lowest, alpha 0.5, 4 shares of the batch"
    )


def test_kept_memory_is_told_where_there_is_any():
    assert overview.describe_memory(0) == ""
    assert overview.describe_memory(3 * 2**29).startswith("pieces of up to 1.5 GiB are kept")


def test_a_note_is_shown_if_there_is_one():
    assert "note " not in describe(mesh_of(1))
    assert "note      taken from Table 3" in describe(mesh_of(1), note="taken from Table 3")


def test_the_sharding_is_shown_on_several_devices():
    assert "bytes per device" not in describe(mesh_of(1))
    text = describe(mesh_of(8, fsdp=4), **{"model.width": 128, "model.mlp_width": 512})
    assert "-, -, fsdp" in text
    assert f"{2 * 128 * 512 // 4 * 4:,}" in text
    assert "copied" in text


@pytest.mark.parametrize(
    ("axes", "accumulation", "text"),
    [
        ({}, 1, "64 per update, 8 on each of 8 cpu devices (data=8 x fsdp=1 x tensor=1)"),
        ({"fsdp": 4}, 2, "64 per update in 2 micro-batches, 8 on each of 8 cpu devices (data=2"),
        ({"tensor": 2}, 1, "64 per update, 16 on each of 8 cpu devices"),
    ],
)
def test_the_batch_is_described(axes, accumulation, text):
    config = default_config()
    config.batch_size, config.optimizer.accumulation_steps = 64, accumulation
    assert text in overview.describe_batch(config, mesh_of(8, **axes))


def test_the_cooldown_is_among_the_learning_rates():
    schedule = make_schedule(
        "constant", base=0.01, total_steps=101, warmup_steps=10, cooldown_steps=20
    )
    text = overview.describe_schedule(schedule, Durations(101, 10, 20, 0, 0))
    assert text == (
        "0 (update 1), 0.01 (update 11), 0.01 (update 51), 0.01 (update 82), 0.0005 (update 101)"
    )


@pytest.mark.parametrize(
    ("total", "warmup", "text"),
    [
        (1, 0, "0.01 (update 1)"),
        (1, 10, "0 (update 1)"),
        (2, 0, "0.01 (update 1), 0.005 (update 2)"),
        (
            101,
            10,
            "0 (update 1), 0.01 (update 11), 0.00594 (update 51), 2.98e-06 (update 101)",
        ),
    ],
)
def test_the_learning_rate_is_described(total, warmup, text):
    schedule = make_schedule("cosine", base=0.01, total_steps=total, warmup_steps=warmup)
    durations = Durations(total, warmup, 0, 0, 0)
    assert overview.describe_schedule(schedule, durations) == text


class TestParameterOverview:
    def test_of_shapes(self):
        kernel = jax.ShapeDtypeStruct((12, 8, 4), jnp.bfloat16)
        text = overview.parameter_overview({"blocks": {"kernel": kernel}})
        assert "| blocks/kernel | (12, 8, 4) | bfloat16 | 384  |" in text
        assert "Total: 384 -- 768 bytes" in text
        assert "Mean" not in text

    @pytest.mark.parametrize("array", [np.full, jnp.full])
    def test_of_arrays(self, array):
        text = overview.parameter_overview({"blocks": {"kernel": array((12, 8, 4), 2, np.float32)}})
        assert "| blocks/kernel | (12, 8, 4) | float32 | 384  | 2.0  | 0.0 |" in text

    def test_half_precision_has_no_statistics(self):
        assert "Mean" not in overview.parameter_overview(
            {"kernel": jnp.full((384,), 2, jnp.bfloat16)}
        )


@pytest.fixture
def peak_is_known(monkeypatch):
    """1e9 FLOP/s of each device."""
    monkeypatch.setattr(overview.hardware, "peak_flops", lambda device: 1e9)


def test_of_devices_whose_peak_is_not_known_nothing_is_said():
    assert overview.describe_input(experiment_of(mesh_of(data=8))) == ""


@pytest.mark.usefixtures("peak_is_known")
def test_without_the_data_nothing_is_said_of_the_input():
    experiment = experiment_of(mesh_of(data=8))
    lacking = dataclasses.replace(experiment.dataset, source=None)
    assert overview.describe_input(dataclasses.replace(experiment, dataset=lacking)) == ""


@pytest.mark.usefixtures("peak_is_known")
def test_what_this_host_loads_is_measured():
    assert "cores load about" in overview.describe_input(experiment_of(mesh_of(data=8)))


@pytest.mark.usefixtures("peak_is_known")
@pytest.mark.parametrize(
    ("processes", "told"), [(1, "at 40% of their peak; so many"), (4, "of each of 4 processes; ")]
)
def test_a_host_is_compared_with_its_share_of_what_the_devices_take(monkeypatch, processes, told):
    """Eight devices, at 40 %."""
    compared = []
    monkeypatch.setattr(jax, "process_count", lambda: processes)
    supply = types.SimpleNamespace(compare=lambda needed: compared.append(needed) or "so many")
    monkeypatch.setattr(overview.supply, "look_at", lambda config, dataset: supply)
    experiment = experiment_of(mesh_of(data=8))
    text = overview.describe_input(experiment)
    bound = 8 * 1e9 / experiment.flops_per_image
    assert compared == [pytest.approx(0.4 * bound / processes)]
    assert text.startswith(
        f"the devices take at most {bound:,.0f} images/s, about {0.4 * bound:,.0f} at 40%"
    )
    assert told in text
    assert processes == 1 or f"{0.4 * bound / processes:,.0f} of each" in text
    assert text.endswith("; so many")


@pytest.mark.usefixtures("peak_is_known")
def test_why_the_input_cannot_be_measured_is_told(monkeypatch):
    def fail(config, dataset):
        raise DataError("a torn file")

    monkeypatch.setattr(overview.supply, "look_at", fail)
    assert overview.describe_input(experiment_of(mesh_of(1))) == "not measured: a torn file"


def test_lengths_are_told_in_updates_and_epochs():
    """12,345 updates of 48 images, of 1,000: 592.56 epochs."""
    config = default_config()
    config.batch_size = 48
    text = overview.describe_durations(config, Durations(12_345, 1_001, 2_002, 3_003, 4_004), 1000)
    assert text == (
        "12,345 updates (592.6 epochs), warm-up 1,001, cooldown 2,002, evaluation every 3,003 and at "
        "the end, checkpoint every 4,004 and at the end"
    )
    text = overview.describe_durations(config, Durations(12_345, 0, 0, 0, 0), 1000)
    assert text.endswith("warm-up 0, evaluation at the end, checkpoint at the end")


def test_a_normalisation_is_told_for_each_channel_and_a_head_by_its_classes():
    preprocessing = Preprocessing(mean=(0.485, 0.456, 0.40625), std=(0.229, 1 / 3, 0.25))
    assert overview.describe_normalization(preprocessing).endswith(
        "mean 0.485, 0.456, 0.4062, deviation 0.229, 0.3333, 0.25"
    )
    assert overview.describe_head(7) == "for 7 classes"
    assert overview.describe_head(0) == "without a head"


def test_an_average_without_a_warm_up_is_told():
    given = {"ema_decay": 0.99, "ema_warmup": False}
    assert "parameters averaged by 0.99 from the start\n" in describe(mesh_of(1), **given)


def test_data_that_has_no_name_yet_and_weighed_classes_are_told():
    experiment = experiment_of(mesh_of(1))
    config = experiment.config.copy_and_resolve_references()
    config.data.source = ""
    balance = types.SimpleNamespace(describe=lambda: ["one line", "and another"])
    dataset = dataclasses.replace(experiment.dataset, balance=balance)
    text = overview.describe_run(dataclasses.replace(experiment, config=config, dataset=dataset))
    assert "data      (not named yet), 1,437 examples an epoch\n" in text
    assert "classes   one line\n          and another\n" in text
