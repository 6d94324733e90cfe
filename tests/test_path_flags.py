"""`~` and environment variables stand in every flag and key that is a path, in every command."""

import argparse

import pytest

from tests import tiny
from tests.runs import ROOT
from vit_jax import analyze, compare, embed, evaluate, export, main, predict, report
from vit_jax.config_file import PATH_KEYS, load_config
from vit_jax.data.picture_files import find_files
from vit_jax.deduplicate import __main__ as deduplicate
from vit_jax.prepare import __main__ as prepare

TRAIN = lambda arguments: main.parse_flags(arguments, "vit_jax.main", "")[0]  # noqa: E731
# A command's parser -> its path flags, each as it is given and as it is kept: PATH is the path.
FLAGS = {
    TRAIN: {"--config=tests/tiny.py": None, "--workdir=PATH": "PATH"},
    evaluate.parse_flags: {
        "PATH": ["PATH"],
        "--source=folder:PATH": "folder:PATH",
        "--data_dir=PATH": "PATH",
        "--json=PATH": "PATH",
        "--csv=PATH": "PATH",
        "--pictures=PATH": "PATH",
    },
    embed.parse_flags: {"PATH": "PATH", "a.png": None, "--output=PATH.npy": "PATH.npy"},
    analyze.parse_flags: {"PATH": "PATH", "--output=PATH": "PATH"},
    compare.parse_flags: {"PATH": ["PATH"], "--curves=PATH": "PATH", "--csv=PATH.csv": "PATH.csv"},
    report.parse_flags: {"PATH": "PATH", "--output=PATH.html": "PATH.html"},
    predict.parse_flags: {
        "PATH": "PATH",
        "a.png": None,
        "--output=PATH": "PATH",
        "--format=csv": None,
    },
    export.parse_flags: {"PATH": "PATH", "OTHER": None},
    deduplicate.parse_flags: {
        "--source=folder:PATH": "folder:PATH",
        "--against=folder:PATH@test": ["folder:PATH@test"],
        "--output=PATH": "PATH",
        "--data_dir=PATH": "PATH",
    },
    lambda arguments: prepare.parse_flags(arguments)[0]: {
        "--source=folder:PATH": "folder:PATH",
        "--output=PATH": "PATH",
    },
}


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RUN", "one")
    return tmp_path


def replaced(value, path):
    """The path in a flag's text, or in each of several."""
    return (
        [replaced(v, path) for v in value]
        if isinstance(value, list)
        else value.replace("PATH", path)
    )


@pytest.mark.parametrize("parse", FLAGS)
def test_flags(parse, home):
    (home / "one").mkdir()
    given = enumerate(FLAGS[parse])  # Each path is another.
    flags = parse([flag.replace("PATH", f"~/$RUN/{number}") for number, flag in given])
    assert isinstance(flags, argparse.Namespace)
    kept = list(vars(flags).values())
    for number, expected in enumerate(FLAGS[parse].values()):
        assert expected is None or replaced(expected, f"{home}/one/{number}") in kept


def test_the_destination_of_an_export(home):
    assert export.parse_flags(["a", "~/${RUN}.npz"]).destination == f"{home}/one.npz"


def test_keys_and_the_config_file_itself(home):
    (home / "one.py").write_text((ROOT / "tests" / "tiny.py").read_text())
    sources = {"data.source": "folder:~/$RUN"}
    paths = {"init", "init_head_map", "init_teacher", "data.data_dir", "data.index_dir"}
    assert PATH_KEYS.keys() == paths | {"data.exclude", "data.source"}
    keys = {key: sources.get(key, "~/$RUN") for key in PATH_KEYS}
    config = load_config("~/$RUN.py", [f"{key}={value}" for key, value in keys.items()])
    assert config.data.source == f"folder:{home}/one"
    for path in (config.init, config.data.data_dir, config.data.index_dir, config.data.exclude):
        assert path == f"{home}/one"
    assert config.init_head_map == config.init_teacher == f"{home}/one"
    assert load_config("~/$RUN.py").batch_size == tiny.get_config().batch_size


def test_pictures_to_predict_but_not_where_a_file_has_that_very_name(home, monkeypatch):
    monkeypatch.chdir(home)
    for name in ("one.png", "$RUN.png"):
        (home / name).write_bytes(b"")
    assert [*find_files(["~/$RUN.png", "$RUN.png", "~/o*.png"], ())] == [
        f"{home}/one.png",
        "$RUN.png",
        f"{home}/one.png",
    ]
