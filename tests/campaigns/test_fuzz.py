"""The fuzz campaign tells failures from errors of one sentence."""

import random
import subprocess
import sys

import pytest

from tests.campaigns.fuzz.mutations import MUTATIONS, mutate, mutate_json
from tests.campaigns.fuzz.worker import Watch, attempt
from vit_jax.errors import DataError


class Trial:
    """A target that does one thing."""

    max_growth_mib = 64

    def __init__(self, action):
        self.action = action

    def trial(self, rng, folder):
        del rng
        self.action(folder)
        return "same"


def refuse(folder):
    raise DataError("it is damaged")


ACTIONS = {
    "nothing": (lambda folder: None, "same", ""),
    "a named error": (refuse, "refused", "it is damaged"),
    "a traceback": (lambda folder: 1 // 0, "failed", "ZeroDivisionError"),
    "an exit": (lambda folder: sys.exit(3), "failed", "SystemExit"),
    "a file within": (lambda folder: (folder / "x").write_text("x"), "same", ""),
    "a file outside": (lambda folder: (folder.parent / "x").write_text("x"), "failed", "outside"),
    "a removed file": (lambda folder: (folder.parent / "y").unlink(), "failed", "outside"),
    "a process": (lambda folder: subprocess.run(["true"]), "failed", "outside"),
    "memory": (lambda folder: bytearray(b"x" * (100 << 20)), "failed", "MiB"),
}


@pytest.mark.parametrize("name", ACTIONS)
def test_outcomes(name, tmp_path):
    (tmp_path / "y").touch()
    (own := tmp_path / "own").mkdir()
    action, outcome, message = ACTIONS[name]
    found = attempt(Trial(action), random.Random(0), own, Watch())
    assert found[0] == outcome
    assert message in found[1]


@pytest.mark.parametrize("kind", MUTATIONS)
def test_mutations_depend_on_the_seed_alone_and_never_fail(kind):
    content = bytes(range(200))
    outcomes = {kind(content, random.Random(seed)) for seed in range(20)}
    assert outcomes == {kind(content, random.Random(seed)) for seed in range(20)}
    assert len(outcomes - {content}) > 5
    assert all(mutate(bytes(size), random.Random(size)) for size in range(30))


def test_mutated_json_is_another_one():
    value = {"a": [1, {"b": "x"}], "c": None}
    outcomes = [repr(mutate_json(value, random.Random(seed))) for seed in range(50)]
    assert len(set(outcomes)) > 20
    assert value == {"a": [1, {"b": "x"}], "c": None}
