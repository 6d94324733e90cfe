import pytest

from vit_jax import config


@pytest.fixture
def data():
    """`config.data` with its defaults, as the trainer passes it."""
    return config.default_config().data
