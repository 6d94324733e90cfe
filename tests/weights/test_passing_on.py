"""What a caller asks for arrives where weights are read, fitted and written."""

import dataclasses
import os
import types

import numpy as np
import pytest

from tests.calls import recorded
from tests.models.filled import filled_model
from vit_jax import export, hub
from vit_jax.errors import WeightsError
from vit_jax.model_file import ModelFile, Preprocessing
from vit_jax.models import model_options
from vit_jax.weights import by_name, equivalence, formats, loading, native, saving, state_dict
from vit_jax.weights.adapt import Adaptation
from vit_jax.weights.architecture import abstract_parameters
from vit_jax.weights.content import Hints, Stated, Weights, make_weights
from vit_jax.weights.equivalence import Form
from vit_jax.weights.layouts import Layout
from vit_jax.weights.mapping import Reading

SIZES = {"width": 16, "depth": 1, "mlp_width": 24, "num_heads": 2, "num_classes": 2}
VIT = {**SIZES, "patch_size": 4, "image_size": (8, 12)}


def test_loading_reads_what_is_asked_for(monkeypatch, tmp_path):
    read = recorded(monkeypatch, loading, "read_weights", "WEIGHTS")
    built = recorded(monkeypatch, loading, "build_model", "MODEL")
    loaded = loading.load_model(
        "x", "best", True, source_grid=(2, 3), position_resize="bicubic", num_classes=0
    )
    assert loaded == "MODEL"
    hints = Hints({"num_classes": 0}, (2, 3))
    assert read == [(("x", hints), {"checkpoint": "best", "ema": True})]
    assert built == [(("WEIGHTS", {"num_classes": 0}, "bicubic"), {})]
    loading.load_model("ViT-B/16", pretrained="augreg_in1k", image_size=384)
    assert read[-1][0][0] == "hf:timm/vit_base_patch16_384.augreg_in1k"


def test_a_start_is_read_with_what_the_config_knows(monkeypatch, tmp_path):
    read = recorded(monkeypatch, loading, "read_weights", types.SimpleNamespace(model_file="FILE"))
    options = model_options("ViT-B/16", **VIT, gelu="erf")
    where = {"checkpoint": 3, "ema": True, "cached_only": True}
    loading.read_initial_weights(tmp_path, options, **where, source_grid=(2, 3))
    hints = Hints({"num_heads": 2, "image_size": (8, 12)}, (2, 3))
    assert read == [((tmp_path, hints), where)]
    absent = f"{tmp_path}/none does not exist: name the weights with --config.init=PATH"
    with pytest.raises(WeightsError, match=f"^{absent}"):
        loading.read_initial_weights(f"{tmp_path}/none", options)
    known = {"num_heads": 4}
    found = loading.read_description(tmp_path, known, (5, 6), cached_only=True)
    assert found == "FILE"
    assert read[-1] == ((tmp_path, Hints(known, (5, 6))), {"cached_only": True})


def test_runs_and_names_are_read_as_asked(monkeypatch, tmp_path):
    weights = Weights("cache/x", {}, ModelFile("ViT-B/16", VIT))
    run = recorded(monkeypatch, native, "read_run", weights)
    (tmp_path / "checkpoints").mkdir()
    formats.read_weights(tmp_path, Hints(), checkpoint="best", ema=True, average=3)
    assert run == [((str(tmp_path), "best", True, 3), {})]
    local = recorded(monkeypatch, formats.by_name, "local_path", "cache/x")
    recorded(monkeypatch, formats, "find_file", "FILE")
    recorded(monkeypatch, formats, "find_reader", lambda file, hints: weights)
    found = formats.read_weights("hf:a/b", Hints(), cached_only=True)
    assert found.path == "hf:a/b", "for messages and reports, not where it lies in the cache"
    assert local == [(("hf:a/b",), {"cached_only": True})]
    assert formats.read_weights("x", Hints()).path == "cache/x"
    with pytest.raises(WeightsError, match=r"no run's workdir"):
        formats.read_weights("x", Hints(), average=2)

    def refuse(file):
        raise OSError("a broken disk")

    monkeypatch.setattr(formats, "find_reader", refuse)
    with pytest.raises(WeightsError, match=r"^hf:a/b: it cannot be read: a broken disk\.$"):
        formats.read_weights("hf:a/b", Hints())


