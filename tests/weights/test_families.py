"""Vision towers of other families, against the transformers library's own outputs.

The golden folders are written by `tests/campaigns/huggingface_names.py`. Files of other libraries
are made of them by their published names.
"""

import json
import re
import shutil

import numpy as np
import pytest
import safetensors.numpy

import vit_jax
from tests.published import (
    GOLDEN,
    assert_same_tensors,
    golden,
    logits,
    parameters,
    random_model,
)
from vit_jax.errors import WeightsError

FAMILIES = GOLDEN / "huggingface"
SUPPORTED = (
    "CLIPVisionModelWithProjection",
    "CLIPModel",
    "CLIPForImageClassification",
    "CLIPVisionModel_erf",
    "SiglipVisionModel",
    "SiglipForImageClassification",
    "Dinov2Model",
    "Dinov2Model_swiglu",
    "Dinov2WithRegistersModel",
    "DeiTForImageClassification",
    "IJepaForImageClassification",
    "ViTMSNForImageClassification",
    "ViTMAEModel",
    "ViTModel_no_bias",
    "DINOv3ViTModel",
    "DINOv3ViTModel_swiglu",
    "BeitForImageClassification",
    "BeitForImageClassification_none",
    "BeitForMaskedImageModeling",
    "BeitModel_shared",
    "Data2VecVisionForImageClassification",
)
BLOCK = r"encoder\.layers?\.(\d+)\."


def tensors_of(name):
    return safetensors.numpy.load_file(FAMILIES / name / "model.safetensors")


def assert_logits(model, name):
    expected = golden(f"huggingface/{name}/expected")
    np.testing.assert_allclose(
        logits(model, expected["images"]), expected["logits"], rtol=0, atol=1e-5
    )


def renamed(tensors, *pairs):
    """The tensors under names in which each pattern is replaced in turn."""
    names = {}
    for name in tensors:
        new = name
        for pattern, replacement in pairs:
            new = re.sub(pattern, replacement, new)
        names[new] = tensors[name]
    return names


def fused(tensors, pattern, names, fused_name):
    """Three projections as one tensor: `pattern` has a group for the layer and one for the name."""
    fused_tensors, parts = {}, {}
    for name, array in tensors.items():
        if match := re.fullmatch(pattern, name):
            layer, part, kind = match.groups()
            parts.setdefault((layer, kind), {})[part] = array
        else:
            fused_tensors[name] = array
    for (layer, kind), arrays in parts.items():
        array = np.concatenate([arrays[part] for part in names])
        fused_tensors[fused_name.format(layer=layer, kind=kind)] = array
    return fused_tensors


def save(path, tensors):
    contiguous = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    safetensors.numpy.save_file(contiguous, path)
    return path


@pytest.mark.parametrize("name", SUPPORTED)
def test_logits_are_the_librarys(name):
    assert_logits(vit_jax.load_model(FAMILIES / name), name)


# A classifier leaves a part of them unused, which is not read.
NOT_WRITTEN = (
    "CLIPForImageClassification",
    "SiglipForImageClassification",
    "BeitForMaskedImageModeling",
)


def of_the_tower(tensors):
    """The tensors that inference uses, under a bare trunk's names."""
    unused = re.compile(r"(.*\.)?mask_token|text_.*|logit_scale")
    kept = {name: array for name, array in tensors.items() if not unused.fullmatch(name)}
    prefix = r"^(vit|deit|ijepa|dinov2(_with_registers)?|vision_model|beit|data2vec_vision)\."
    return {re.sub(prefix, "", name): array for name, array in kept.items()}


@pytest.mark.parametrize("name", sorted({*SUPPORTED} - {*NOT_WRITTEN}))
def test_what_is_written_back_is_equal_bit_by_bit(name, tmp_path):
    vit_jax.save_model(vit_jax.load_model(FAMILIES / name), tmp_path / "out", "huggingface")
    written = of_the_tower(safetensors.numpy.load_file(tmp_path / "out/model.safetensors"))
    original = of_the_tower(tensors_of(name))
    if name == "Dinov2WithRegistersModel":  # The class token's row of positions is in the token.
        token, table = "embeddings.cls_token", "embeddings.position_embeddings"
        original[token] = original[token] + original[table][:, :1]
        original[table][:, :1] = 0
    assert_same_tensors(written, original)
    assert_logits(vit_jax.load_model(tmp_path / "out"), name)


def test_a_classifier_without_a_class_token_is_written_as_ijepa(tmp_path):
    name = "SiglipForImageClassification"
    vit_jax.save_model(vit_jax.load_model(FAMILIES / name), tmp_path / "out", "huggingface")
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["architectures"] == ["IJepaForImageClassification"]
    assert_logits(vit_jax.load_model(tmp_path / "out"), name)


