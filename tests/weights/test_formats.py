"""Files that are no weights, or not whole: one message each, with the file's name."""

import io
import json
import pickle
import re
import shlex
import sys
import zipfile

import numpy as np
import pytest
import safetensors.numpy
from PIL import Image

import vit_jax
from tests.published import GOLDEN, golden, random_model, write_npz
from tests.workdirs import write_workdir
from vit_jax.errors import UserError, WeightsError
from vit_jax.weights import formats, native


def picture(kind):
    buffer = io.BytesIO()
    Image.new("RGB", (32, 32)).save(buffer, kind)
    return buffer.getvalue()


def pickled_zip():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("model/data.pkl", pickle.dumps({}))
    return buffer.getvalue()


def other_zip():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("document.xml", "text")
    return buffer.getvalue()


def npz(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def newer_zip():
    """Of a version of the format that is still to come."""
    content = bytearray(npz(cls=np.ones(2)))
    content[content.index(b"PK\x01\x02") + 6] = 99
    return bytes(content)


BAD_FILES = {
    "empty": (b"", "it is empty"),
    "text": (b"import numpy as np\n", "but a text file"),
    "braces": (b"a = dict{1}: text with a brace", "but a text file"),
    "newer.npz": (newer_zip(), "truncated or damaged .npz file: .*version 9.9"),
    "jpeg": (picture("JPEG"), "but a JPEG picture"),
    "png": (picture("PNG"), "but a PNG picture"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(100), "but an HDF5 file"),
    "noise": (bytes(range(128, 256)), "neither a .npz nor a .safetensors file"),
    "pth": (pickled_zip(), "torch.load.*save_file"),
    "bin": (pickle.dumps({"weight": [1, 2]}), "torch.load.*save_file"),
    "docx": (other_zip(), "no .npz file: it holds 'document.xml'"),
    "truncated.npz": (npz(cls=np.ones(1000))[:-50], "truncated or damaged .npz"),
    "truncated.safetensors": (
        (GOLDEN / "timm_token.safetensors").read_bytes()[:-50],
        "damaged or truncated .safetensors",
    ),
    "objects.npz": (
        npz(cls=np.array([{}], dtype=object)),
        "damaged or truncated .npz.*allow_pickle",
    ),
    "names.npz": (
        npz(**{"layers/0/weight": np.ones((2, 2)), "layers/1/weight": np.ones((2, 2))}),
        "of its 2 tensors none is a patch .* first unknown name: 'layers/0/weight'",
    ),
    "names.safetensors": (
        safetensors.numpy.save({"transformer.h.0.weight": np.ones(2)}),
        "none of its 1 tensors has a name .* the first: 'transformer.h.0.weight'",
    ),
    "head.npz": (
        npz(**{"head/kernel": np.ones((2, 2))}),
        "of its 1 tensors none is a patch embedding",
    ),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_that_is_no_weights_is_refused_by_name(name, tmp_path):
    content, message = BAD_FILES[name]
    (tmp_path / "weights").write_bytes(content)
    with pytest.raises(WeightsError, match=f"(?s)^{tmp_path}/weights: .*{message}"):
        vit_jax.load_model(tmp_path / "weights")


def test_a_missing_file_and_an_empty_folder(tmp_path):
    with pytest.raises(WeightsError, match=r"nothing: it does not exist"):
        vit_jax.load_model(tmp_path / "nothing")
    with pytest.raises(WeightsError, match=r"holds no \.safetensors or \.npz .* It holds: nothing"):
        formats.find_file(str(tmp_path))
    with pytest.raises(WeightsError, match=r"^it does not exist\.$"):
        formats.find_file("a/b")
    with pytest.raises(WeightsError, match="it does not exist: of a bucket only workdirs are read"):
        formats.find_file("gs://a/b")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(WeightsError, match=r"It holds: notes\.txt"):
        vit_jax.load_model(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(pickled_zip())
    with pytest.raises(WeightsError, match=r"torch\.load.* \S*pytorch_model\.bin "):
        vit_jax.load_model(tmp_path)


def test_the_name_of_a_file_says_nothing(tmp_path):
    """A .npz named .bin and a .safetensors named .npz are what they are."""
    write_npz(tmp_path / "weights.npz", golden("vit_gap")["params"]).rename(tmp_path / "a.bin")
    assert vit_jax.load_model(tmp_path / "a.bin").options.pooling == "average"
    (tmp_path / "b.npz").write_bytes((GOLDEN / "timm_token.safetensors").read_bytes())
    assert vit_jax.load_model(tmp_path / "b.npz", num_heads=2).options.gelu == "erf"


@pytest.mark.parametrize("signature", [b"\x80", b"PK", b"BM", b"\xff\xd8"])
def test_a_header_of_any_length_is_recognised(signature, tmp_path):
    """The length's first bytes may be those of a pickle, a zip archive or a picture."""
    content = bytearray(safetensors.numpy.save({"embedding/kernel": np.ones(2, "f4")}))
    length = int.from_bytes(content[:8], "little")
    wanted = int.from_bytes(signature + b"\x01" * (len(signature) == 1), "little")
    content[:8] = wanted.to_bytes(8, "little")
    content[8 + length : 8 + length] = b" " * (wanted - length)
    (tmp_path / "weights").write_bytes(content)
    assert formats.find_reader(str(tmp_path / "weights")) is formats.native.read_export


@pytest.mark.parametrize("lost", ["Transformer/encoder_norm/bias", "head/bias", "embedding/bias"])
def test_a_missing_tensor_is_named(lost, tmp_path):
    tensors = golden("vit_token")["params"]
    del tensors[lost]
    ours = lost.removeprefix("Transformer/encoder_")
    with pytest.raises(WeightsError, match=rf"weights\.npz: {ours} is not in it"):
        vit_jax.load_model(write_npz(tmp_path / "weights.npz", tensors))


def test_a_tensor_without_a_place_is_named(tmp_path):
    tensors = {**golden("vit_token")["params"], "norm_pre/scale": np.ones(32)}
    with pytest.raises(
        WeightsError, match=r"1 tensors are no parameters .* first: 'norm_pre/scale'"
    ):
        vit_jax.load_model(write_npz(tmp_path / "weights.npz", tensors))


def test_a_tensor_of_another_shape_is_named(tmp_path):
    tensors = {**golden("vit_token")["params"], "cls": np.ones((1, 1, 16), np.float32)}
    with pytest.raises(WeightsError, match=r"cls has shape \(1, 1, 16\) instead of \(1, 1, 32\)"):
        vit_jax.load_model(write_npz(tmp_path / "weights.npz", tensors))


def test_an_export_without_its_description(tmp_path):
    vit_jax.save_model(vit_jax.load_model(GOLDEN / "hf_gelu"), tmp_path / "out", "vit_jax")
    (tmp_path / "out/model.json").unlink()
    with pytest.raises(UserError, match=r"out/model\.json is missing"):
        vit_jax.load_model(tmp_path / "out")


def test_the_conversion_line_quotes_hostile_names(tmp_path):
    path = tmp_path / 'a"$(touch owned)".pth'
    path.write_bytes(pickle.dumps({}))
    with pytest.raises(WeightsError) as error:
        vit_jax.load_model(path)
    line = str(error.value).partition("installed: ")[2].removesuffix(".")
    program, flag, code, source, target = shlex.split(line)
    assert (program, flag) in ((sys.executable, "-c"), ("python", "-c"))
    compile(code, "<line>", "exec")
    assert (source, target) == (str(path), f"{path}.safetensors")


TENSORS = {  # of each format -> one of its tensors
    "out.npz": "Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel",
    "out.safetensors": "blocks.0.mlp.fc1.weight",
    "huggingface/model.safetensors": "vit.encoder.layer.0.intermediate.dense.weight",
    "vit_jax/params.safetensors": "blocks/mlp/dense1/kernel",
}


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("value", [np.float32("nan"), np.float32("inf"), np.float64(1e300)])
def test_values_that_are_not_finite_are_named(name, value, tmp_path):
    model = random_model("ViT-Ti/16", num_classes=3, width=192, depth=1, image_size=32)
    path, folder = tmp_path / name, name.rpartition("/")[0]
    vit_jax.save_model(model, tmp_path / folder if folder else path, folder or None)
    load = np.load if name.endswith("npz") else safetensors.numpy.load_file
    tensors = dict(load(path))
    damaged = tensors[TENSORS[name]].astype(value.dtype)
    damaged.flat[5] = value
    tensors[TENSORS[name]] = damaged
    if name.endswith("npz"):
        np.savez(path, **tensors)
    else:
        metadata = safetensors.safe_open(path, "numpy").metadata() or {}
        metadata.pop("digest", None)  # Of the numbers before: it would be named first.
        safetensors.numpy.save_file(tensors, path, metadata)
    tensor = re.escape(TENSORS[name]).replace("0", "({layer}|0)", 1)
    with pytest.raises(WeightsError, match=f"{tensor} has 1 of .* not finite in float32"):
        vit_jax.load_model(path if not folder else tmp_path / folder)


def test_a_run_that_diverged_is_not_loaded(tmp_path, monkeypatch):
    write_workdir(tmp_path)
    damaged = {
        name: array * np.nan for name, array in native.read_checkpoint(tmp_path, 1, False).items()
    }
    monkeypatch.setattr(native, "read_checkpoint", lambda *_: damaged)
    with pytest.raises(WeightsError, match=r"key/bias has 32 of 32 .* not finite"):
        vit_jax.load_model(tmp_path)


@pytest.mark.parametrize(
    ("name", "prefixes"),
    [
        ("a.weight", [""]),
        ("module.a.weight", ["module."]),
        ("ema_state_dict.model._orig_mod.a.weight", ["ema_state_dict.model._orig_mod."]),
        ("vision_encoder.a.weight", ["vision_encoder."]),
        ("module.text.a.weight", []),  # One of its parts is no wrapper's.
        ("text.module.a.weight", []),
        ("modulea.weight", []),
    ],
)
def test_names_of_wrappers(name, prefixes):
    assert formats.prefixes_of("a.weight", ["other", name]) == prefixes


@pytest.mark.parametrize(
    "wrapper",
    [
        *("module", "model", "_orig_mod", "backbone", "encoder", "student", "teacher", "visual"),
        *("trunk", "state_dict", "net", "network", "vision_encoder", "visual_encoder", "ema"),
        *("model_ema", "ema_model", "module_ema", "ema_state_dict"),
    ],
)
def test_every_wrapper(wrapper):
    assert formats.prefixes_of("a", [f"{wrapper}.a", f"{wrapper}s.a"]) == [f"{wrapper}."]


def test_a_bucket_whose_package_is_not_there(monkeypatch):
    for error in (ImportError("install gcsfs"), OSError("no answer")):
        monkeypatch.setattr(formats.epath, "Path", lambda path, error=error: raises(error))
        for path in ("gs://a/b", "s3://a/b"):
            with pytest.raises(WeightsError, match=rf"^{path}: it cannot be read: {error}\.$"):
                formats.is_workdir(path)
    with pytest.raises(WeightsError, match="https://a/b: it is not on this machine: download it"):
        formats.is_workdir("https://a/b")


def raises(error):
    raise error


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"architecture": "x", "model_type": "y"}, "says architecture='x', a model that this"),
        ({"model_type": "y"}, "says model_type='y', a model that this"),
        ({"other": "z"}, r"none of its 3 tensors has a name .*; the first: 'a'\.$"),
        (None, r"none of its 3 tensors has a name .*; the first: 'a'\.$"),
    ],
)
def test_what_a_file_of_unknown_names_is(config, message, tmp_path):
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    found = formats.unknown_message(f"{tmp_path}/model.safetensors", ["b", "a", "c"])
    assert re.search(message, found)
    assert formats.unknown_message(f"{tmp_path}/none/x", []).endswith("the first: 'none'.")


