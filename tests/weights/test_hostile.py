"""Files made to do harm, or by a mistake: bounded, and refused in one message with their name."""

import contextlib
import io
import json
import os
import struct
import zipfile

import numpy as np
import pytest
import safetensors.numpy

import vit_jax
from tests.published import GOLDEN, golden, parameters, stacked, write_npz
from vit_jax.errors import UserError, WeightsError
from vit_jax.weights import formats, npz
from vit_jax.weights.content import Hints
from vit_jax.weights.formats import read_weights

BLOCK = "Transformer/encoderblock_0"
SHAPES = [(), (0,), (1,), (7,), (3, 5), (0, 3), (2, 2, 2), (1, 2, 3, 4), (0, 0, 0, 0), (2,) * 6]


def refused(path, message="", **hints):
    """Reads the file, which must end in one message that starts with its name."""
    with pytest.raises(WeightsError, match=rf"(?s)^{path}: .*{message}") as error:
        read_weights(path, Hints(hints))
    return str(error.value)


def write_header(path, header, data=b""):
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)
    return path


@pytest.mark.parametrize(
    "name",
    [
        *("embedding/kernel", "cls", "Transformer/posembed_input/pos_embedding", "head/kernel"),
        *(f"{BLOCK}/LayerNorm_0/scale", f"{BLOCK}/MlpBlock_3/Dense_0/kernel"),
        f"{BLOCK}/MultiHeadDotProductAttention_1/query/kernel",
    ],
)
def test_odd_shapes_in_a_published_file(name, tmp_path):
    tensors = golden("vit_token")["params"]
    for shape in SHAPES:
        refused(write_npz(tmp_path / "a.npz", {**tensors, name: np.zeros(shape, np.float32)}))


@pytest.mark.parametrize(
    "name", ["patch_embed.proj.weight", "pos_embed", "reg_token", "blocks.0.attn.qkv.weight"]
)
def test_odd_shapes_in_a_timm_file(name, tmp_path):
    tensors = safetensors.numpy.load_file(GOLDEN / "timm_registers_layerscale.safetensors")
    for shape in SHAPES:
        changed = {**tensors, name: np.zeros(shape, np.float32)}
        safetensors.numpy.save_file(changed, tmp_path / "a.safetensors")
        refused(tmp_path / "a.safetensors", num_heads=2)


@pytest.mark.parametrize("name", ["conv_root/kernel", "gn_root/scale", "block1/unit1/conv2/kernel"])
def test_odd_shapes_in_a_hybrid(name, tmp_path):
    tensors = golden("hybrid_r_1_2")["params"]
    for shape in SHAPES:
        refused(write_npz(tmp_path / "a.npz", {**tensors, name: np.zeros(shape, np.float32)}))


def test_config_init_refuses_odd_shapes_too(tmp_path):
    model = vit_jax.load_model(GOLDEN / "timm_token.safetensors", num_heads=2)
    tensors = safetensors.numpy.load_file(GOLDEN / "timm_token.safetensors")
    tensors["blocks.1.norm1.weight"] = np.ones(16, np.float32)
    safetensors.numpy.save_file(tensors, tmp_path / "a.safetensors")
    with pytest.raises(WeightsError, match=r"blocks\.1\.norm1\.weight has shape \(16,\)"):
        vit_jax.weights.loading.read_initial_weights(tmp_path / "a.safetensors", model.options)


@pytest.mark.parametrize("dtype", [np.int8, bool, complex, "U5", "V7", [("a", "f4"), ("b", "f4")]])
def test_values_that_are_no_floating_point_numbers(dtype, tmp_path):
    tensors = golden("vit_token")["params"]
    changed = {**tensors, "cls": np.zeros((1, 1, 32), dtype)}
    refused(write_npz(tmp_path / "a.npz", changed), "cls holds .* values, not floating-point")


def test_a_step_counter_beside_the_weights_is_not_their_business(tmp_path):
    tensors = {**golden("vit_gap")["params"], "step": np.int64(7)}
    assert read_weights(write_npz(tmp_path / "a.npz", tensors), Hints()).unknown == ("step",)


