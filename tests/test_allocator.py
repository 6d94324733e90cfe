"""Memory that is freed and asked for again: where it is kept, and that it is."""

import ast
import fnmatch
import os
import pathlib
import subprocess
import sys
import types

import pytest

import vit_jax
from vit_jax import allocator
from vit_jax.allocator import (
    ARENA_MAX,
    MMAP_THRESHOLD,
    TRIM_THRESHOLD,
    chooses_allocation,
    computes_on_cpu,
    keep_pieces,
    kept_bytes,
    largest_kept,
)

PACKAGE = pathlib.Path(vit_jax.__file__).parent
TRAINING = ("main", "study", "suite", "sweep", "benchmark/__main__")
# A piece as large as a small model's activations, written and freed, in a thread as XLA has them.
PAGES_CLEARED = """
import resource, sys, threading
from vit_jax.allocator import keep_freed_memory
kept = keep_freed_memory()
assert "jax" not in sys.modules
def work():
    bytearray(2**28)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(3):
        bytearray(2**28)
    print(int(kept), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def pages_cleared(**environment):
    """Whether memory is said to be kept, and the pages that three pieces of 256 MiB cost."""
    own = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_", "LD_PRE"))}
    completed = subprocess.run(
        [sys.executable, "-c", PAGES_CLEARED],
        env={**own, **environment},
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    kept, pages = map(int, completed.stdout.split())
    return bool(kept), pages


@pytest.mark.skipif(sys.platform != "linux", reason="glibc only")
def test_freed_memory_is_kept_where_the_cpu_computes():
    kept, pages = pages_cleared(JAX_PLATFORMS="cpu")
    assert kept
    assert pages < 1000


@pytest.mark.skipif(sys.platform != "linux", reason="glibc only")
@pytest.mark.parametrize(
    "environment",
    [
        {"JAX_PLATFORMS": "cuda"},
        {"JAX_PLATFORMS": "cpu", "MALLOC_TRIM_THRESHOLD_": "131072"},
    ],
)
def test_the_allocator_is_left_alone_elsewhere(environment):
    kept, _ = pages_cleared(**environment)
    assert not kept


@pytest.mark.parametrize(
    ("platforms", "accelerators", "expected"),
    [
        ("", [], True),
        ("", ["/dev/nvidia0"], False),
        ("", ["/dev/vfio/0"], False),
        ("cpu", ["/dev/nvidia0"], True),
        ("cuda,cpu", [], False),
        ("cpu,cuda", ["/dev/nvidia0"], True),
        ("tpu", [], False),
    ],
)
def test_the_cpu_computes_if_it_is_named_or_alone(platforms, accelerators, expected):
    environment = {"JAX_PLATFORMS": platforms} if platforms else {}
    assert computes_on_cpu(environment, accelerators) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("MALLOC_ARENA_MAX", True),
        ("GLIBC_TUNABLES", True),
        ("LD_PRELOAD", True),
        ("LD_LIBRARY_PATH", False),
        ("MALLOC", False),
    ],
)
def test_a_users_choice_is_seen(name, expected):
    assert chooses_allocation({"HOME": "/", name: "1"}) == expected
    assert not chooses_allocation({"HOME": "/", name: ""})


def test_pieces_are_kept_up_to_a_twelfth_of_the_memory_or_what_an_int_holds():
    gib = 2**30
    assert largest_kept(12 * gib) == gib
    assert largest_kept(18 * gib) == 1.5 * gib
    assert largest_kept(64 * gib) == 2 * gib - 1


def test_a_library_that_refuses_large_pieces_is_left_as_it_is():
    """glibc before 2.35; what it took before would not be undone."""
    asked = []

    def mallopt(name, value):
        asked.append((name, value))
        return int(name != MMAP_THRESHOLD or value <= 2**25)

    assert not keep_pieces(mallopt, 2**30)
    assert asked == [(MMAP_THRESHOLD, 2**30)]
    assert keep_pieces(mallopt, 2**25)
    assert asked[1:] == [(MMAP_THRESHOLD, 2**25), (TRIM_THRESHOLD, -1), (ARENA_MAX, 1)]


@pytest.fixture
def machine(monkeypatch):
    """One of 12 MiB with glibc and no accelerator, and what its allocator was told."""
    found = types.SimpleNamespace(files=[], memory=12 * 2**20, libc=types.SimpleNamespace())
    told = []
    found.libc.mallopt = lambda name, value: told.append((name, value)) or 1
    found.told = told
    monkeypatch.setattr(allocator, "_kept", 0)
    monkeypatch.setattr(allocator.sys, "platform", "linux")
    monkeypatch.setattr(allocator, "host_memory_bytes", lambda: found.memory)
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: found.libc)
    monkeypatch.setattr(allocator.glob, "glob", lambda text: fnmatch.filter(found.files, text))
    monkeypatch.setattr(allocator.os, "environ", {"HOME": "/"})
    return found


def test_what_is_kept_is_remembered(machine):
    assert allocator.keep_freed_memory() is True
    assert kept_bytes() == 2**20
    assert machine.told == [(MMAP_THRESHOLD, 2**20), (TRIM_THRESHOLD, -1), (ARENA_MAX, 1)]


@pytest.mark.parametrize(
    ("file", "is_one"),
    [
        *((f"/dev/{name}", True) for name in ("nvidia0", "nvidia12", "dxg", "kfd", "accel3")),
        *((f"/dev/{name}", False) for name in ("nvidiactl", "vfio/vfio", "dri/card0")),
        ("/dev/vfio/7", True),
    ],
)
def test_files_of_accelerators(machine, file, is_one):
    machine.files.append(file)
    assert allocator.keep_freed_memory() is not is_one
    assert bool(machine.told) is not is_one


@pytest.mark.parametrize("lacking", ["glibc", "memory", "Linux", "consent", "glibc's consent"])
def test_where_nothing_can_be_kept(machine, lacking, monkeypatch):
    if lacking == "glibc":
        del machine.libc.mallopt
    elif lacking == "memory":
        machine.memory = 0  # Nobody knows how much there is.
    elif lacking == "Linux":
        monkeypatch.setattr(allocator.sys, "platform", "darwin")
    elif lacking == "consent":
        monkeypatch.setattr(allocator.os, "environ", {"LD_PRELOAD": "libtcmalloc.so"})
    else:
        machine.libc.mallopt = lambda name, value: 0
    assert allocator.keep_freed_memory() is False
    assert kept_bytes() == 0
    assert machine.told == []


def test_nothing_is_kept_where_no_command_asked_for_it():
    assert kept_bytes() == 0


@pytest.mark.parametrize("command", TRAINING)
def test_commands_that_train_keep_memory_before_imports_and_threads(command):
    first = ast.parse((PACKAGE / f"{command}.py").read_text()).body[1]
    calls = [ast.unparse(node) for node in first.body if isinstance(node, ast.Expr)]
    assert calls[0] == "keep_freed_memory()"
