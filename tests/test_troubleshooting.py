"""What docs/troubleshooting.md tells people to do is accepted, and what it quotes is what is said."""

import re

import pytest

from tests.runs import ROOT
from vit_jax import evaluate, plan, predict
from vit_jax.benchmark import __main__ as benchmark
from vit_jax.config import validate
from vit_jax.config_file import load_config
from vit_jax.errors import ConfigError

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
CODE = re.findall(r"`([^`]+)`", PAGE)
SETTINGS = [
    setting for code in CODE for setting in re.findall(r"--config\.([\w.]+=(?:'[^']+'|\S+))", code)
]
# Quoted messages whose tests are elsewhere, by a part that the package's text has.
MESSAGES = {
    "is not divisible by": "devices/sharding.py",
    "need at least": "data/sources/folder.py",
    "holds a run with": "training",
    "is in use by another run": "training/claim.py",
    "NOTHING WILL BE LEARNED": "training/experiment.py",
    "Cannot read": "data",
    "/dev/shm is too small": "data/loading/pipeline.py",
    "could not be saved": "checkpoint_errors.py",
    "The loss of step": "training/step_log.py",
}


def test_twenty_rows_and_more():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "| symptom" not in line]
    assert len(rows) >= 20
    assert all(line.count(" | ") == 2 for line in rows)


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_are_accepted(setting):
    config = load_config("configs/digits.py", [setting.replace("'", "")])
    validate(config)


def test_there_are_settings():
    assert len(SETTINGS) >= 15


@pytest.mark.parametrize("text", MESSAGES)
def test_quoted_messages_exist(text):
    assert text in PAGE
    path = ROOT / "vit_jax" / MESSAGES[text]
    files = path.rglob("*.py") if path.is_dir() else [path]
    assert any(text in file.read_text() for file in files)


def test_flags_of_other_commands_are_known(tmp_path):
    assert evaluate.parse_flags(["DIR", "--checkpoint=best", "--ema"]).ema
    assert predict.parse_flags(["DIR", "a.png", "--threshold=0.5"]).threshold == 0.5
    assert benchmark.parse_flags(["input", "--config=configs/digits.py"])
    with pytest.raises(ConfigError, match="topology"):
        plan.run(["--config=configs/digits.py", "--suggest"])


def test_its_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)]+)\)", PAGE):
        file, _, heading = target.partition("#")
        page = (ROOT / "docs" / file).read_text().lower()
        assert not heading or f"# {heading.replace('-', ' ')}\n" in page, target
