"""This package's own formats: workdirs, exports, programs."""

import json
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
import safetensors.numpy

import vit_jax
from tests.published import GOLDEN, assert_same_tensors, golden, logits, parameters, random_model
from tests.workdirs import CLASSES, PREPROCESSING, write_workdir
from vit_jax.errors import CheckpointError, WeightsError
from vit_jax.weights import program
from vit_jax.weights.content import Hints
from vit_jax.weights.formats import read_weights


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    return directory, write_workdir(directory)


def scaled(flat, factor):
    return {name: array * np.float32(factor) for name, array in flat.items()}


@pytest.mark.parametrize(
    ("arguments", "factor"),
    [
        ({}, 3),
        ({"checkpoint": "best"}, 2),
        ({"checkpoint": 1}, 1),
        ({"ema": True}, 30),
        ({"checkpoint": "best", "ema": True}, 20),
    ],
)
def test_a_workdirs_checkpoints(workdir, arguments, factor):
    directory, flat = workdir
    model = vit_jax.load_model(directory, **arguments)
    assert_same_tensors(parameters(model), scaled(flat, factor))
    assert model.class_names == CLASSES
    assert model.preprocessing == PREPROCESSING


def test_a_checkpoint_that_is_not_there(workdir):
    for step in (7, "7"):
        with pytest.raises(CheckpointError, match="no checkpoint 7"):
            vit_jax.load_model(workdir[0], checkpoint=step)


def test_opening_a_run_is_silent(workdir, caplog):
    vit_jax.load_model(workdir[0])
    assert caplog.text == ""


@pytest.mark.parametrize("arguments", [{"checkpoint": "best"}, {"checkpoint": 3}, {"ema": True}])
def test_only_runs_have_checkpoints(arguments):
    with pytest.raises(WeightsError, match="hf_gelu: it is no run's workdir, which alone has"):
        vit_jax.load_model(GOLDEN / "hf_gelu", **arguments)


def test_a_runs_parameters_must_be_its_models(workdir, tmp_path):
    shutil.copytree(workdir[0], tmp_path / "run")
    content = json.loads((tmp_path / "run/model.json").read_text())
    content["model"]["mlp_width"] = 64
    (tmp_path / "run/model.json").write_text(json.dumps(content))
    with pytest.raises(WeightsError, match=r"run: blocks/mlp/dense1/.* has shape .* instead of"):
        vit_jax.load_model(tmp_path / "run")


def test_the_mean_of_checkpoints(workdir):
    directory, flat = workdir
    for count, ema, factor in ((1, False, 3), (2, False, 2.5), (3, True, 20)):
        averaged = read_weights(directory, Hints(), average=count, ema=ema).parameters
        for name, array in scaled(flat, factor).items():
            np.testing.assert_allclose(averaged[name], array, rtol=1e-6, strict=True)
    for count in (4, 0, -1):
        with pytest.raises(WeightsError, match=rf"has 3 checkpoints, not {count}: config\.keep"):
            read_weights(directory, Hints(), average=count)


def test_an_export_is_the_model_again(workdir, tmp_path):
    directory, flat = workdir
    vit_jax.save_model(vit_jax.load_model(directory), tmp_path / "out", "vit_jax")
    written = safetensors.numpy.load_file(tmp_path / "out/params.safetensors")
    assert_same_tensors(written, scaled(flat, 3))
    content = json.loads((tmp_path / "out/model.json").read_text())
    assert content["class_names"] == list(CLASSES)
    model = vit_jax.load_model(tmp_path / "out")
    assert_same_tensors(parameters(model), scaled(flat, 3))
    assert model.preprocessing == PREPROCESSING
    resized = vit_jax.load_model(tmp_path / "out", image_size=32, num_classes=2)
    assert resized.class_names == ()
    assert resized.preprocessing.resize == 40


