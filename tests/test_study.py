"""A study: each cell once, failures marked, the same figures after a stop as without one."""

import csv
import dataclasses
import functools
import json
import math
import shutil
import threading

import jax
import pytest

from vit_jax import figures, storage, train
from vit_jax import study as command
from vit_jax.config import lookup, model_options, validate
from vit_jax.config_file import load_config
from vit_jax.errors import ConfigError, NonFiniteLossError, PreemptedError
from vit_jax.studies import cells, definition, results, views
from vit_jax.studies import runs as runs_lib
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
        assert (config.total_steps, stop.is_set()) == (4, False)
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


def test_every_cell_of_the_grid_runs_once(runs, tmp_path, caplog):
    made, _ = runs
    with caplog.at_level("INFO", logger="vit_jax"):
        assert start(tmp_path) == 0
    assert f"Cell 1 of 12: {made[1]}" in caplog.text
    assert caplog.messages[-1] == f"{tmp_path}/report.html has the figures."
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
    assert (tmp_path / "size.svg").read_bytes().startswith(b"<?xml")
    assert (tmp_path / "size.png").read_bytes().startswith(b"\x89PNG")
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


@pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.slow), 12])
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
    page = (tmp_path / "report.html").read_text()
    assert "ViT_one-64_images-seed_0" in page
    assert "<title>Tiny</title>" in page
    assert f"The study in {tmp_path}." in page
    assert start(tmp_path) == 1
    assert (start(tmp_path, "--draw"), start(tmp_path, "--cell=1")) == (1, 0)
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
    flags = ["--sizes=32", "--seeds=3", "--finetune=my pets=configs/digits.py", "--finetune=b=x.py"]
    given, stand_in = [], train.run

    def run(config, directory, stop=None):
        model = config.model
        given.append((config.init, model.name, model.width, model.image_size, model.head_bias))
        assert config.seed == 3
        return stand_in(config, directory, stop)

    monkeypatch.setattr(train, "run", run)
    for module in (cells, definition):
        monkeypatch.setattr(module, "load_config", lambda path, overrides: config_of(overrides))
    with pytest.raises(PreemptedError):
        start(tmp_path, *flags)
    assert made == [
        "ViT_one-32_images-seed_3",
        "my_pets",
        "b",
        "ViT_two-32_images-seed_3",
        "my_pets",
    ]
    folder = str(tmp_path / made[0])
    assert given[0] == ("", "ViT-Ti/2", 32, 8, -2.0)
    assert given[1:3] == [(folder, None, None, 8, -2.0)] * 2
    assert start(tmp_path, *flags) == 0
    (row, *_) = rows(tmp_path)
    # The trained model's depth is 1; a fine-tuned one's is its own.
    found = [float(row[f"{task}eval/accuracy"]) for task in ("", "my pets/", "b/")]
    assert found == pytest.approx([0.342, 0.3 + 0, 0.3 + 0], abs=0.05)
    assert len(set(found)) == 2
    page = (tmp_path / "report.html").read_text()
    assert "<th>accuracy on my pets</th>" in page  # One size: a column for each metric.


def config_of(overrides):
    """The tiny config, whatever file is asked for."""
    return load_config("tests/tiny.py", ("total_steps=4", "model.head_bias=-2.0", *overrides))