def test_types_that_numpy_lacks(tmp_path):
    for dtype in ("F8_E4M3", "F8_E5M2"):
        header = {"patch_embed.proj.weight": {"dtype": dtype, "shape": [4], "data_offsets": [0, 4]}}
        refused(
            write_header(tmp_path / "a", header, bytes(4)),
            r"patch_embed\.proj\.weight cannot be read: .*float8",
        )


def test_bfloat16_in_a_safetensors_file(tmp_path):
    bits = np.arange(4, dtype=np.uint16).tobytes()
    header = {"x": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}
    path = write_header(tmp_path / "a", header, bits)
    (array,) = formats.tensor_file.read_tensors(path)[0].values()
    expected = (np.arange(4, dtype=np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(array, expected, strict=True)


NEW_AND_OLD = f"{BLOCK}/MlpBlock_0/Dense_0/bias", f"{BLOCK}/MlpBlock_3/Dense_0/bias"


def test_two_tensors_for_one_parameter_are_both_named(tmp_path):
    tensors = golden("vit_token")["params"]
    new, old = NEW_AND_OLD
    both = refused(write_npz(tmp_path / "a.npz", {new: tensors[old], **tensors}), "same parameter")
    assert new in both
    assert old in both
    positions = tensors["Transformer/posembed_input/pos_embedding"]
    path = write_npz(tmp_path / "a.npz", {**tensors, "pos_embedding": positions})
    refused(path, "posembed_input/pos_embedding and pos_embedding are the same parameter")
    scanned = {**stacked(tensors), old: tensors[old]}
    path = write_npz(tmp_path / "a.npz", scanned)
    refused(path, r"encoderblock/MlpBlock_0/Dense_0/bias.* and .*encoderblock_0/MlpBlock_3")


def test_a_block_written_twice_is_refused(tmp_path):
    tensors = safetensors.numpy.load_file(GOLDEN / "timm_token.safetensors")
    tensors["blocks.00.norm1.bias"] = tensors["blocks.0.norm1.bias"]
    safetensors.numpy.save_file(tensors, tmp_path / "a.safetensors")
    refused(
        tmp_path / "a.safetensors", r"blocks\.0+\.norm1\.bias and blocks\.0+\.norm1", num_heads=2
    )


def test_a_hugging_face_tensor_with_and_without_its_prefix(tmp_path):
    tensors = safetensors.numpy.load_file(GOLDEN / "hf_gelu/model.safetensors")
    tensors["layernorm.bias"] = tensors["vit.layernorm.bias"]
    (tmp_path / "config.json").write_bytes((GOLDEN / "hf_gelu/config.json").read_bytes())
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    refused(tmp_path, r"layernorm\.bias and (vit\.)?layernorm\.bias are the same parameter")


def test_an_archive_with_the_same_name_twice(tmp_path):
    path = write_npz(tmp_path / "a.npz", golden("vit_gap")["params"])
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("head/bias.npy", archive.read("head/bias.npy"))
    refused(path, "head/bias and head/bias are the same parameter")


@pytest.mark.parametrize("shape", [(10**12,), (2**40, 2**40), (0, 10**18), (-5,), (1,) * 70])
def test_declared_shapes_without_the_data(shape, tmp_path):
    """Nothing is allocated for what is only claimed."""
    content = {"descr": "<f4", "fortran_order": False, "shape": shape}
    member = io.BytesIO()
    np.lib.format.write_array_header_1_0(member, content)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("embedding/kernel.npy", member.getvalue() + bytes(64))
    refused(tmp_path / "a.npz")
    entry = {"dtype": "F32", "shape": list(shape), "data_offsets": [0, 64]}
    refused(write_header(tmp_path / "b", {"patch_embed.proj.weight": entry}, bytes(64)))


def test_zip_bombs_are_not_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, **{"embedding/kernel": np.zeros((1000, 1000), np.float32)})
    assert path.stat().st_size < 40_000  # bytes, of 4 million
    monkeypatch.setattr(npz, "ALWAYS_ALLOWED", 10**6)
    monkeypatch.setattr(np, "load", None)
    refused(path, r"bytes that unpack to 4,000,128: these are no weights")


def test_compressed_files_are_read(tmp_path):
    tensors = golden("vit_gap")["params"]
    np.savez_compressed(tmp_path / "a.npz", **tensors)
    expected = parameters(vit_jax.load_model(write_npz(tmp_path / "b.npz", tensors)))
    found = parameters(vit_jax.load_model(tmp_path / "a.npz"))
    np.testing.assert_array_equal(found["head/kernel"], expected["head/kernel"])


def test_too_many_tensors_or_layers(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "MOST_TENSORS", 30)
    refused(write_npz(tmp_path / "a.npz", golden("vit_token")["params"]), "it holds .. tensors")
    refused(GOLDEN / "timm_token.safetensors", "it holds .. tensors")
    monkeypatch.setattr(npz, "MOST_LAYERS", 2)
    layers = {"Transformer/encoderblock/LayerNorm_0/scale": np.ones((3, 2), np.float32)}
    refused(write_npz(tmp_path / "a.npz", layers), "LayerNorm_0/scale has 3 layers")


def test_names_of_places_are_only_names(tmp_path):
    """Nothing is unpacked to the disk, so a path in a name leads nowhere."""
    tensors = {**golden("vit_gap")["params"], "../../owned": np.ones(1, np.float32)}
    (tmp_path / "in").mkdir()
    path = write_npz(tmp_path / "in/a.npz", tensors)
    assert read_weights(path, Hints()).unknown == ("../../owned",)
    assert os.listdir(tmp_path) == ["in"]


def test_numbers_of_any_length_in_names(tmp_path):
    tensors = safetensors.numpy.load_file(GOLDEN / "timm_token.safetensors")
    for layer in ("9" * 5000, "9999", "٣"):
        name = f"blocks.{layer}.norm1.bias"
        safetensors.numpy.save_file({**tensors, name: np.ones(32, np.float32)}, tmp_path / "a")
        with contextlib.suppress(UserError):
            vit_jax.load_model(tmp_path / "a", num_heads=2)


def test_what_is_no_regular_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "it is no file")
    refused("/dev/null", "it is no file")
    (tmp_path / "empty.zip").write_bytes(b"PK\x05\x06" + bytes(18))
    refused(tmp_path / "empty.zip", "it is an empty archive")


