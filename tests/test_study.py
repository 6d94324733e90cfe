"""A study: each cell once, failures marked, the same figures after a stop as without one."""

import csv
import dataclasses
import json
import shutil

import pytest

from vit_jax import figures, storage, train
from vit_jax import study as command
from vit_jax.config import model_options, validate
from vit_jax.config_file import load_config
from vit_jax.errors import ConfigError, NonFiniteLossError, PreemptedError
from vit_jax.studies import cells, definition, results, views
from vit_jax.studies.definition import Study, load_study
from vit_jax.training.claim import ClaimedError

STUDY = Study(
    title="Tiny",
    config="tests/tiny.py",
    models={"ViT: one": ("model.depth=1",), "ViT: two": ("model.depth=2",), "mean": ()},
    sizes=(64, 256),
    seeds=(0, 1),
    overrides=("total_steps=4",),
)
ACCURACY = "eval/accuracy"


@pytest.fixture
def runs(monkeypatch):
    """Records the cells that are trained, and stands in for training; errors by number of the run."""
    made, errors = [], {}
    monkeypatch.setattr(command, "load_study", lambda name: STUDY)

    def run(config, directory, stop=None):
        made.append(directory.rpartition("/")[2])
        assert config.total_steps == 4
        if error := errors.get(len(made)):
            raise error
        size, depth = config.data.max_train_examples, config.model.depth or 0
        accuracy = size / 1000 + depth / 100 + config.seed / 10
        return {"step": 4, "eval/accuracy": accuracy, "train/exaflops": depth * 1e-9}

    monkeypatch.setattr(train, "run", run)
    return made, errors


def start(directory, *flags):
    return command.run(["study.py", f"--workdir={directory}", *flags])


def rows(directory):
    with open(directory / "results.csv", newline="") as file:
        return [*csv.DictReader(file)]


