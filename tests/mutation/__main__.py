"""A mutation campaign: small bugs, one at a time, against the tests that should see them.

    python -m tests.mutation --mutants=60 --minutes=20 --seed=0 [vit_jax/training ...]
    python -m tests.mutation --list

Bugs are drawn evenly over the packages and, within one, over the operators. Each meets the tests
nearest to its module; what survives them meets those that reach the module through others, while
time remains. `--list` shows the survivors of the last campaign as diffs.
"""

import argparse
import collections
import contextlib
import itertools
import json
import pathlib
import random
import tempfile
import time
import tomllib

from tests.mutation.campaign import PACKAGE, Server, Suite, copy_tree
from tests.mutation.operators import Mutant, mutants_of

ROOT = pathlib.Path(__file__).parents[2]
EQUIVALENT = pathlib.Path(__file__).with_name("equivalent.toml")
RESULTS = ROOT / "build/mutation.json"
STATES = ("killed", "survived", "timed out", "equivalent", "undecided")


def package_of(path: str) -> str:
    """The room a module lies in: `vit_jax/data/sources/tar.py` -> `data`; or the package's name."""
    parts = pathlib.PurePath(path).parts
    return parts[1] if len(parts) > 2 else PACKAGE


def sample(mutants: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """So many mutants in random order: packages take turns, and operators within a package."""
    rng = random.Random(seed)
    turns = collections.defaultdict(lambda: collections.defaultdict(list))
    for mutant in rng.sample(mutants, len(mutants)):
        turns[package_of(mutant.path)][mutant.operator].append(mutant)
    packages = [alternate(operators.values()) for operators in turns.values()]
    return list(itertools.islice(alternate(packages), count))


def alternate(groups):
    """The first of each group, then the second of each, and so on."""
    for row in itertools.zip_longest(*groups):
        yield from (item for item in row if item is not None)


def equivalents() -> dict[tuple[str, str, str], str]:
    """Why mutants change nothing that a test can see, by path and the lines before and after."""
    entries = tomllib.loads(EQUIVALENT.read_text()).get("mutant", [])
    return {(entry["path"], entry["before"], entry["after"]): entry["reason"] for entry in entries}


def run_campaign(mutants: list[Mutant], sources: dict[str, str], minutes: float) -> list[dict]:
    """Tries mutants until the time is over; the results of those that were decided."""
    known, tests, results = equivalents(), Suite(ROOT), {}
    with tempfile.TemporaryDirectory() as directory, contextlib.suppress(TimeoutError):
        tree = pathlib.Path(directory) / "tree"
        copy_tree(ROOT, tree)
        server = Server(tree, time.monotonic() + 60 * minutes)
        for mutant in mutants:
            source = sources[mutant.path]
            reason = known.get((mutant.path, *mutant.lines(source)))
            results[mutant] = {"state": "equivalent" if reason else "undecided", "by": reason}
            results[mutant] |= {"path": mutant.path, "operator": mutant.operator}
            results[mutant] |= {"diff": mutant.diff(source)}
        for tests_of, open_state in ((tests.near, "undecided"), (tests.far, "survived")):
            for mutant in mutants:
                if results[mutant]["state"] == open_state:
                    text = mutant.apply(sources[mutant.path])
                    state, by = server.try_mutant(mutant.path, text, tests_of(mutant.path))
                    results[mutant] |= {"state": state, "by": by}
                    print(f"{state:10} {mutant.path} ({mutant.operator}) {by}", flush=True)
    return list(results.values())


def table(results: list[dict]) -> str:
    """Counts and scores by package: of those that are killed or survive, the share killed."""
    counts = collections.defaultdict(collections.Counter)
    for result in results:
        for package in (package_of(result["path"]), "all"):
            counts[package][result["state"]] += 1
    lines = [f"{'package':14}" + "".join(f"{state:>12}" for state in (*STATES, "score"))]
    for package in sorted(counts, key=lambda name: (name == "all", name)):
        count = counts[package]
        decided = count["killed"] + count["survived"]
        score = f"{100 * count['killed'] / decided:.0f} %" if decided else "-"
        lines.append(
            f"{package:14}" + "".join(f"{count[state]:>12}" for state in STATES) + f"{score:>12}"
        )
    return "\n".join(lines)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("paths", nargs="*", default=[PACKAGE], help="modules or folders to mutate")
    parser.add_argument("--mutants", type=int, default=60, help="how many to draw")
    parser.add_argument("--minutes", type=float, default=20, help="after which none is begun")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, help="file of the results")
    parser.add_argument("--list", action="store_true", help="show the last campaign's survivors")
    return parser.parse_args()


def main() -> None:
    """Runs a campaign and prints its table, or lists survivors."""
    arguments = parse_arguments()
    if arguments.list:
        for result in json.loads(arguments.results.read_text()):
            if result["state"] == "survived":
                print(f"# {result['operator']}\n{result['diff']}\n")
        return
    files = sorted(
        file
        for path in arguments.paths
        for file in ([ROOT / path] if path.endswith(".py") else (ROOT / path).rglob("*.py"))
    )
    sources = {str(file.relative_to(ROOT)): file.read_text() for file in files}
    everything = [mutant for path, source in sources.items() for mutant in mutants_of(path, source)]
    chosen = sample(everything, arguments.mutants, arguments.seed)
    results = run_campaign(chosen, sources, arguments.minutes)
    arguments.results.parent.mkdir(exist_ok=True, parents=True)
    arguments.results.write_text(json.dumps(results, indent=1))
    print(
        f"{len(everything)} mutants are possible, {len(chosen)} were drawn (seed {arguments.seed})."
    )
    print(table(results))


if __name__ == "__main__":
    main()
