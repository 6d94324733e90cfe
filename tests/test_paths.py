"""Paths with any character that a file system allows: they work, or are refused before training."""

import logging
import os
import pathlib
import shutil

import numpy as np
import pytest
from PIL import Image

import vit_jax
from tests.published import random_model
from tests.states import assert_equal, make_state
from tests.workdirs import TINY, write_workdir
from vit_jax import main
from vit_jax.checkpoint import Checkpoints, restore_params
from vit_jax.config import default_config
from vit_jax.data.sources.registry import open_source
from vit_jax.errors import CheckpointError

NAMES = (
    *("two words", "50%", "a%20b", "a#b", "~x", "$HOME", "a:b", "a,b", "a{b}", "a'b", 'a"b'),
    *(
        "a;b|c&d",
        "é🙂",
        "-x",
        " x ",
        "5",
        "7.damaged",
        "1.orbax-checkpoint-tmp",
        "a\nb",
        "\t",
        "\u3000",
    ),
)
PATTERNS = ("runs [v1]", "a*b", "a?b", "[", "a]b")
UNREADABLE = ("a\\b", "\udcff")  # The second: a byte that is no UTF-8.


@pytest.fixture(autouse=True)
def _nothing_captured():
    """Names that are no text cannot be sent from one test process to another; logs have them."""
    logger = logging.getLogger("vit_jax")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_workdir_of_such_a_name_works(tmp_path, name):
    state = make_state(1)
    checkpoints = Checkpoints(tmp_path / name)
    checkpoints.save(1, state, {})
    checkpoints.close()
    assert_equal(restore_params(tmp_path / name), state.params)


@pytest.mark.parametrize("name", [*PATTERNS, *UNREADABLE], ids=ascii)
@pytest.mark.parametrize("below", [False, True], ids=["", "below"])
def test_a_workdir_that_could_not_be_read_again_is_refused_before_anything(
    tmp_path, name, below, capsys
):
    workdir = tmp_path / name / "run" if below else tmp_path / name
    assert main.main(("--config=tests/tiny.py", f"--workdir={workdir}")) == 2
    assert "cannot be saved: name another" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_current_folder_counts_too(tmp_path, monkeypatch, capsys):
    (tmp_path / "a[b").mkdir()
    monkeypatch.chdir(tmp_path / "a[b")
    config = pathlib.Path(__file__).with_name("tiny.py")
    assert main.main((f"--config={config}", "--workdir=run")) == 2
    assert "characters [ in it" in capsys.readouterr().err
    assert not os.listdir()


def test_a_run_that_was_moved_is_read_or_refused_by_name(tmp_path):
    (tmp_path / "run").mkdir()
    write_workdir(tmp_path / "run", accuracies=(0.1,), ema=False)
    for name in PATTERNS:
        shutil.copytree(tmp_path / "run", tmp_path / name)
        vit_jax.load_model(tmp_path / name)
        with pytest.raises(CheckpointError, match="name another"):
            Checkpoints(tmp_path / name)
    for name in UNREADABLE:
        shutil.copytree(tmp_path / "run", tmp_path / name)
        with pytest.raises(CheckpointError, match="cannot be read: rename it"):
            vit_jax.load_model(tmp_path / name)


@pytest.mark.parametrize("name", [*NAMES, *PATTERNS, *UNREADABLE[:1]], ids=ascii)
def test_weights_and_exports_of_such_a_name_work(tmp_path, name):
    model = random_model("ViT-Ti/8", num_classes=3, **TINY)
    (tmp_path / name).mkdir()
    for path, kind in ((f"{name}/m.npz", "npz"), (f"{name}/t", "timm"), (f"{name}/v", "vit_jax")):
        vit_jax.save_model(model, tmp_path / path, kind)
        found = vit_jax.load_model(tmp_path / path)
        np.testing.assert_array_equal(found.head.kernel[...], model.head.kernel[...])


@pytest.mark.parametrize("name", [*NAMES, *PATTERNS, *UNREADABLE], ids=ascii)
def test_data_and_its_index_of_such_a_name_work(tmp_path, name):
    for folder in ("cat", "dog"):
        (tmp_path / name / "data" / folder).mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(tmp_path / name / "data" / folder / "1.png")
    data = default_config().data
    data.source = f"folder:{tmp_path / name / 'data'}"
    data.held_out_fraction = 0.0
    data.index_dir = str(tmp_path / name / "index")
    for _ in range(2):  # Listed, then found in the index.
        source = open_source(data, "train", image_size=(4, 4), channels=3, num_classes=0)
        assert len(source) == 2
