"""Runs and commands of these tests have one device; where several matter, tests say which."""

import pytest

from tests.stages import one_device


@pytest.fixture(scope="module", autouse=True)
def _on_one_device():
    with one_device():
        yield