@pytest.mark.parametrize(
    "prefixes",
    [
        ("", "model."),
        ("ema.", "model."),
        ("model_ema.", "model."),
        ("ema_model.module.", "model."),
        ("module_ema.", "module."),
        ("teacher.backbone.", "model."),
        ("ema.", "student.ema."),
        ("model.", "model.module."),
        ("model.module.", "student."),
    ],
)
def test_averages_and_the_shortest_are_taken_first(prefixes):
    assert sorted(prefixes[::-1], key=formats.preference) == [*prefixes]


@pytest.mark.parametrize("protocol", range(2, 6))
def test_pickles_of_every_protocol(protocol, tmp_path):
    path = tmp_path / "a"
    path.write_bytes(pickle.dumps({"weight": [1]}, protocol=protocol))
    with pytest.raises(WeightsError, match="it holds Python's pickle"):
        formats.find_reader(str(path))


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"GIF89a", "a GIF picture"),
        (b"RIFF\xff\xff", "a WebP picture"),
        (b"BM\xff", "a BMP picture"),
        (b"\x1f\x8b\x08", "a gzip archive"),
        (b"\x89HDF", "an HDF5 file"),
        (b"\x80\x06", "something else"),
    ],
)
def test_what_is_taken_for_weights(head, kind, tmp_path):
    path = tmp_path / "a"
    path.write_bytes(head + b"\xfe" * 20)
    with pytest.raises(WeightsError, match=f"but {kind}"):
        formats.find_reader(str(path))


