"""The C library's allocator, told to keep what a step on the CPU gives back and takes again.

XLA asks for one piece of memory for all activations of a step, and returns it at its end. glibc hands
such large pieces back to the kernel, which has to clear every page of the next: 0.3 of the 1.9 seconds
of CPU that ViT-Ti/16 takes for 16 images. The price is memory: small pieces come to lie in between, so that
the process ends up with room for up to four times the activations.
"""

import ctypes
import glob
import os
import sys
from collections.abc import Callable, Mapping

from vit_jax.host_memory import host_memory_bytes

# Parameters of mallopt, in glibc's malloc.h.
TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8
NEVER = -1  # Of TRIM_THRESHOLD: nothing is handed back.
# Bytes; the most that mallopt's argument holds. Larger steps compute so long that clearing hardly counts.
LARGEST_KEPT = 2**31 - 1
SHARE_KEPT = 1 / 12  # Of the memory that there is, so that four of them are a third.
ACCELERATORS = (  # NVIDIA, the same under Windows, AMD, TPU up to v4, later TPU.
    "/dev/nvidia[0-9]*",
    "/dev/dxg",
    "/dev/kfd",
    "/dev/accel*",
    "/dev/vfio/[0-9]*",
)

_kept = 0  # See `kept_bytes`.


def keep_freed_memory() -> bool:
    """Keeps freed memory for the next step, where the CPU computes; returns whether it does.

    For the first line of a command, before there are threads: each would get a heap of its own, too small
    for a step. Does nothing without glibc, and where the environment chooses for the allocator.
    """
    global _kept
    found = [path for pattern in ACCELERATORS for path in glob.glob(pattern)]
    if not (sys.platform == "linux" and computes_on_cpu(os.environ, found)):
        return False
    if chooses_allocation(os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # Only glibc has it.
    largest = largest_kept(host_memory_bytes())
    if mallopt is None or not largest:
        return False
    _kept = largest if keep_pieces(mallopt, largest) else 0
    return _kept > 0


def kept_bytes() -> int:
    """Bytes of the largest piece that this process keeps when it is freed; 0 where it keeps none."""
    return _kept


def keep_pieces(mallopt: Callable[[int, int], int], largest: int) -> bool:
    """Has pieces of up to so many bytes kept; returns whether the C library takes all of it."""
    # The first is refused by glibc before 2.35 for more than 32 MiB. The others alone would do harm.
    options = {MMAP_THRESHOLD: largest, TRIM_THRESHOLD: NEVER, ARENA_MAX: 1}
    return all(mallopt(name, value) for name, value in options.items())


def largest_kept(memory: int) -> int:
    """Bytes of the largest piece that is kept where there are `memory` bytes."""
    return min(LARGEST_KEPT, int(SHARE_KEPT * memory))


def computes_on_cpu(environment: Mapping[str, str], accelerators: list[str]) -> bool:
    """Whether JAX will choose the CPU, as far as can be told before it is imported.

    Args:
      environment: of the process; JAX_PLATFORMS decides, if it is set.
      accelerators: files of their drivers.
    """
    platforms = environment.get("JAX_PLATFORMS", "")
    return platforms.split(",")[0] == "cpu" if platforms else not accelerators


def chooses_allocation(environment: Mapping[str, str]) -> bool:
    """Whether a user has set glibc's options, or another allocator."""
    return any(
        name.startswith("MALLOC_") or name in ("GLIBC_TUNABLES", "LD_PRELOAD")
        for name, value in environment.items()
        if value
    )
