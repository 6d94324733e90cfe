"""Sections: dataclasses of kinds as a locked ConfigDict, and their checks."""

import dataclasses

import pytest

from vit_jax.errors import ConfigError
from vit_jax.kinds import Count, Share, Text, one_of, optional, tuple_of, whole
from vit_jax.sections import check, section_of


@dataclasses.dataclass(frozen=True)
class Noise:
    spread: Share = 0.5
    form: one_of("normal", "uniform") = "normal"


@dataclasses.dataclass(frozen=True)
class Options:
    steps: whole(1, 9) = 3
    names: tuple_of(Text) = ("a",)
    seed: optional(Count) = None
    noise: Noise = Noise()


def test_a_section_has_the_defaults_and_their_types():
    section = section_of(Options)
    assert section.to_dict() == {
        **{"steps": 3, "names": ("a",), "seed": None},
        "noise": {"spread": 0.5, "form": "normal"},
    }
    types = section.get_type("steps"), section.get_type("names"), section.get_type("seed")
    assert types == (int, tuple, int)
    check(section, Options)
    with pytest.raises(TypeError):
        section.seed = "one"


def test_an_unset_section_is_none_until_set():
    section = section_of(Options, unset=True)
    assert section.to_dict() == {
        **{"steps": None, "names": None, "seed": None},
        "noise": {"spread": None, "form": None},
    }
    assert section.noise.get_type("spread") is float
    check(section, Options, unset=True)
    section.noise.spread = 0.1
    check(section, Options, unset=True)
    section.steps = 10
    with pytest.raises(ConfigError, match=r"config.my.steps=10: must be a whole number from 1 to"):
        check(section, Options, "my.", unset=True)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("steps", 0, "config.toy.steps=0: must be a whole number from 1 to 9."),
        ("names", ("a", 1), "config.toy.names=('a', 1): must be a tuple, each element text."),
        ("seed", -1, "config.toy.seed=-1: must be a whole number, at least 0."),
        ("noise.spread", 2.0, "config.toy.noise.spread=2.0: must be a number from 0 to 1."),
        (
            *("noise.form", "norml"),
            "config.toy.noise.form='norml': must be one of normal, uniform; the nearest: normal.",
        ),
    ],
)
def test_what_is_not_allowed_is_named(key, value, message):
    section = section_of(Options)
    section.update_from_flattened_dict({key: value})
    with pytest.raises(ConfigError) as error:
        check(section, Options, "toy.")
    assert str(error.value) == message
