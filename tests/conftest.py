"""What every test relies on: the CPU, as eight virtual devices, and quick compilation."""

import gc
import logging
import mmap
import os
import pathlib
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jaxlib.version
import orbax.checkpoint as ocp
import pytest
from absl import flags
from jax.experimental.compilation_cache import compilation_cache

from tests.hub_server import HubServer

jax.config.update("jax_num_cpu_devices", 8)
# Compiling takes most of the tests' time. With these it takes a tenth, here and in subprocesses.
QUICK = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
if jaxlib.version.__version_info__ < (0, 11):  # Later ones have one code generator only.
    QUICK.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *QUICK])
# Programs need not say which lines of Python they come from: a twenty-fifth of the time.
os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"  # In subprocesses too.
jax.config.update("jax_traceback_in_locations_limit", 0)
# Tracing makes many small objects that live on: looking for garbage after every 700 of them, as by
# default, takes a twelfth of the time.
gc.set_threshold(50_000, 10, 10)
SLICE_BYTES = 2**16
MOST_RESIDENT = (
    2 * 2**30
)  # Bytes of one worker, above which JAX forgets what it traced and compiled.
flags.FLAGS.mark_as_parsed()  # Grain's worker processes read absl flags.


def pytest_collection_finish():
    """Modules and tests are never garbage."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _shared_compilation_cache(tmp_path_factory):
    """What was compiled once is not compiled again: by another test, a command, or a parallel worker.

    Lies where JAX_COMPILATION_CACHE_DIR says, if it does, for later sessions as well.
    """
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # The workers' folders lie in one.
    directory = os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(root / "compilation_cache")
    options = {"compilation_cache_dir": directory, "persistent_cache_min_compile_time_secs": 0.1}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in options.items():
            jax.config.update(f"jax_{name}", value)
            patch.setenv(f"JAX_{name}".upper(), str(value))  # For the commands that tests start.
        compilation_cache.reset_cache()  # So that JAX looks again whether there is one.
        yield


@pytest.fixture(scope="session", autouse=True)
def _small_arrays_are_saved_whole():
    """Orbax lets every device write a slice of a replicated array, by a program that is compiled
    for each shape and device: 2 s for the first save of the tiny config. Here it slices larger
    arrays only, as `states.LARGE` has.
    """
    handler = ocp.type_handlers.get_type_handler(jax.Array)
    with pytest.MonkeyPatch.context() as patch:  # Where it has another name, saving takes longer.
        patch.setattr(handler, "_min_slice_bytes_for_replica_parallel", SLICE_BYTES, raising=False)
        yield


def resident_bytes():
    """Memory of this process; 0 where there is no /proc."""
    statm = pathlib.Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * mmap.PAGESIZE if statm.exists() else 0


@pytest.fixture(scope="module", autouse=True)
def _memory_is_bounded():
    """Programs of earlier modules took 4 GB of each worker at the end."""
    yield
    if resident_bytes() > MOST_RESIDENT:
        jax.clear_caches()


@pytest.fixture(scope="module")
def on_one_device():
    """Runs and commands have one device, for which they are compiled in two thirds of the time.

    Name it where several devices prove nothing more.
    """
    from tests.stages import one_device  # JAX is set up here first.

    with one_device():
        yield


def restored_logging():
    """Undoes what commands do to the loggers, or later tests would find other messages."""
    loggers = [logging.getLogger(name) for name in (None, "absl", "vit_jax")]
    before = [(logger.level, logger.handlers[:]) for logger in loggers]
    yield
    for logger, (level, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = handlers


# Fixtures of a module run commands too, before those of a test begin.
_logging_of_a_module = pytest.fixture(restored_logging, scope="module", autouse=True)
_logging_of_a_test = pytest.fixture(restored_logging, autouse=True)


@pytest.fixture
def hub_server(tmp_path, monkeypatch):
    """A stand-in for the Hub that the client library of this process asks, with an empty cache.

    As HF_ENDPOINT and HF_HUB_CACHE do for a process that starts; it waits for nothing.
    """
    from huggingface_hub import constants

    with HubServer() as server:
        for constant in ("HUGGINGFACE_CO_URL_TEMPLATE", "ENDPOINT"):
            address = getattr(constants, constant).replace(constants.ENDPOINT, server.url)
            monkeypatch.setattr(constants, constant, address)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(time, "sleep", lambda seconds: None)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        yield server
