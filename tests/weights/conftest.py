"""Products in full precision, as the golden values were computed."""

import jax
import pytest


@pytest.fixture(autouse=True)
def exact_products():
    with jax.default_matmul_precision("highest"):
        yield
