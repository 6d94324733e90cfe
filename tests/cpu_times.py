"""The tests that take the most CPU time: `python -m pytest -n0 -p tests.cpu_times`.

With their fixtures, threads, and the processes that they started and waited for.
"""

import os

import pytest

SHOWN = 40
_seconds: dict[str, float] = {}


def spent() -> float:
    """User time of this process and of those that it waited for."""
    times = os.times()
    return times.user + times.children_user


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    before = spent()
    result = yield
    _seconds[item.nodeid] = spent() - before
    return result


def pytest_terminal_summary(terminalreporter):
    terminalreporter.section(f"user time: {spent():.1f} s, {sum(_seconds.values()):.1f} s in tests")
    for name in sorted(_seconds, key=_seconds.get, reverse=True)[:SHOWN]:
        terminalreporter.write_line(f"{_seconds[name]:6.2f} s  {name}")
