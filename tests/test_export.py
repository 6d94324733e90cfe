"""The export command, read back by numpy and safetensors themselves."""

import json

import numpy as np
import pytest
import safetensors.numpy
from published import GOLDEN
from workdirs import CLASSES, write_workdir

import vit_jax
from vit_jax import export
from vit_jax.errors import WeightsError


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


def test_every_format(workdir, tmp_path):
    directory, flat = workdir
    for format, file, head in (
        ("timm", "out/model.safetensors", "head.weight"),
        ("huggingface", "out/model.safetensors", "classifier.weight"),
        ("vit_jax", "out/params.safetensors", "head/kernel"),
    ):
        assert run(directory, tmp_path / format / "out", f"--format={format}") == 0
        tensors = safetensors.numpy.load_file(tmp_path / format / file)
        kernel = tensors[head] if format == "vit_jax" else tensors[head].T
        np.testing.assert_array_equal(kernel, flat["head/kernel"] * np.float32(3))
    assert run(directory, tmp_path / "out.stablehlo", "--format=stablehlo") == 0


def test_the_trunk_alone_and_another_size(workdir, tmp_path):
    directory, _ = workdir
    flags = ("--trunk_only", "--option=image_size=32", "--option=gelu=erf")
    assert run(directory, tmp_path / "out.npz", *flags) == 0
    with np.load(tmp_path / "out.npz", allow_pickle=False) as file:
        assert "head/kernel" not in file
        assert file["Transformer/posembed_input/pos_embedding"].shape == (1, 17, 32)
    model = json.loads((tmp_path / "out.json").read_text())["model"]
    assert (model["gelu"], model["num_classes"]) == ("erf", 0)


def test_a_mistake_is_one_message_and_code_2(workdir, tmp_path, capsys):
    source = GOLDEN / "timm_token.safetensors"
    assert run(source, tmp_path / "out.npz") == 2
    assert "give num_heads=" in capsys.readouterr().err
    assert run(source, tmp_path / "out.npz", "--option=num_heads=2") == 0
    assert run(workdir[0], tmp_path / "out.npz", "--option=depht=2") == 2
    assert "did you mean model.depth?" in capsys.readouterr().err
    assert run(workdir[0], tmp_path / "out.npz", "--option=depth") == 2
    assert run(workdir[0], tmp_path / "out.npz", "--average=9") == 2
    assert "has 3 checkpoints, not 9" in capsys.readouterr().err
    assert run(tmp_path / "nothing", tmp_path / "out.npz") == 2
    with pytest.raises(SystemExit, match="2"):
        run("--format=onnx")


@pytest.mark.parametrize("format", ["npz", "timm", "huggingface", "vit_jax", "stablehlo"])
def test_a_workdir_is_never_exported_over(tmp_path, format):
    (tmp_path / "checkpoints").mkdir()
    model = vit_jax.create_model("ViT-Ti/4", image_size=8, depth=1, num_classes=2)
    with pytest.raises(WeightsError, match="is a run's workdir"):
        vit_jax.save_model(model, tmp_path, format=format)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]