def test_clips_classifier_cannot_be_written():
    model = vit_jax.load_model(FAMILIES / "CLIPForImageClassification")
    with pytest.raises(WeightsError, match="these can: timm, vit_jax"):
        vit_jax.save_model(model, "out", "huggingface")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Dinov2ForImageClassification", "class token and the average"),
    ],
)
def test_other_models_are_refused_by_name(name, message):
    with pytest.raises(WeightsError, match=message):
        vit_jax.load_model(FAMILIES / name)


@pytest.mark.parametrize("name", ["CLIPModel", "Dinov2Model"])
def test_what_inference_does_not_use_is_left_out_with_a_line(name, caplog):
    vit_jax.load_model(FAMILIES / name)
    assert "skipped: inference does not use them" in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"a_new_key": True}, "a_new_key=True of a DINOv2 is not known"),
        ({"hidden_act": "relu"}, "a DINOv2 with hidden_act='relu' is not supported"),
        ({"model_type": "swin"}, "model_type='swin' is not supported"),
    ],
)
def test_what_config_says_and_no_one_knows_is_refused_by_name(changes, message, tmp_path):
    folder = shutil.copytree(FAMILIES / "Dinov2Model", tmp_path / "folder")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(WeightsError, match=message):
        vit_jax.load_model(folder)


def test_registers_of_which_there_are_none(tmp_path):
    """The library writes an empty tensor."""
    folder = shutil.copytree(FAMILIES / "DINOv3ViTModel", tmp_path / "folder")
    tensors = tensors_of("DINOv3ViTModel")
    tensors["embeddings.register_tokens"] = np.zeros((1, 0, 16), "f4")
    save(folder / "model.safetensors", tensors)
    assert vit_jax.load_model(folder).options.num_registers == 0


def test_the_classifier_of_dinov2_that_ignores_its_patches(tmp_path):
    """What this package writes, for a class that adds the average of the patches."""
    folder = shutil.copytree(FAMILIES / "Dinov2ForImageClassification", tmp_path / "folder")
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    tensors["classifier.weight"][:, 16:] = 0
    save(folder / "model.safetensors", tensors)
    model = vit_jax.load_model(folder)
    vit_jax.save_model(model, tmp_path / "out", "huggingface")
    written = of_the_tower(safetensors.numpy.load_file(tmp_path / "out/model.safetensors"))
    assert_same_tensors(written, of_the_tower(tensors))


@pytest.mark.parametrize(
    ("key", "value"),
    [("rope_grid_indexing", "zz"), ("rope_rotate_half", "no"), ("ref_feat_shape", "x")],
)
def test_rotary_arguments_that_timm_does_not_have_are_refused(key, value, tmp_path):
    folder = shutil.copytree(GOLDEN / "timm/vit_small_patch16_rope_224", tmp_path / "folder")
    config = json.loads((folder / "config.json").read_text())
    config["model_args"][key] = value
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsError, match=f"{key}='{value}', which this package does not"):
        vit_jax.load_model(folder)


def openai_names(tensors):
    """CLIP's own names, as OpenAI and OpenCLIP write them."""
    tensors = fused(
        tensors,
        r"vision_model\.encoder\.layers\.(\d+)\.self_attn\.([qkv])_proj\.(weight|bias)",
        "qkv",
        "visual.transformer.resblocks.{layer}.attn.in_proj_{kind}",
    )
    tensors = renamed(
        tensors,
        (r"^vision_model\.", "visual."),
        (r"encoder\.layers", "transformer.resblocks"),
        (r"self_attn\.out_proj", "attn.out_proj"),
        (r"layer_norm", "ln_"),
        (r"mlp\.fc1", "mlp.c_fc"),
        (r"mlp\.fc2", "mlp.c_proj"),
        (r"pre_layrnorm", "ln_pre"),
        (r"post_layernorm", "ln_post"),
        (r"embeddings\.class_embedding", "class_embedding"),
        (r"embeddings\.position_embedding\.weight", "positional_embedding"),
        (r"embeddings\.patch_embedding", "conv1"),
        (r"^visual_projection\.weight", "visual.proj"),
    )
    tensors["visual.proj"] = tensors["visual.proj"].T
    return {
        **tensors,
        "logit_scale": np.float32([1]),
        "token_embedding.weight": np.zeros((3, 2), "f4"),
    }


