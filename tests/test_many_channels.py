"""Runs on images of five channels of floats: from files to training, evaluation, use and export."""

import io
import json
import tarfile
import types

import jax
import numpy as np
import pytest

import vit_jax
from tests import tiny
from tests.data.pictures import encode_npy, encode_tiff
from tests.published import logits
from tests.runs import read_metrics
from tests.shared_programs import shared_programs  # noqa: F401
from vit_jax import evaluate, export, predict, train
from vit_jax.errors import DataError, PreemptedError
from vit_jax.model_file import read_model_file

pytestmark = pytest.mark.usefixtures("on_one_device", "shared_programs")

CLASSES = ("dry", "wet")
RANGE = (-10_000.0, 10_000.0)


def field(index):
    """float32 [9, 8, 5]; its class shows in the fourth channel by one part in a thousand of RANGE."""
    rng = np.random.default_rng(index)
    values = rng.normal(0, 4, (9, 8, 5)).astype(np.float32)
    values[..., 3] += 20 * (index % 2) - 10
    return values


def write_folder(root):
    """40 images for training, TIFF of one class and `.npy` of the other, and 16 to evaluate on."""
    for index in range(56):
        name = CLASSES[index % 2]
        folder = root / ("train" if index < 40 else "val") / name
        folder.mkdir(parents=True, exist_ok=True)
        encode, ending = (encode_npy, "npy") if name == "wet" else (encode_tiff, "tif")
        (folder / f"{index}.{ending}").write_bytes(encode(field(index)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("fields")
    write_folder(root)
    return root


def config_of(source):
    config = tiny.get_config()
    config.data.source = str(source)
    config.data.train_crop, config.data.flip = "resize", True
    config.data.value_range, config.data.dtype = RANGE, "float32"
    config.data.mean, config.data.std = (0.5,) * 5, (0.5, 0.5, 0.5, 0.001, 0.5)
    config.model.channels = 5
    config.optimizer.learning_rate, config.warmup_steps = 3e-3, 0
    config.schedule.name = "constant"
    return config


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    """Its workdir: of five updates, then of five more."""
    workdir, config = tmp_path_factory.mktemp("runs") / "five", config_of(f"folder:{folder}")
    answers = iter([False] * 4 + [True])  # The loop asks once a step.
    with pytest.raises(PreemptedError, match="after step 5"):
        train.run(config, workdir, stop=types.SimpleNamespace(is_set=lambda: next(answers)))
    train.run(config, workdir)
    return workdir


def test_what_eight_bits_would_lose_is_learned(run):
    last = read_metrics(run)[-1]
    assert (last["eval/accuracy"], last["eval/count"]) == (1.0, 16)


def test_resuming_is_exact(run, folder, tmp_path):
    train.run(config_of(f"folder:{folder}"), tmp_path / "run")
    losses = [
        [record["train/loss"] for record in read_metrics(workdir) if "train/loss" in record]
        for workdir in (run, tmp_path / "run")
    ]
    assert losses[0] == losses[1]
    arrays = map(vit_jax.load_model, (run, tmp_path / "run"))
    image = np.float32(field(0)[None, :8])
    first, second = (logits(model, image) for model in arrays)
    np.testing.assert_array_equal(first, second)


def test_model_json_says_how_values_become_pixels(run):
    preprocessing = read_model_file(run).preprocessing
    assert (preprocessing.value_range, preprocessing.dtype) == (RANGE, "float32")
    assert preprocessing.std == (0.5, 0.5, 0.5, 0.001, 0.5)


def test_it_is_evaluated_and_exported_and_predicts(run, folder, tmp_path):
    output = tmp_path / "results.json"
    assert evaluate.main([str(run), f"--json={output}"]) == 0
    assert json.loads(output.read_text())[0]["accuracy"] == 1.0
    assert export.main([str(run), str(tmp_path / "export"), "--format=vit_jax"]) == 0
    for model in (run, tmp_path / "export"):
        answers = tmp_path / "answers.jsonl"
        assert predict.main([str(model), str(folder / "val"), f"--output={answers}"]) == 0
        rows = [json.loads(line) for line in answers.read_text().splitlines()]
        assert len(rows) == 16
        assert all(row["classes"][0]["class"] in row["path"] for row in rows)
    model = vit_jax.load_model(run)
    for index in range(4):
        (answer,) = predict.predict(model, field(index))
        assert answer.classes[0].name == CLASSES[index % 2]


def test_arrays_in_tar_files(tmp_path, run):
    with tarfile.open(tmp_path / "train-0.tar", "w") as tar:
        for index in range(12):
            contents = {"npy": encode_npy(field(index)), "cls": str(index % 2).encode()}
            for ending, content in contents.items():
                member = tarfile.TarInfo(f"{index}.{ending}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    (tmp_path / "classes.txt").write_text("\n".join(CLASSES))
    source = f"--source=tar:{tmp_path}"
    output = tmp_path / "results.json"
    assert evaluate.main([str(run), source, "--split=train", f"--json={output}"]) == 0
    (result,) = json.loads(output.read_text())
    assert (result["accuracy"], result["count"] + result["unreadable"]) == (1.0, 10)


def test_a_damaged_one_is_skipped_without_rounding_the_others(folder, tmp_path):
    write_folder(tmp_path)
    (tmp_path / "train" / "wet" / "1.npy").write_bytes(b"")
    config = config_of(f"folder:{tmp_path}")
    config.total_steps = 2
    with pytest.raises(DataError, match=r"1\.npy.*it is empty"):
        train.run(config, tmp_path / "raises")
    config.data.on_error = "skip"
    records = train.run(config, tmp_path / "skips")
    assert records["eval/count"] == 16
    assert jax.tree.all(jax.tree.map(np.isfinite, records))


def test_arrays_beside_pictures_are_something_else(tmp_path, caplog):
    from vit_jax.data.sources.registry import open_source

    for name in CLASSES:
        (tmp_path / name).mkdir()
        for index in range(5):
            content = encode_tiff(np.uint8(np.abs(field(index))))
            (tmp_path / name / f"{index}.tif").write_bytes(content)
            (tmp_path / name / f"{index}.npy").write_bytes(encode_npy(field(index)))
    config = config_of(f"folder:{tmp_path}")
    source = open_source(
        config.data, "train", image_size=(8, 8), channels=5, num_classes=0, training=True
    )
    assert {source.name_of(index)[-4:] for index in range(len(source))} == {".tif"}
    assert "10 .npy" in caplog.text
