"""What is chosen for which devices, and that a choice changes nothing but rounding."""

import dataclasses
import re

import numpy as np
import pytest

from tests import tiny
from tests.stages import mesh_of
from vit_jax.data.dataset import open_dataset
from vit_jax.errors import ConfigError
from vit_jax.models import model_options
from vit_jax.training import execution
from vit_jax.training.execution import Devices, choose_execution, devices_of
from vit_jax.training.experiment import make_experiment

H100 = Devices("gpu", False, (9, 0), 80 * 2**30, 128)
V5E = Devices("tpu", False, (0,), 16 * 2**30, 64)
HERE = Devices("cpu", False, (0,), None, 16)


def chosen(devices, name="ViT-B/16", dtype="bfloat16", **options):
    options = model_options(name, dtype=dtype, **options)
    return execution.as_json(choose_execution(options, devices))


@pytest.mark.parametrize(
    ("devices", "attention", "remat", "unroll"),
    [
        (H100, "cudnn", "dots", 12),
        (dataclasses.replace(H100, capability=(7, 0)), "xla", "dots", 12),
        (dataclasses.replace(H100, stand_in=True), "xla", "dots", 12),
        (dataclasses.replace(H100, rows=512), "cudnn", "dots", 12),  # 38 GB of 80.
        (dataclasses.replace(H100, rows=640), "cudnn", "dots", 1),  # 47: above a half.
        (dataclasses.replace(H100, capability=(8, 0)), "cudnn", "dots", 12),
        (dataclasses.replace(H100, memory=None), "cudnn", "dots", 1),
        (dataclasses.replace(H100, splits_heads=True), "xla", "dots", 12),
        (V5E, "xla", "dots", 1),
        (HERE, "joint", "none", 12),
        (dataclasses.replace(HERE, splits_heads=True), "xla", "none", 12),
    ],
)
def test_the_choice_follows_the_devices(devices, attention, remat, unroll):
    expected = {"attention": attention, "remat": remat, "scan_unroll": unroll}
    assert chosen(devices) == expected | {"matmul_precision": "default"}


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "float32"},
        {"positions": "relative"},
        {"relative_position_bias": "every_layer"},
        {"attention_dropout_rate": 0.1},
        {"num_heads": 4},
        {"width": 60, "num_heads": 3},
    ],
    ids=str,
)
def test_what_a_kernel_cannot_do_keeps_the_plain_form(options):
    assert chosen(H100, **options)["attention"] == "xla"


def test_dropout_elsewhere_and_other_machines_do_not_matter():
    assert chosen(H100, dropout_rate=0.1)["attention"] == "cudnn"
    planned = dataclasses.replace(H100, stand_in=True)
    assert chosen(planned, attention="cudnn")["attention"] == "cudnn", "the real ones have it"
    config = tiny.get_config()
    for axes, splits in (({"data": 2, "fsdp": 4}, False), ({"data": 4, "tensor": 2}, True)):
        assert devices_of(config, mesh_of(**axes)).splits_heads == splits


@pytest.mark.parametrize(
    ("devices", "remat", "unroll"),
    [
        *((HERE, remat, 1) for remat in ("full", "dots", "query+out")),
        *((H100, remat, 1) for remat in ("full", "query+out")),
        *((H100, remat, 12) for remat in ("none", "dots")),
        (HERE, "none", 12),
    ],
)
def test_more_is_recomputed_than_by_default_in_a_loop_alone(devices, remat, unroll):
    assert chosen(devices, remat=remat)["scan_unroll"] == unroll
    assert chosen(devices, remat=remat, scan_unroll=4)["scan_unroll"] == 4


def test_other_families_have_what_applies_to_them():
    precision = {"matmul_precision": "default"}
    assert chosen(HERE, "Mixer-B/16") == {"remat": "none", "scan_unroll": 12} | precision
    assert chosen(H100, "BiT-R50x1") == {"remat": "dots"} | precision


