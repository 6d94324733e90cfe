"""What every test relies on: the CPU, as eight virtual devices, set before JAX starts."""

import logging
import os

from tests.xla_flags import XLA_FLAGS

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {XLA_FLAGS}"

import jax
import pytest
from absl import flags

jax.config.update("jax_num_cpu_devices", 8)
flags.FLAGS.mark_as_parsed()  # Grain's worker processes read absl flags.


@pytest.fixture
def restored_logging():
    """Undoes what a command does to the loggers."""
    loggers = [logging.getLogger(name) for name in (None, "absl", "vit_jax")]
    before = [(logger.level, logger.handlers[:]) for logger in loggers]
    yield
    for logger, (level, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = handlers