def test_a_task_has_overrides_of_its_own(runs, tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(cells, "load_config", lambda *asked: given.append(asked) or config_of(()))
    study = dataclasses.replace(STUDY, finetune={"b": ("x.py", "batch_size=16")})
    stop = threading.Event()
    record = cells.finetuned(study, "b", study.cells()[6], "FOLDER", stop)
    assert given == [("x.py", ("batch_size=16", "init=FOLDER", "seed=1"))]
    assert {"b/step", "b/eval/accuracy"} < record.keys()


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


def test_a_cell_of_an_array_and_the_list(runs, tmp_path, capsys, caplog):
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
    for number in (12, -1):
        with pytest.raises(ConfigError, match=f"--cell={number}: the study has cells 0 to 11"):
            start(tmp_path, f"--cell={number}")
    caplog.set_level("INFO")
    errors[3] = ClaimedError("another run owns it")
    start(tmp_path, "--cell=11")
    assert caplog.messages[-1] == "another run owns it"
    del made[2:]
    start(tmp_path, "--draw")
    assert len(made) == 2
    assert len(rows(tmp_path)) == 12


def test_a_metric_that_is_not_measured_and_a_study_that_changed(runs, tmp_path, monkeypatch):
    unmeasured = dataclasses.replace(STUDY, metrics={"5 shots": "fewshot/5_shot"})
    cell = unmeasured.cells()[0]
    cells.run_cell(unmeasured, cell, str(tmp_path), threading.Event())
    outcome = cells.outcome_of(cell, str(tmp_path))
    assert outcome.status == "failed"
    assert outcome.reason == (
        "fewshot/5_shot is no number in the last record, which has step, eval/accuracy, "
        "train/exaflops: name one of these as the study's metric."
    )
    for value in (math.nan, math.inf):
        infinite = dataclasses.replace(STUDY, run=lambda *given, v=value: {ACCURACY: v})
        cells.run_cell(infinite, cell, str(tmp_path), threading.Event())
        assert cells.outcome_of(cell, str(tmp_path)).status == "failed"
    tuned = dataclasses.replace(STUDY, finetune={"pets": ("tests/tiny.py",)})
    monkeypatch.setattr(cells, "finetuned", lambda *given: {})
    cells.run_cell(tuned, cell, str(tmp_path), threading.Event())
    assert "pets/eval/accuracy is no" in cells.outcome_of(cell, str(tmp_path)).reason
    changed = dataclasses.replace(cell, overrides=(*cell.overrides, "batch_size=8"))
    assert cells.outcome_of(changed, str(tmp_path)).status == "missing"  # Nothing to lose.
    cells.run_cell(STUDY, cell, str(tmp_path), threading.Event())
    elsewhere = dataclasses.replace(cell, config="/elsewhere/tiny.py")
    assert cells.outcome_of(elsewhere, str(tmp_path)).status == "done"
    with pytest.raises(ConfigError, match=r"another definition.*batch_size=8"):
        cells.outcome_of(changed, str(tmp_path))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: memory"), "RESOURCE_EXHAUSTED: memory"),
        (NonFiniteLossError("The loss is nan."), "The loss is nan."),
    ],
)
def test_what_a_cell_fails_of_is_told(error, reason, tmp_path, caplog):
    def fail(*given):
        raise error

    failing = dataclasses.replace(STUDY, run=fail)
    cell = failing.cells()[0]
    cells.run_cell(failing, cell, str(tmp_path), threading.Event())
    outcome = cells.outcome_of(cell, str(tmp_path))
    assert (outcome.status, outcome.reason, outcome.numbers) == ("failed", reason, {})
    assert caplog.messages == [f"{cell.folder} failed: {reason}"]
    failing = dataclasses.replace(failing, run=lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # A fault of the program: it ends the study.
        cells.run_cell(failing, failing.cells()[1], str(tmp_path), threading.Event())


SCHEDULED = dataclasses.replace(
    STUDY,
    models={"ViT: one": ("model.depth=1",), "all": ()},
    schedules={"short": ("total_steps=2",), "long": ("total_steps=9",)},
    sizes=(0, 1024),
    finetune={"pets": ("tests/tiny.py",)},
)


def test_a_cell_is_its_models_then_its_schedules():
    every = SCHEDULED.cells()
    assert [(c.seed, c.model, c.schedule, c.size) for c in every[:5]] == [
        (0, "ViT: one", "short", 0),
        (0, "ViT: one", "short", 1024),
        (0, "ViT: one", "long", 0),
        (0, "ViT: one", "long", 1024),
        (0, "all", "short", 0),
    ]
    cell = every[2]
    assert cell.overrides == (
        *("total_steps=4", "model.depth=1", "total_steps=9"),
        *("data.max_train_examples=0", "seed=0"),
    )
    assert (cell.name, cell.families) == ("ViT: one, long", ("ViT",))
    assert cell.folder == "ViT_one-long-all_images-seed_0"
    assert definition.as_file_name("L/16+x 0.5") == "L_16+x_0.5"
    assert [*SCHEDULED.all_metrics.items()] == [
        ("accuracy (share of images)", ACCURACY),
        ("accuracy on pets", "pets/eval/accuracy"),
    ]


def of_schedules():
    """Three of sixteen cells are not done; each has numbers of its own."""
    found = {}
    for number, cell in enumerate(SCHEDULED.cells()):
        numbers = {ACCURACY: number / 100, "pets/eval/accuracy": 0.5 + number / 100}
        numbers |= {"train/exaflops": 10.0 + number, "train/device_hours": 1 + number / 1000}
        found[cell] = cells.Outcome("done", numbers)
    every = [*found]
    found[every[1]] = cells.Outcome("failed", reason="diverged")
    found[every[9]] = found[every[3]] = cells.Outcome("missing")
    return found


def test_tables_have_a_row_for_each_schedule_and_a_column_for_each_size():
    first, second = results.tables(SCHEDULED, of_schedules())
    assert first == [
        ("accuracy (share of images)", "all images", "1,024 images"),
        ("ViT: one, short", "0.0400 ± 0.0400", "1 failed, 1 missing"),
        ("ViT: one, long", "0.0600 ± 0.0400", "0.1100, 1 missing"),
        ("all, short", "0.0800 ± 0.0400", "0.0900 ± 0.0400"),
        ("all, long", "0.1000 ± 0.0400", "0.1100 ± 0.0400"),
    ]
    assert second[0][0] == "accuracy on pets"
    assert second[1][1] == "0.5400 ± 0.0400"


def test_a_row_of_the_csv_file_is_a_cell():
    first, failed, *_ = csv.DictReader(
        results.as_csv(SCHEDULED, of_schedules()).decode().splitlines()
    )
    assert first == {
        "model": "ViT: one",
        "schedule": "short",
        "images": "all",
        "seed": "0",
        "status": "done",
        ACCURACY: "0.0",
        "pets/eval/accuracy": "0.5",
        "train/exaflops": "10.0",
        "train/device_hours": "1.0",
        "reason": "",
    }
    assert (failed["images"], failed["status"], failed["reason"]) == ("1024", "failed", "diverged")


def test_sections_say_what_came_of_all_cells(monkeypatch):
    monkeypatch.setattr(results, "draw", lambda study, found, view, metric: metric)
    study = dataclasses.replace(SCHEDULED, notes="Small.", views=(views.COMPUTE,))
    found = results.sections(study, of_schedules())
    assert [section.title for _, section in found] == [
        *("Results", "Results: accuracy on pets", "Against compute", "Failed cells")
    ]
    assert found[0][1].text == "Small. Of 16 cells: 13 done, 1 failed, 2 missing."
    assert [*found[2][0]] == ["exaflops-eval_accuracy", "exaflops-pets_eval_accuracy"]
    assert found[2][1].text == views.COMPUTE.text
    assert found[2][1].pictures == (
        ("accuracy (share of images)", ACCURACY),
        ("accuracy on pets", "pets/eval/accuracy"),
    )
    assert found[3][1].text == "--retry_failed runs them again."
    assert found[3][1].table == [
        ("cell", "reason"),
        ("ViT_one-short-1024_images-seed_0", "diverged"),
    ]


def test_a_family_has_a_point_for_each_model_and_schedule():
    found = of_schedules()
    study = dataclasses.replace(SCHEDULED, models={"ViT: one": (), "ViT: two": ()})
    renamed = {
        dataclasses.replace(c, model={"all": "ViT: two"}.get(c.model, c.model)): o
        for c, o in found.items()
    }
    points = results.points_of(study, [*renamed.items()], views.COMPUTE, ACCURACY)
    assert points == [
        (14, pytest.approx(0.04), 0.0, 0.08),
        (16, pytest.approx(0.06), 0.02, 0.1),
        (18, pytest.approx(0.08), 0.04, 0.12),
        (20, pytest.approx(0.1), 0.06, 0.14),
    ]


def test_a_line_has_its_band_and_crosses_where_cells_failed(monkeypatch):
    drawn = []
    monkeypatch.setattr(results, "plot", drawn.append)
    study = dataclasses.replace(STUDY, sizes=(6, 64, 256))
    found = {}
    for cell in study.cells():
        numbers = {ACCURACY: cell.size / 512 + cell.seed / 4 + cell.seed * (cell.model == "mean")}
        found[cell] = cells.Outcome("done", numbers)
    every = [cell for cell in found if cell.model == "ViT: one"]
    found[every[0]] = cells.Outcome("failed", reason="diverged")
    found[every[5]] = cells.Outcome("missing")
    results.draw(study, found, views.SIZE, ("accuracy (%)", ACCURACY))
    with figures.painted(drawn[0], figures.SIZE) as figure:
        (axes,) = figure.axes
        first, crosses, _, _, third, none = axes.lines
        assert first.get_xydata().tolist() == [[6, 6 / 512 + 0.25], [64, 0.25], [256, 0.5]]
        assert crosses.get_xydata().tolist() == [[6, results.FAILED_AT]]
        assert 0 < results.FAILED_AT < 0.1, "at the bottom"
        lines = first, axes.lines[2], third
        assert [line.get_color() for line in lines] == [*figures.PALETTE[:3]]
        assert [line.get_marker() for line in lines] == [*figures.MARKERS[:3]]
        assert (crosses.get_color(), crosses.get_marker()) == (first.get_color(), "x")
        assert len({*figures.MARKERS}) == len(figures.MARKERS), "for those who see no colours"
        assert axes.get_xlabel() == "training images"
        assert third.get_xydata()[-1].tolist() == [256, 0.5 + 0.625]
        assert none.get_xydata().tolist() == []
        band = axes.collections[2].get_paths()[0].vertices
        assert sorted({y for x, y in band if x == 256}) == [0.5, 1.75]
        assert (axes.get_xscale(), axes.get_ylabel()) == ("log", "accuracy (%)")
        assert [text.get_text() for text in axes.get_xticklabels()] == ["6", "64", "256"]
    assert views.SPEED.lines(every[0]) == views.COMPUTE.lines(every[0]) == ("ViT",)
    assert views.SIZE.lines(every[0]) == views.TRAINING.lines(every[0]) == ("ViT: one",)


@pytest.mark.parametrize(
    ("view", "name", "label", "figures_of_the_paper"),
    [
        (views.SIZE, "size", "training images", "Figures 3 and 4"),
        (views.COMPUTE, "exaflops", "exaFLOPs", "Figures 5, 8 and 13"),
        (views.SPEED, "speed", "images/s", "Figure 13, right"),
        (views.TRAINING, "training", "epochs", "Figure 9"),
    ],
)
def test_a_view_says_what_it_shows_and_which_of_the_papers_figures(
    view, name, label, figures_of_the_paper
):
    """Its name is that of a file. Along a run's own time the axis is linear."""
    assert view.name == name
    assert label in view.label
    assert f"({figures_of_the_paper}" in view.text
    along_a_run = view is views.TRAINING
    assert view.scale == ("linear" if along_a_run else "log")
    assert view.every_record == along_a_run


def test_the_most_images_are_all_of_them_where_the_grid_has_that():
    exaflops = {"train/exaflops": 2.0}
    by_size = {cell.size: cell for cell in SCHEDULED.cells()}
    position = views.COMPUTE.position
    assert position(SCHEDULED, by_size[0], exaflops) == 2
    assert position(SCHEDULED, by_size[1024], exaflops) is None
    one = dataclasses.replace(SCHEDULED, sizes=(1024,))
    assert position(one, by_size[1024], exaflops) == 2
    assert views.size_of(one, by_size[1024], {}) is None, "there is nothing to compare"


def test_compute_is_told_where_any_cell_knows_it():
    study = dataclasses.replace(STUDY, sizes=(256,))
    found = {cell: cells.Outcome("missing") for cell in study.cells()}
    assert results.tables(study, found)[0][0] == ("model", "accuracy (share of images)")
    found[study.cells()[0]] = cells.Outcome("done", {ACCURACY: 0.5, "train/exaflops": 0.002})
    (table,) = results.tables(study, found)
    assert table[0][-1] == "training exaFLOPs"
    assert table[1] == ("ViT: one", "0.5000, 1 missing", "0.002, 1 missing")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.0000"), (0.01, "0.0100"), (0.00999, "0.00999"), (9.5, "9.5000"), (10.0, "10")],
)
def test_numbers_of_a_table(value, text):
    assert results.as_text(value) == text


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