@pytest.mark.parametrize(("dtype", "precision"), [("float32", "highest"), ("bfloat16", "default")])
def test_products_are_as_precise_as_the_models_type(dtype, precision):
    assert chosen(H100, dtype=dtype)["matmul_precision"] == precision


def test_what_is_asked_for_stays():
    options = {"attention": "xla", "remat": "full", "scan_unroll": 3, "matmul_precision": "high"}
    assert chosen(H100, **options) == options
    described = execution.describe(choose_execution(model_options("ViT-B/16", **options), H100))
    assert described == "attention xla, remat full, scan_unroll 3, matmul_precision high"


OLDER = dataclasses.replace(H100, capability=(7, 5))
CROWDED = dataclasses.replace(H100, rows=640)
SPLIT = dataclasses.replace(H100, splits_heads=True)


@pytest.mark.parametrize(
    ("choice", "devices", "options", "reason"),
    [
        ("attention", HERE, {}, "on a CPU"),
        ("attention", H100, {}, "fused, on an NVIDIA GPU"),
        ("attention", V5E, {}, "no fused kernel for these devices"),
        ("attention", OLDER, {}, "older than its fused kernels"),
        ("attention", SPLIT, {}, "heads are split"),
        ("attention", H100, {"positions": "relative"}, "relative positions"),
        ("attention", H100, {"relative_position_bias": "every_layer"}, "relative position bias"),
        ("attention", H100, {"attention_dropout_rate": 0.1}, "dropped out"),
        ("remat", HERE, {}, "a CPU has the memory"),
        ("remat", H100, {}, "faster and smaller"),
        ("remat", V5E, {}, "faster and smaller"),
        ("scan_unroll", HERE, {}, "^no copies"),
        ("scan_unroll", H100, {}, "fewer kernels, and no copies"),
        ("scan_unroll", V5E, {}, "a TPU's loop is as fast"),
        ("scan_unroll", CROWDED, {}, "memory may not hold"),
        ("scan_unroll", H100, {"remat": "full"}, "what remat full recomputes"),
        ("matmul_precision", H100, {}, "of bfloat16"),
    ],
)
def test_each_choice_says_why(choice, devices, options, reason):
    options = model_options("ViT-B/16", dtype="bfloat16", **options)
    found = choose_execution(options, devices)
    assert re.search(reason, found[choice].reason)
    described = f"{choice} {found[choice].value} ({found[choice].reason})"
    assert described in execution.describe(found)


def test_a_kernel_that_cannot_be_had_is_refused():
    refusal = (
        r"^config\.model\.attention='cudnn': there is no fused kernel .* to 'auto' or 'xla'\.$"
    )
    with pytest.raises(ConfigError, match=refusal):
        chosen(HERE, attention="cudnn")
    with pytest.raises(ConfigError, match="does not compute in float32"):
        chosen(H100, dtype="float32", attention="cudnn")


def test_a_run_records_the_choice_and_its_model_file_leaves_it_open():
    config = tiny.get_config()
    config.batch_size, config.optimizer.accumulation_steps = 32, 2
    mesh = mesh_of(data=8)
    assert devices_of(config, mesh) == Devices("cpu", False, (0,), None, 2)
    experiment = make_experiment(config, mesh, open_dataset(config))
    expected = {"attention": "joint", "remat": "none", "scan_unroll": 2}
    expected |= {"matmul_precision": "highest"}
    assert experiment.inputs.execution == expected
    assert experiment.network.options.scan_unroll == 2
    options = experiment.model_file.options
    assert {name: options[name] for name in expected} == dict.fromkeys(expected, "auto")


def test_the_kept_bytes_are_those_that_were_measured():
    """5.6 of the 5.9 GB of temporaries that XLA's GPU compiler states for 128 images."""
    options = model_options("ViT-B/16", dtype="bfloat16")
    np.testing.assert_allclose(128 * execution.kept_bytes(options), 5.58e9, rtol=0.01)
