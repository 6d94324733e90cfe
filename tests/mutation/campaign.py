"""Which tests should see a module's bugs, and what they say of one.

JAX takes seconds to start and starts once: a process that has imported it, and nothing of the
package, forks for every run of pytest. The tests run in a copy of the tree, never in the tree.
"""

import collections
import importlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping

PACKAGE, TESTS = "vit_jax", "tests"
PASSED = (0, 5)  # Exit codes of pytest: all passed, there is no test.
IMPORTED_ONCE = ("jax", "flax.nnx", "optax", "orbax.checkpoint", "grain", "ml_collections")
IMPORTED_ONCE += ("pytest", "PIL.Image", "sklearn.datasets", "fsspec", "safetensors.numpy")
MODULE = re.compile(r"\bvit_jax(?:\.\w+)*")
IMPORT = re.compile(r"^ *from (vit_jax[\w.]*|tests[\w.]*) import \(?((?:\w+|[,\s])+)", re.MULTILINE)
FEW, MANY = 5, 15  # Test files near a module and further ones: some modules are named by all.
START_SECONDS, SLOWDOWN = 30, 5  # A mutant's limit: the former, and so many times its tests' time.


def copy_tree(root: pathlib.Path, target: pathlib.Path) -> None:
    """Copies all that Git tracks or would track."""
    command = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (root / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name)


