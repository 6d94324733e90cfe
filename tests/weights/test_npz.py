"""Published .npz files, against outputs and gradients of the code that published them."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from flax import nnx
from flax.traverse_util import flatten_dict

import vit_jax
from tests.published import (
    assert_same_tensors,
    golden,
    logits,
    new_numbering,
    old_numbering,
    parameters,
    random_model,
    stacked,
    write_npz,
)
from vit_jax.errors import WeightsError
from vit_jax.model_file import Preprocessing
from vit_jax.weights import npz
from vit_jax.weights.mapping import write_table

VITS = ("vit_token", "vit_token_representation", "vit_gap")
HYBRIDS = ("hybrid_stem", "hybrid_r_1_2")
BIG_VISION = ("bv_vit_map", "bv_vit_sincos_gap_rep")
BITS = {  # what the names do not say
    "bit_v1_postact": {},
    "bit_v2_preact": {"pool_padding": "infinity"},
    "bit_v2_preact_zeropad": {},
}


@pytest.mark.parametrize("name", VITS)
def test_logits_and_gradients_are_the_reference_codes(name, tmp_path):
    expected = golden(name)
    model = vit_jax.load_model(write_npz(tmp_path / "weights.npz", expected["params"]))
    graphdef, state = nnx.split(model)

    def loss_function(params):
        logits = nnx.merge(graphdef, params)(jnp.asarray(expected["images"]))
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, expected["labels"])
        return losses.mean(), logits

    gradient = jax.jit(jax.value_and_grad(loss_function, has_aux=True))
    (loss, outputs), grads = gradient(nnx.to_pure_dict(state))
    np.testing.assert_allclose(outputs, expected["logits"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(loss, expected["softmax_loss"], rtol=0, atol=1e-5)
    written = write_table(npz.VIT_TABLE, flatten_dict(grads, sep="/"), model.options)
    assert written.keys() == expected["grads"].keys()
    for key, reference in expected["grads"].items():
        tolerance = 1e-4 * abs(reference).max() + 1e-7
        np.testing.assert_allclose(written[key], reference, rtol=0, atol=tolerance, err_msg=key)


@pytest.mark.parametrize("name", [*HYBRIDS, *BIG_VISION, *BITS])
def test_logits_of_the_other_families(name, tmp_path):
    expected = golden(name)
    path = write_npz(tmp_path / "weights.npz", expected["params"])
    size = expected["images"].shape[1:3]
    model = vit_jax.load_model(path, image_size=size, **BITS.get(name, {}))
    tolerance = 5e-6 if name in BITS else 1e-5
    outputs = logits(model, expected["images"])
    np.testing.assert_allclose(outputs, expected["logits"], rtol=0, atol=tolerance)


@pytest.mark.parametrize("prefix", npz.PREFIXES)
@pytest.mark.parametrize("name", [*VITS, *HYBRIDS])
def test_every_prefix_and_layout_gives_the_same_model(name, prefix, tmp_path):
    tensors, size = golden(name)["params"], golden(name)["images"].shape[1:3]
    bare = vit_jax.load_model(write_npz(tmp_path / "bare.npz", tensors), image_size=size)
    for layout in (old_numbering, new_numbering, stacked):
        disguised = {prefix + key: array for key, array in layout(tensors).items()}
        path = write_npz(tmp_path / "weights.npz", disguised)
        model = vit_jax.load_model(path, image_size=size)
        assert model.options == bare.options
        assert_same_tensors(parameters(model), parameters(bare))


@pytest.mark.parametrize(
    ("name", "assumed", "not_assumed"),
    [
        ("vit_token", "gelu='tanh', pooling='token'", "pool_padding"),
        ("vit_gap", "gelu='tanh'", "pooling="),
        ("bv_vit_map", "gelu='tanh'", "pooling="),
        ("bit_v2_preact", "pool_padding='zeros'", "gelu"),
        ("bit_v1_postact", "image_size=224", "pool_padding"),
    ],
)
def test_what_was_assumed_is_printed(name, assumed, not_assumed, tmp_path, caplog):
    path = write_npz(tmp_path / "in.npz", golden(name)["params"])
    vit_jax.load_model(path)
    assert "Assumed, as nothing says it: " in caplog.text
    assert assumed in caplog.text
    assert not_assumed not in caplog.text


@pytest.mark.parametrize(
    ("name", "expected", "told"),
    [
        ("vit_token", Preprocessing(antialias=False), "whole pictures resized (bilinear, not anti"),
        ("hybrid_stem", Preprocessing(antialias=False), "whole pictures resized (bilinear, not"),
        (
            "bit_v2_preact",  # Under Big Vision's names.
            Preprocessing(crop="center", resize=256, interpolation="area"),
            "the centres of pictures resized to 256 (area)",
        ),
        (
            "bv_vit_map",  # For 32 pixels.
            Preprocessing(crop="center", resize=37, interpolation="area"),
            "the centres of pictures resized to 37 (area)",
        ),
    ],
)
def test_pictures_are_made_as_for_the_published_accuracies(name, expected, told, tmp_path, caplog):
    """input_pipeline.py of vision_transformer and BiT; `resize_small(256)|central_crop(224)`."""
    path = write_npz(tmp_path / "in.npz", golden(name)["params"])
    model = vit_jax.load_model(path)
    assert model.preprocessing == dataclasses.replace(expected, resize=model.preprocessing.resize)
    assert model.preprocessing.crop == "resize" or model.preprocessing.resize == expected.resize
    assert told in caplog.text
    vit_jax.save_model(model, tmp_path / "out.npz")  # With a sidecar, which says it.
    assert vit_jax.load_model(tmp_path / "out.npz").preprocessing == model.preprocessing
    (tmp_path / "out.json").unlink()  # Under the reference's names.
    again = vit_jax.load_model(tmp_path / "out.npz").preprocessing
    assert (again.crop, again.antialias) == ("resize", False)


def test_of_a_training_state_only_the_parameters_are_read(tmp_path):
    tensors = golden("vit_gap")["params"]
    state = {f"opt/target/{key}": array for key, array in tensors.items()}
    state |= {f"opt/state/{key}/momentum": array for key, array in tensors.items()}
    expected = vit_jax.load_model(write_npz(tmp_path / "bare.npz", tensors))
    model = vit_jax.load_model(write_npz(tmp_path / "state.npz", state))
    assert_same_tensors(parameters(model), parameters(expected))


def test_group_norms_may_be_vectors(tmp_path):
    tensors = golden("hybrid_stem")["params"]
    assert tensors["gn_root/scale"].shape == (1, 1, 1, 32)
    vectors = {key: array.reshape(-1) if "gn_" in key else array for key, array in tensors.items()}
    first = vit_jax.load_model(write_npz(tmp_path / "old.npz", tensors))
    second = vit_jax.load_model(write_npz(tmp_path / "new.npz", vectors))
    assert_same_tensors(parameters(second), parameters(first))


@pytest.mark.parametrize("name", [*VITS, *HYBRIDS, "bit_v1_postact", "bv_vit_sincos_gap_rep"])
def test_a_round_trip_gives_the_published_tensors_back(name, tmp_path):
    entries = golden(name)
    tensors, size = entries["params"], entries["images"].shape[1:3]
    model = vit_jax.load_model(write_npz(tmp_path / "in.npz", tensors), image_size=size)
    vit_jax.save_model(model, tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz", allow_pickle=False) as file:
        written = npz.canonical_names(tensors) if name.startswith("bv") else tensors
        assert_same_tensors(dict(file), written)


def test_big_visions_layouts_come_back_under_the_published_names(tmp_path):
    tensors = golden("vit_token")["params"]
    disguised = {f"params/{key}": array for key, array in stacked(tensors).items()}
    vit_jax.save_model(
        vit_jax.load_model(write_npz(tmp_path / "in.npz", disguised)), tmp_path / "out.npz"
    )
    with np.load(tmp_path / "out.npz", allow_pickle=False) as file:
        assert_same_tensors(dict(file), tensors)


def test_big_visions_class_token_has_no_position(tmp_path):
    """Its tables have a row for each patch alone."""
    tensors = golden("vit_token")["params"]
    table = tensors.pop("Transformer/posembed_input/pos_embedding")
    model = vit_jax.load_model(
        write_npz(tmp_path / "in.npz", {**tensors, "pos_embedding": table[:, 1:]})
    )
    assert (model.options.has_class_token, model.options.prefix_positions) == (True, False)
    np.testing.assert_array_equal(parameters(model)["position_embedding"], table[:, 1:])


def published_bit(tensors):
    """Big Vision's pre-activation ResNet under the names of BiT's own files."""
    renamed = {}
    for name, array in tensors.items():
        *place, module, kind = name.split("/")
        place = "/".join(["resnet", *place])
        if module in ("conv1", "conv2", "conv3"):
            key = f"{place}/{'abc'[int(module[-1]) - 1]}/standardized_conv2d/kernel"
        elif module == "conv_proj":
            key = f"{place}/a/proj/standardized_conv2d/kernel"
        elif module.startswith("gn"):
            norm = {"scale": "gamma", "bias": "beta"}[kind]
            key = f"{place}/{'abc'[int(module[-1]) - 1]}/group_norm/{norm}"
            array = array.reshape(-1)
        elif module == "conv_root":
            key = "resnet/root_block/standardized_conv2d/kernel"
        elif module == "norm-pre-head":
            key = f"resnet/group_norm/{ {'scale': 'gamma', 'bias': 'beta'}[kind] }"
            array = array.reshape(-1)
        else:
            key = f"resnet/head/conv2d/{kind}"
            array = array[None, None] if kind == "kernel" else array
        renamed[key] = array
    return renamed


def test_bits_own_files_are_read_and_written(tmp_path):
    expected = golden("bit_v2_preact_zeropad")
    tensors = published_bit(expected["params"])
    assert "resnet/block2/unit02/c/group_norm/gamma" in tensors
    model = vit_jax.load_model(write_npz(tmp_path / "in.npz", tensors), image_size=48)
    np.testing.assert_allclose(
        logits(model, expected["images"]), expected["logits"], rtol=0, atol=5e-6
    )
    vit_jax.save_model(model, tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz", allow_pickle=False) as file:
        assert_same_tensors(dict(file), tensors)


def test_mixer_files_are_read_and_written(tmp_path):
    """Shapes of the published files; the token MLP gives the number of patches away."""
    shapes = {
        "stem/kernel": (16, 16, 3, 8),
        "stem/bias": (8,),
        "head/kernel": (8, 5),
        "head/bias": (5,),
    }
    shapes |= {f"pre_head_layer_norm/{kind}": (8,) for kind in ("scale", "bias")}
    for block in ("MixerBlock_0", "MixerBlock_1"):
        for norm in ("LayerNorm_0", "LayerNorm_1"):
            shapes |= {f"{block}/{norm}/{kind}": (8,) for kind in ("scale", "bias")}
        for mixing, outer, hidden in (("token_mixing", 49, 6), ("channel_mixing", 8, 12)):
            for dense, (inputs, outputs) in enumerate(((outer, hidden), (hidden, outer))):
                shapes[f"{block}/{mixing}/Dense_{dense}/kernel"] = (inputs, outputs)
                shapes[f"{block}/{mixing}/Dense_{dense}/bias"] = (outputs,)
    rng = np.random.default_rng(0)
    tensors = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    model = vit_jax.load_model(write_npz(tmp_path / "in.npz", tensors))
    assert model.options.image_size == (112, 112)
    assert (model.options.token_mlp_width, model.options.mlp_width) == (6, 12)
    vit_jax.save_model(model, tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz", allow_pickle=False) as file:
        assert_same_tensors(dict(file), tensors)


def test_bfloat16_and_float16_are_read_as_float32(tmp_path):
    tensors = golden("vit_gap")["params"]
    for dtype in (ml_dtypes.bfloat16, np.float16):
        small = {key: array.astype(dtype) for key, array in tensors.items()}
        model = vit_jax.load_model(write_npz(tmp_path / "small.npz", small))
        kernel = parameters(model)["head/kernel"]
        np.testing.assert_array_equal(kernel, small["head/kernel"].astype(np.float32), strict=True)


def test_what_tensors_cannot_say_travels_in_the_sidecar(tmp_path):
    tensors = golden("vit_token")["params"]
    model = vit_jax.load_model(write_npz(tmp_path / "in.npz", tensors), gelu="erf")
    names = tuple("abcdefghij")
    vit_jax.save_model(model, tmp_path / "out.npz", class_names=names)
    content = json.loads((tmp_path / "out.json").read_text())
    assert content["model"]["gelu"] == "erf"
    loaded = vit_jax.load_model(tmp_path / "out.npz")
    assert loaded.options == model.options
    assert loaded.class_names == names
    (tmp_path / "out.json").unlink()
    assert vit_jax.load_model(tmp_path / "out.npz").options.gelu == "tanh"


def test_a_sidecar_that_contradicts_the_tensors_is_refused(tmp_path):
    path = write_npz(tmp_path / "in.npz", golden("vit_token")["params"])
    vit_jax.save_model(vit_jax.load_model(path), tmp_path / "out.npz")
    content = json.loads((tmp_path / "out.json").read_text())
    content["model"]["depth"] = 12
    (tmp_path / "out.json").write_text(json.dumps(content))
    with pytest.raises(WeightsError, match=r"out.npz: its metadata says depth=12, .* have 3"):
        vit_jax.load_model(tmp_path / "out.npz")
    content["model"]["depth"], content["class_names"] = 3, ["cat", "dog"]
    (tmp_path / "out.json").write_text(json.dumps(content))
    with pytest.raises(WeightsError, match=r"out.npz: .*names 2 classes, but its head has 10"):
        vit_jax.load_model(tmp_path / "out.npz")


def test_what_published_files_cannot_express_is_named(tmp_path):
    for options, named in (
        ({"num_registers": 4}, "num_registers=4"),
        ({"layer_scale": 0.1}, "layer_scale=0.1"),
        ({"query_key_norm": True}, "query_key_norm=True"),
        ({"position_placement": "every_layer_shared"}, "position_placement="),
    ):
        model = random_model("ViT-Ti/16", width=32, depth=1, num_heads=2, **options)
        with pytest.raises(WeightsError, match=f"npz files cannot express model.{named}"):
            vit_jax.save_model(model, tmp_path / "out.npz")
    with pytest.raises(WeightsError, match="npz files have no AxialViT models"):
        vit_jax.save_model(random_model("Axial-ViT-B/32", width=24, depth=1), tmp_path / "out.npz")
    assert not list(tmp_path.iterdir())


def test_a_runs_description_is_not_overwritten(tmp_path):
    model = vit_jax.load_model(write_npz(tmp_path / "in.npz", golden("vit_gap")["params"]))
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(WeightsError, match=r"model\.json belongs to something else"):
        vit_jax.save_model(model, tmp_path / "model.npz")
