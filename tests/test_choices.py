"""Options of one choice among several."""

import pytest
from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from vit_jax.choices import chosen_options, unused_options


def line(x, *, slope=2.0, offset=0.0):
    return slope * x + offset


def parabola(x, *, curvature=1.0, offset=5.0):
    return curvature * x**2 + offset


CHOICES = {"line": line, "parabola": parabola}


def section(name, **values):
    options = {key: placeholder(float) for key in ("slope", "curvature", "offset")}
    config = ConfigDict({"name": name, **options, "other": 3})
    config.update(values)
    return config


@pytest.mark.parametrize(
    ("config", "chosen", "unused"),
    [
        (section("line"), {"slope": 2.0, "offset": 0.0}, []),
        (section("parabola"), {"curvature": 1.0, "offset": 5.0}, []),
        (section("line", slope=0.0), {"slope": 0.0, "offset": 0.0}, []),
        (section("line", curvature=3.0, offset=1.0), {"slope": 2.0, "offset": 1.0}, ["curvature"]),
    ],
)
def test_options_are_the_choices_own(config, chosen, unused):
    assert chosen_options(config, CHOICES) == chosen
    assert unused_options(config, CHOICES) == unused
