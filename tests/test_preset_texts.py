"""No preset changes unseen: each equals its text under `tests/golden/configs`."""

import pathlib

import pytest

from tests import preset_texts

UPDATE = "if the change is meant, run: python -m tests.preset_texts"


@pytest.mark.parametrize("name", preset_texts.PRESETS)
def test_presets_equal_their_texts(name):
    expected = (preset_texts.GOLDEN / f"{name}.txt").read_text()
    assert preset_texts.text_of(name) == expected, UPDATE


def test_defaults_equal_their_text():
    assert preset_texts.defaults_text() == (preset_texts.GOLDEN / "defaults.txt").read_text(), (
        UPDATE
    )


def test_every_config_file_has_a_text():
    files = {path.stem for path in (preset_texts.ROOT / "configs").glob("*.py")}
    assert files == set(preset_texts.PRESETS)
    written = {path.stem for path in pathlib.Path(preset_texts.GOLDEN).glob("*.txt")}
    assert written == {*preset_texts.PRESETS, "defaults"}
