"""The package's own map."""

import pathlib
import re

from vit_jax import data


def test_the_map_names_every_module_and_nothing_else():
    modules = {path.stem for path in pathlib.Path(data.__file__).parent.rglob("[a-z]*.py")}
    words = set(re.findall(r"\w+", data.__doc__))
    assert modules <= words
    indented = re.findall(r"^ {4,}(\w+(?:, \w+)*)(?:  |$)", data.__doc__, re.MULTILINE)
    assert {name for names in indented for name in names.split(", ")} <= modules
