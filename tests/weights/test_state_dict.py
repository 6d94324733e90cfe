"""Libraries whose files hold tensors alone: what is assumed of them, number by number."""

import re

import numpy as np
import pytest
import safetensors.numpy

from vit_jax.errors import WeightsError
from vit_jax.model_file import Preprocessing
from vit_jax.weights import state_dict, tensor_file
from vit_jax.weights.mapping import match_name
from vit_jax.weights.timm import (
    defaults_of,
    epsilons_of,
    is_packed,
    prefix_choices,
    read_stated,
    with_key_biases,
)


def test_clips_of_openai():
    clip = state_dict.CLIP
    assert clip.pixels == Preprocessing(
        mean=(0.48145466, 0.4578275, 0.40821073),
        std=(0.26862954, 0.26130258, 0.27577711),
        crop="center",
        resize=224,
        interpolation="bicubic",
        rounding="torchvision",
    )
    assert clip.defaults == {"gelu": "quick", "norm_epsilon": 1e-5}
    assert (clip.position_resize, clip.biased_head) == ("bicubic", False)
    assert [clip.num_heads(width) for width in (768, 1024, 64, 32)] == [12, 16, 1, 1]
    assert clip.unused.fullmatch("attnpool.c_proj.weight")
    assert clip.unused.fullmatch("embeddings.position_ids")
    assert not clip.unused.fullmatch("ln_post.weight")


def test_torchvisions():
    torchvision = state_dict.TORCHVISION
    assert torchvision.pixels == Preprocessing(
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        crop="center",
        resize=256,
        interpolation="bilinear",
        rounding="torchvision",
    )
    assert (torchvision.defaults, torchvision.biased_head) == ({"gelu": "erf"}, True)
    assert torchvision.position_resize == "bicubic_torch"
    assert [torchvision.num_heads(width) for width in (768, 1024, 1280)] == [12, 16, 16]


@pytest.mark.parametrize(
    ("library", "theirs", "ours"),
    [
        (state_dict.CLIP, "transformer.resblocks.3.ls_1.gamma", "blocks/layer_scale1"),
        (state_dict.CLIP, "transformer.resblocks.3.ls_2.gamma", "blocks/layer_scale2"),
        (state_dict.CLIP, "transformer.resblocks.3.ln_2.bias", "blocks/norm2/bias"),
        (state_dict.CLIP, "transformer.resblocks.3.mlp.c_proj.weight", "blocks/mlp/dense2/kernel"),
        (
            state_dict.TORCHVISION,
            "encoder.layers.encoder_layer_3.mlp.3.bias",
            "blocks/mlp/dense2/bias",
        ),
    ],
)
def test_names_of_single_tensors(library, theirs, ours):
    (row,) = (row for row in library.rows if match_name(row.theirs, theirs) is not None)
    assert row.ours == (ours,)


def test_what_timms_tensors_imply():
    none = {"gelu": "erf", "positions": "none"}
    bare = {"patch_embed.proj.weight": np.empty(1)}
    assert defaults_of(bare, is_own=False) == {**none, "pooling": "token"}
    after = {**bare, "fc_norm.weight": np.empty(1)}
    assert defaults_of(after, is_own=False) == {**none, "pooling": "average"}
    clip = {**bare, "norm_pre.weight": np.empty(1)}
    wide = {**none, "pooling": "token", "norm_epsilon": 1e-5}
    assert defaults_of(clip, is_own=False) == defaults_of(clip, is_own=True) == wide
    bit = {"stem.conv.weight": np.empty(1)}
    stem = {"patch_embed.backbone.stem.conv.weight": np.empty(1)}
    root = {"patch_embed.backbone.conv.weight": np.empty(1)}
    of_bit = {"group_norm_epsilon": 1e-5, "kernel_epsilon": 1e-8}
    of_stem = {"stem_group_norm_epsilon": 1e-5, "stem_kernel_epsilon": 1e-8}
    found = [epsilons_of(tensors) for tensors in (bit, stem, root, bare)]
    assert found == [of_bit, of_stem, of_stem, {}]
    assert of_bit.items() <= defaults_of(bit, is_own=False).items()
    assert not of_bit.keys() & defaults_of(bit, is_own=True).keys()  # It says all else itself.


def test_the_two_halves_of_a_packed_layer():
    def first(outputs, inputs):
        shapes = {"fc1": (outputs, 5), "fc2": (5, inputs)}
        return {f"blocks.0.mlp.{name}.weight": np.empty(shape) for name, shape in shapes.items()}

    found = [is_packed(first(*sizes)) for sizes in ((8, 4), (4, 4), (9, 4), (12, 4))]
    assert (found, is_packed({})) == ([True, False, False, False], False)