def test_ticks_are_ordinary_numbers():
    axes = figures.painted(lambda axes: axes.set(xscale="log"), figures.SIZE)
    with axes as figure:
        results.set_ticks(figure.axes[0], [0.012, 0.456, 9.96, 12_345, 1e6])
        texts = [text.get_text() for text in figure.axes[0].get_xticklabels()]
    assert texts == ["0.012", "0.46", "10", "12,345", "1,000,000"]
    with figures.painted(lambda axes: axes.set(xscale="log"), figures.SIZE) as figure:
        results.set_ticks(figure.axes[0], [1.4, 10])
        assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["1.4", "10"]
        assert not figure.axes[0].get_xticks(minor=True).size


def test_ticks_have_room():
    assert results.ticks_of([64, 256]) == [64, 256]
    assert results.ticks_of([1.0, 1.1, 4.0]) == [1, 2, 4]
    assert results.ticks_of([10, 14, 40]) == [10, 20, 40]
    assert results.ticks_of([10, 16, 40]) == [10, 16, 40]
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


@functools.cache
def shipped_study(name):
    """A study that comes with the package, and the config of each model's first cell."""
    study = load_study(name)
    first = {cell.model: cell for cell in reversed(study.cells())}
    return study, {
        model: load_config(first[model].config, first[model].overrides) for model in study.models
    }