def files(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def test_every_cell_of_the_grid_runs_once(runs, tmp_path):
    made, _ = runs
    assert start(tmp_path) == 0
    assert len(made) == len(set(made)) == 12
    assert made[:2] == ["ViT_one-64_images-seed_0", "ViT_one-256_images-seed_0"]
    table = rows(tmp_path)
    assert {row["status"] for row in table} == {"done"}
    assert table[7]["eval/accuracy"] == str(256 / 1000 + 1 / 100 + 1 / 10)
    assert files(tmp_path).keys() == {
        "results.csv",
        "report.html",
        "size.png",
        "size.svg",
        "exaflops.png",
        "exaflops.svg",
    }
    assert start(tmp_path) == 0
    assert len(made) == 12


def test_a_stopped_study_goes_on_to_the_same_figures(runs, tmp_path):
    made, errors = runs
    whole, stopped = tmp_path / "one", tmp_path / "two"
    start(whole)
    made.clear()
    errors[5] = PreemptedError("stopped")
    with pytest.raises(PreemptedError):
        start(stopped)
    assert start(stopped) == 0
    assert len(made) == 13  # The fifth twice.
    page = {path: text.replace(b"two", b"one") for path, text in files(stopped).items()}
    before = {path: text.replace(b"two", b"one") for path, text in files(whole).items()}
    assert page == before


@pytest.mark.parametrize("number", [1, 2, 12])
def test_a_study_killed_as_it_writes_a_cell_goes_on_to_the_same_figures(
    runs, tmp_path, monkeypatch, number
):
    made, _ = runs
    start(tmp_path)
    before, write, written = files(tmp_path), storage.write_json, []
    shutil.rmtree(tmp_path)
    made.clear()

    def killed(path, content):
        written.append(path)
        if len(written) == number:
            raise SystemExit(137)  # Nothing of the study's own catches it.
        write(path, content)

    monkeypatch.setattr(storage, "write_json", killed)
    with pytest.raises(SystemExit):
        start(tmp_path)
    assert start(tmp_path) == 0
    assert len(made) == 13  # That one's run is asked again; it is over, and trains nothing.
    assert files(tmp_path) == before


def test_a_failed_cell_is_marked_and_tried_again_when_asked(runs, tmp_path, capsys):
    made, errors = runs
    errors[1] = NonFiniteLossError("The loss is infinite.")
    assert start(tmp_path) == 1
    assert len(made) == 12
    first = rows(tmp_path)[0]
    assert (first["status"], first["reason"]) == ("failed", "The loss is infinite.")
    assert "1 failed" in capsys.readouterr().out
    assert "ViT_one-64_images-seed_0" in (tmp_path / "report.html").read_text()
    assert start(tmp_path) == 1
    assert len(made) == 12
    assert start(tmp_path, "--retry_failed") == 0
    assert len(made) == 13


def test_a_study_of_ones_own(runs, tmp_path):
    made, _ = runs
    flags = ["--sizes=32", "--seeds=3,4", "--config.batch_size=8", "--config=configs/digits.py"]
    assert start(tmp_path, *flags) == 0
    assert made[0] == "ViT_one-32_images-seed_3"
    assert len(made) == 6
    record = json.loads((tmp_path / made[0] / "cell.json").read_text())
    assert record["config"] == "configs/digits.py"
    assert record["overrides"][:3] == ["total_steps=4", "batch_size=8", "model.depth=1"]
    with pytest.raises(ConfigError, match=r"another definition.*config=digits.py, config=tiny.py"):
        start(tmp_path, *flags[:3])


def test_each_trained_model_is_fine_tuned_on_each_task(runs, tmp_path, monkeypatch):
    made, errors = runs
    errors[5] = PreemptedError("stopped")
    flags = ["--sizes=32", "--seeds=0", "--finetune=my pets=configs/digits.py", "--finetune=b=x.py"]
    given, stand_in = [], train.run

    def run(config, directory, stop=None):
        given.append((config.init, config.model.name, config.model.width, config.model.image_size))
        return stand_in(config, directory, stop)

    monkeypatch.setattr(train, "run", run)
    for module in (cells, definition):
        monkeypatch.setattr(module, "load_config", lambda path, overrides: config_of(overrides))
    with pytest.raises(PreemptedError):
        start(tmp_path, *flags)
    assert made == [
        "ViT_one-32_images-seed_0",
        "my_pets",
        "b",
        "ViT_two-32_images-seed_0",
        "my_pets",
    ]
    folder = str(tmp_path / made[0])
    assert given[0] == ("", "ViT-Ti/2", 32, 8)
    assert given[1:3] == [(folder, None, None, 8)] * 2
    assert start(tmp_path, *flags) == 0
    (row, *_) = rows(tmp_path)
    assert {"eval/accuracy", "my pets/eval/accuracy", "b/eval/accuracy"} <= row.keys()
    page = (tmp_path / "report.html").read_text()
    assert "<th>accuracy on my pets</th>" in page  # One size: a column for each metric.


def config_of(overrides):
    """The tiny config, whatever file is asked for."""
    return load_config("tests/tiny.py", ("total_steps=4", *overrides))


def test_a_study_with_a_recipe_for_each_model(runs, tmp_path, monkeypatch):
    names = ("one", "two")
    recipes = {"one": "tests/tiny.py", "two": "configs/digits.py"}
    own = dataclasses.replace(STUDY, config=recipes, models=dict.fromkeys(names, ()))
    monkeypatch.setattr(command, "load_study", lambda name: own)
    assert {cell.model: cell.config for cell in own.cells()} == recipes
    with pytest.raises(ConfigError, match="a recipe for each model"):
        start(tmp_path, "--config=tests/tiny.py")
    with pytest.raises(ConfigError, match="expected TASK=FILE"):
        start(tmp_path, "--finetune=configs/digits.py")
    with pytest.raises(ConfigError, match="expected whole numbers"):
        start(tmp_path, "--sizes=1e3")


def test_a_cell_of_an_array_and_the_list(runs, tmp_path, capsys):
    made, errors = runs
    assert start(tmp_path, "--cell=3") == 0
    assert made == ["ViT_two-256_images-seed_0"]
    assert not files(tmp_path)
    errors[2] = ClaimedError("another run owns it")
    assert start(tmp_path, "--cell=4") == 0
    assert not (tmp_path / made[1]).exists()  # Left to the other.
    start(tmp_path, "--list")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines[:5]] == [*["missing"] * 3, "done", "missing"]
    with pytest.raises(ConfigError, match="cells 0 to 11"):
        start(tmp_path, "--cell=12")
    start(tmp_path, "--draw")
    assert len(made) == 2
    assert len(rows(tmp_path)) == 12


def test_a_metric_that_is_not_measured_and_a_study_that_changed(runs, tmp_path, monkeypatch):
    unmeasured = dataclasses.replace(STUDY, metrics={"5 shots": "fewshot/5_shot"})
    cell = unmeasured.cells()[0]
    cells.run_cell(unmeasured, cell, str(tmp_path), None)
    outcome = cells.outcome_of(cell, str(tmp_path))
    assert outcome.status == "failed"
    assert "fewshot/5_shot is no number" in outcome.reason
    changed = dataclasses.replace(cell, overrides=(*cell.overrides, "batch_size=8"))
    assert cells.outcome_of(changed, str(tmp_path)).status == "missing"  # Nothing to lose.
    cells.run_cell(STUDY, cell, str(tmp_path), None)
    with pytest.raises(ConfigError, match=r"another definition.*batch_size=8"):
        cells.outcome_of(changed, str(tmp_path))


