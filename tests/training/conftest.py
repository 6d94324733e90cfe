"""Runs and commands of these tests have one device; where several matter, tests say which."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _on_one_device(on_one_device):
    """See there."""