def test_an_export_is_of_what_the_flags_say(monkeypatch, tmp_path):
    read = recorded(monkeypatch, export, "read_weights", "WEIGHTS")
    built = recorded(monkeypatch, export, "build_model", "MODEL")
    saved = recorded(monkeypatch, export, "save_model", None)
    out = f"{tmp_path}/x.npz"
    flags = ["--checkpoint=best", "--ema", "--source_grid", "2", "3", "--trunk_only"]
    flags += ["--position_resize=bicubic", "--option=num_heads=4"]
    assert export.main(["RUN", out, *flags]) == 0
    options = {"num_heads": 4}
    asked = {"checkpoint": "best", "ema": True, "average": None}
    assert read == [(("RUN", Hints(options, [2, 3])), asked)]
    assert built == [(("WEIGHTS", options, "bicubic"), {})]
    assert saved == [(("MODEL", out, "npz"), {"trunk_only": True})]
    assert export.main(["RUN", out, "--average=2"]) == 0
    assert read[-1][1] == {"checkpoint": "latest", "ema": False, "average": 2}


def test_a_push_is_of_the_same(monkeypatch):
    model = types.SimpleNamespace(options=types.SimpleNamespace(num_classes=3))
    recorded(monkeypatch, export, "read_weights", "WEIGHTS")
    recorded(monkeypatch, export, "build_model", model)
    saved = recorded(monkeypatch, export, "save_model", None)
    cards = recorded(monkeypatch, export, "write_card", None)
    pushed = recorded(monkeypatch, export.hub, "push", "PAGE")
    recorded(monkeypatch, export, "is_workdir", True)
    found = recorded(monkeypatch, export, "find_checkpoint", (7, False))
    for flags, has_head in (((), True), (("--trunk_only",), False)):
        flags = [*flags, "--checkpoint=best", "--format=timm"]
        assert export.main(["RUN", "hf:me/mine", *flags]) == 0
        (_, _, format), options = saved[-1]
        assert (format, options) == ("timm", {"trunk_only": not has_head})
        (folder, *given), options = cards[-1]
        assert given == ["me/mine", model, "timm"]
        assert options == {"has_head": has_head, "run": export.Run("RUN", 7)}
        assert pushed[-1][0] == (folder, "me/mine")
    assert found[-1] == (("RUN", "best"), {})


def test_all_that_a_file_states_is_of_its_weights():
    _, shapes = abstract_parameters("ViT-B/16", model_options("ViT-B/16", **VIT))
    reading = Reading({n: np.zeros(s, "f4") for n, s in shapes.items()}, {"a": "b"}, ("more",))
    pixels = Preprocessing((0.25, 0.75), (0.3,))
    stated = Stated(
        {"pooling": "token", "image_size": (8, 12), "gelu": "erf"},
        preprocessing=pixels,
        class_names=("x", "y"),
        loss="binary",
        position_resize="bicubic",
        bias_resize="bilinear",
        assumed=("ONE",),
        remarks=("TWO",),
    )
    given = {"prefix_choices": (1,), "stated": stated, "hints": Hints()}
    found = make_weights("FILE", reading, **given, defaults={"norm_epsilon": 1e-3, "gelu": "tanh"})
    assert (found.path, found.file_names, found.unknown) == ("FILE", {"a": "b"}, ("more",))
    assert (found.position_resize, found.bias_resize) == ("bicubic", "bilinear")
    assert found.assumed == ("ONE", "norm_epsilon=0.001")
    assert found.remarks[0] == "TWO"
    assert "averages over the file's channels" in found.remarks[1]
    file = found.model_file
    assert (file.class_names, file.loss) == (("x", "y"), "binary")
    assert file.preprocessing == Preprocessing((0.5,), (0.3,))
    assert (file.options["gelu"], file.options["norm_epsilon"]) == ("erf", 1e-3)
    nothing = dataclasses.replace(stated, preprocessing=None)
    given |= {"stated": nothing, "pixels": Preprocessing(crop="center", resize=224)}
    found = make_weights("FILE", reading, **given, defaults={})
    assert found.model_file.preprocessing.resize == 8, "the share of the smaller side"
    assert found.assumed[-1].startswith("pixels are normalised to [-1, 1], of the centres")


@pytest.mark.parametrize("pooling", ["attention", "average"])
def test_a_class_token_need_not_be_what_is_pooled(pooling):
    complete = model_options("ViT-B/16", **VIT, pooling=pooling, class_token=True)
    _, shapes = abstract_parameters("ViT-B/16", complete)
    reading = Reading({n: np.zeros(s, "f4") for n, s in shapes.items()}, {}, ())
    stated = Stated({"image_size": (8, 12), "pooling": pooling})
    found = make_weights(
        "FILE", reading, prefix_choices=(1,), stated=stated, hints=Hints(), defaults={}
    )
    assert found.options == dataclasses.replace(complete, layer_scale=0.0)


