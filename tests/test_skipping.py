"""Training on files some of which are damaged: named, masked and counted, or an error."""

import numpy as np
import pytest

from tests import tiny
from tests.data.pictures import encode, photograph
from tests.runs import read_metrics
from tests.shared_programs import shared_programs  # noqa: F401
from vit_jax import train
from vit_jax.errors import DataError

pytestmark = pytest.mark.usefixtures("on_one_device", "shared_programs")

NUM_TRAIN, NUM_EVAL = 20, 30


@pytest.fixture
def config(tmp_path):
    """The tiny run on photographs: one of 20 for training and two of 30 for evaluation are cut off."""
    damaged = {("train", 7), ("val", 3), ("val", 29)}
    for split, count in (("train", NUM_TRAIN), ("val", NUM_EVAL)):
        for index in range(count):
            path = tmp_path / "data" / split / ("cat" if index % 2 else "dog") / f"{index}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            content = encode(photograph(48 + index, 64), "JPEG")
            path.write_bytes(content[:-60] if (split, index) in damaged else content)
    config = tiny.get_config()
    config.data.source = f"folder:{tmp_path}/data"
    config.data.train_crop = "inception"
    config.model.channels = 3
    config.batch_size = 8
    config.total_steps = 10  # Four epochs.
    config.warmup_steps = 1
    config.optimizer.learning_rate = 0.0
    return config


def test_damaged_files_are_counted_and_named_once(config, tmp_path, caplog):
    config.data.on_error = "skip"
    train.run(config, tmp_path / "run")
    records = read_metrics(tmp_path / "run")
    skipped = [record["data/skipped"] for record in records if "data/skipped" in record]
    assert skipped[-1] == 4, "once an epoch"
    assert skipped == sorted(skipped)
    assert (records[-1]["eval/count"], records[-1]["eval/skipped"]) == (28, 2)
    named = [text for r in caplog.records if "Left out: " in (text := r.getMessage())]
    assert len(named) == 3
    for name in ("train/cat/7.jpg", "val/cat/3.jpg", "val/cat/29.jpg"):
        assert sum(f"{name}: cannot decode" in text for text in named) == 1
    # Two classes are as likely, whatever the image: what is left out does not make a loss smaller.
    losses = [records[-1]["eval/loss"], *(record["train/loss"] for record in records)]
    np.testing.assert_allclose(losses, np.log(2), rtol=1e-5)


def test_the_first_one_ends_the_run_by_default(config, tmp_path):
    with pytest.raises(
        DataError, match=r"train/cat/7\.jpg \(index \d+, position \d+, batch [012]\)"
    ):
        train.run(config, tmp_path / "run")


@pytest.mark.parametrize(
    ("share", "what"), [(0.04, "examples could"), (0.06, "evaluation examples")]
)
def test_too_many_end_the_run(config, tmp_path, share, what):
    config.data.on_error, config.data.max_skipped = "skip", share
    with pytest.raises(DataError, match=f"{what}.*data.max_skipped={share}"):
        train.run(config, tmp_path / "run")
