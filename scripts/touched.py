"""Runs the tests nearest to what has changed since `main`, within a time limit: the last part of `make check`.

    python -m scripts.touched [--list] [--seconds 75]

Nearest first: tests named after a changed module, then those with the shortest import chain to one; among equals, those
in the package of the same name first. Tests beyond the limits below, or not started in time, are left to `make test`,
and their number is printed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PACKAGES = ("qnn_ext", "tests", "scripts", "benchmarks")
MODULES, TESTS = 20, 100  # at most so many test modules, and tests of each: even collecting and skipping takes time
SECONDS = 75  # lint takes the rest of two minutes


def git(*arguments: str) -> list[str]:
    """The lines that a git command prints; none if it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def changed_files() -> list[Path]:
    """Files that differ from where this branch left main, committed or not, including untracked ones."""
    base = git("merge-base", "HEAD", "main") or ["HEAD"]
    names = git("diff", "--name-only", base[0]) + git("ls-files", "--others", "--exclude-standard")
    return [Path(name) for name in dict.fromkeys(names)]


def import_graph() -> grimp.ImportGraph:
    """Which module imports which. A package importing its modules by name, as for converters, has an edge to each."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    for init in (ROOT / "qnn_ext").rglob("__init__.py"):
        if "pkgutil" in init.read_text(encoding="utf-8"):
            package = module_of(init.relative_to(ROOT))
            for child in graph.find_children(package):
                graph.add_import(importer=package, imported=child)
    return graph


def module_of(path: Path) -> str:
    """The dotted name of a file."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def is_test(module: str) -> bool:
    """Whether pytest collects the module."""
    return module.startswith("tests.") and module.rsplit(".", 1)[1].startswith("test_")


def changed_modules(files: Iterable[Path], modules: set[str]) -> set[str]:
    """The modules among the files; for any other file (data, documents, C) the test modules that mention it."""
    found, named = set(), []
    for path in files:
        module = module_of(path)
        if path.suffix == ".py" and module in modules:
            found.add(module)
        else:
            named.append(re.escape(path.name))
    if named:
        pattern = re.compile("|".join(named))
        for path in (ROOT / "tests").rglob("*.py"):
            module = module_of(path.relative_to(ROOT))
            if module in modules and pattern.search(path.read_text(encoding="utf-8")):
                found.add(module)
    return found


def distances(graph: grimp.ImportGraph, changed: Iterable[str]) -> dict[str, int]:
    """Module -> the length of the shortest chain of imports from it to a changed one."""
    found = dict.fromkeys(changed, 0)
    ring = set(found)
    while ring:
        step = max(found.values()) + 1
        ring = {module for inner in ring for module in graph.find_modules_that_directly_import(inner)} - found.keys()
        found |= dict.fromkeys(ring, step)
    return found


def nearest_tests(graph: grimp.ImportGraph, changed: set[str]) -> list[str]:
    """The test modules that the changes may affect, nearest first."""
    found = distances(graph, changed)
    rooms: dict[str, list[list[str]]] = defaultdict(list)  # last part of a name -> the packages in which it changed
    for module in changed:
        *room, name = module.split(".")
        rooms[name].append(room[1:])

    def order(test: str) -> tuple[bool, int, int, str]:
        *room, name = test.split(".")
        own = name.removeprefix("test_")
        alike = max((common(room[1:], other) for others in rooms.values() for other in others), default=0)
        named_after = any(common(room[1:], other) == len(room) - 1 for other in rooms.get(own, []))
        return not (named_after or test in changed), found.get(test, 99), -alike, test

    named_after = {module for module in graph.modules if is_test(module) and not order(module)[0]}
    return sorted({module for module in found if is_test(module)} | named_after, key=order)


def common(one: list[str], two: list[str]) -> int:
    """The number of leading parts that two names share."""
    return next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="only print the test modules, nearest first")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="start no test after this many seconds")
    arguments = parser.parse_args()

    graph = import_graph()
    tests = nearest_tests(graph, changed_modules(changed_files(), graph.modules))
    paths = [f"{module.replace('.', '/')}.py" for module in tests]
    if arguments.list or not paths:
        print("\n".join(paths) or "no test imports a changed module")
        return 0
    if len(paths) > MODULES:
        print(f"the nearest {MODULES} of {len(paths)} test modules that the changes may affect; `make test` runs all")
    command = [sys.executable, "-m", "pytest", "-n", "2", "--maxschedchunk", "1"]
    limits = [f"--most={TESTS}", f"--seconds={arguments.seconds}"]
    return subprocess.run([*command, *limits, *paths[:MODULES]], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
