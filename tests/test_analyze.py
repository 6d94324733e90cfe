"""`python -m vit_jax.analyze`: files and report of one model; others' formats; what is refused."""

import csv
import re
import types

import jax
import numpy as np
import pytest
from PIL import Image

import vit_jax
from tests.published import random_model
from tests.runs import GOLDEN
from tests.workdirs import write_workdir
from vit_jax import analysis, analyze, figures
from vit_jax.analysis import attention_distance, attention_rollout, gallery
from vit_jax.analysis.subject import FOLDER, PREDICTION, Subject
from vit_jax.command_line import parse_options
from vit_jax.errors import ConfigError, DataError
from vit_jax.model_file import Preprocessing
from vit_jax.predict import load_images

SIZES = {"width": 16, "depth": 2, "num_heads": 2, "mlp_width": 16, "num_classes": 3}
TINY = {**SIZES, "image_size": (16, 24), "patch_size": 8}
BIT = {"image_size": 16, "num_classes": 2, "stage_depths": (1,), "width_factor": 0.5}
WITHOUT_IMAGES = {"positions", "filters"}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder, generator = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for number in range(7):
        path = folder / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (20, 30, 3), np.uint8)).save(path)
    return folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.npz"
    vit_jax.save_model(random_model("ViT-Ti/8", **TINY), path)
    return path


@pytest.fixture(scope="module")
def written(saved, pictures, tmp_path_factory):
    output = tmp_path_factory.mktemp("inside")
    (pictures / "torn.png").write_bytes(b"torn")
    code = analyze.run(
        [str(saved), f"--images={pictures}", f"--output={output}", "--option=num_heads=2"]
    )
    (pictures / "torn.png").unlink()
    assert code == 1  # One could not be read.
    return output


def test_each_figure_has_a_picture_and_its_numbers(written, pictures):
    paths = sorted(map(str, pictures.rglob("*.png")))
    without = {*WITHOUT_IMAGES, "distance", "tokens"}
    for name in gallery.FIGURES:
        assert Image.open(written / f"{name}.png").format == "PNG"
        with np.load(written / f"{name}.npz") as arrays:
            assert all(np.isfinite(a).all() for a in arrays.values() if a.dtype.kind == "f")
            named = arrays["images"].tolist() if "images" in arrays else []
        assert named == ([] if name in without else paths[:1] if name == "maps" else paths)
    plots = {path.stem for path in written.glob("*.svg")}
    assert plots == {"maps", "distance", "positions", "tokens", "pca", "tsne"}


def test_numbers_are_those_of_the_functions(written, saved, pictures):
    model = vit_jax.load_model(saved, num_heads=2)
    images = load_images(model, sorted(pictures.rglob("*.png")))
    distances = attention_distance(model, images)
    with open(written / "distance.csv", newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [(row["layer"], row["head"]) for row in rows] == [
        ("1", "1"),
        ("1", "2"),
        ("2", "1"),
        ("2", "2"),
    ]
    found = [float(row["pixels"]) for row in rows]
    np.testing.assert_allclose(found, distances.ravel(), rtol=1e-4)
    rollout = np.load(written / "rollout.npz")["rollout"]
    np.testing.assert_allclose(rollout, attention_rollout(model, images), atol=1e-4)
    with open(written / "pca.csv", newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [row["class"] for row in rows] == [*"aaaabbb"]
    points = np.load(written / "pca.npz")["points"]
    assert points.min() < 0
    found = [[float(row[axis]) for axis in "xy"] for row in rows]
    np.testing.assert_allclose(found, points, rtol=1e-5)
    headers = {path.stem: path.read_text().partition("\n")[0] for path in written.glob("*.csv")}
    assert headers == {
        "distance": "layer,head,pixels",
        "tokens": "layer,similarity",
        "pca": "image,class,x,y",
        "tsne": "image,class,x,y",
        "neighbors": "image,rank,neighbour,similarity",
    }


def test_the_report_is_whole_and_asks_nobody(written):
    page = (written / "report.html").read_text()
    assert page.count("<section") == len(gallery.FIGURES)
    addresses = re.findall(r'(?:src|href|url)\s*[=(]\s*"?([^"\s>)]+)', page)
    assert addresses
    assert all(address.startswith(("data:", "#")) for address in addresses)
    assert "<script" not in page
    assert re.search("ViT-[^ ]* at 16×24 pixels; 7 pictures of ", page)
    assert "Left out" not in page


def test_figures_without_pictures(saved, tmp_path, caplog):
    with caplog.at_level("INFO", logger="vit_jax"):
        arguments = [str(saved), f"--output={tmp_path}", "--option=num_heads=2"]
        assert analyze.run(arguments) == 0
    assert {path.stem for path in tmp_path.glob("*.npz")} == WITHOUT_IMAGES
    assert "Left out: rollout: needs pictures" in caplog.text
    page = (tmp_path / "report.html").read_text()
    assert "at 16×24 pixels; 0 pictures of –." in page
    assert "What is not defined for this model, or these pictures, and why." in page
    assert "<tr><th>figure</th><th>reason</th></tr>" in page
    for name in gallery.FIGURES.keys() - WITHOUT_IMAGES:
        assert f"<td>{name}</td><td>needs pictures: add --images=GLOB.</td>" in page


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ("rollout", "--figures=rollout: attention rollout is defined for .*BiT-R50x1"),
        ("rollout,filters", "--figures=rollout: attention rollout is defined for .*BiT-R50x1"),
        ("filters,blobs", "'blobs' is none of rollout, maps"),
    ],
)
def test_what_is_asked_for_by_name_is_refused(figures, message, tmp_path, pictures, monkeypatch):
    model = jax.eval_shape(lambda: vit_jax.create_model("BiT-R50x1", **BIT))
    monkeypatch.setattr(analyze, "load_by_flags", lambda path, flags: model)
    arguments = [f"--images={pictures}", f"--output={tmp_path}", f"--figures={figures}"]
    with pytest.raises(ConfigError, match=message):
        analyze.run(["bit.npz", *arguments])


