"""Runs side by side: what differs, what came of it, and their curves."""

import csv
import io
import json

import pytest
from PIL import Image

from vit_jax import compare
from vit_jax.records import append_record, read_records


def write_run(path, config, metrics, results=()):
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"config": config}))
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in metrics))
    for result in results:
        append_record(str(path / "results.jsonl"), result)


def result(step, name, numbers, *, averaged=False, **where):
    where = {"source": "digits", "split": "", **where}
    return {
        "step": step,
        "name": name,
        "averaged": averaged,
        "arguments": {},
        "numbers": numbers,
        **where,
    }


@pytest.fixture
def runs(tmp_path):
    data = {"source": "digits", "eval_split": ""}
    write_run(
        tmp_path / "runs/a",
        {"seed": 0, "data": data, "optimizer": {"learning_rate": 0.1}},
        [
            {"step": 5, "train/loss": 2.0, "eval/accuracy": 0.8125, "eval/loss": 1.5},
            {
                "step": 10,
                "train/loss": 1.0,
                "time/steps": 9.0,
                "data/bytes": 7.0,
                "eval/accuracy": 0.75,
                "eval/loss": None,
                "fewshot/5_shot": 0.123456789,
            },
            {"step": None, "eval/accuracy": 0.0},
        ],
        [
            result(10, "eval", {"accuracy": 0.76, "auc": None}),  # The run's own is kept.
            result(10, "knn", {"accuracy": 0.625}, source="folder:x", split="val"),
            result(5, "knn", {"accuracy": 0.875}, source="folder:x", split="val"),
            result(10, "v2", {"accuracy": 0.3}, split="few", arguments={"split": "few"}),
            result(10, "r", {"accuracy": 0.4}, source="y", arguments={"source": "y", "split": ""}),
            result(10, "eval", {"accuracy": 0.2}, split="train"),
            result(10, "eval", {"accuracy": 0.7}, averaged=True),
        ],
    )
    write_run(
        tmp_path / "runs/b",
        {"seed": 0, "data": data, "optimizer": {"learning_rate": 0.3}, "note": "=x"},
        [{"step": 8, "train/loss": None, "eval/accuracy": 0.25, "stepwise/r2": 0.5}],
        [result(8, "knn", {"accuracy": 0.75}, source="folder:y")],
    )
    return [str(tmp_path / "runs/a"), str(tmp_path / "runs/b")]


def test_what_differs_comes_first_then_the_last_values(runs, capsys):
    assert compare.main(runs) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["a", "b"]
    blank = lines.index([])
    assert lines[1:blank] == [["note", "–", "=x"], ["optimizer.learning_rate", "0.1", "0.3"]]
    assert lines[blank + 1 :] == [
        ["eval/accuracy", "0.75", "0.25"],
        ["eval/loss", "1.5", "–"],
        ["fewshot/5_shot", "0.123457", "–"],
        ["knn/accuracy", "on", "folder:x", "val", "0.625", "–"],
        ["v2/accuracy", "0.3", "–"],
        ["r/accuracy", "0.4", "–"],
        ["eval/accuracy", "on", "digits", "train", "0.2", "–"],
        ["eval_ema/accuracy", "0.7", "–"],
        ["stepwise/r2", "–", "0.5"],
        ["knn/accuracy", "on", "folder:y", "–", "0.75"],
    ]


def test_a_metric_names_the_data_that_is_not_the_runs():
    own = {"data.source": "digits", "data.eval_split": ""}
    for where, end in (({}, ""), ({"source": "y"}, " on y"), ({"split": "val"}, " on digits val")):
        found = compare.names_and_numbers(result(1, "knn", {"accuracy": 0.5}, **where), own)
        assert found == [(f"knn/accuracy{end}", 0.5)]


