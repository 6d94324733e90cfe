"""No preset changes unseen: each equals its text under `tests/golden/configs`."""

import pathlib

import pytest

from tests import preset_sources, preset_texts

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


@pytest.mark.parametrize("name", preset_sources.TABLES)
def test_every_source_is_of_some_value(name):
    """So that none outlives the value that it was written for."""
    used = {
        preset_sources.row_of(name, arguments, key)
        for arguments in preset_texts.PRESETS[name]
        for key in preset_texts.own_values(name, arguments)
    }
    common = preset_sources.OURS + preset_sources.DEIT + preset_sources.BIG_VISION_PIXELS
    rows = [row for row in preset_sources.rows_of(name) if "  ".join(row) not in common]
    assert [row for row in rows if row not in used] == []