@pytest.mark.parametrize("name", SHIPPED)
def test_a_study_that_comes_with_the_package_resolves(name):
    study, configs = shipped_study(name)
    definition.check(study, name)
    for config in configs.values():
        validate(config)
    models = {model_options(config, 10) for config in configs.values()}
    assert (len(study.cells()), len(models)) == SHIPPED[name]


# Table 6 of arXiv 2010.11929: kind and epochs -> models.
TABLE_6 = {
    ("ViT", 7): "B/32 B/16 L/32 L/16",
    ("ViT", 14): "L/16 H/14",
    ("hybrid", 7): "R50x1+B/32 R50x1+B/16 R50x1+L/32 R50x1+L/16",
    ("hybrid", 14): "R50x1+L/16",
    ("ResNet", 7): "R50x1 R50x2 R101x1 R152x1 R152x2",
    ("ResNet", 14): "R152x2 R200x3",
}
NAMES = {"ViT": "ViT-{}", "hybrid": "R50+ViT-{}", "ResNet": "BiT-{}"}
# Table 8: none, or each of two kinds at three places; relative ones have no place.
TABLE_8 = {
    "none": ("none", None),
    "relative": ("relative", None),
    **{
        f"{kind}{end}": (name, placement)
        for kind, name in (("1-D", "learned_1d"), ("2-D", "learned_2d"))
        for end, placement in (
            *(("", None), (", every layer", "every_layer")),
            (", every layer, shared", "every_layer_shared"),
        )
    },
}
# Figure 8: 8 layers of width 1,024, MLPs of 2,048, patches of 32; up to 64 layers. Other values are ours.
FIGURE_8 = {
    "depth, width, MLP width, patch size, all: base": (8, 1024, 2048, 32),
    **{f"depth: {n}": (n, 1024, 2048, 32) for n in (2, 4, 16, 32, 64)},
    **{f"width: {n}": (8, n, 2048, 32) for n in (256, 512, 2048)},
    **{f"MLP width: {n}": (8, 1024, n, 32) for n in (512, 1024, 4096, 8192)},
    **{f"patch size: {n}": (8, 1024, 2048, n) for n in (56, 28, 16, 14)},
    "all: 4 × 512 × 1024 × 56": (4, 512, 1024, 56),
    "all: 16 × 2048 × 4096 × 16": (16, 2048, 4096, 16),
}