def outcomes():
    """By hand: seed 1 of the first model failed at 64 images."""
    found = {}
    for cell in STUDY.cells():
        numbers = {"eval/accuracy": cell.size / 512 + cell.seed / 4, "train/exaflops": 1e-9}
        found[cell] = cells.Outcome("done", numbers)
    failed = next(c for c in found if (c.model, c.size, c.seed) == ("ViT: one", 64, 1))
    return found | {failed: cells.Outcome("failed", reason="diverged")}


def test_points_are_means_over_seeds_with_their_range():
    line = [each for each in outcomes().items() if each[0].model == "ViT: one"]
    assert results.points_of(STUDY, line, views.SIZE, ACCURACY) == [
        (64, 0.125, 0.125, 0.125),
        (256, 0.625, 0.5, 0.75),
    ]
    assert results.points_of(STUDY, line, views.COMPUTE, ACCURACY) == [(1e-9, 0.625, 0.5, 0.75)]


def test_a_line_over_training_has_a_point_for_each_evaluation():
    found = {}
    for cell in STUDY.cells():
        records = [{"train/epoch": 0.5}]  # Between evaluations.
        records += [{"train/epoch": e, ACCURACY: e / 4 + cell.seed / 8} for e in (1.0, 2.0)]
        found[cell] = cells.Outcome("done", records[-1], "", tuple(records))
    line = [each for each in found.items() if each[0].model == "ViT: one"]
    assert results.points_of(STUDY, line, views.TRAINING, ACCURACY) == [
        (1.0, 0.3125, 0.25, 0.375),
        (2.0, 0.5625, 0.5, 0.625),
    ]


def test_records_of_a_done_cell_are_those_of_its_run(tmp_path):
    cell = STUDY.cells()[0]
    folder = tmp_path / cell.folder
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"step": 1, "eval/accuracy": 0.5}\n{"step": 2}\n')
    content = {"overrides": cell.overrides, "status": "done", "numbers": {}, "reason": ""}
    (folder / "cell.json").write_text(json.dumps(content))  # As earlier versions wrote it.
    records = cells.outcome_of(cell, str(tmp_path)).records
    assert records == ({"step": 1, "eval/accuracy": 0.5}, {"step": 2})


def test_a_model_of_several_families_stands_on_each_line(monkeypatch):
    drawn = []
    monkeypatch.setattr(results, "plot", lambda paint: drawn.append(paint))
    study = dataclasses.replace(STUDY, models={"depth, width: base": (), "depth: 4": ()})
    found = {
        cell: cells.Outcome("done", {ACCURACY: 0.5, "train/exaflops": 1e-9})
        for cell in study.cells()
    }
    results.draw(study, found, views.COMPUTE, ("accuracy", ACCURACY))
    with figures.painted(drawn[0], figures.SIZE) as figure:
        labels = [text.get_text() for text in figure.legends[0].get_texts()]
        assert labels == ["depth", "width"]


def test_a_metric_without_points_has_no_figure():
    found = outcomes()
    names = [name for view in STUDY.views for name, _ in results.pictures_of(STUDY, found, view)]
    assert names == ["size", "exaflops"]
    two = dataclasses.replace(STUDY, metrics={**STUDY.metrics, "speed": "speed"})
    names = [name for name, _ in results.pictures_of(two, found, views.SIZE)]
    assert names == ["size-eval_accuracy"]


def test_all_images_stand_where_an_epoch_says_that_they_do():
    study = dataclasses.replace(STUDY, sizes=(64, 0))
    whole = study.cells()[1]
    numbers = {"train/examples": 128, "train/epoch": 128 / 1437}
    assert views.size_of(study, whole, numbers) == 1437
    assert views.size_of(study, whole, {}) is None  # It failed.
    assert views.size_of(study, study.cells()[0], {}) == 64


def test_the_table_says_what_failed():
    (table,) = results.tables(STUDY, outcomes())
    assert table[:2] == [
        ("accuracy (share of images)", "64 images", "256 images"),
        ("ViT: one", "0.1250, 1 failed", "0.6250 ± 0.1250"),
    ]


