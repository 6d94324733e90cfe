"""Images with any number of classes, from a manifest to the metrics."""

import json

import pytest

from tests import tiny
from tests.data.pictures import encode, photograph
from tests.runs import read_metrics
from tests.shared_programs import shared_programs  # noqa: F401
from vit_jax import evaluate, train
from vit_jax.errors import ConfigError
from vit_jax.model_file import read_model_file

pytestmark = pytest.mark.usefixtures("on_one_device", "shared_programs")


@pytest.fixture
def config(tmp_path):
    """The tiny run on 24 photographs with one or two of the classes `a`, `b` and `c`; one damaged."""
    lines = []
    for index in range(24):
        content = encode(photograph(40 + index, 64), "JPEG")
        (tmp_path / f"{index}.jpg").write_bytes(content if index != 5 else content[:50])
        labels = ["abc"[index % 3], *("c" if index % 2 else "")]
        split = "test" if index < 8 else "train"
        lines.append(
            json.dumps({"path": f"{index}.jpg", "labels": sorted(set(labels)), "split": split})
        )
    (tmp_path / "images.jsonl").write_text("\n".join(lines))
    config = tiny.get_config()
    config.data.source = f"manifest:{tmp_path}/images.jsonl"
    config.data.train_crop = "inception"
    config.data.on_error, config.data.max_skipped = "skip", 0.2
    config.model.channels = 3
    config.objective.loss = "sigmoid"
    config.objective.mixing.mixup_alpha = 0.5
    config.batch_size = 8
    config.total_steps = 4
    config.warmup_steps = 1
    return config


def test_a_run_and_its_evaluation(config, tmp_path):
    train.run(config, tmp_path / "run")
    records = read_metrics(tmp_path / "run")
    assert records[0]["train/loss"] == pytest.approx(3 * 0.693, rel=0.2), "three sigmoids at zero"
    assert (records[-1]["eval/count"], records[-1]["eval/skipped"]) == (7, 1)
    assert read_model_file(tmp_path / "run").loss == "sigmoid", "as predict reads its logits"
    output = tmp_path / "results.json"
    assert evaluate.main([str(tmp_path / "run"), f"--json={output}"]) == 1
    (result,) = json.loads(output.read_text())
    assert result["count"] == 7
    assert result["accuracy"] == pytest.approx(records[-1]["eval/accuracy"])
    assert result["loss"] == pytest.approx(records[-1]["eval/loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("objective.loss", "softmax", "set --config.objective.loss=sigmoid"),
        ("model.num_classes", 5, "targets for the 3 of"),
    ],
)
def test_what_needs_one_class_is_refused(config, tmp_path, key, value, message):
    config.update_from_flattened_dict({key: value})
    with pytest.raises(ConfigError, match=message):
        train.run(config, tmp_path / "run")