def module_of(path: str) -> str:
    """`vit_jax/a/b.py` -> `vit_jax.a.b`; a package's `__init__` is the package."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


class Suite:
    """Which test files look at a module: those of its name, those that name it, and further ones."""

    def __init__(self, root: pathlib.Path):
        files = [path for top in (PACKAGE, TESTS) for path in sorted((root / top).rglob("*.py"))]
        self._root = root
        self._named = {
            module_of(str(path.relative_to(root))): _modules_in(path.read_text()) for path in files
        }
        self._tests = [name for name in self._named if re.search(r"(^|\.)test_\w+$", name)]

    def near(self, path: str) -> list[str]:
        """Those that mirror a module, and the most particular of those that name it."""
        return self._paths([*self._mirrors(path), *self._naming({module_of(path)})[:FEW]])

    def far(self, path: str) -> list[str]:
        """The most particular of the others that name it, a module that imports it, or a helper."""
        module = {module_of(path)}
        users = module | {name for name, named in self._named.items() if named & module}
        near = self.near(path)
        found = self._paths([*self._naming(module), *self._naming(users)])
        return [name for name in found if name not in near][:MANY]

    def _mirrors(self, path: str) -> list[str]:
        package, _, name = module_of(path).replace(PACKAGE, TESTS, 1).rpartition(".")
        own = (f"{package}.test_{name}", f"{package}.{name}.test_{name}")
        return [test for test in self._tests if test in own]

    def _naming(self, modules: set[str]) -> list[str]:
        """Tests that name one of the modules, or a helper that does; of fewest modules first."""
        helpers = {
            name
            for name, named in self._named.items()
            if name.startswith(TESTS) and name not in self._tests and named & modules
        }
        found = [name for name in self._tests if self._named[name] & (modules | helpers)]
        return sorted(found, key=lambda name: len(self._named[name]))

    def _paths(self, names: list[str]) -> list[str]:
        return [name.replace(".", "/") + ".py" for name in dict.fromkeys(names)]


def _modules_in(text: str) -> set[str]:
    """The package's and the tests' modules that a file imports or starts by name."""
    found = set(MODULE.findall(text))
    for module, names in IMPORT.findall(text):
        found |= {module, *(f"{module}.{name}" for name in re.findall(r"\w+", names))}
    return found


class Recorder:
    """A plugin of pytest: what failed, and how long each file took."""

    def __init__(self):
        self.failed, self.seconds = [], {}

    def pytest_runtest_logreport(self, report) -> None:
        path = report.nodeid.partition("::")[0]
        self.seconds[path] = self.seconds.get(path, 0.0) + report.duration
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report) -> None:
        if report.failed:
            self.failed.append(report.nodeid)


class Server:
    """Runs tests in a copy of the tree, each time in a fork of this process."""

    def __init__(self, tree: pathlib.Path, deadline: float):
        self.tree, self._deadline = tree, deadline
        self._log, self._report = tree.parent / "log", tree.parent / "report.json"
        self._seconds: dict[str, float] = {}  # Of each test file, without a mutant.
        self._broken: list[str] = []  # Tests that fail without a mutant.
        os.environ |= {
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(tree.parent / "compilation_cache"),
            "PYTHONDONTWRITEBYTECODE": "1",  # A mutant may have its original's size and second.
            "PYTHONPATH": str(tree),
        }
        sys.dont_write_bytecode = True
        for name in IMPORTED_ONCE:
            importlib.import_module(name)
        assert PACKAGE not in sys.modules, "what is imported already cannot be mutated"

    def try_mutant(self, path: str, text: str, files: list[str]) -> tuple[str, str]:
        """`killed`, `survived` or `timed out`, and the test that failed first.

        Raises TimeoutError when the campaign's time is over.
        """
        self._measure([name for name in files if name not in self._seconds])
        files = [name for name in files if name not in self._broken]  # It cannot be imported.
        if not files:
            return "survived", ""
        limit = START_SECONDS + SLOWDOWN * sum(self._seconds[name] for name in files)
        original = (self.tree / path).read_text()
        (self.tree / path).write_text(text)
        try:
            code, report = self._run(["-x", *files], limit)
        finally:
            (self.tree / path).write_text(original)
        if code is None:
            return "timed out", ""
        return ("survived" if code in PASSED else "killed"), "".join(report["failed"][:1])

    def _measure(self, files: list[str]) -> None:
        """Runs test files without a mutant, to know their time and what fails anyway."""
        remaining = self._deadline - time.monotonic()
        if remaining < 0:
            raise TimeoutError
        if not files:
            return
        code, report = self._run(files, remaining)
        if code is None:
            raise TimeoutError
        broken = collections.Counter(name.partition("::")[0] for name in report["failed"])
        for name, count in broken.items():
            print(f"Left out: {count} tests of {name} fail without a mutant.", flush=True)
        self._broken += report["failed"]
        self._seconds |= {name: report["seconds"].get(name, 0.0) for name in files}

    def _run(self, arguments: list[str], limit: float) -> tuple[int | None, Mapping]:
        """Pytest's exit code, or None where the limit in seconds ended it, and its report."""
        self._report.unlink(missing_ok=True)
        process = os.fork()
        if not process:
            self._run_tests(arguments)
        try:
            code = _wait(process, limit)
        finally:
            _end(process)
        empty = {"failed": [], "seconds": {}}
        return code, json.loads(self._report.read_text()) if self._report.exists() else empty

    def _run_tests(self, arguments: list[str]) -> None:
        """In the fork: imports package and tests from the copy, and never returns."""
        code = 70
        try:
            os.setpgid(0, 0)  # To end what the tests start with them.
            output = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1), os.dup2(output, 2)
            os.chdir(self.tree)
            sys.path.insert(0, str(self.tree))
            for name in [name for name in sys.modules if name.split(".")[0] == TESTS]:
                del sys.modules[name]
            recorder = Recorder()
            flags = ["-n0", "-p", "no:cacheprovider", f"--basetemp={self.tree.parent / 'tmp'}"]
            flags += [f"--deselect={name}" for name in self._broken]
            code = importlib.import_module("pytest").main([*flags, *arguments], [recorder])
            self._report.write_text(json.dumps(vars(recorder)))
            file = getattr(sys.modules.get(PACKAGE), "__file__", None)
            assert not file or pathlib.Path(file).is_relative_to(self.tree), file
        finally:
            os._exit(code)


def _wait(process: int, limit: float) -> int | None:
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    return None


def _end(process: int) -> None:
    """Ends a fork and all that it started."""
    try:
        os.killpg(process, signal.SIGKILL)
        os.waitpid(process, 0)
    except (ProcessLookupError, ChildProcessError):
        pass
