"""The memory that there is: the machine's, or what a container or job may use."""

import os

import pytest

from vit_jax.host_memory import host_memory_bytes

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/\n", {"memory.max": "4096\n"}, 4096),  # A container's own root.
        ("0::/job/step\n", {"job/memory.max": "8192\n", "job/step/memory.max": "max\n"}, 8192),
        ("0::/job/step\n", {"job/memory.max": "8192\n", "memory.max": "4096\n"}, 4096),
        ("0::/job\n", {"other/memory.max": "4096\n"}, MACHINE),
        ("0::/job\n", {"job/memory.max": "9223372036854771712\n"}, MACHINE),
        (
            "5:cpu:/a\n4:memory:/docker/a:b\n0::/x\n",
            {"memory/docker/a:b/memory.limit_in_bytes": "4096\n", "cpu/a/memory.max": "1\n"},
            4096,
        ),
        (None, {}, MACHINE),  # No Linux.
    ],
)
def test_the_least_limit_around_a_process(tmp_path, groups, limits, expected):
    if groups is not None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, text in limits.items():
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert host_memory_bytes(tmp_path) == expected


@pytest.mark.parametrize("error", [ValueError, OSError, AttributeError])
def test_a_system_that_does_not_say_how_much_there_is(error, monkeypatch):
    def sysconf(name):
        raise error

    monkeypatch.setattr(os, "sysconf", sysconf, raising=False)
    assert host_memory_bytes() == 0


def test_this_machine_has_some():
    assert 0 < host_memory_bytes() <= MACHINE
