"""What every test relies on: the CPU, as eight virtual devices, and quick compilation."""

import logging
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jaxlib.version
import pytest
from absl import flags
from jax.experimental.compilation_cache import compilation_cache

jax.config.update("jax_num_cpu_devices", 8)
# Compiling takes most of the tests' time. With these it takes a tenth, here and in subprocesses.
QUICK = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
if jaxlib.version.__version_info__ < (0, 11):  # Later ones have one code generator only.
    QUICK.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *QUICK])
flags.FLAGS.mark_as_parsed()  # Grain's worker processes read absl flags.


@pytest.fixture(scope="session", autouse=True)
def _shared_compilation_cache(tmp_path_factory):
    """What one test compiled need not be compiled again by another one, nor by its own next run."""
    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("cache")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    compilation_cache.reset_cache()  # So that JAX looks again whether there is one.


@pytest.fixture(scope="module")
def cache_of_commands(tmp_path_factory):
    """The same for the commands that a module's tests start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
        yield


@pytest.fixture
def restored_logging():
    """Undoes what a command does to the loggers."""
    loggers = [logging.getLogger(name) for name in (None, "absl", "vit_jax")]
    before = [(logger.level, logger.handlers[:]) for logger in loggers]
    yield
    for logger, (level, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = handlers