def test_published_studies_train_their_models_as_the_paper_does():
    def found(name, *keys):
        return {
            label: tuple(lookup(config, key) for key in keys)
            for label, config in shipped_study(name)[1].items()
        }

    assert found("scaling", "model.name", "total_epochs") == {
        f"{kind}: {model}, {epochs} epochs": (NAMES[kind].format(model.split("+")[-1]), epochs)
        for (kind, epochs), models in TABLE_6.items()
        for model in models.split()
    }
    adam, sgd = ("adamw", 7), ("sgd", 7)  # Table 7.
    assert found("optimizers", "model.name", "optimizer.name", "total_epochs") == {
        f"{method}: {model}": (f"BiT-{model}", *recipe)
        for method, recipe in (("Adam", adam), ("SGD", sgd))
        for model in ("R50x1", "R152x2")
    }
    assert found("pooling", "model.pooling", "optimizer.learning_rate", "eval_every_epochs") == {
        "class token, rate 8e-4": ("token", 8e-4, 1),
        "average, rate 8e-4": ("average", 8e-4, 1),
        "average, rate 3e-4": ("average", 3e-4, 1),
    }
    assert found("positions", "model.positions", "model.position_placement") == TABLE_8
    keys = ("model.depth", "model.width", "model.mlp_width", "model.patch_size")
    assert found("shapes", *keys) == FIGURE_8
    widths = found("shapes", "model.width", "model.representation_size")
    assert all(width == hidden for width, hidden in widths.values()), (
        "of section 3.1's hidden layer"
    )
    for name in ("axial", "data_size"):
        assert set(found(name, "total_epochs").values()) == {(7,)}
    half = shipped_study("data_size")[1]["ViT-b/32"]
    assert half.model.representation_size == model_options(half, 10).width == 384
    millions = [size / 1e6 for size in shipped_study("data_size")[0].sizes]
    assert millions == [9, 30, 90, 300]  # Figure 4.