def test_clip_under_its_own_names(tmp_path, caplog):
    tensors = openai_names(tensors_of("CLIPVisionModelWithProjection"))
    path = save(tmp_path / "clip.safetensors", tensors)
    assert_logits(vit_jax.load_model(path, num_heads=2), "CLIPVisionModelWithProjection")
    model = vit_jax.load_model(path, num_heads=2)
    vit_jax.save_model(model, tmp_path / "out.safetensors", "clip")
    written = safetensors.numpy.load_file(tmp_path / "out.safetensors")
    visual = {k: a for k, a in tensors.items() if k.startswith("visual.")}
    assert_same_tensors({f"visual.{name}": array for name, array in written.items()}, visual)
    loaded = vit_jax.load_model(tmp_path / "out.safetensors")  # Its metadata says the heads.
    assert loaded.options == model.options
    assert_logits(loaded, "CLIPVisionModelWithProjection")
    assert "the names begin with 'visual.'; 2 others are left aside" in caplog.text
    assert "gelu='quick'" in caplog.text
    assert "norm_epsilon=1e-05" in caplog.text


def dinov2_names(tensors):
    """DINOv2's own names, as its repository writes them: timm's but for the registers."""
    tensors = fused(
        tensors,
        r"encoder\.layer\.(\d+)\.attention\.attention\.(query|key|value)\.(weight|bias)",
        ("query", "key", "value"),
        "blocks.{layer}.attn.qkv.{kind}",
    )
    return renamed(
        tensors,
        (r"encoder\.layer\.", "blocks."),
        (r"attention\.output\.dense", "attn.proj"),
        (r"layer_scale(.)\.lambda1", r"ls\1.gamma"),
        (r"mlp\.weights_in", "mlp.w12"),
        (r"mlp\.weights_out", "mlp.w3"),
        (r"^layernorm", "norm"),
        (r"embeddings\.patch_embeddings\.projection", "patch_embed.proj"),
        (r"embeddings\.position_embeddings", "pos_embed"),
        (r"embeddings\.", ""),
    )


@pytest.mark.parametrize("name", ["Dinov2Model", "Dinov2Model_swiglu", "Dinov2WithRegistersModel"])
@pytest.mark.parametrize("prefix", ["", "module.", "teacher.backbone."])
def test_dinov2_under_its_own_names(name, prefix, tmp_path, caplog):
    tensors = {prefix + key: array for key, array in dinov2_names(tensors_of(name)).items()}
    path = save(tmp_path / "dinov2.safetensors", tensors)
    model = vit_jax.load_model(path, num_heads=2, image_size=12)
    assert_logits(model, name)
    assert ("the names begin with" in caplog.text) == bool(prefix)


def test_a_teacher_is_taken_before_its_student(tmp_path):
    tensors = dinov2_names(tensors_of("Dinov2Model"))
    both = {f"teacher.backbone.{name}": array for name, array in tensors.items()}
    both |= {f"student.module.backbone.{name}": 0 * array for name, array in tensors.items()}
    others = {f"trunk.{name}": array for name, array in tensors.items()}
    others |= {f"student.{name}": 0 * array for name, array in tensors.items()}
    for contents in (both, others):
        path = save(tmp_path / "dino.safetensors", contents)
        assert_logits(vit_jax.load_model(path, num_heads=2, image_size=12), "Dinov2Model")


def test_an_unknown_wrapper_is_no_prefix(tmp_path):
    tensors = dinov2_names(tensors_of("Dinov2Model"))
    path = save(tmp_path / "x.safetensors", {f"text.{name}": a for name, a in tensors.items()})
    with pytest.raises(WeightsError, match="none of its"):
        vit_jax.load_model(path, num_heads=2)


def torchvision_names(tensors, mlp):
    tensors = renamed(
        tensors,
        (r"^blocks\.(\d+)\.attn\.qkv\.", r"blocks.\1.self_attention.in_proj_"),
        (r"^blocks\.(\d+)\.attn\.proj", r"blocks.\1.self_attention.out_proj"),
        (r"^blocks\.(\d+)\.norm", r"blocks.\1.ln_"),
        (r"mlp\.fc1", f"mlp.{mlp[0]}"),
        (r"mlp\.fc2", f"mlp.{mlp[1]}"),
        (r"^blocks\.", "encoder.layers.encoder_layer_"),
        (r"^patch_embed\.proj", "conv_proj"),
        (r"^cls_token", "class_token"),
        (r"^pos_embed", "encoder.pos_embedding"),
        (r"^norm", "encoder.ln"),
        (r"^head", "heads.head"),
    )
    return tensors