@pytest.mark.parametrize("options", [{}, {"positions": "learned_2d", "num_registers": 2}])
def test_every_option_survives_an_export(options, tmp_path):
    tiny = {"width": 32, "depth": 1, "mlp_width": 32, "num_heads": 2, "image_size": 32}
    model = random_model("ViT-Ti/16", **tiny, **options, dropout_rate=0.1)
    vit_jax.save_model(model, tmp_path / "out", "vit_jax")
    loaded = vit_jax.load_model(tmp_path / "out")
    assert loaded.options == model.options
    assert_same_tensors(parameters(loaded), parameters(model))


def test_unknown_formats_and_odd_class_names(tmp_path):
    model = vit_jax.load_model(GOLDEN / "hf_gelu")
    with pytest.raises(WeightsError, match="format='onnx': must be one of npz, timm"):
        vit_jax.save_model(model, tmp_path / "out", "onnx")
    with pytest.raises(WeightsError, match="1 class names were given for a head of 10"):
        vit_jax.save_model(model, tmp_path / "out.npz", class_names=["cat"])


RUN = """
import sys, numpy, jax
exported = jax.export.deserialize(open(sys.argv[1], "rb").read())
images = numpy.load(sys.argv[2])["images"]
for batch in (4, 1):
    numpy.save(f"{sys.argv[3]}/{batch}.npy", exported.call(images[:batch]))
assert not any(name.startswith(("vit_jax", "flax")) for name in sys.modules)
"""


def test_a_program_runs_without_this_package(tmp_path):
    expected = golden("timm_registers_layerscale")
    model = vit_jax.load_model(GOLDEN / "timm_registers_layerscale.safetensors", num_heads=2)
    vit_jax.save_model(model, tmp_path / "model.stablehlo", "stablehlo")
    exported = jax.export.deserialize((tmp_path / "model.stablehlo").read_bytes())
    assert exported.platforms == ("cpu", "cuda", "tpu")
    assert str(exported.in_avals[0].shape[0]) == "batch"
    golden_file = GOLDEN / "timm_registers_layerscale.npz"
    subprocess.run(
        [sys.executable, "-I", "-c", RUN, tmp_path / "model.stablehlo", golden_file, tmp_path],
        check=True,
        cwd=tmp_path,
    )
    for batch in (4, 1):
        outputs = np.load(tmp_path / f"{batch}.npy")
        np.testing.assert_allclose(outputs, expected["logits"][:batch], rtol=0, atol=1e-5)
    content = json.loads((tmp_path / "model.stablehlo.json").read_text())
    assert content["model"]["image_size"] == [32, 32]


def test_a_program_that_would_be_too_large_is_refused(tmp_path):
    """ViT-H's parameters take 2.4 GiB, and the format ends at 2."""
    options = vit_jax.models.model_options("ViT-Ti/16")
    huge = {"head/kernel": np.broadcast_to(np.float32(0), (2**29,))}
    with pytest.raises(WeightsError, match=r"take 2\.0 GiB, and a program can hold less than 2"):
        program.files(str(tmp_path / "out"), huge, options, None)


def test_other_families_become_programs_too(tmp_path):
    model = random_model("BiT-R50x1", image_size=32, num_classes=3, stage_depths=(1,))
    vit_jax.save_model(model, tmp_path / "out.stablehlo", "stablehlo")
    exported = jax.export.deserialize((tmp_path / "out.stablehlo").read_bytes())
    images = np.random.default_rng(0).uniform(-1, 1, (2, 32, 32, 3)).astype(np.float32)
    np.testing.assert_allclose(exported.call(images), logits(model, images), rtol=0, atol=1e-5)


def test_an_export_knows_its_numbers(workdir, tmp_path):
    model = vit_jax.load_model(workdir[0])
    vit_jax.save_model(model, tmp_path / "export", "vit_jax")
    file = tmp_path / "export" / "params.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1  # Of a tensor: the header comes first.
    file.write_bytes(content)
    with pytest.raises(WeightsError, match=r"damaged: its numbers are not those"):
        vit_jax.load_model(tmp_path / "export")
    tensors = safetensors.numpy.load_file(file)
    safetensors.numpy.save_file(tensors, file)  # As earlier versions wrote it.
    vit_jax.load_model(tmp_path / "export")
