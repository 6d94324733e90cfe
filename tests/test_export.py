"""The export command, read back by numpy and safetensors themselves."""

import json
import os
import re

import jax
import numpy as np
import pytest
import safetensors.numpy

import vit_jax
from tests.published import GOLDEN, golden, logits, random_model, write_npz
from tests.workdirs import CLASSES, TINY, write_workdir
from vit_jax import export
from vit_jax.errors import WeightsError
from vit_jax.weights.resampling import resize_positions


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    return str(directory), write_workdir(directory)


def run(*arguments):
    return export.main([str(argument) for argument in arguments])


@pytest.mark.parametrize(
    ("flags", "factor"),
    [
        ((), 3),
        (("--checkpoint=best",), 2),
        (("--checkpoint=1",), 1),
        (("--ema",), 30),
        (("--average=2",), 2.5),
        (("--average=2", "--ema"), 25),
    ],
)
def test_a_workdir_becomes_a_published_file(workdir, flags, factor, tmp_path):
    directory, flat = workdir
    assert run(directory, tmp_path / "out.npz", *flags) == 0
    with np.load(tmp_path / "out.npz", allow_pickle=False) as file:
        np.testing.assert_allclose(
            file["Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel"],
            flat["blocks/mlp/dense1/kernel"][0] * np.float32(factor),
            rtol=1e-6,
        )
        assert "head/kernel" in file
    assert json.loads((tmp_path / "out.json").read_text())["class_names"] == list(CLASSES)


def test_every_format(workdir, tmp_path, capsys):
    directory, flat = workdir
    for format, file, head in (
        ("timm", "out/model.safetensors", "head.weight"),
        ("huggingface", "out/model.safetensors", "classifier.weight"),
        ("vit_jax", "out/params.safetensors", "head/kernel"),
    ):
        assert run(directory, tmp_path / format / "out", f"--format={format}") == 0
        assert f"Wrote {tmp_path}/{format}/out ({format})." in capsys.readouterr().err
        tensors = safetensors.numpy.load_file(tmp_path / format / file)
        kernel = tensors[head] if format == "vit_jax" else tensors[head].T
        np.testing.assert_array_equal(kernel, flat["head/kernel"] * np.float32(3))
    assert run(directory, tmp_path / "out.stablehlo") == 0  # The name says it.
    jax.export.deserialize(bytearray((tmp_path / "out.stablehlo").read_bytes()))


def test_the_trunk_alone_and_another_size(workdir, tmp_path):
    directory, flat = workdir
    flags = ("--trunk_only", "--option=image_size=32", "--option=gelu=erf")
    assert run(directory, tmp_path / "out.npz", *flags) == 0
    with np.load(tmp_path / "out.npz", allow_pickle=False) as file:
        assert "head/kernel" not in file
        written = file["Transformer/posembed_input/pos_embedding"]
    # By default as of the model's family: bilinear, corners on corners.
    table = flat["position_embedding"] * np.float32(3)
    expected = resize_positions(table, (2, 2), (4, 4), "bilinear_corner")
    np.testing.assert_allclose(written, expected, rtol=1e-6)
    model = json.loads((tmp_path / "out.json").read_text())["model"]
    assert (model["gelu"], model["num_classes"]) == ("erf", 0)


def test_the_grid_and_the_resize_of_positions(tmp_path):
    tensors = golden("vit_token")["params"]
    table = np.random.default_rng(0).normal(size=(1, 1 + 4 * 6, 32)).astype(np.float32)
    tensors["Transformer/posembed_input/pos_embedding"] = table
    source = write_npz(tmp_path / "in.npz", tensors)
    flags = ("--source_grid", "4", "6", "--position_resize=bicubic", "--option=image_size=(64,32)")
    assert run(source, tmp_path / "out.npz", *flags) == 0
    with np.load(tmp_path / "out.npz", allow_pickle=False) as file:
        written = file["Transformer/posembed_input/pos_embedding"]
    np.testing.assert_array_equal(written, resize_positions(table, (4, 6), (8, 4), "bicubic"))


