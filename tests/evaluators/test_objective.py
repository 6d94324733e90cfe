"""The objective's own loss on evaluation data, against a mean by hand."""

import contextlib
import dataclasses
import types

import jax.numpy as jnp
import numpy as np
import pytest

from tests.evaluators.settings import make_setting, write_folder
from vit_jax.errors import ConfigError, DataError
from vit_jax.evaluators import read_evaluators
from vit_jax.evaluators.objective import column_of


class NumberOfTheBatch:
    """An objective whose loss says by which seed and number its batch was prepared."""

    values = ("seed",)
    drawn = None

    def prepare(self, batch, seed, step):
        rows = len(batch["mask"])
        return {**batch, "seed": jnp.full(rows, seed * 1.0), "number": jnp.full(rows, step * 1.0)}

    def loss(self, params, frozen, batch, key):
        assert key is None, "nothing is dropped in evaluation"
        return batch["number"], {"seed": batch["seed"]}

    def pictures(self, params, frozen, batch):
        number = batch["number"][:, None, None, None]  # Of the batch that is drawn: 0.
        return self.drawn and jnp.float32(batch["image"]) + 0.75 + number


def setting_of(tmp_path, objective, batch_size=2):
    """Of images with other classes than the model's."""
    keys = {"on_error": "skip", "max_skipped": 1.0, "batch_size": batch_size}
    setting, params = make_setting(f"folder:{tmp_path}", "xy", num_classes=2, **keys)
    options = types.SimpleNamespace(in_precision=contextlib.nullcontext)
    network = types.SimpleNamespace(options=options, mesh=setting.network.mesh)
    return dataclasses.replace(setting, network=network, objective=objective), params


def test_each_batch_has_randomness_of_its_own_and_padding_counts_for_nothing(tmp_path):
    write_folder(tmp_path / "val", {"a": [0, 0, 0], "b": [0, 0]})
    setting, params = setting_of(tmp_path, NumberOfTheBatch())
    (evaluator,) = read_evaluators("objective(seed=7)")
    assert evaluator.metrics(setting) == ("loss", "seed", "count")
    measure = evaluator.bind(setting)
    mean = (0 + 0 + 1 + 1 + 2) / 5
    whole = {"loss": mean, "seed": 7, "count": 5, "skipped": 0}
    assert measure(params, {}).numbers == pytest.approx(whole)
    assert measure(params, {}).pictures == {}


def test_what_cannot_be_read_is_skipped_up_to_the_share_that_may_be(tmp_path):
    write_folder(tmp_path / "val", {"a": [0, 0, 0], "b": [0, 0]})
    setting, params = setting_of(tmp_path, NumberOfTheBatch())
    (evaluator,) = read_evaluators("objective(seed=7)")
    measure = evaluator.bind(setting)
    images = sorted((tmp_path / "val").rglob("*.png"))
    for path in images[:4]:
        path.write_bytes(b"torn")
    one = measure(params, {}).numbers
    assert (one["seed"], one["count"], one["skipped"]) == (7, 1, 4)
    images[4].write_bytes(b"torn")
    nothing = {"loss": np.nan, "seed": np.nan, "count": 0, "skipped": 5}
    assert measure(params, {}).numbers == pytest.approx(nothing, nan_ok=True)
    setting.data.config.max_skipped = 0.9
    with pytest.raises(DataError, match="5 of 5 evaluation examples cannot be read, more than"):
        measure(params, {})


def test_without_a_run_there_is_no_objective_to_measure(tmp_path):
    write_folder(tmp_path / "val", {"a": [0], "b": [0]})
    setting, _ = setting_of(tmp_path, None)
    (evaluator,) = read_evaluators("objective")
    with pytest.raises(ConfigError, match=r"'objective' measures .* give a workdir, not weights"):
        evaluator.bind(setting)


def test_the_first_eight_examples_of_the_first_batch_are_drawn(tmp_path):
    write_folder(tmp_path / "val", {"a": range(0, 90, 10), "b": range(90, 200, 10)})
    objective = NumberOfTheBatch()
    objective.drawn = True
    setting, params = setting_of(tmp_path, objective, batch_size=10)
    (evaluator,) = read_evaluators("objective")
    picture = evaluator.bind(setting)(params, {}).pictures["pictures"]
    assert picture.shape == (8 * 96, 96, 3)
    first = next(setting.data.open(own_classes=True).batches())["image"]
    np.testing.assert_array_equal(picture[::96, 0, 0], first[:8, 0, 0, 0] + 1)  # Rounded.


@pytest.mark.parametrize(
    ("shape", "expected", "channels"),
    [
        ((2, 40, 10, 1), (2 * 120, 30, 3), (0, 0, 0)),
        ((3, 96, 20, 3), (3 * 96, 20, 3), (0, 1, 2)),
        ((2, 97, 20, 4), (2 * 97, 20, 3), (0, 1, 2)),
        ((2, 50, 20, 2), (2 * 100, 40, 3), (0, 0, 0)),
    ],
)
def test_small_pictures_are_enlarged_by_whole_numbers(shape, expected, channels):
    pictures = np.random.default_rng(0).integers(0, 255, shape)
    found = column_of(pictures - 0.25)
    assert (found.shape, found.dtype) == (expected, np.uint8)
    factor = expected[1] // shape[2]
    np.testing.assert_array_equal(
        found[::factor, ::factor], np.concatenate(pictures)[..., list(channels)]
    )


def test_pictures_have_the_randomness_of_the_seed_too(tmp_path):
    class Seeded(NumberOfTheBatch):
        def pictures(self, params, frozen, batch):
            return jnp.zeros_like(batch["image"]) + batch["seed"][:, None, None, None]

    write_folder(tmp_path / "val", {"a": [0], "b": [9]})
    setting, params = setting_of(tmp_path, Seeded())
    (evaluator,) = read_evaluators("objective(seed=7)")
    assert (evaluator.bind(setting)(params, {}).pictures["pictures"] == 7).all()
