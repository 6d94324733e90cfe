"""The objective's own loss on evaluation data, against a mean by hand."""

import contextlib
import dataclasses
import types

import jax.numpy as jnp
import pytest

from tests.evaluators.settings import make_setting, write_folder
from vit_jax.evaluators import read_evaluators


class NumberOfTheBatch:
    """An objective whose loss says by which seed and number its batch was prepared."""

    values = ("seed",)

    def prepare(self, batch, seed, step):
        rows = len(batch["mask"])
        return {**batch, "seed": jnp.full(rows, seed * 1.0), "number": jnp.full(rows, step * 1.0)}

    def loss(self, params, frozen, batch, key):
        assert key is None, "nothing is dropped in evaluation"
        return batch["number"], {"seed": batch["seed"]}

    def pictures(self, params, frozen, batch):
        return None


def test_each_batch_has_randomness_of_its_own_and_padding_counts_for_nothing(tmp_path):
    write_folder(tmp_path / "val", {"a": [0, 0, 0], "b": [0, 0]})
    setting, params = make_setting(f"folder:{tmp_path}", "ab", num_classes=2, batch_size=2)
    options = types.SimpleNamespace(in_precision=contextlib.nullcontext)
    network = types.SimpleNamespace(options=options, mesh=setting.network.mesh)
    setting = dataclasses.replace(setting, network=network, objective=NumberOfTheBatch())
    (evaluator,) = read_evaluators("objective(seed=7)")
    numbers = evaluator.bind(setting)(params, {}).numbers
    mean = (0 + 0 + 1 + 1 + 2) / 5
    assert numbers == pytest.approx({"loss": mean, "seed": 7, "count": 5})