def test_published_studies_pretrain_on_jft_and_measure_what_the_paper_does():
    few_shot = {"5-shot accuracy (share of images)": "fewshot/5_shot"}
    transfer = ["imagenet2012", "cifar10", "cifar100", "oxford_iiit_pet", "oxford_flowers102"]
    for name in SHIPPED.keys() - {"fashion_mnist"}:
        study, configs = shipped_study(name)
        assert {config.data.num_classes for config in configs.values()} == {18_291}
        evaluators = {config.evaluators for config in configs.values()}
        if name == "optimizers":
            assert (study.metrics, evaluators) == (STUDY.metrics, {""})
        else:
            assert study.metrics == few_shot
            assert evaluators == {"classification | fewshot(shots=(5,))"}
        tuned = {task: f"tfds:{task}" for task in transfer * (name in ("optimizers", "scaling"))}
        found = {task: load_config(*recipe).data.source for task, recipe in study.finetune.items()}
        assert found == tuned
        shown = {"axial": (views.COMPUTE, views.SPEED), "pooling": (views.TRAINING,)}
        assert study.views == shown.get(name, (views.SIZE, views.COMPUTE))
        measured = runs_lib.trained_and_measured if name == "axial" else runs_lib.trained
        assert study.run is measured


FASHION_MNIST = 60_000  # Training images.
ENCODER = ("model.width", "model.num_heads", "model.mlp_width", "model.pooling")
ENCODER += ("model.position_std",)


