"""The C library's allocator, told to keep what a step on the CPU gives back and takes again.

XLA asks for one piece of memory for all activations of a step, and returns it at its end. glibc hands
such large pieces back to the kernel, which has to clear every page of the next: 0.3 of the 1.9 seconds
of CPU that ViT-Ti/16 takes for 16 images. What is kept is not lost to others: the process holds up to
about twice the step's activations.
"""

import ctypes
import glob
import os
import sys
from collections.abc import Mapping

# Parameters of mallopt, in glibc's malloc.h.
TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8
LARGEST_KEPT = (
    2**30
)  # Bytes. Steps with more activations compute so long that clearing hardly counts.
MOST_FREE = 2**31 - 1  # Bytes, the most that mallopt's argument holds.
ACCELERATORS = (  # NVIDIA, AMD, TPU up to v4, later TPU.
    "/dev/nvidia[0-9]*",
    "/dev/kfd",
    "/dev/accel*",
    "/dev/vfio/[0-9]*",
)


def keep_freed_memory() -> bool:
    """Keeps freed memory for the next step, where the CPU computes; returns whether it does.

    For the first line of a command, before there are threads: each would get a heap of its own, too small
    for a step. Does nothing without glibc, and where the environment chooses for the allocator.
    """
    found = [path for pattern in ACCELERATORS for path in glob.glob(pattern)]
    if not (sys.platform == "linux" and computes_on_cpu(os.environ, found)):
        return False
    if chooses_allocation(os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # Only glibc has it.
    if mallopt is None:
        return False
    options = {ARENA_MAX: 1, MMAP_THRESHOLD: LARGEST_KEPT, TRIM_THRESHOLD: MOST_FREE}
    return all([mallopt(name, value) for name, value in options.items()])


def computes_on_cpu(environment: Mapping[str, str], accelerators: list[str]) -> bool:
    """Whether JAX will choose the CPU, as far as can be told before it is imported.

    Args:
      environment: of the process; JAX_PLATFORMS decides, if it is set.
      accelerators: files of their drivers.
    """
    platforms = environment.get("JAX_PLATFORMS", "")
    return platforms == "cpu" if platforms else not accelerators


def chooses_allocation(environment: Mapping[str, str]) -> bool:
    """Whether a user has set glibc's options, or another allocator."""
    return any(
        name.startswith("MALLOC_") or name in ("GLIBC_TUNABLES", "LD_PRELOAD")
        for name in environment
    )
