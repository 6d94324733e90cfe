"""Fine-tuning from a run of our own: other classes at a higher resolution, then the same again."""

import re

import jax
import numpy as np
import pytest

from tests import tiny
from tests.runs import read_metrics
from tests.shared_programs import shared_programs  # noqa: F401
from vit_jax import create_model, load_model, save_model, train
from vit_jax.checkpoint import restore_params
from vit_jax.errors import CheckpointError, ConfigError, WeightsError
from vit_jax.training import resuming
from vit_jax.training.architecture import with_architecture

pytestmark = pytest.mark.usefixtures("on_one_device", "shared_programs")

MODEL = {
    **{"image_size": 8, "channels": 1, "width": 32, "depth": 1, "num_heads": 2, "mlp_width": 64},
    "num_classes": 3,
}


def tiny_config(classes, image_size, init=""):
    config = tiny.get_config()
    config.data.classes = classes
    config.data.eval_split = "test[:64]"
    config.model.depth = 1
    config.model.image_size = image_size
    config.init = str(init)
    config.total_steps = 4
    config.warmup_steps = 0
    return config


def statuses(text):
    """What became of each parameter, from the last table in the log."""
    table = text[text.rindex("Weights from") :]
    rows = re.findall(r"^ +(loaded|resized|fresh|skipped) +(\S+)", table, re.MULTILINE)
    return {name: status for status, name in rows}


def test_other_classes_then_a_higher_resolution_then_the_same_again(tmp_path, caplog):
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    train.run(tiny_config(("0", "1", "2"), 8), str(first))

    config = tiny_config(("5", "6", "7"), 12, init=first)
    config.optimizer.name, config.optimizer.learning_rate = "sgd", 0.03
    config.optimizer.weight_decay = 0.0
    with caplog.at_level("INFO", logger="vit_jax"):
        train.run(config, str(second))
    found = statuses(caplog.text)
    assert found.pop("position_embedding") == "resized"
    assert [name for name, status in found.items() if status == "fresh"] == [
        *("head/bias", "head/kernel")
    ]
    # The fresh head starts at zero: every class is as likely.
    assert read_metrics(second)[0]["train/loss"] == pytest.approx(np.log(3), abs=1e-5)
    model = load_model(second)
    assert model.class_names == ("5", "6", "7")
    assert model.options.image_size == (12, 12)

    caplog.clear()
    config = tiny_config(("5", "6", "7"), 12, init=second)
    config.model.update(dict.fromkeys(config.model, None) | {"num_classes": 0})  # As in `second`.
    config.optimizer.learning_rate = 0.0
    with caplog.at_level("INFO", logger="vit_jax"):
        train.run(config, str(third))
    assert set(statuses(caplog.text).values()) == {"loaded"}
    for before, after in zip(
        *(jax.tree.leaves(restore_params(run)) for run in (second, third)), strict=True
    ):
        np.testing.assert_array_equal(before, after)
    assert load_model(third).options == model.options

    config.init = "gone"  # To go on, its description is not needed.
    again = with_architecture(resuming.as_recorded(config, third))
    recorded = resuming.read_record(third / "config.json")["config"]
    assert resuming.as_json(again)["model"] == recorded["model"]


def test_weights_are_not_written_over(tmp_path):
    files = {"config.json": "{}", "model.safetensors": "theirs"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    for init in (tmp_path, ""):
        with pytest.raises(CheckpointError, match="name another"):
            train.run(tiny_config(("0", "1"), 8, init=init), str(tmp_path))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == files


def test_missing_weights_are_named_with_their_flag(tmp_path):
    config = tiny_config(("0", "1"), 8, init=tmp_path / "ViT-B_16.npz")
    with pytest.raises(WeightsError, match=r"ViT-B_16\.npz does not exist: .*--config\.init=PATH"):
        train.run(config, "", dry_run=True)


def test_a_dry_run_says_what_becomes_of_the_weights(tmp_path, caplog):
    train.run(tiny_config(("0", "1", "2"), 8), str(tmp_path))
    caplog.clear()
    with caplog.at_level("INFO", logger="vit_jax"):
        train.run(tiny_config(("5", "6", "7"), 12, init=tmp_path), "", dry_run=True)
    assert statuses(caplog.text)["head/kernel"] == "fresh"


@pytest.mark.parametrize("cached", [False, True])
def test_a_dry_run_asks_nothing_of_the_network(hub_server, tmp_path, caplog, cached):
    config = tiny_config(("0", "1"), 8, init="hf:somebody/vit")
    model = create_model("ViT-Ti/2", **MODEL)
    save_model(model, tmp_path / "ours", format="vit_jax")
    files = {path.name: path.read_bytes() for path in (tmp_path / "ours").iterdir()}
    hub_server.add("somebody/vit", files)
    if cached:
        load_model("hf:somebody/vit")
    hub_server.requests.clear()
    with caplog.at_level("INFO", logger="vit_jax"):
        train.run(config, "", dry_run=True)
    assert hub_server.requests == []
    would = "The run would fetch config.init=hf:somebody/vit. hf:somebody/vit: nothing of it"
    assert (would in caplog.text) != cached
    assert ("Weights from hf:somebody/vit: " in caplog.text) == cached

    config.model.name = None
    if cached:
        train.run(config, "", dry_run=True)
    else:
        with pytest.raises(ConfigError, match=r"config.model.name is not set.*nothing of it"):
            train.run(config, "", dry_run=True)
