"""Weights by their name on the Hub: fetched, read, and said where they are from."""

import logging
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import vit_jax
from tests.hub_server import HubServer
from vit_jax import evaluate, export, hub
from vit_jax.command_line import USER_ERROR
from vit_jax.errors import HubError, WeightsError
from vit_jax.weights.by_name import choose_files, local_path

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
HUGGING_FACE = GOLDEN / "hf_gelu"
NAME = "somebody/vit"


def folder_files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def repository(hub_server):
    files = folder_files(HUGGING_FACE)
    others = {"pytorch_model.bin": b"\x80", "tokenizer.json": b"{}", "README.md": b"#"}
    hub_server.add(NAME, {**files, **others})
    return hub_server


def logits(model):
    expected = np.load(HUGGING_FACE / "expected.npz")
    return np.asarray(model(np.asarray(expected["images"])))


@pytest.mark.parametrize("name", [f"hf:{NAME}", f"hf:{NAME}@main", f"hf://{NAME}"])
def test_a_name_is_as_good_as_its_folder(repository, name):
    np.testing.assert_array_equal(
        logits(vit_jax.load_model(name)), logits(vit_jax.load_model(HUGGING_FACE))
    )
    fetched = {path.rpartition("/")[2] for path in repository.asked()}
    assert "model.safetensors" in fetched
    assert not fetched & {"pytorch_model.bin", "tokenizer.json", "README.md", "expected.npz"}


def test_a_report_names_the_name(repository, caplog):
    with caplog.at_level(logging.WARNING):
        vit_jax.load_model(f"hf:{NAME}", num_classes=3)
    assert f"Weights from hf:{NAME}: " in caplog.text


def test_our_exports_and_single_files_of_many(hub_server, tmp_path):
    model = vit_jax.load_model(HUGGING_FACE)
    vit_jax.save_model(model, tmp_path / "ours", format="vit_jax")
    vit_jax.save_model(model, tmp_path / "npz" / "a.npz")
    files = {f"exports/{name}": text for name, text in folder_files(tmp_path / "ours").items()}
    files |= {f"npz/{name}": text for name, text in folder_files(tmp_path / "npz").items()}
    files["npz/b.npz"] = files["npz/a.npz"]
    hub_server.add(NAME, files, revision="v1")
    for path in ("exports", "npz/a.npz"):
        again = vit_jax.load_model(f"hf:{NAME}/{path}@v1")
        np.testing.assert_array_equal(logits(again), logits(model))
        assert again.options == model.options  # Of the sidecar, too.
    with pytest.raises(WeightsError, match=r"several weight files.*hf:somebody/vit/npz/a.npz"):
        vit_jax.load_model(f"hf:{NAME}/npz@v1")


@pytest.mark.parametrize(
    ("path", "names", "message"),
    [
        ("", ["pytorch_model.bin", "config.json"], "pytorch_model.bin alone, a Python pickle"),
        ("", ["README.md"], "holds no .safetensors or .npz file. It holds: README.md"),
        ("", ["x/model.safetensors"], "holds no .safetensors"),
        ("", ["a.safetensors", "b.safetensors"], "add one of them, as in hf:a/b/a.safetensors"),
        ("w.bin", ["w.bin"], "neither a .safetensors nor an .npz file"),
    ],
)
def test_what_is_no_model_is_refused_before_anything_is_fetched(path, names, message):
    with pytest.raises(WeightsError, match=message):
        choose_files(names, hub.Reference("a/b", path))


@pytest.mark.parametrize(
    ("path", "names", "chosen"),
    [
        (
            "",
            ["model.fp16.safetensors", "model.safetensors", "config.json"],
            ["config.json", "model.safetensors"],
        ),
        (
            "",
            [
                "model.safetensors.index.json",
                "model-00002-of-00002.safetensors",
                "model-00001-of-00002.safetensors",
            ],
            [
                "model.safetensors.index.json",
                "model-00001-of-00002.safetensors",
                "model-00002-of-00002.safetensors",
            ],
        ),
        ("x", ["config.json", "x/w.npz", "x/w.json"], ["x/w.json", "x/w.npz"]),
        ("x/w.npz", ["x/w.npz", "x/v.npz"], ["x/w.npz"]),
    ],
)
def test_the_files_of_a_model_descriptions_first(path, names, chosen):
    assert choose_files(names, hub.Reference("a/b", path)) == chosen


