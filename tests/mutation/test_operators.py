"""The campaign's bugs: what becomes of a line, and that every one is a program."""

import ast
import pathlib

import pytest

from tests.mutation.campaign import Suite, module_of
from tests.mutation.operators import Mutant, mutants_of

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a < b", {"a <= b"}),
        ("x is None", {"x is not None"}),
        ("a + b * c", {"a - b * c", "a + b / c"}),
        ("a and not b", {"a or not b", "a and b"}),
        ("steps = 3", {"steps = 4"}),
        ("rate = 0.5", {"rate = 1.0"}),
        ("x if a else y", {"y if a else x"}),
        ("x[i:j]", {"x[:j]", "x[i:]"}),
        ("save(x)", {"pass"}),
        ("y = f(x, z)", {"y = (x)", "y = f(z, x)"}),
        ("y = f(axis=a)", {"y = f()"}),
        ("y = jnp.mean(x)", {"y = jnp.sum(x)", "y = (x)"}),
        ("k = jax.random.fold_in(key, step)", {"k = key"}),
        ("k, l = jax.random.split(key)", {"k, l = [key] * (2)"}),
        ("k = jax.random.split(key, n)", {"k = [key] * (n)"}),
        ("ä = 'ß', a < b", {"ä = 'ß', a <= b"}),
        ("raise ValueError(f'{a + b}')", set()),
        ("logging.info('%d', a + b)", set()),
        ("text = f'{a + b}' + 'x'", set()),
    ],
)
def test_a_line_has_these_mutants(line, expected):
    assert {mutant.apply(line) for mutant in mutants_of("m.py", line)} == expected


def test_every_mutant_of_a_module_is_another_program():
    path = ROOT / "vit_jax/objectives/mixing.py"
    source = path.read_text()
    mutants = mutants_of(str(path), source)
    assert len(mutants) > 50
    for mutant in mutants:
        assert ast.dump(ast.parse(mutant.apply(source))) != ast.dump(ast.parse(source)), mutant


def test_a_mutant_is_named_by_its_lines():
    source = "def f():\n    # ä\n    return a < b\n"
    (mutant,) = mutants_of("m.py", source)
    assert mutant == Mutant("m.py", "comparison", 28, 33, "a <= b")
    assert mutant.lines(source) == ("return a < b", "return a <= b")
    assert "-    return a < b\n+    return a <= b" in mutant.diff(source)


def test_near_a_module_are_its_mirror_and_those_that_name_it():
    assert module_of("vit_jax/optimizer/__init__.py") == "vit_jax.optimizer"
    tests = Suite(ROOT)
    near, far = tests.near("vit_jax/optimizer/muon.py"), tests.far("vit_jax/optimizer/muon.py")
    assert near[0] == "tests/optimizer/test_muon.py"
    assert "tests/optimizer/test_optimizer.py" in {*near, *far}, "it names what imports the module"
    assert not {*near} & {*far}