def test_a_study_of_one_size_has_one_table_of_all_metrics():
    study = dataclasses.replace(STUDY, sizes=(256,), metrics={"a": ACCURACY, "b": "eval/loss"})
    found = {
        cell: cells.Outcome("done", {ACCURACY: 0.5, "eval/loss": 1234.5, "train/exaflops": 3e-9})
        for cell in study.cells()
    }
    (table,) = results.tables(study, found)
    assert table[0] == ("model", "a", "b", "training exaFLOPs")
    assert table[1] == ("ViT: one", "0.5000 ± 0.0000", "1234 ± 0.0000", "3e-09 ± 0.0000")


def test_ticks_have_room():
    assert results.ticks_of([64, 256]) == [64, 256]
    assert results.ticks_of([1.0, 1.1, 4.0]) == [1, 2, 4]
    assert results.ticks_of([47_110, 50_000, 118_633]) == [47_000, 75_000, 120_000]


def test_the_study_of_an_hour_is_small():
    study = load_study("fashion_mnist")
    macs = {}
    for cell in study.cells():
        config = load_config(cell.config, cell.overrides)
        macs[cell.model] = model_options(config, 10).macs()
        assert config.data.max_train_examples == cell.size
    assert macs.keys() == {"ViT", "hybrid", "ResNet"}
    assert max(macs.values()) < 8e6  # An hour on two cores.


# Cells, and different models among them.
SHIPPED = {
    "axial": (6, 6),  # Figure 13.
    "data_size": (24, 6),  # Figures 3 and 4, Table 5.
    "fashion_mnist": (12, 3),
    "optimizers": (4, 2),  # Table 7.
    "pooling": (3, 2),  # Figure 9.
    "positions": (8, 8),  # Table 8.
    "scaling": (18, 15),  # Figure 5, Table 6: three are trained for two lengths.
    "shapes": (19, 19),  # Figure 8.
}


def test_all_that_come_with_the_package_are_known():
    assert definition.shipped() == [*SHIPPED]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_study_that_comes_with_the_package_resolves(name):
    study = load_study(name)
    definition.check(study, name)
    models = set()
    for cell in study.cells():
        config = load_config(cell.config, cell.overrides)
        validate(config)
        models.add(model_options(config, 10))
    assert (len(study.cells()), len(models)) == SHIPPED[name]


def test_position_embeddings_on_data_of_ones_own():
    """The grid's own overrides are stronger than the user's."""
    study = load_study("positions")
    flags, overrides = command.parse_flags(
        ["positions", "--workdir=x", "--config=configs/fashion_mnist.py", "--config.model.depth=2"]
    )
    for cell in command.own_study(study, flags, [*overrides, "model.positions=sincos_2d"]).cells():
        options = model_options(load_config(cell.config, cell.overrides), 10)
        assert (options.width, options.depth) == (96, 2)
        assert options.positions != "sincos_2d"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def get_study(): return 3", "must return a Study, not a int"),
        ("def get_study():\n    return 1 / 0", "line 2: ZeroDivisionError"),
        ("", "get_study"),
    ],
)
def test_a_study_file_that_cannot_be_used(text, message, tmp_path):
    file = tmp_path / "study.py"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_study(str(file))


def test_other_names_and_grids(tmp_path):
    for name in (str(tmp_path / "none.py"), "nothing"):
        with pytest.raises(ConfigError, match=r"no such study.*: axial, data_size, fashion_mnist"):
            load_study(name)
    twins = dataclasses.replace(STUDY, models={"a b": (), "a/b": ()})
    with pytest.raises(ConfigError, match="share the folder"):
        definition.check(twins, "file.py")
    wrong = dataclasses.replace(STUDY, overrides=("model.depth=0",))
    with pytest.raises(ConfigError, match=r"file.py: ViT_one-64.*depth"):
        definition.check(dataclasses.replace(wrong, models={"ViT: one": ()}), "file.py")
    with pytest.raises(ConfigError, match=r"file.py: pets: .*no file x.py"):
        definition.check(dataclasses.replace(STUDY, finetune={"pets": ("x.py",)}), "file.py")
    with pytest.raises(ConfigError, match="no cells"):
        definition.check(dataclasses.replace(STUDY, seeds=()), "file.py")


def test_outcomes_are_whole_or_told(tmp_path):
    cell = STUDY.cells()[0]
    path = tmp_path / cell.folder / "cell.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"status": "done"}))
    with pytest.raises(ConfigError, match="damaged"):
        cells.outcome_of(cell, str(tmp_path))