def test_biases_of_keys_that_a_file_does_not_have():
    names = ("blocks.3.attn.q_bias", "blocks.12.attn.q_proj.bias", "x.blocks.3.attn.q_bias")
    tensors = {name: np.full(4, 2.0) for name in names}
    found = with_key_biases(tensors)
    assert set(found) - set(names) == {"blocks.3.attn.k_bias", "blocks.12.attn.k_proj.bias"}
    assert not found["blocks.3.attn.k_bias"].any()
    own = {**tensors, "blocks.3.attn.k_bias": np.ones(4)}
    assert with_key_biases(own)["blocks.3.attn.k_bias"].all()


TOKENS = {"cls_token": 1, "dist_token": 1, "reg_token": 4}


@pytest.mark.parametrize(
    ("tokens", "stated", "choices"),
    [
        ((), None, {0}),
        (("cls_token",), None, {0, 1}),
        (("cls_token", "dist_token"), None, {0, 2}),
        (("cls_token", "reg_token"), None, {0, 5}),
        (("cls_token", "reg_token"), True, {5}),
        (("cls_token", "reg_token"), False, {0}),
    ],
)
def test_rows_before_the_patches(tokens, stated, choices):
    tensors = {token: np.empty((1, TOKENS[token], 8)) for token in tokens}
    options = {} if stated is None else {"prefix_positions": stated}
    assert {*prefix_choices(tensors, options)} == choices


def test_a_timm_file_without_a_word_is_resized_as_timm_does(tmp_path):
    stated = read_stated(tmp_path / "model.safetensors", {}, has_key_bias=True)
    assert (stated.position_resize, stated.options) == ("bicubic", {})


def test_a_file_in_parts(tmp_path):
    tensors = {f"t{n}": np.full(2, n, np.float16) for n in range(4)}
    parts = {name: f"model-{number:05}.safetensors" for number, name in enumerate(tensors)}
    for number, (name, file) in enumerate(parts.items()):
        content = {name: tensors[name]}
        safetensors.numpy.save_file(content, tmp_path / file, {f"part{number}": "x", "all": file})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(f'{{"weight_map": {parts}}}'.replace("'", '"'))
    assert tensor_file.read_names(index) == list(tensors)
    found, metadata = tensor_file.read_tensors(index, "t")
    assert [(name, array.dtype) for name, array in found.items()] == [
        (str(n), np.float32) for n in range(4)
    ]
    assert set(metadata) == {"part0", "part1", "part2", "part3", "all"}
    assert tensor_file.read_tensors(index, "t3")[0].keys() == {""}
    for name, message in (
        ("../model.safetensors", "names '../model.safetensors': not a"),
        ("model.bin", "names 'model.bin'"),
        ("other.safetensors", r"other.safetensors is missing, which model\.safetensors\.index"),
    ):
        index.write_text(f'{{"weight_map": {{"a": "{name}"}}}}')
        with pytest.raises(
            WeightsError, match=re.escape(message) if "\\" not in message else message
        ):
            tensor_file.read_names(index)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "TypeError"),
        ("{}", "KeyError\\('weight_map'\\)"),
        ('{"weight_map": []}', "AttributeError"),
    ],
)
def test_what_is_no_index(text, reason, tmp_path):
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(text)
    with pytest.raises(WeightsError, match=rf"^{path} is no index of .safetensors files: {reason}"):
        tensor_file.parts_of(path)
    assert tensor_file.parts_of("x.safetensors") == ["x.safetensors"]


def test_what_the_library_cannot_write_is_an_error_of_the_file(monkeypatch):
    def refuse(*given):
        raise safetensors.SafetensorError("disk full")

    monkeypatch.setattr(tensor_file.safetensors.numpy, "save_file", refuse)
    with pytest.raises(OSError, match=r"^disk full$"):
        tensor_file.writer({}, {})("x")


def test_what_is_written_is_contiguous(tmp_path):
    turned = np.arange(6, dtype=np.float32).reshape(2, 3).T
    tensor_file.writer({"a": turned}, {"key": "value"})(tmp_path / "a.safetensors")
    found, metadata = tensor_file.read_tensors(tmp_path / "a.safetensors")
    np.testing.assert_array_equal(found["a"], turned)
    assert metadata == {"key": "value"}