def test_pixels_of_each_channel_are_of_as_many_as_the_file_has():
    _, shapes = abstract_parameters("ViT-B/16", model_options("ViT-B/16", **VIT, channels=2))
    reading = Reading({n: np.zeros(s, "f4") for n, s in shapes.items()}, {}, ())
    pixels = Preprocessing((0.25, 0.75), (0.3,))
    stated = Stated({"image_size": (8, 12), "pooling": "token"}, preprocessing=pixels)
    found = make_weights(
        "FILE", reading, prefix_choices=(1,), stated=stated, hints=Hints(), defaults={}
    )
    assert (found.model_file.preprocessing, found.remarks) == (pixels, ())


def test_what_lies_behind_a_prefix_says_so(monkeypatch):
    names = ["model.a", "model.b", "other.c", "d"]
    monkeypatch.setattr(formats.tensor_file, "read_names", lambda path: names)
    weights = Weights("x", {}, ModelFile("ViT-B/16", VIT), {"ours": "a"}, remarks=("ONE",))
    asked = []
    read = formats.read_inside(lambda *given: asked.append(given) or weights, "P", "H", "model.")
    assert asked == [("P", "H", "model.")]
    assert read.file_names == {"ours": "model.a"}
    assert read.remarks == (
        "ONE",
        "the names begin with 'model.'; 2 others are left aside, the first: 'other.c'",
    )
    names[:] = names[:2]
    read = formats.read_inside(lambda *_: weights, "P", "H", "model.")
    assert read.remarks[-1] == "the names begin with 'model.'"


def test_a_file_is_complete_with_an_objective_s_own_parameters():
    _, shapes = abstract_parameters("ViT-B/16", model_options("ViT-B/16", **VIT))
    weights = Weights(
        "FILE", {n: np.zeros(s) for n, s in shapes.items()}, ModelFile("ViT-B/16", VIT)
    )

    def changed(lack="", **more):
        kept = {name: array for name, array in weights.parameters.items() if name != lack}
        return dataclasses.replace(weights, parameters=kept | more)

    loading.check_complete(weights)
    loading.check_complete(changed(**{"objective/head/kernel": np.zeros(1)}))
    with pytest.raises(
        WeightsError, match=r"1 tensors are no parameters .* the first: 'objectives'"
    ):
        loading.check_complete(changed(objectives=np.zeros(1)))
    with pytest.raises(WeightsError, match=r"FILE: norm/bias is not in it"):
        loading.check_complete(changed("norm/bias"))
    with pytest.raises(WeightsError, match=r"2 tensors are no parameters .* the first: 'theirs'"):
        loading.check_complete(dataclasses.replace(changed(more=0), unknown=("theirs",)))


def test_what_a_library_s_file_does_not_say_is_assumed(monkeypatch):
    tensors = {"conv1.weight": np.zeros((128, 3, 4, 4)), "attnpool.x": np.zeros(1)}
    recorded(monkeypatch, state_dict.tensor_file, "read_tensors", (tensors, {}))
    recorded(
        monkeypatch, state_dict, "read_table", Reading({"head/kernel": np.zeros((128, 5))}, {}, ())
    )
    made = recorded(monkeypatch, state_dict, "make_weights", None)
    state_dict.read("FILE", Hints(), library=state_dict.CLIP)
    state_dict.read("FILE", Hints({"num_heads": 4}), library=state_dict.CLIP)
    for (arguments, options), assumed in zip(made, [("num_heads=2",), ()], strict=True):
        stated = options.pop("stated")
        assert (stated.position_resize, stated.assumed) == ("bicubic", assumed)
        assert stated.remarks == ("attnpool.x skipped: inference does not use them",)
        assert arguments[1].parameters["head/bias"].shape == (5,)
        assert options["pixels"] == state_dict.CLIP.pixels
        assert options["defaults"] == state_dict.CLIP.defaults


def test_what_is_written_of_a_model(monkeypatch):
    """Its own description, unless another is given; without its head nothing of its classes."""
    model = filled_model("ViT-B/16", **VIT, representation_size=8)
    model.name, model.loss, model.class_names = "ViT-B/16", "binary", ("a", "b")
    model.preprocessing = Preprocessing((0.1,))
    written = []
    layout = Layout(files=lambda *given: written.append(given) or {})
    monkeypatch.setattr(saving, "find_layout", lambda format, options: layout)
    saving.save_model(model, "out", "vit_jax")
    saving.save_model(
        model, "out", "vit_jax", preprocessing=Preprocessing(), class_names=("c", "d")
    )
    saving.save_model(model, "out", "vit_jax", trunk_only=True)
    own, other, trunk = (file for _, _, _, file in written)
    assert (own.loss, own.class_names, own.preprocessing) == (
        "binary",
        ("a", "b"),
        Preprocessing((0.1,)),
    )
    assert (other.class_names, other.preprocessing) == (("c", "d"), Preprocessing())
    assert (trunk.loss, trunk.class_names) == ("softmax", ())
    assert trunk.preprocessing == Preprocessing((0.1,))
    assert (trunk.options["num_classes"], trunk.options["representation_size"]) == (0, 0)
    assert not any(name.startswith(("head", "pre_logits")) for name in written[-1][1])


