"""A run's records as curves and as time."""

import numpy as np

from vit_jax import figures
from vit_jax.reports import curves
from vit_jax.reports.curves import curve_sections, series, short, time_section

RECORDS = [
    {"step": 1, "train/loss": 2.0, "train/learning_rate": 0, "time/steps": 1.0},
    {"step": 20, "train/loss": None, "eval/accuracy": 0.5, "eval/loss": 1.5, "eval/count": 9},
    {
        "step": 3000,
        "train/loss": 1.0,
        "train/accuracy": 0.75,
        "train/grad_norm": 3.0,
        "train/images_per_second": 70.0,
        "train/data_wait": 0.25,
        "train/data_wait_seconds": 9.0,
        "eval/accuracy_of/cat": 0.5,
        "fewshot/5_shot": 0.5,
        "fewshot/5_shot_std": 0.25,
        "time/data_wait": 1200.0,
        "time/saving": 0.0,
        "time/steps": 3600.0,
        "train/device_hours": 8.0,
        "train/exaflops": 0.012345,
        "train/examples": 96_000,
        "train/epoch": 2.0,
    },
    {"step": 3000, "time/steps": None},
]


def test_series_leave_out_what_is_no_number():
    steps, values = series(RECORDS, "train/loss")
    np.testing.assert_array_equal(steps, [1, 3000])
    np.testing.assert_array_equal(values, [2, 1])
    assert series([{"step": None, "x": 1.0}, {"step": 2, "x": "y"}], "x")[0].size == 0


def test_each_curve_has_its_own_metrics(monkeypatch):
    drawn = []
    monkeypatch.setattr(curves, "draw_curves", lambda found, label: drawn.append(([*found], label)))
    titles = [section.title for section in curve_sections(RECORDS)]
    assert dict(zip(titles, drawn, strict=True)) == {
        "Loss": (["train/loss", "eval/loss"], "loss (nats)"),
        "Accuracy": (["eval/accuracy", "fewshot/5_shot"], "accuracy (share of images)"),
        "Learning rate": (["train/learning_rate"], "learning rate"),
        "Norm of the gradient": (["train/grad_norm"], "norm"),
        "Speed": (["train/images_per_second"], "images/s"),
        "Waiting for data": (["train/data_wait"], "share of training time"),
    }


def test_curves_are_over_steps_with_a_legend_of_two(monkeypatch):
    drawn = []
    monkeypatch.setattr(curves, "plot", drawn.append)
    one = {"a": (np.array([1, 20]), np.array([0.5, 0.25]))}
    for found in (one, {**one, "b": (np.array([3]), np.array([0.75]))}):
        curves.draw_curves(found, "loss")
        with figures.painted(drawn[-1], figures.SIZE) as figure:
            (axes,) = figure.axes
            assert axes.lines[0].get_xydata().tolist() == [[1, 0.5], [20, 0.25]]
            assert (axes.get_xlabel(), axes.get_ylabel()) == ("step (updates)", "loss")
            assert len(figure.legends) == len(found) - 1


def test_time_is_the_last_of_each_kind():
    section = time_section(RECORDS)
    assert section.table == [
        ("wall time", "spent", "share"),
        ("steps", "1h00m", "75.0%"),
        ("data wait", "20m00s", "25.0%"),
        ("all", "1h20m", "100.0%"),
    ]
    costs = "device-hours of training 8, exaFLOPs of training 0.01235, images seen 96,000."
    assert f"3,000 updates; {costs}" in section.text
    assert time_section([]) is None


def test_numbers_of_any_size_are_short():
    assert [*map(short, (1000, 999.96, 0.00012345, 12_345_678))] == [
        *("1,000", "1000", "0.0001234", "12,345,678")
    ]
