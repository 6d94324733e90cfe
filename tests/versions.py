"""Runs a part of the suite, and the demo's first updates, on other versions than the lock's.

    .venv/bin/python -m tests.versions 3.13:newest 3.12:lock --folder=/tmp/versions

Each PYTHON:SET is an environment under `--folder`, made once: SET is `lock` (requirements.lock),
`newest` (the newest releases that setup.py allows) or `lowest` (its lower bounds, and the newest of
what they need). pythonX.Y has to be on the PATH; `--interpreters=DIR` names a folder of others, in
which X.Y*/bin/python are looked for. Exits with 1 where something fails.
"""

import argparse
import ast
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parent.parent
STANDARD = ("3.11:lowest", "3.12:lock", "3.13:newest")
# Imports, config, checkpoints, killed and resumed runs, data, weights, a step: the libraries' edges.
SUBSET = (
    *("tests/test_structure.py", "tests/test_config.py", "tests/test_checkpoint.py"),
    *("tests/test_resume.py", "tests/training/test_step.py", "tests/data/sources"),
    *("tests/weights/test_native.py", "tests/weights/test_npz.py"),
)
DEMO = ("-m", "vit_jax.main", "--config=configs/digits.py", "--config.total_steps=20")
VERSIONS = """
import importlib.metadata, sys
print(sys.version.split()[0], *(f"{name} {importlib.metadata.version(name)}" for name in sys.argv[1:]))
"""
SHOWN = ("jax", "flax", "optax", "orbax-checkpoint", "numpy", "pillow")


def requirements() -> list[str]:
    """What setup.py requires, and of its development tools those that run tests."""
    lists = {
        statement.targets[0].id: ast.literal_eval(statement.value)
        for statement in ast.parse((ROOT / "setup.py").read_text()).body
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.List)
    }
    return lists["REQUIRED"] + [tool for tool in lists["DEVELOPMENT"] if tool.startswith("pytest")]


def lowest(requirement: str) -> str:
    """The requirement with its lower bound alone: "a>=1.2,<2" becomes "a==1.2"."""
    return re.sub(r">=([\d.]+).*", r"==\1", requirement)


def installed(kind: str) -> list[str]:
    """The requirements that pip is told to install."""
    match kind:
        case "lock":
            return (ROOT / "requirements.lock").read_text().splitlines()
        case "newest":
            return requirements()
        case "lowest":
            return [lowest(requirement) for requirement in requirements()]
    raise ValueError(f"{kind!r}: must be lock, newest or lowest")


def find_interpreter(version: str, folder: str) -> str:
    """The path of pythonX.Y."""
    here = (
        sorted(pathlib.Path(folder).expanduser().glob(f"{version}*/bin/python")) if folder else []
    )
    found = str(here[-1]) if here else shutil.which(f"python{version}")
    if not found:
        raise RuntimeError(f"there is no python{version}: install it, or name --interpreters=DIR")
    return found


def make_environment(version: str, kind: str, folder: pathlib.Path, interpreters: str) -> str:
    """The interpreter of an environment, which is made unless it is there and whole."""
    root = folder / f"{version}-{kind}"
    python, done = str(root / "bin" / "python"), root / "installed"
    wanted = "\n".join(installed(kind))
    if not done.exists() or done.read_text() != wanted:
        subprocess.run([find_interpreter(version, interpreters), "-m", "venv", root], check=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *installed(kind)], check=True)
        done.write_text(wanted)
    return python


def run_in(python: str, subset: list[str]) -> bool:
    """Whether the tests and the demo's beginning pass; prints the versions that it ran with."""
    subprocess.run([python, "-c", VERSIONS, *SHOWN], check=True)
    compiled = str(pathlib.Path(python).parent.parent / "compiled")
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": compiled}
    tests = subprocess.run([python, "-m", "pytest", *subset], cwd=ROOT, env=environment)
    with tempfile.TemporaryDirectory() as workdir:
        command = [python, *DEMO, f"--workdir={workdir}"]
        demo = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    print((demo.stdout + demo.stderr)[-400:] if demo.returncode else "demo: done", flush=True)
    return not (tests.returncode or demo.returncode)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("environments", nargs="*", metavar="PYTHON:SET", help=f"{STANDARD}")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path(".versions"))
    parser.add_argument("--interpreters", default="", metavar="DIR")
    parser.add_argument("--tests", nargs="*", default=SUBSET, help=f"{SUBSET}; tests: the suite")
    flags = parser.parse_args(arguments)
    failed = []
    for environment in flags.environments or STANDARD:
        version, _, kind = environment.partition(":")
        print(f"== {environment}", flush=True)
        folder = flags.folder.absolute()
        python = make_environment(version, kind, folder, flags.interpreters)
        if not run_in(python, list(flags.tests)):
            failed.append(environment)
    print(f"failed: {', '.join(failed) or 'none'}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
