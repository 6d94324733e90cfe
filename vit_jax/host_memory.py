"""The memory that a process on this machine may use."""

import os
from pathlib import Path, PurePosixPath

# Of /proc/self/cgroup, a line's controllers -> where its groups lie, and the file with their limit.
CONTROL_GROUPS = {
    "": ("sys/fs/cgroup", "memory.max"),
    "memory": ("sys/fs/cgroup/memory", "memory.limit_in_bytes"),  # Version 1.
}


def host_memory_bytes(root: str | os.PathLike[str] = "/") -> int:
    """The machine's memory, or the least limit of a container or job around; 0 if nothing says it.

    Args:
      root: the folder of /proc and /sys, with the limits.
    """
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0
    return min([memory, *group_limits(Path(root))])


def group_limits(root: Path) -> list[int]:
    """The limits of this process's control groups, and of those that they are in, in bytes."""
    limits = []
    for line in read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in CONTROL_GROUPS:
            folder, name = CONTROL_GROUPS[controllers]
            group = PurePosixPath(path.lstrip("/"))
            texts = [read(root / folder / each / name) for each in (group, *group.parents)]
            limits += [int(text) for text in texts if text.strip().isdecimal()]  # Not "max".
    return limits


def read(path: Path) -> str:
    """A file's text; "" if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
