"""The shape of the package: short modules and functions, and imports that point one way."""

import ast
import graphlib
import itertools
import pathlib

ROOT = pathlib.Path(__file__).parent.parent
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "vit_jax").rglob("*.py"))
}
TREES = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}

# Modules and rooms of the package, each above all that it may import. A new file of the package's
# own folder finds its level here; one in a room has the room's.
LEVELS = (
    "allocator choices class_mapping console durations errors escaping figures grammar host_memory hub kinds model_file nested pages parameters records sections signals storage stores tables writers",
    "devices models",
    "digests network",
    "checkpoint_errors",
    "checkpoint weights",
    "data objectives optimizer",
    "evaluators",
    "config",
    "earlier",
    "averaging config_file evaluation_files inference model_card prediction_files recipes",
    "analysis",
    "reports",
    "training",
    "train",
    "benchmark",
    "studies",
    "command_line",
    # The commands.
    "analyze compare deduplicate embed evaluate export main plan predict prepare report study suite sweep verify",
)
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names.split()}
COMMANDS = len(LEVELS) - 1


def level_of(module):
    """A module's level; a room's own command, such as `vit_jax.models`, is a command."""
    _, first, *rest = module.split(".")
    return COMMANDS if rest == ["__main__"] else LEVEL[first]


def imported_by(module):
    """The package's modules that importing `module` names; those in functions come later."""
    found = set()
    for node in TREES[module].body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            below = {f"{node.module}.{alias.name}" for alias in node.names} & MODULES.keys()
            found |= below or {node.module}
    return (found & MODULES.keys()) - {"vit_jax"}


INSIDE = [name for name in MODULES if name != "vit_jax"]  # That one lists the public names.
IMPORTS = {name: imported_by(name) for name in INSIDE}


def test_every_module_and_room_has_a_level():
    assert {name.split(".")[1] for name in INSIDE} == LEVEL.keys()


def test_imports_point_down():
    upward = [
        f"{module} imports {other}"
        for module, others in IMPORTS.items()
        for other in others
        if level_of(other) > level_of(module)
    ]
    assert not upward


def test_imports_have_no_cycle():
    assert len([*graphlib.TopologicalSorter(IMPORTS).static_order()]) == len(INSIDE)


def test_the_graph_has_the_edges_of_the_package():
    assert "vit_jax.training.step" in IMPORTS["vit_jax.training.experiment"]
    assert "vit_jax.models.registry" in IMPORTS["vit_jax.models"]


def test_modules_are_short():
    lengths = {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}
    assert {name: length for name, length in lengths.items() if length > 400} == {}
    assert lengths["vit_jax.train"] <= 200


def test_functions_are_short():
    nodes = itertools.chain.from_iterable(map(ast.walk, TREES.values()))
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef))
    lengths = ((node.name, node.end_lineno - node.lineno + 1) for node in functions)
    assert [(name, length) for name, length in lengths if length > 60] == []
