"""Resuming with data at another path: what counts is the data, not how its path is spelled."""

import json
import logging

import numpy as np
import pytest
from etils import epath
from PIL import Image

from tests import tiny
from vit_jax import train
from vit_jax.config import default_config
from vit_jax.data.sources.arrays import Arrays
from vit_jax.data.sources.examples import digest_of
from vit_jax.data.sources.views import Labelled, Subset
from vit_jax.errors import CheckpointError
from vit_jax.training import workdir


def source_of(labels=(0, 1, 1), split="train", names=("a", "b")):
    return Arrays(split, np.zeros((len(labels), 2, 2, 1), np.uint8), np.array(labels), names)


@pytest.mark.parametrize(
    "other",
    [
        source_of(split="other"),
        source_of((0, 1, 0)),
        source_of((0, 1)),
        source_of(names=("a", "c")),
        source_of(names=("a", "b", "c")),
        Subset(source_of(), np.array([0, 2, 1])),
    ],
    ids=["names", "labels", "fewer", "class names", "more classes", "order"],
)
def test_a_digest_tells_lists_apart(other):
    assert digest_of(other) != digest_of(source_of())


def test_a_digest_does_not_depend_on_how_a_list_came_about():
    labels = np.array([0, 1, 1])
    assert digest_of(Subset(source_of((0, 1, 1, 0)), np.arange(3))) == digest_of(source_of())
    assert digest_of(Labelled(source_of((1, 1, 1)), labels, ("a", "b"))) == digest_of(source_of())
    assert digest_of(source_of(np.array([0, 1, 1], np.int64))) == digest_of(source_of())


@pytest.fixture
def resume(tmp_path):
    """Records a run of the data "one", then resumes it with other data and keys."""

    def record(digest, resuming, **values):
        config = default_config()
        config.update_from_flattened_dict(values)
        workdir.record_config(
            epath.Path(tmp_path), config, workdir.Inputs(64, digest), "", resuming=resuming
        )

    record("one", False, **{"data.source": "folder:A", "data.data_dir": "B", "data.exclude": "C"})
    return lambda digest, **values: record(digest, True, **values)


MOVED = {
    "data.source": "folder:d/../d/A",
    "data.data_dir": "/mnt/B",
    "data.exclude": "/mnt/C",
}


def test_the_same_data_elsewhere_is_resumed_and_the_move_told(resume, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "vit_jax"):
        resume("one", **MOVED)
    assert sorted(caplog.messages) == [
        "config.data.data_dir was 'B' before this resume and is '/mnt/B' now.",
        "config.data.exclude was 'C' before this resume and is '/mnt/C' now.",
        "config.data.source was 'folder:A' before this resume and is 'folder:d/../d/A' now.",
    ]
    assert json.loads((tmp_path / "config.json").read_text())["data_digest"] == "one"


def test_other_data_elsewhere_is_refused_with_the_way_that_exists(resume, tmp_path):
    with pytest.raises(CheckpointError, match=r"source='folder:A', not 'folder:d/../d/A'") as error:
        resume("two", **MOVED)
    assert "other names or labels" in str(error.value)
    assert "--config.data.allow_changes=True" in str(error.value)
    assert f"new --workdir with --config.init={tmp_path}" in str(error.value)
    resume("two", **MOVED, **{"data.allow_changes": True})


@pytest.mark.parametrize("digest", [None, "one"])
def test_a_run_recorded_without_a_digest_goes_by_the_path(resume, tmp_path, digest):
    path = tmp_path / "config.json"
    content = json.loads(path.read_text())
    del content["data_digest"]
    path.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"source='folder:A'.*allow_changes"):
        resume("one", **MOVED)
    resume("one", **MOVED, **{"data.allow_changes": True})
    resume("one", **MOVED)


def test_other_data_under_the_same_path_is_told(resume, caplog):
    unmoved = {"data.source": "folder:A", "data.data_dir": "B", "data.exclude": "C"}
    resume("two", **unmoved)
    (message,) = caplog.messages
    assert "names or labels of the training examples" in message
    caplog.clear()
    resume("two", **unmoved)
    assert not caplog.records


def test_refusals_name_the_way_that_exists(resume, tmp_path):
    unmoved = {"data.source": "folder:A", "data.data_dir": "B", "data.exclude": "C"}
    with pytest.raises(CheckpointError) as error:
        resume("one", batch_size=64, **unmoved)
    assert "config.batch_size=128, not 64" in str(error.value)
    assert "config.optimizer.accumulation_steps" in str(error.value)
    with pytest.raises(CheckpointError) as error:
        resume("one", seed=1, **unmoved)
    assert "accumulation_steps" not in str(error.value)
    assert "allow_changes" not in str(error.value)
    assert f"new --workdir with --config.init={tmp_path}" in str(error.value)


def write_pictures(root):
    for split, count in (("Training", 8), ("valid", 2), ("test", 2)):
        for label, value in (("dark", 10), ("light", 200)):
            (root / split / label).mkdir(parents=True)
            for index in range(count):
                image = Image.fromarray(np.full((8, 8), value + index, np.uint8))
                image.save(root / split / label / f"{index}.png")


def test_a_folder_that_was_renamed(tmp_path, caplog):
    """raster-vision 756; and the first lines say what is taken for what, and what is not read."""
    write_pictures(tmp_path / "A")
    config = tiny.get_config()
    config.model.depth, config.batch_size, config.total_steps = 1, 8, 1
    config.data.source = f"folder:{tmp_path}/A"
    caplog.set_level(logging.INFO, "vit_jax")
    train.run(config, tmp_path / "A" / "runs" / "1")
    assert f"{config.data.source}: never read in this run: test" in caplog.messages
    text = f"{config.data.source}: split train (Training): 16 images of 2 classes: dark 8, light 8"
    assert text in caplog.messages
    (tmp_path / "A").rename(tmp_path / "B")
    config.data.source = f"folder:{tmp_path}/x/../B"
    (tmp_path / "x").mkdir()
    train.run(config, tmp_path / "B" / "runs" / "1")
    assert "Resuming after step 1." in caplog.messages
    (tmp_path / "B" / "Training" / "dark" / "0.png").rename(tmp_path / "B/Training/light/x.png")
    config.data.source = f"folder:{tmp_path}/B"
    with pytest.raises(CheckpointError, match="allow_changes=True"):
        train.run(config, tmp_path / "B" / "runs" / "1")