def subject_of(model, count=6, folders=()):
    shape = (count, *model.options.image_size, model.options.channels)
    pixels = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    return Subject(model, pixels, tuple(map(str, range(count))), folders)


OF_PATCHES = {
    "rollout": "attention rollout",
    "maps": "attention maps",
    "distance": "attention distance",
    "positions": "similarity of position embeddings",
    "tokens": "similarity of tokens",
    "colors": "features as colours",
    "relevance": "relevance for a class",
}
NO_PATCHES, NO_ROWS = "has no attention over patches", "attends along rows and columns"


@pytest.mark.parametrize(
    ("name", "options", "undefined", "reason"),
    [
        ("Axial-ViT-B/16", {**TINY, "patch_size": 4}, ("rollout", "maps", "distance"), NO_ROWS),
        ("BiT-R50x1", BIT, OF_PATCHES, NO_PATCHES),
        ("Mixer-B/32", {"image_size": 16, "patch_size": 8, "depth": 1}, OF_PATCHES, NO_PATCHES),
    ],
)
def test_what_is_not_defined_for_a_family_is_left_out_by_name(name, options, undefined, reason):
    subject = subject_of(jax.eval_shape(lambda: vit_jax.create_model(name, **options)))
    for figure in undefined:
        with pytest.raises(ConfigError, match=rf"^{OF_PATCHES[figure]} .*: {name} {reason}\.$"):
            gallery.FIGURES[figure](subject)


def test_a_model_without_a_head_predicts_no_class():
    options = {**TINY, "num_classes": 0}
    model = jax.eval_shape(lambda: vit_jax.create_model("ViT-Ti/8", **options))
    with pytest.raises(ConfigError, match=r"^needs a head: ViT-Ti/8 was loaded without one\."):
        gallery.FIGURES["relevance"](subject_of(model))
    with pytest.raises(ConfigError, match=r"^relevance for a class: ViT-Ti/8 was loaded without "):
        analysis.class_relevance(model, None, None)


def test_a_resnet_has_filters_and_neighbours():
    subject = subject_of(random_model("BiT-R50x1", **BIT))
    found = dict(analyze.findings(subject, ("filters", "neighbors"), pytest.fail))
    assert found["filters"].arrays["filters"].shape == (28, 7, 7, 3)
    nearest, own = found["neighbors"].arrays["nearest"], np.arange(6)[:, None]
    assert nearest.shape == (6, 5)
    assert (np.sort(np.hstack([own, nearest])) == np.arange(6)).all()