MISTAKES = [
    ("{run} {out} --option=depht=2", "did you mean model.depth?"),
    ("{run} {out} --option=depth", "write KEY=VALUE"),
    ("{run} {out} --option==3", "write KEY=VALUE"),
    ("{run} {out} --option=name=ViT-B/16", "model.name: .* has no such option"),
    ("{run} {out} --option=position_resize=bicubic", "model.position_resize: .* no such option"),
    ("{run} {out} --option=image_size=abc", "image_size='abc'"),
    ("{run} {out} --option=image_size=30", "image_size 30 .* not divisible"),
    ("{run} {out} --option=num_heads=-1", "num_heads=-1"),
    ("{run} {out} --option=depth=2", "depth=1, the model depth=2"),
    ("{run} {out} --option=norm_after_pooling=maybe", "must be true or false"),
    ("{run} {out} --average=9", "{run}: it has 3 checkpoints, not 9"),
    ("{run} {out} --average=0", "{run}: it has 3 checkpoints, not 0"),
    ("{run} {out} --average=2 --checkpoint=best", "leave out --checkpoint"),
    ("{run} {out} --average=2 --checkpoint=1", "leave out --checkpoint"),
    ("{run} {out} --checkpoint=7", "no checkpoint 7; it has: 1, 2, 3"),
    ("{run} {out} --checkpoint=newest", "no checkpoint 'newest'"),
    ("{run} {run}", "is a run's workdir"),
    ("{run} {folder}", "{folder}: the format follows from a name that ends in"),
    ("{run} {folder}.npz --format=timm", "timm is written to a file NAME.safetensors or a folder"),
    ("{run} {pipe}", "{pipe} is no regular file: name a file"),
    ("{run} gs://bucket/out.npz", "an export is written to this machine"),
    ("{run} " + "x" * 300 + ".npz", "x.npz cannot be written: File name too long"),
    ("{run} {file}/out.npz", "{file}/out.npz cannot be written"),
    ("{run} {run}/model.npz", "model.json belongs to something else"),
    ("{timm} {out}", "give num_heads="),
    ("{timm} {out} --option=num_heads=5", "no multiple of num_heads=5"),
    ("{timm} {out} --option=num_heads=two", "no multiple of num_heads='two'"),
    ("{timm} {out} --option=num_heads=2 --ema", "{timm}: it is no run's workdir"),
    ("{timm} {out} --option=num_heads=2 --average=2", "{timm}: it is no run's workdir"),
    ("{timm} {out} --option=num_heads=2 --source_grid 3 5", "source_grid=.*does not fit"),
    ("{timm} {out} --option=num_heads=2 --source_grid 0 5", "must be .rows, columns."),
    ("{file} {out}", "{file}: it is neither"),
    ("{folder} {out}", "{folder}: it is no run's workdir"),
    ("{folder}/nothing {out}", "nothing: it does not exist"),
    ("gs://bucket/model.npz {out}", "gs://bucket/model.npz: it cannot be read: .*gcsfs"),
    ("https://example.com/model.npz {out}", "it is not on this machine: download it first"),
    ("{run} gs://bucket/model.npz", "written to this machine"),
]


@pytest.mark.parametrize(("command", "message"), MISTAKES)
def test_a_mistake_is_one_message_and_code_2(command, message, workdir, tmp_path, capsys):
    places = {
        "run": workdir[0],
        "timm": GOLDEN / "timm_token.safetensors",
        "folder": tmp_path / "folder",
        "file": tmp_path / "notes.txt",
        "pipe": tmp_path / "pipe.npz",
        "out": tmp_path / "out.npz",
    }
    os.mkfifo(places["pipe"])
    places["folder"].mkdir()
    places["file"].write_text("hello")
    assert run(*command.format(**places).split()) == 2
    error = capsys.readouterr().err
    assert re.search(message.format(**places), error), error
    assert "Traceback" not in error
    assert not places["out"].exists()


@pytest.mark.parametrize(
    "command",
    [
        "",
        "a",
        "a b c",
        "a b --bad",
        "a b --format=onnx",
        "a b --average=x",
        "a b --source_grid 3",
        "a b --source_grid 3 x",
        "a b --source_grid 3 4.0",
        "a b --position_resize=area",
    ],
)
def test_a_command_line_that_is_not_understood(command, capsys):
    assert run(*command.split()) == 2
    assert "--help lists the flags" in capsys.readouterr().err


@pytest.mark.parametrize("format", ["npz", "timm", "huggingface", "vit_jax", "stablehlo"])
def test_a_workdir_is_never_exported_over(tmp_path, format):
    (tmp_path / "checkpoints").mkdir()
    model = random_model("ViT-Ti/4", image_size=8, depth=1, num_classes=2)
    with pytest.raises(WeightsError, match="is a run's workdir"):
        vit_jax.save_model(model, tmp_path, format=format)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]