@pytest.mark.parametrize("mlp", [("0", "3"), ("linear_1", "linear_2")])
def test_torchvisions_names(mlp, tmp_path):
    """It computes as timm's model does: erf GELU, epsilon 1e-6."""
    tensors = safetensors.numpy.load_file(GOLDEN / "timm_token.safetensors")
    path = save(tmp_path / "vit_b_16.safetensors", torchvision_names(tensors, mlp))
    expected = golden("timm_token")
    model = vit_jax.load_model(path, num_heads=2)
    outputs = logits(model, expected["images"])
    np.testing.assert_allclose(outputs, expected["logits"], rtol=0, atol=1e-5)
    side = model.options.image_size[0]
    assert model.preprocessing.resize == round(side * 256 / 224), (
        "as its ImageClassification preset"
    )
    vit_jax.save_model(model, tmp_path / "out.safetensors", "torchvision")
    written = safetensors.numpy.load_file(tmp_path / "out.safetensors")
    assert_same_tensors(written, torchvision_names(tensors, ("0", "3")))
    assert vit_jax.load_model(tmp_path / "out.safetensors").options == model.options


@pytest.mark.parametrize(
    ("format", "options", "named"),
    [
        ("clip", {}, "pre_norm=False"),
        ("clip", {"pre_norm": True, "gelu": "erf"}, "norm_epsilon=1e-06"),
        ("torchvision", {}, "gelu='tanh'"),
        ("torchvision", {"gelu": "erf", "num_registers": 1}, "num_registers=1"),
    ],
)
def test_what_single_files_of_other_libraries_cannot_express(format, options, named, tmp_path):
    tiny = {"width": 32, "depth": 1, "mlp_width": 64, "num_heads": 2, "image_size": 32}
    model = random_model("ViT-Ti/16", **tiny, num_classes=3, **options)
    with pytest.raises(WeightsError, match=f"{format} files cannot express model.{named}"):
        vit_jax.save_model(model, tmp_path / "out.safetensors", format)


def test_clips_projection_has_no_bias(tmp_path):
    options = {"pre_norm": True, "gelu": "quick", "norm_epsilon": 1e-5}
    model = random_model("ViT-Ti/16", depth=1, image_size=32, num_classes=3, **options)
    for format, name in (("clip", "out.safetensors"), ("huggingface", "out")):
        with pytest.raises(WeightsError, match=r"head/bias is not 0.*format='timm'"):
            vit_jax.save_model(model, tmp_path / name, format)


def test_maes_own_names(tmp_path, caplog):
    """timm's, with a decoder."""
    tensors = safetensors.numpy.load_file(GOLDEN / "timm_token.safetensors")
    decoder = {
        "mask_token": np.zeros((1, 1, 8), "f4"),
        "decoder_embed.weight": np.ones((8, 32), "f4"),
    }
    path = save(tmp_path / "mae.safetensors", {**tensors, **decoder})
    expected = golden("timm_token")
    outputs = logits(vit_jax.load_model(path, num_heads=2), expected["images"])
    np.testing.assert_allclose(outputs, expected["logits"], rtol=0, atol=1e-5)
    assert "decoder_embed.weight, mask_token skipped" in caplog.text


def test_a_masked_autoencoder_with_its_decoder_is_its_encoder(tmp_path, caplog):
    """`ViTMAEForPreTraining`, as facebook/vit-mae-base is: a prefix, a decoder, no head."""
    folder = shutil.copytree(FAMILIES / "ViTMAEModel", tmp_path / "folder")
    tensors = {f"vit.{name}": array for name, array in tensors_of("ViTMAEModel").items()}
    tensors["decoder.mask_token"] = np.zeros((1, 1, 512), "f4")
    tensors["decoder.decoder_embed.weight"] = np.zeros((512, 16), "f4")
    save(folder / "model.safetensors", tensors)
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["ViTMAEForPreTraining"], "mask_ratio": 0.75}
    (folder / "config.json").write_text(json.dumps(config))
    assert_logits(vit_jax.load_model(folder), "ViTMAEModel")
    assert "decoder.decoder_embed.weight, decoder.mask_token skipped" in caplog.text