HERE = model_options("ViT-B/16", **VIT)
BIAS, SHARED = "blocks/relative_position_bias", "relative_position_bias"


@pytest.mark.parametrize(
    ("asked", "positions", "biases"),
    [("auto", "bicubic", "bilinear"), ("bicubic_torch", "bicubic_torch", "bicubic_torch")],
)
def test_tables_are_resized_as_asked_or_as_their_library_would(
    asked, positions, biases, monkeypatch
):
    methods = {}

    def fit(kind):
        return lambda table, there, here, method: (table, methods.setdefault(kind, method))

    for kind in ("fit_positions", "fit_bias", "fit_line"):
        monkeypatch.setattr("vit_jax.weights.adapt." + kind, fit(kind))
    weights = Weights("x", {}, ModelFile("ViT-B/16", VIT))
    weights = dataclasses.replace(weights, position_resize="bicubic", bias_resize="bilinear")
    adaptation = Adaptation(weights=weights, options=HERE, position_resize=asked)
    names = {"position_embedding": positions, BIAS: biases, SHARED: biases}
    names["position_embedding/rows"] = positions
    for name, method in names.items():
        methods.clear()
        adaptation.resize(Form({name: np.zeros((1, 1))}, HERE), name)
        assert list(methods.values()) == [method], name


def test_halves_of_positions_are_resized_along_their_own_side():
    there = model_options("ViT-B/16", **{**VIT, "image_size": (8, 20)}, positions="learned_2d")
    adaptation = Adaptation(weights=Weights("x", {}, ModelFile("ViT-B/16", VIT)), options=HERE)
    form = Form(
        {f"position_embedding/{n}": np.eye(k) for n, k in (("rows", 2), ("columns", 5))}, there
    )
    rows, note = adaptation.resize(form, "position_embedding/rows")
    assert (rows.shape, note) == ((2, 2), "")
    columns, note = adaptation.resize(form, "position_embedding/columns")
    assert (columns.shape, note) == ((3, 5), "5 → 3, bilinear_corner")


@pytest.mark.parametrize(
    ("there", "here", "why"),
    [
        (("a", "b"), ("a", "b"), ""),
        (("a", "b"), ("b", "a"), "other class names in the file"),
        (("a", "b"), (), ""),
        ((), ("a", "b"), ""),
    ],
)
def test_a_head_is_kept_unless_both_sides_name_other_classes(there, here, why):
    weights = Weights("x", {}, ModelFile("ViT-B/16", VIT))
    adaptation = Adaptation(weights=weights, options=HERE, class_names=here)
    form = Form({"head/kernel": np.zeros(1), "norm/scale": np.zeros(1)}, HERE, there)
    assert adaptation.why_fresh(form, "head/kernel", np.array([False])) == why
    assert adaptation.why_fresh(form, "norm/scale", np.array([False])) == ""
    assert adaptation.why_fresh(form, "norm/scale", np.array([True, False])) == ""


def test_fixed_positions_begin_a_learned_table_on_the_models_grid():
    there = dataclasses.replace(HERE, positions="sincos_2d", image_size=(16, 4))
    form = equivalence.add_positions(Form({}, there), HERE, {"position_embedding": (1, 7, 16)})
    table = form.added["position_embedding"]
    assert not table[:, 0].any(), "the class token's row"
    np.testing.assert_array_equal(table[:, 1:], equivalence.sincos_2d(2, 3, 16))


def test_a_name_is_looked_up_where_it_may_be(monkeypatch):
    snapshot = types.SimpleNamespace(folder="cache", names=["config.json", "sub/model.safetensors"])
    fetched = recorded(monkeypatch, hub, "fetch", snapshot)
    for cached_only in (True, False):
        found = by_name.local_path("hf:a/b/sub@v1", cached_only=cached_only)
        assert found == os.path.join("cache", "sub", "model.safetensors")
        (*place, choose), options = fetched[-1]
        assert (place, options) == (["a/b", hub.MODEL, "v1"], {"cached_only": cached_only})
        assert choose.keywords["reference"].path == "sub"