@pytest.mark.parametrize("format", ["vit_jax", "timm"])
def test_a_run_is_pushed_with_its_page(hub_server, monkeypatch, tmp_path, caplog, format):
    write_workdir(tmp_path)
    config = {"config": {"init": "https://me:key@host/w.npz?signature=abc", "note": "hf_abcdefgh"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    records = [{"step": n, "train/loss": 1.0, "eval/accuracy": n / 10} for n in (1, 2, 3)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)) + '\n{"st')
    monkeypatch.setenv("HF_TOKEN", hub_server.token)
    with caplog.at_level("DEBUG", logger="vit_jax"):
        assert run(tmp_path, "hf:me/mine", "--checkpoint=best", f"--format={format}") == 0
    assert hub_server.token not in caplog.text

    files = pushed(hub_server, "me/mine")
    card = files["README.md"].decode()
    assert 'vit_jax.load_model("hf:me/mine")' in card
    assert "After 2 updates" in card
    assert "| eval/accuracy | 0.2 |" in card
    assert "`ähre`" in card
    assert "train/loss" not in card
    everything = b"".join(files.values())
    for secret in (b"signature", b"me:key", b"hf_abcdefgh", hub_server.token.encode()):
        assert secret not in everything
    assert json.loads(files["training_config.json"])["config"]["init"] == "https://host/w.npz"

    loaded, expected = (
        vit_jax.load_model(path, checkpoint)
        for path, checkpoint in (("hf:me/mine", "latest"), (tmp_path, "best"))
    )
    images = np.ones((1, 16, 16, 3), np.float32)
    np.testing.assert_array_equal(logits(loaded, images), logits(expected, images))


def pushed(hub_server, name):
    """The files of a model repository's latest commit."""
    repository = hub_server.repositories["model", name]
    return repository.commits[repository.revisions["main"]]


def test_the_page_of_a_mean_of_checkpoints_has_no_metrics(hub_server, monkeypatch, tmp_path):
    """Those of the last checkpoint are of other weights."""
    write_workdir(tmp_path)
    (tmp_path / "config.json").write_text('{"config": {"seed": 3}}')
    (tmp_path / "metrics.jsonl").write_text('{"step": 3, "eval/accuracy": 0.25}\n')
    monkeypatch.setenv("HF_TOKEN", hub_server.token)
    for flags, is_told in (((), True), (("--average=2",), False)):
        assert run(tmp_path, "hf:me/mine", *flags) == 0
        card = pushed(hub_server, "me/mine")["README.md"].decode()
        assert ("After 3 updates" in card) == ("0.25" in card) == is_told
        assert "## Training" in card


@pytest.mark.parametrize(("num_classes", "purpose"), [(3, "for 3 classes"), (0, "without a head")])
def test_the_page_of_an_export_tells_of_its_head_and_of_no_run(
    hub_server, monkeypatch, tmp_path, num_classes, purpose
):
    """Hugging Face's folders have a config.json too."""
    model = random_model("ViT-Ti/8", num_classes=num_classes, **TINY)
    vit_jax.save_model(model, tmp_path / "model", "huggingface")
    monkeypatch.setenv("HF_TOKEN", hub_server.token)
    assert run(tmp_path / "model", "hf:me/mine") == 0
    files = pushed(hub_server, "me/mine")
    assert f" {purpose}, for images" in files["README.md"].decode()
    assert "## Metrics" not in files["README.md"].decode()
    assert "training_config.json" not in files


def test_the_page_of_a_trunk_promises_no_classes(hub_server, monkeypatch, tmp_path):
    write_workdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", hub_server.token)
    assert run(tmp_path, "hf:me/trunk", "--trunk_only") == 0
    files = pushed(hub_server, "me/trunk")
    assert "head/kernel" not in safetensors.numpy.load(files["params.safetensors"])
    card = files["README.md"].decode()
    assert "# trunk\n" in card
    assert "without a head" in card
    assert "## Classes" not in card


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hf:me/mine/folder"], "name the repository alone"),
        (["hf:me/mine@v1"], "name the repository alone"),
        (["hf:me/mine", "--format=npz"], "to the Hub go timm, huggingface, vit_jax"),
        (["hf:me/mine"], r"the Hub refuses the token \(HTTP 401\)"),
    ],
)
def test_what_cannot_be_pushed(hub_server, workdir, arguments, message, capsys):
    assert run(workdir[0], *arguments) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not hub_server.repositories
