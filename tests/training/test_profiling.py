"""Which steps are traced."""

import os
import types

import jax
import pytest

from vit_jax.training.profiling import Profiler


@pytest.mark.parametrize(
    ("first", "count", "last", "expected"),
    [
        (3, 2, 9, ["start 3", "wait 4", "stop 4"]),
        (0, 2, 9, ["start 1", "wait 2", "stop 2"]),  # The first step is 1.
        (8, 5, 9, ["start 8", "stop 9"]),  # The run ends first.
        (3, 0, 9, []),
        (10, 2, 9, []),
    ],
)
def test_a_trace_is_of_the_steps_asked_for(monkeypatch, first, count, last, expected):
    events, step = [], 0

    def start_trace(where):
        assert where == os.path.join("run", "tensorboard"), "where its profiler looks"
        events.append(f"start {step}")

    monkeypatch.setattr(jax.profiler, "start_trace", start_trace)
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: events.append(f"stop {step}"))
    profiler = Profiler(types.SimpleNamespace(start_step=first, num_steps=count), "run")
    for step in range(1, last + 1):
        profiler.before(step)
        profiler.after(step, lambda step=step: events.append(f"wait {step}"))
    profiler.close()
    assert events == expected