def test_classes_are_the_folders_or_the_predictions():
    model = random_model("ViT-Ti/8", **TINY)
    model.preprocessing = Preprocessing(mean=(0.1,), std=(0.4,))
    in_folders = subject_of(model, folders=tuple("xxyyyz"))
    normalised = (in_folders.pictures / 255 - 0.1) / 0.4
    np.testing.assert_allclose(in_folders.images, normalised, atol=1e-5)
    assert (in_folders.classes_are, in_folders.classes) == (FOLDER, tuple("xxyyyz"))
    in_one = subject_of(model, folders=("x",) * 6)
    expected = np.asarray(model(in_one.images)).argmax(-1)
    assert in_one.classes_are == PREDICTION
    assert in_one.classes == tuple(map(str, expected))
    assert in_one.features.shape == (6, 16), "what the head sees"
    headless = jax.eval_shape(
        lambda: vit_jax.create_model("ViT-Ti/8", **{**TINY, "num_classes": 0})
    )
    unknown = subject_of(headless)
    assert (unknown.classes_are, unknown.classes) == ("", ("",) * 6)


def test_few_pictures_have_no_map():
    few = subject_of(random_model("ViT-Ti/8", **TINY), count=2)
    for figure in ("pca", "tsne", "neighbors"):
        with pytest.raises(ConfigError, match="5 pictures"):
            gallery.FIGURES[figure](few)
    values = np.zeros((5, 2))
    assert gallery.enough(types.SimpleNamespace(images=values, features=values)) is values


@pytest.mark.parametrize(
    ("count", "numbers"), [(3, "065"), (5, "04615"), (7, "0246135"), (9, "0246135")]
)
def test_pictures_are_spread_over_all_that_are_named(pictures, count, numbers):
    """Of `a/0`, `a/2`, `a/4`, `a/6`, `b/1`, `b/3`, `b/5`."""
    model = jax.eval_shape(lambda: vit_jax.create_model("ViT-Ti/8", **TINY, channels=1))
    model.preprocessing = Preprocessing(dtype="float32")
    subject, unreadable = analyze.read_pictures(model, [str(pictures)], count, 1.0)
    assert subject.pictures.shape == (len(numbers), 16, 24, 1)
    nothing, _ = analyze.read_pictures(model, [], count, 1.0)
    assert nothing.pictures.shape == (0, 16, 24, 1)
    assert unreadable == 0
    assert [name[-5:] for name in subject.names] == [f"{number}.png" for number in numbers]
    assert subject.folders == tuple("ab"[int(number) % 2] for number in numbers)
    assert subject.pictures.dtype == np.float32


def test_flags_say_how_many_pictures_and_how_large(monkeypatch, tmp_path):
    given = []

    def read_pictures(model, inputs, count, limit):
        given.append((inputs, count, limit))
        raise ConfigError("enough")

    monkeypatch.setattr(analyze, "load_by_flags", lambda path, flags: None)
    monkeypatch.setattr(analyze, "read_pictures", read_pictures)
    flags = ["m.npz", f"--output={tmp_path}", "--images=a", "--images=b"]
    assert analyze.main([*flags, "--count=3", "--max_image_gib=0.25"]) == 2
    assert analyze.main(flags) == 2
    assert given == [(["a", "b"], 3, 0.25), (["a", "b"], 128, analyze.MAX_IMAGE_GIB)]
    figures = analyze.parse_flags([*flags[:2], "--figures=rollout,,filters,"]).figures
    assert (figures, analyze.parse_flags(flags).figures) == (["rollout", "filters"], [])
    for flag in ("--count=0", "--max_image_gib=0"):
        with pytest.raises(ConfigError, match=flag.partition("=")[0]):
            analyze.parse_flags([*flags, flag])


def test_pictures_that_cannot_be_read_are_told_and_counted(tmp_path, caplog):
    model = jax.eval_shape(lambda: vit_jax.create_model("ViT-Ti/8", **TINY))
    model.preprocessing = Preprocessing()
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(b"torn")
    with pytest.raises(DataError, match=r"^none of the 3 pictures can be read\."):
        analyze.read_pictures(model, [str(tmp_path)], 9, 1.0)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    assert re.fullmatch(rf"{tmp_path}/0\.png: .*[^.]\.", caplog.messages[0])
    Image.new("L", (5, 4), 200).save(tmp_path / "1.png")
    subject, unreadable = analyze.read_pictures(model, [str(tmp_path)], 9, 1.0)
    assert (subject.names, unreadable) == ((str(tmp_path / "1.png"),), 2)
    assert (subject.pictures == 200).all()


