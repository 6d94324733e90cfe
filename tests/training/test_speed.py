"""What the devices' own compilers say of ViT-B/16, L/16 and H/14: memory, kernels, estimates.

These hold what docs/performance.md states, by the fixed constants of `devices/estimate.py`. Each is a
compilation of half a minute to two minutes, and needs its compiler.
"""

import functools
import importlib.util

import pytest

from tests.test_plan import plan_for_tpu
from vit_jax.config_file import load_config
from vit_jax.devices import gpu_compiler
from vit_jax.devices.topology import open_topology
from vit_jax.training.planning import make_plan

pytestmark = pytest.mark.slow
OVERRIDES = ("model.dtype=bfloat16", "data.num_train_examples=1000000")


@functools.cache
def on_h100(preset, batch_size, *overrides, dropout=0.0):
    """The plan of a preset on one H100."""
    if not gpu_compiler.is_installed():
        pytest.skip(f"needs the compiler for NVIDIA: {gpu_compiler.INSTALL_PLUGIN}")
    given = [f"batch_size={batch_size}", f"model.dropout_rate={dropout}", *OVERRIDES, *overrides]
    config = load_config(f"configs/vit.py:{preset}", given)
    return make_plan(config, open_topology("h100:1"))


@functools.cache
def on_v5e(dropout, *overrides):
    """The plan of ViT-B/16 with 64 images on each of 16 chips, as JSON."""
    if not importlib.util.find_spec("libtpu"):
        pytest.skip("needs libtpu")
    given = ["batch_size=1024", f"model.dropout_rate={dropout}", *OVERRIDES, *overrides]
    flags = [f"--config.{override}" for override in given]
    return plan_for_tpu("--config=configs/vit.py:b16", "--topology=v5e:4x4", *flags)[0]


def test_b16_on_an_h100():
    looped = on_h100("b16", 128, "model.scan_unroll=1")
    assert looped.memory.temporaries <= 6.5e9
    unrolled = on_h100("b16", 128)
    assert unrolled.execution["scan_unroll"].value == 12
    assert unrolled.kernels <= 900
    assert unrolled.estimate <= 42e-3


def test_b16_on_an_h100_in_its_best_batch():
    """And with dropout within a tenth of that."""
    best = on_h100("b16", 256)
    assert best.images_per_second >= 3430
    assert on_h100("b16", 256, dropout=0.1).images_per_second >= 0.9 * best.images_per_second


@pytest.mark.parametrize(("preset", "batch_size", "least"), [("l16", 64, 957), ("h14", 32, 334)])
def test_larger_models_on_an_h100(preset, batch_size, least):
    assert on_h100(preset, batch_size).images_per_second >= least


def test_b16_on_v5e():
    """With two micro-batches; recomputed products are those of `dots`, 1 % of the model's."""
    plan = on_v5e(0.1, "optimizer.accumulation_steps=2")
    assert plan["memory"]["temporaries"] <= 3.2e9
    assert plan["estimate_seconds"] <= 120e-3
    assert plan["exchanges"].keys() == {"all-reduce"}


def test_dropout_s_share_on_v5e():
    assert on_v5e(0.1)["estimate_seconds"] <= 1.08 * on_v5e(0.0)["estimate_seconds"]