def test_the_small_study_trains_as_the_small_recipe_but_for_less_long():
    _, configs = shipped_study("fashion_mnist")
    recipe, config = load_config("configs/fashion_mnist.py"), configs["ViT"]
    shared = ("data.source", "data.train_crop", "model.image_size", "model.channels", "model.name")
    shared += (*ENCODER, "model.depth", "batch_size", "log_every_steps", "optimizer.weight_decay")
    shared += ("optimizer.grad_clip_norm", "data.flip", "schedule.name")
    for key in shared:
        assert lookup(config, key) == lookup(recipe, key), key
    assert config.total_steps * config.batch_size < recipe.total_epochs * FASHION_MNIST
    assert 0 < config.warmup_steps < config.total_steps
    assert config.total_steps % config.checkpoint_every_steps == 0
    assert 0 < config.optimizer.learning_rate <= recipe.optimizer.learning_rate


def test_the_small_study_compares_small_models_of_three_families_on_more_and_more_images():
    study, configs = shipped_study("fashion_mnist")
    vit, hybrid, resnet = (configs[name] for name in ("ViT", "hybrid", "ResNet"))
    for key in ENCODER:
        assert lookup(hybrid, key) == lookup(vit, key), key
    assert (hybrid.model.name, resnet.model.name) == ("R+ViT-Ti/16", "BiT-R50x1")
    convolutions = hybrid.model.stem_width_factor, resnet.model.width_factor
    assert max(convolutions) < 1, "on a CPU"
    assert [*study.sizes] == sorted({*study.sizes})
    assert study.sizes[-1] == FASHION_MNIST
    assert study.metrics == {"5-shot accuracy (share of images)": "fewshot/5_shot"}
    few_shot = f"fewshot(shots=(5,), train_split='train[:{study.sizes[0]}]')"
    assert few_shot in vit.evaluators, "of images that every cell may use"


def test_a_model_of_a_study_is_the_one_it_is_called_by():
    def models(name):
        study = load_study(name)
        return {
            label: load_config(study.config[label], overrides).model.name
            for label, overrides in study.models.items()
        }

    assert all(label == model for label, model in models("data_size").items())
    axial = {"ResNet: 50": "BiT-R50x1", "Axial-ResNet: 50": "AxialResNet50"}
    sizes = [f"{family}: B/{patch}" for family in ("ViT", "Axial-ViT") for patch in (32, 16)]
    assert models("axial") == axial | {size: size.replace(": ", "-") for size in sizes}


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
        (
            "def half(x):\n    return x / 0\ndef get_study():\n    return half(1)",
            "line 2: ZeroDivisionError",
        ),
        ("", "get_study"),
    ],
)
def test_a_study_file_that_cannot_be_used(text, message, tmp_path):
    file = tmp_path / "study.py"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_study(str(file))


def test_a_study_file_s_own_message_stays_as_it_is(tmp_path, capsys):
    file = tmp_path / "study.py"
    file.write_text(
        "from vit_jax.errors import ConfigError\n"
        "def get_study():\n    raise ConfigError('mount the data first')\n"
    )
    with pytest.raises(ConfigError, match=r"^mount the data first$"):
        load_study(str(file))
    assert command.main([str(file), f"--workdir={tmp_path}"]) == 2
    assert capsys.readouterr().err.endswith(" mount the data first\n")


def test_other_names_and_grids(tmp_path):
    for name in (str(tmp_path / "none.py"), "nothing"):
        listed = f"^{name}: there is no such study.*: axial, data_size, fashion_mnist"
        with pytest.raises(ConfigError, match=listed):
            load_study(name)
    twins = dataclasses.replace(STUDY, models={"a b": (), "a/b": ()})
    shared = r"file\.py: two cells would share the folder a_b-256_images-seed_0: rename"
    with pytest.raises(ConfigError, match=shared):
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
    for content in ('{"status": "done"}', "{", "[]"):
        path.write_text(content)
        with pytest.raises(ConfigError, match=f"^{path} is damaged .*move it away to run the cell"):
            cells.outcome_of(cell, str(tmp_path))
