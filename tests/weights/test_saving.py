"""Which format a path names, what becomes of a head and of positions, and what each format can hold."""

import numpy as np
import pytest

from vit_jax.errors import WeightsError
from vit_jax.models import model_options
from vit_jax.weights.saving import (
    FORMATS,
    can_express,
    find_layout,
    format_of,
    tabled,
    with_table,
    without_head,
)

VIT = {
    **{"width": 24, "depth": 3, "mlp_width": 40, "num_heads": 2, "num_classes": 7},
    **{"patch_size": (4, 2), "image_size": (12, 8)},
}


def options(**changes):
    return model_options("ViT-Ti/16", **{**VIT, **changes})


@pytest.mark.parametrize(
    ("path", "given", "format"),
    [
        ("a.npz", None, "npz"),
        ("a.NPZ", None, "npz"),
        ("a.safetensors", None, "timm"),
        ("a.stablehlo", None, "stablehlo"),
        ("a.safetensors", "clip", "clip"),
        ("a.safetensors", "torchvision", "torchvision"),
        ("a.SafeTensors", "timm", "timm"),
        ("a", "timm", "timm"),
        ("a", "huggingface", "huggingface"),
        ("v1.5", "vit_jax", "vit_jax"),
    ],
)
def test_the_format_of_a_name(path, given, format):
    assert format_of(path, given) == format


@pytest.mark.parametrize(
    ("path", "given", "message"),
    [
        ("a", None, "say which: one of timm, huggingface, vit_jax"),
        ("a.npz", "timm", r"timm is written to a file NAME\.safetensors or a folder"),
        ("a", "npz", r"npz is written to a file NAME\.npz: name it so"),
        ("a.npz", "vit_jax", "vit_jax is written to a folder: name it so"),
        ("a", "clip", r"clip is written to a file NAME\.safetensors: name"),
        *(
            (f"a{ending}", "huggingface", "huggingface is written to a folder: name it so")
            for ending in (
                *(".npz", ".safetensors", ".stablehlo", ".bin", ".pth", ".pt", ".ckpt", ".onnx"),
                *(".pb", ".tflite", ".h5", ".keras", ".msgpack", ".gguf", ".json", ".zip", ".tar"),
            )
        ),
        ("gs://a.npz", None, "an export is written to this machine"),
        ("a.npz", "onnx", "format='onnx': must be one of npz, timm, huggingface, clip"),
    ],
)
def test_names_that_a_format_does_not_have(path, given, message):
    with pytest.raises(WeightsError, match=message):
        format_of(path, given)