def shards(folder, tensors):
    """The tensors in two files and an index, as Hugging Face splits large models."""
    names = sorted(tensors)
    weight_map = {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        save(folder / file, {name: tensors[name] for name in part})
        weight_map |= dict.fromkeys(part, file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return index


def test_a_sharded_folder_is_loaded_whole(tmp_path):
    folder = shutil.copytree(FAMILIES / "SiglipVisionModel", tmp_path / "folder")
    whole = parameters(vit_jax.load_model(folder))
    (folder / "model.safetensors").unlink()
    index = shards(folder, tensors_of("SiglipVisionModel"))
    sharded = parameters(vit_jax.load_model(folder))
    for name, array in whole.items():
        np.testing.assert_array_equal(sharded[name], array)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"model-00002-of-00002\.safetensors is missing"):
        vit_jax.load_model(folder)
    index.write_text(json.dumps({"weight_map": {"a": "../elsewhere.safetensors"}}))
    with pytest.raises(WeightsError, match=r"not a \.safetensors file beside it"):
        vit_jax.load_model(folder)
    index.write_text("[]")
    with pytest.raises(WeightsError, match="no index"):
        vit_jax.load_model(folder)


def test_positions_are_resized_as_the_files_library_does(tmp_path, caplog):
    vit_jax.load_model(FAMILIES / "Dinov2Model", image_size=20)
    assert "grid 3×3 → 5×5, bicubic_torch" in caplog.text
    vit_jax.load_model(GOLDEN / "timm_token.safetensors", num_heads=2, image_size=64)
    assert "grid 4×4 → 8×8, bicubic\n" in caplog.text


TIMM = sorted(path.name for path in (GOLDEN / "timm").iterdir())


@pytest.mark.parametrize("name", TIMM)
def test_timms_architectures_compute_as_timm_does(name):
    """On a grid of 3×4 patches; written by `tests/campaigns/timm_names.py`."""
    expected = golden(f"timm/{name}/expected")
    model = vit_jax.load_model(GOLDEN / "timm" / name)
    np.testing.assert_allclose(
        logits(model, expected["images"]), expected["logits"], rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("name", TIMM)
def test_at_another_size_as_timm_does(name):
    """Rotary positions of the larger grid, and learned ones resized, on 5×6 patches."""
    expected = golden(f"timm/{name}/larger")
    model = vit_jax.load_model(GOLDEN / "timm" / name, image_size=expected["images"].shape[1:3])
    np.testing.assert_allclose(
        logits(model, expected["images"]), expected["logits"], rtol=0, atol=1e-5
    )


def test_rotary_positions_that_nothing_tells_are_not_guessed(tmp_path):
    folder = shutil.copytree(GOLDEN / "timm/vit_small_patch16_rope_224", tmp_path / "folder")
    (folder / "config.json").unlink()
    with pytest.raises(WeightsError, match=r"config\.json tells, and there is none"):
        vit_jax.load_model(folder, num_heads=2)


@pytest.mark.parametrize("name", TIMM)
@pytest.mark.parametrize("single_file", [False, True])
def test_timms_architectures_are_written_back_bit_by_bit(name, single_file, tmp_path):
    model = vit_jax.load_model(GOLDEN / "timm" / name)
    out = tmp_path / ("out.safetensors" if single_file else "out")
    vit_jax.save_model(model, out, "timm")
    written = safetensors.numpy.load_file(out if single_file else out / "model.safetensors")
    original = safetensors.numpy.load_file(GOLDEN / "timm" / name / "model.safetensors")
    if name == "eva_giant_patch14_224":  # EVA's first form is a ViT, and is written as one.
        assert "blocks.0.attn.qkv.bias" in written
    else:
        assert_same_tensors(written, original)
    assert_same_tensors(parameters(vit_jax.load_model(out)), parameters(model))


def test_dinov3_goes_from_library_to_library(tmp_path):
    """Its SwiGLU has no GELU, so which one the options name is of no account."""
    model = vit_jax.load_model(FAMILIES / "DINOv3ViTModel_swiglu")
    vit_jax.save_model(model, tmp_path / "timm", "timm")
    vit_jax.save_model(vit_jax.load_model(tmp_path / "timm"), tmp_path / "out", "huggingface")
    assert_logits(vit_jax.load_model(tmp_path / "out"), "DINOv3ViTModel_swiglu")
    dense = random_model("ViT-Ti/16", depth=1, image_size=32, positions="rotary_2d")
    with pytest.raises(
        WeightsError, match=r"model\.gelu='tanh' in an Eva, only 'erf'; these can: vit"
    ):
        vit_jax.save_model(dense, tmp_path / "out", "timm")


@pytest.mark.parametrize("format", ["huggingface", "npz"])
def test_rotary_positions_are_never_lost_in_writing(format, tmp_path):
    """Their learned half must not be taken for the whole."""
    model = vit_jax.load_model(GOLDEN / "timm/eva02_tiny_patch14_224")
    path = tmp_path / ("out.npz" if format == "npz" else "out")
    with pytest.raises(WeightsError, match=r"model\.(positions|mlp|pooling|norm_after_pooling)="):
        vit_jax.save_model(model, path, format)