def test_a_key_of_which_only_one_of_three_runs_differs_is_told(tmp_path, capsys):
    for name, seed in (("a", 0), ("b", 1), ("c", 0)):
        write_run(tmp_path / name, {"seed": seed, "batch_size": 8}, [{"step": 1}])
    assert compare.main([str(tmp_path / name) for name in "abc"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[: lines.index([])] == [["a", "b", "c"], ["seed", "0", "1", "0"]]


def test_a_value_of_0_is_in_the_file_too(tmp_path, capsys):
    write_run(tmp_path / "a", {"seed": 0, "note": ""}, [{"step": 1, "eval/accuracy": 0.0}])
    write_run(tmp_path / "b", {"seed": 0}, [{"step": 1, "eval/accuracy": 0.0}])
    paths = [str(tmp_path / name) for name in "ab"]
    assert compare.main([*paths, f"--csv={tmp_path}/t.csv"]) == 0
    rows = [*csv.reader(io.StringIO((tmp_path / "t.csv").read_text()))]
    assert rows == [["", "a", "b"], ["note", "", ""], ["eval/accuracy", "0.0", "0.0"]]
    capsys.readouterr()


def test_runs_are_called_by_what_their_paths_do_not_share():
    assert compare.short_names(["x/a"]) == ["a"]
    assert compare.short_names(["x/y/a/", "x/z/a"]) == ["y/a", "z/a"]
    assert compare.short_names(["x/a", "x/a/b"]) == ["a", "a/b"]


def test_other_metrics_files_and_curves(runs, tmp_path, capsys, monkeypatch):
    drawn, draw_curves = [], compare.draw_curves
    monkeypatch.setattr(
        compare, "draw_curves", lambda *given: drawn.append(given) or draw_curves(*given)
    )
    flags = ["--metrics=loss$", f"--csv={tmp_path}/t.csv", f"--curves={tmp_path}/c.png"]
    assert compare.main([*runs, *flags]) == 0
    curves = {"train/loss": {"a": {5: 2.0, 10: 1.0}}, "eval/loss": {"a": {5: 1.5}}}
    assert drawn == [(curves, "update")]
    rows = list(csv.reader(io.StringIO((tmp_path / "t.csv").read_text())))
    assert ["train/loss", "1.0", ""] in rows
    assert ["note", "", "'=x"] in rows
    assert all(any(row) for row in rows), "the blank line is the table's"
    picture = Image.open(tmp_path / "c.png")
    assert picture.format == "PNG"
    assert min(picture.size) > 100
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere is no run's workdir: nowhere/config.json is missing."),
        (["RUN", "--metrics=("], "--metrics=(: no regular expression (missing ), "),
        (["RUN", "--metrics=mean$", "--curves=c.png"], "--metrics=mean$: no run has such a metric"),
        (["RUN", "--csv=c.txt"], "no name for what is written: NAME.csv"),
        (["RUN", "--curves=c.svg"], "no name for what is written: NAME.png"),
        (["DAMAGED"], "config.json is damaged (JSONDecodeError("),
    ],
)
def test_a_mistake_is_one_message_and_code_2(runs, tmp_path, capsys, arguments, message):
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged/config.json").write_text("{")
    words = {"RUN": runs[0], "DAMAGED": str(tmp_path / "damaged")}
    assert compare.main([words.get(one, one) for one in arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "reason"),
    [(PermissionError(13, "not allowed"), "not allowed"), (OSError("no room"), "no room")],
)
def test_files_that_cannot_be_written_are_named_with_their_flag(
    runs, monkeypatch, capsys, error, reason
):
    def refuse(path, content):
        raise error

    monkeypatch.setattr(compare.storage, "write", refuse)
    monkeypatch.setattr(compare, "draw_curves", lambda *given: b"")
    for flag in ("--csv=t.csv", "--curves=c.png"):
        assert compare.main([*runs, flag]) == 2
        assert f"{flag} cannot be written: {reason}.\n" in capsys.readouterr().err


def test_records_are_whole_lines_whatever_a_kill_left(tmp_path):
    path = str(tmp_path / "results.jsonl")
    assert read_records(path) == []
    append_record(path, {"step": 1, "value": float("nan")})
    with open(path, "ab") as file:
        file.write(b'{"step": 2, "va')
    append_record(path, {"step": 3})
    assert read_records(path) == [{"step": 1, "value": None}, {"step": 3}]


def test_names_in_a_file_are_escaped(tmp_path, capsys):
    for run in "ab":
        config = {"note": f"\x1b[2J{run}"}
        write_run(tmp_path / run, config, [{"step": 1, "eval/\x1b[31m": 0.5}])
    assert compare.main([str(tmp_path / run) for run in "ab"]) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "[31m" in printed
    assert "[2Ja" in printed