def test_a_runs_workdir_is_not_written_into(tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(
        WeightsError, match=f"^{tmp_path}/run is a run's workdir, which an export wo"
    ):
        format_of(f"{tmp_path}/run", "vit_jax")
    assert format_of(f"{tmp_path}/run/export", "vit_jax") == "vit_jax"


def test_a_trunk_has_nothing_of_a_head():
    names = ("head/kernel", "head/bias", "distillation_head/kernel", "head_norm/mean")
    names += ("pre_logits/kernel", "norm/scale", "heads/x")
    parameters = {name: np.zeros(1) for name in names}
    trunk, changed = without_head(parameters, options(representation_size=9, head_norm="batch"))
    assert set(trunk) == {"norm/scale", "heads/x"}
    found = (changed.num_classes, changed.representation_size, changed.head_norm)
    assert found == (0, 0, "none")
    _, mixer = without_head({}, model_options("Mixer-B/16"))
    assert mixer.num_classes == 0


NPZ, TIMM, HUGGINGFACE = (
    FORMATS["npz"].layouts[0],
    find_layout("timm", options()),
    find_layout("huggingface", options()),
)


@pytest.mark.parametrize(
    ("layout", "changes", "positions", "rows"),
    [
        (NPZ, {"positions": "sincos_2d"}, "sincos_2d", True),
        (TIMM, {"positions": "sincos_2d"}, "learned_1d", False),
        # Where there is a row for each token anyway it is as good as none.
        (TIMM, {"positions": "sincos_2d", "pooling": "average"}, "learned_1d", True),
        (HUGGINGFACE, {"positions": "learned_2d"}, "learned_1d", False),
        (HUGGINGFACE, {"prefix_positions": False}, "learned_1d", True),
        (TIMM, {"prefix_positions": False}, "learned_1d", False),
        (NPZ, {"positions": "learned_2d"}, "learned_1d", False),
        (
            TIMM,
            {"positions": "learned_2d", "position_placement": "every_layer"},
            "learned_2d",
            True,
        ),
        (TIMM, {"positions": "none"}, "none", True),
        (TIMM, {"positions": "rotary_2d", "width": 48}, "rotary_2d", True),
    ],
)
def test_positions_that_become_a_table(layout, changes, positions, rows):
    found = tabled(options(**changes), layout)
    assert (found.positions, found.prefix_positions) == (positions, rows)


def test_a_table_has_the_rows_that_the_layout_has():
    table = np.arange(2.0 * (1 + 12)).reshape(1, 13, 2)
    given = options(positions="sincos_2d")
    others = {"position_embedding/rows": 0, "norm/scale": 1}
    found = with_table(table, others, given, TIMM)
    assert set(found) == {"norm/scale", "position_embedding"}
    np.testing.assert_array_equal(found["position_embedding"], table[:, 1:])
    given = options(prefix_positions=False)
    found = with_table(table, {}, given, HUGGINGFACE)
    np.testing.assert_array_equal(found["position_embedding"], table)


@pytest.mark.parametrize(
    ("format", "changes", "message"),
    [
        ("npz", {"qkv_bias": False}, r"npz files cannot express model.qkv_bias=False, only True"),
        ("npz", {"positions": "relative"}, "positions='relative'"),
        ("npz", {"num_registers": 2}, r"num_registers=2, only 0; these can: timm, vit_jax, st"),
        ("npz", {"layer_scale": 0.1}, "layer_scale=0.1"),
        *(
            ("npz", {option: True}, f"{option}=True, only False")
            for option in ("query_key_norm", "attention_norm", "mlp_norm", "pre_norm")
        ),
        ("npz", {"final_norm": False}, "final_norm=False, only True"),
        ("npz", {"mlp": "swiglu"}, "mlp='swiglu'"),
        ("torchvision", {"norm_epsilon": 1e-5, "gelu": "erf"}, "norm_epsilon=1e-05, only 1e-06"),
        ("torchvision", {"gelu": "erf", "layer_scale": 0.1}, "layer_scale=0.1"),
        ("torchvision", {"gelu": "erf", "qkv_bias": False}, "qkv_bias=False"),
        ("torchvision", {"gelu": "erf", "pooling": "average"}, "pooling='average'"),
        ("clip", {"pre_norm": True, "gelu": "quick"}, "norm_epsilon=1e-06, only 1e-05"),
        ("clip", {"pre_norm": True, "norm_epsilon": 1e-5}, "gelu='tanh', only 'quick', 'erf'"),
        ("clip", {"norm_epsilon": 1e-5, "gelu": "quick"}, "pre_norm=False, only True"),
        ("torchvision", {"gelu": "erf", "representation_size": 9}, r"9, only 0; .*trunk_only=True"),
    ],
)
def test_what_a_format_cannot_hold(format, changes, message):
    with pytest.raises(WeightsError, match=message) as error:
        find_layout(format, options(**changes))
    assert ("trunk_only" in str(error.value)) == ("representation_size" in changes)


@pytest.mark.parametrize(
    ("changes", "formats"),
    [
        ({"gelu": "erf"}, "npz timm huggingface torchvision vit_jax stablehlo"),
        ({"positions": "none"}, "npz timm huggingface vit_jax stablehlo"),
        ({"positions": "relative"}, "vit_jax stablehlo"),
        (
            {"pre_norm": True, "norm_epsilon": 1e-5, "gelu": "erf", "layer_scale": 0.1},
            "timm clip vit_jax stablehlo",
        ),
        ({"representation_size": 9}, "npz vit_jax stablehlo"),
        ({"pooling": "average", "class_token": False}, "npz timm huggingface vit_jax stablehlo"),
    ],
)
def test_the_formats_that_hold_a_model(changes, formats):
    found = [format for format in FORMATS if can_express(format, options(**changes))]
    assert found == formats.split()


def test_registers_have_no_row_in_a_table_without_any_for_the_prefix():
    table = np.arange(2.0 * (3 + 12)).reshape(1, 15, 2)
    given = options(positions="sincos_2d", num_registers=2)
    assert given.num_prefix_tokens == 3
    found = with_table(table, {}, given, TIMM)
    np.testing.assert_array_equal(found["position_embedding"], table[:, 3:])
