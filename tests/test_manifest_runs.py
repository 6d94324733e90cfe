"""Runs on manifests, from the file to the metrics."""

import json
import pathlib

import numpy as np
import pytest
from PIL import Image

from tests import tiny
from tests.runs import read_metrics
from tests.shared_programs import shared_programs  # noqa: F401
from vit_jax import train
from vit_jax.errors import CheckpointError
from vit_jax.evaluate import main as evaluate

pytestmark = pytest.mark.usefixtures("on_one_device", "shared_programs")


def write_manifest(path, names):
    """80 grey images, each labelled by which of its two halves are bright."""
    rows = []
    for index in range(80):
        image = np.full((8, 8), 40, np.uint8)
        image[:, :4] += 150 * (index % 2)
        image[:, 4:] += 150 * (index // 2 % 2)
        Image.fromarray(image).save(path.parent / f"{index}.png")
        bright = [names[side] for side in range(2) if index >> side & 1]
        split = "train" if index < 60 else "val"
        rows.append({"path": f"{index}.png", "labels": bright, "split": split})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Of a run on images with several labels, all of which but one are trained on."""
    folder = tmp_path_factory.mktemp("data")
    write_manifest(folder / "list.jsonl", ("left", "right"))
    (folder / "exclude.txt").write_text("1.png\n")
    config = tiny.get_config()
    config.data.source, config.objective.loss = f"manifest:{folder / 'list.jsonl'}", "sigmoid"
    config.data.exclude, config.data.max_eval_examples = str(folder / "exclude.txt"), 15
    config.data.flip, config.data.train_crop = False, "pad(0)"
    config.optimizer.learning_rate = 1e-2
    return config


@pytest.fixture(scope="module")
def run(config, tmp_path_factory):
    """Its workdir."""
    workdir = tmp_path_factory.mktemp("run")
    train.run(config, workdir)
    return workdir


def test_several_labels_an_image_are_learned(run):
    losses = [record["train/loss"] for record in read_metrics(run) if "train/loss" in record]
    assert losses[-1] < losses[0]
    assert read_metrics(run)[-1]["eval/count"] == 15
    assert json.loads((run / "model.json").read_text())["class_names"] == ["left", "right"]


def test_several_labels_an_image_are_evaluated(run, tmp_path):
    path = tmp_path / "list.jsonl"
    write_manifest(path, ("right", "left"))  # Classes are matched by name.
    (tmp_path / "60.png").write_bytes(b"")
    flags = [f"--source=manifest:{path}", "--loss=sigmoid", f"--json={tmp_path / 'out.json'}"]
    assert evaluate([str(run), *flags]) == 1
    (measured,) = json.loads((tmp_path / "out.json").read_text())
    assert (measured["count"], measured["unreadable"]) == (19, 1)


def test_other_classes_are_refused_with_the_difference(run, config):
    path = pathlib.Path(config.data.source.removeprefix("manifest:"))
    text = path.read_text()
    path.write_text(text.replace("right", "above"))
    with pytest.raises(CheckpointError, match=r"\(missing: right; new: above\): restore its data"):
        train.run(config, run)
    path.write_text(text)
    described = (run / "model.json").read_text()
    content = json.loads(described)
    (run / "model.json").write_text(json.dumps({**content, "class_names": ["right", "left"]}))
    with pytest.raises(CheckpointError, match="class 0 was 'right' and is 'left'"):
        train.run(config, run)
    (run / "model.json").write_text(described)
