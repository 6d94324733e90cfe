"""A run's records as curves and as time."""

import numpy as np

from vit_jax.reports.curves import curve_sections, series, time_section

RECORDS = [
    {"step": 1, "train/loss": 2.0, "train/learning_rate": 0.0, "time/steps": 1.0},
    {"step": 2, "train/loss": None, "eval/accuracy": 0.5, "eval/loss": 1.5, "eval/count": 9},
    {
        "step": 3,
        "train/loss": 1.0,
        "eval/accuracy_of/cat": 0.5,
        "time/steps": 3600.0,
        "time/lost": 1200.0,
        "train/device_hours": 8.0,
    },
]


def test_series_leave_out_what_is_no_number():
    steps, values = series(RECORDS, "train/loss")
    np.testing.assert_array_equal(steps, [1, 3])
    np.testing.assert_array_equal(values, [2, 1])


def test_each_curve_has_its_own_metrics(monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "vit_jax.reports.curves.draw_curves", lambda found, label: drawn.append([*found])
    )
    titles = [section.title for section in curve_sections(RECORDS)]
    assert dict(zip(titles, drawn, strict=True)) == {
        "Loss": ["train/loss", "eval/loss"],
        "Accuracy": ["eval/accuracy"],
        "Learning rate": ["train/learning_rate"],
    }


def test_time_is_the_last_of_each_kind():
    section = time_section(RECORDS)
    assert section.table == [
        ("wall time", "spent", "share"),
        ("steps", "1h00m", "75.0%"),
        ("lost", "20m00s", "25.0%"),
        ("all", "1h20m", "100.0%"),
    ]
    assert "3 updates; device-hours of training 8." in section.text
    assert time_section([]) is None