def test_the_file_in_a_folder(tmp_path):
    """Of one precision among others, then parts, then a single one of the safest kind."""
    order = ["model.safetensors", "model.safetensors.index.json", "b.safetensors", "c.npz", "d.bin"]
    order += ["e.pth", "f.pt", "g.ckpt"]
    for name in order:
        (tmp_path / name).write_text("")
    for name in order:
        assert formats.find_file(str(tmp_path)) == str(tmp_path / name)
        (tmp_path / name).unlink()
    for name in ("a.npz", "b.npz"):
        (tmp_path / name).write_text("")
    with pytest.raises(WeightsError, match=r"several weight files, name one: a\.npz, b\.npz"):
        formats.find_file(str(tmp_path))


def test_how_many_tensors_are_too_many():
    formats.check_count(["a"] * 50_000)
    with pytest.raises(WeightsError, match="it holds 50,001 tensors"):
        formats.check_count(["a"] * 50_001)


@pytest.mark.parametrize(
    ("prefixes", "taken"),
    [
        (("model.", "model_ema.module.", "student."), "model_ema.module."),
        (("teacher.backbone.", "student."), "teacher.backbone."),
        (("module.model.", "net."), "net."),
        (("ema.", ""), ""),
    ],
)
def test_of_several_trunks_in_a_file_the_average_is_read(prefixes, taken, tmp_path, monkeypatch):
    """Though its names are longer than those of the plain weights."""
    path = tmp_path / "weights"
    names = [f"{prefix}patch_embed.proj.weight" for prefix in prefixes]
    safetensors.numpy.save_file(dict.fromkeys(names, np.ones(2, "f4")), path)
    monkeypatch.setattr(formats, "read_inside", lambda reader, *rest: (reader, *rest))
    reader = formats.find_reader(str(path))
    if taken:
        assert reader(path, None) == (formats.timm.read, path, None, taken)
    else:
        assert reader is formats.timm.read