def test_an_index_is_of_its_parts_alone():
    index, part = "model.safetensors.index.json", "model-00001-of-00001.safetensors"
    found = choose_files([index, "model.safetensors", part, "a.json"], hub.Reference("a/b", ""))
    assert found == ["a.json", "model.safetensors"]
    parts = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    found = choose_files([*parts, index, "other.safetensors"], hub.Reference("a/b", ""))
    assert found == [index, *parts]


def test_the_folder_of_a_model_in_parts_is_read_and_of_others_the_file(monkeypatch):
    index = "sub/model.safetensors.index.json"
    for names, path in (
        (["sub/config.json", index, "sub/model-1.safetensors", "sub/model-2.safetensors"], "sub"),
        (["sub/config.json", "sub/a.safetensors"], "sub/a.safetensors"),
    ):
        snapshot = hub.Snapshot("c", "cache", tuple(names))
        monkeypatch.setattr(hub, "fetch", lambda *given, snapshot=snapshot, **options: snapshot)
        assert local_path("hf:a/b/sub") == os.path.join("cache", *path.split("/"))
    assert local_path("a/b") == "a/b"


def test_what_a_tokenizer_is_described_by_is_not_fetched():
    names = ["tokenizer.json", "tokenizer_config.json", "vocab.json", "added_tokens.json"]
    names += ["special_tokens_map.json", "config.json", "b.txt", "a.safetensors"]
    assert choose_files(names, hub.Reference("a/b")) == ["config.json", "a.safetensors"]


def test_what_there_is_instead_is_told():
    names = [f"{letter}.txt" for letter in "abcdefghijkl"]
    with pytest.raises(WeightsError, match=r"It holds: a\.txt, .*, j\.txt\.$"):
        choose_files(names, hub.Reference("a/b"))
    with pytest.raises(WeightsError, match="It holds: nothing"):
        choose_files(["x/a.npz"], hub.Reference("a/b"))
    with pytest.raises(WeightsError, match=r"hf:a/b@v has its weights in W\.BIN alone"):
        choose_files(["W.BIN"], hub.Reference("a/b", revision="v"))
    several = r"^hf:a/b@v holds several .* as in hf:a/b/c\.npz: c\.npz, d\.npz\.$"
    with pytest.raises(WeightsError, match=several):
        choose_files(["d.npz", "c.npz"], hub.Reference("a/b", revision="v"))


def test_a_name_that_is_not_there(hub_server):
    with pytest.raises(HubError, match=r"^hf:no/where: the Hub has no such repository"):
        vit_jax.load_model("hf:no/where")
    hub_server.add(NAME, folder_files(HUGGING_FACE))
    alone = rf"^hf:{NAME}: it is no run's workdir, which alone has checkpoints"
    with pytest.raises(WeightsError, match=alone):
        vit_jax.load_model(f"hf:{NAME}", checkpoint="best")


def test_commands_take_names(repository, tmp_path, capsys):
    out = tmp_path / "out.npz"
    assert export.main([f"hf:{NAME}", str(out)]) == 0
    np.testing.assert_array_equal(
        logits(vit_jax.load_model(out)), logits(vit_jax.load_model(HUGGING_FACE))
    )
    assert evaluate.main(["hf:no/where", "--source=digits"]) == USER_ERROR
    assert "hf:no/where: the Hub has no such repository" in capsys.readouterr().err


SCRIPT = """
import sys
import vit_jax, vit_jax.main, vit_jax.predict
from vit_jax import hub
assert not {"huggingface_hub", "httpx2", "httpx", "requests"} & set(sys.modules), "imported early"
vit_jax.list_pretrained()
print("quiet", flush=True)
hub.fetch(sys.argv[1], hub.MODEL, "main", ["model.safetensors"])
"""


def test_a_process_asks_the_network_when_it_is_asked_to_and_no_sooner(tmp_path):
    """By the variables that users set; before the fetch, the library is not even imported."""
    with HubServer() as server:
        server.add(NAME, folder_files(HUGGING_FACE))
        environment = {**os.environ, "HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path)}
        run = [sys.executable, "-c", SCRIPT, NAME]
        done = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "quiet\n"), done.stderr
        assert any("model.safetensors" in path for path in server.asked())