def test_the_page_says_what_was_looked_at(pictures, tmp_path, monkeypatch, caplog):
    model = jax.eval_shape(lambda: vit_jax.create_model("ViT-Ti/8", **TINY))
    model.preprocessing = Preprocessing()
    finding = gallery.Finding("Some title", "How to read it.", {}, figures.Picture(b"png"))
    monkeypatch.setattr(analyze, "load_by_flags", lambda path, flags: model)
    monkeypatch.setattr(analyze, "findings", lambda *given: [("some", finding)])
    images = [f"--images={pictures}/{folder}" for folder in "ba"]
    with caplog.at_level("INFO", logger="vit_jax"):
        assert analyze.run(["m.npz", f"--output={tmp_path}", *images, "--count=1"]) == 0
    assert caplog.messages == [
        "some: Some title",
        f"{tmp_path}/report.html has all of them.",
    ]
    page = (tmp_path / "report.html").read_text()
    assert "<h1>Inside m.npz</h1>" in page
    assert f"ViT-Ti/8 at 16×24 pixels; 1 picture of {pictures}/b, {pictures}/a.</p>" in page
    assert "<h2>Some title</h2>" in page
    assert "<figcaption>How to read it.</figcaption>" in page


def test_tables_hold_no_formulas(tmp_path):
    finding = gallery.Finding("", "", {"x": np.ones(2)}, figures.Picture(b"png"), [("=a", 1.5)])
    analyze.write(str(tmp_path), "name", finding)
    assert (tmp_path / "name.csv").read_text() == "'=a,1.5\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["name.csv", "name.npz", "name.png"]


@pytest.mark.parametrize(
    ("path", "options"),
    [("timm_registers_layerscale.safetensors", {"num_heads": 2}), ("hf_gelu", {})],
)
def test_files_of_other_libraries(path, options, pictures, tmp_path):
    arguments = [f"--images={pictures}", f"--output={tmp_path}", "--figures=distance"]
    arguments += [f"--option={key}={value}" for key, value in options.items()]
    assert analyze.run([str(GOLDEN / path), *arguments]) == 0
    model = vit_jax.load_model(GOLDEN / path, **options)
    found = np.load(tmp_path / "distance.npz")["distance"]
    assert found.shape == (model.options.depth, model.options.num_heads)
    assert (found > 0).all()


FORMATS = {"npz": ("npz", True), "timm": ("safetensors", True), "huggingface": ("", False)}


@pytest.fixture(scope="module")
def one_model(tmp_path_factory):
    """The same model as a workdir and in each format: its path and the options to load it."""
    folder = tmp_path_factory.mktemp("formats")
    write_workdir(folder / "run", accuracies=(0.5,), ema=False)
    model = vit_jax.load_model(folder / "run")
    erf = vit_jax.load_model(folder / "run", gelu="erf")  # As the two other libraries have it.
    paths = {"workdir": (folder / "run", ["gelu=erf"])}
    for name, (ending, asks) in FORMATS.items():
        path = folder / f"model_{name}{'.' * bool(ending)}{ending}"
        vit_jax.save_model(model if name == "npz" else erf, path, format=name)
        paths[name] = path, ["num_heads=2"] * asks + ["gelu=erf"] * (name == "npz")
    return paths


@pytest.mark.parametrize("name", ["workdir", *FORMATS])
def test_one_model_of_each_format_has_the_same_figures(name, one_model, pictures, tmp_path):
    first, given = one_model["workdir"]
    expected = vit_jax.load_model(first, **parse_options(given))
    images = load_images(expected, sorted(pictures.rglob("*.png")))
    path, options = one_model[name]
    model = vit_jax.load_model(path, **parse_options(options))
    for figure in (attention_distance, attention_rollout):
        np.testing.assert_allclose(figure(model, images), figure(expected, images), atol=1e-5)
    for figure in (analysis.position_similarity, analysis.embedding_filters):
        np.testing.assert_allclose(figure(model), figure(expected), atol=1e-5)
    flags = [f"--images={pictures}", f"--output={tmp_path}", "--figures=rollout"]
    assert analyze.run([str(path), *flags, *(f"--option={each}" for each in options)]) == 0
