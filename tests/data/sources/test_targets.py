"""Numbers to predict, as manifests write them."""

import numpy as np
import pytest

from vit_jax.data.sources import splits
from vit_jax.data.sources.examples import Source, Targets
from vit_jax.data.sources.targets import read_target, read_targets
from vit_jax.errors import DataError


@pytest.mark.parametrize(
    ("cell", "value"), [("1.5", 1.5), (" -2e3 ", -2000.0), (3, 3.0), (0.25, 0.25)]
)
def test_what_is_a_number(cell, value):
    assert read_target(cell, "list.csv:2") == value


@pytest.mark.parametrize("cell", ["1_000", "nan", "inf", "x", "", None, True, float("nan")])
def test_what_is_no_number(cell):
    with pytest.raises(DataError, match=r"list\.csv:2: target is .*, expected a finite number"):
        read_target(cell, "list.csv:2")


def test_lists_of_numbers():
    assert read_targets(["1", 2], "x") == (1.0, 2.0)
    for cells in ([], "1", None):
        with pytest.raises(DataError, match="expected a list of numbers"):
            read_targets(cells, "x")


def test_numbers_are_described_by_their_range():
    source = Source()
    source.class_names, source.labels = (
        ("age", "height"),
        Targets(np.float32([[3, 1.5], [40, 1.25]])),
    )
    found = splits._describe_classes(source)
    assert found == "age from 3 to 40, height from 1.25 to 1.5"


def test_only_what_is_left_out_is_abbreviated():
    assert splits.abbreviate("abcdefghij") == ", ".join("abcdefghij")
    assert splits.abbreviate("abcdefghijk") == ", ".join("abcdefghij") + ", …"