FEW = (None, -1, "x")
MANY = (*FEW, 0, 1.5, float("nan"), 10**30, [], [1], [1, 2, 3], {}, True, [None])


def with_odd_values(content, values):
    """Copies of a JSON object with one value replaced, on any level."""
    for key, value in content.items():
        yield from ({**content, key: odd} for odd in values)
        yield {other: content[other] for other in content if other != key}
        if isinstance(value, dict):
            yield from ({**content, key: inner} for inner in with_odd_values(value, values))


@pytest.mark.parametrize("values", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize("place", ["config.json", "preprocessor_config.json", "model.json", "timm"])
def test_odd_values_in_descriptions(place, values, tmp_path):
    """Either the value is of no consequence, or one message names the file."""
    format = {"model.json": "vit_jax", "timm": "timm"}.get(place, "huggingface")
    vit_jax.save_model(vit_jax.load_model(GOLDEN / "hf_gelu"), tmp_path / "out", format)
    if format == "timm":  # Without its own metadata, which says the same.
        tensors = safetensors.numpy.load_file(tmp_path / "out/model.safetensors")
        safetensors.numpy.save_file(tensors, tmp_path / "out/model.safetensors")
    place = tmp_path / "out" / ("config.json" if place == "timm" else place)
    outcomes = set()
    for content in with_odd_values(json.loads(place.read_text()), values):
        place.write_text(json.dumps(content))
        try:
            outcomes.add(read_weights(tmp_path / "out", Hints({"num_heads": 2})).options.width)
        except UserError as error:
            outcomes.add(str(error)[: len(f"{tmp_path}/out: ")])
    assert outcomes == {32, f"{tmp_path}/out: "}
