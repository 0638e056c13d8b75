"""The layers of the design: imports point one way; files and functions stay small."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BELOW = {  # package -> the packages of ours that it may import, besides itself
    "symgraph": set(),
    "partitioner": {"symgraph"},
    "runtime": {"symgraph", "partitioner"},
}
LOOKS_UP = "symgraph/run.py"  # the command line, the only file that may
OTHERS = {"examples", "benchmarks", "tests"}  # for nobody to import
ON_DEMAND = {"mpi4py", "cupy", "matplotlib", "jinja2", "onnx"}
LATER = {"scipy.sparse", "networkx", "pydantic"}  # what every start would wait for
FILE_LINES, FUNCTION_LINES = 400, 50


@cache
def trees() -> dict[str, ast.Module]:
    """The files of the layers, parsed."""
    return {
        path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for package in BELOW
        for path in sorted((ROOT / package).rglob("*.py"))
    }


def imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The packages imported anywhere in a tree, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "").split(".")[0], node.lineno


def imported_at_once(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The packages that are imported when the module itself is, and not only by type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from imports(node)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from imported_at_once(ast.Module(node.orelse, []))
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from imported_at_once(node)


def test_the_walks_see_what_they_should():
    """The tests below would pass if they saw nothing."""
    tree = ast.parse(
        "import a\ntry:\n  from b.c import d\nfinally: pass\ndef f():\n  import e\n"
        "class G:\n  import h\nif TYPE_CHECKING:\n  import i\nelse:\n  import j\nfrom . import k\n"
    )
    assert sorted(n for n, _ in imports(tree)) == [".", "a", "b", "e", "h", "i", "j"]
    assert [n for n, _ in imported_at_once(tree)] == ["a", "b", "h", "j", "."]
    found = {name for tree in trees().values() for name, _ in imports(tree)}
    assert {"numpy", "symgraph", "partitioner", "runtime", "mpi4py"} <= found


def test_a_layer_imports_only_what_is_below_it():
    wrong = []
    for file, tree in trees().items():
        package = file.split("/")[0]
        above = BELOW.keys() - BELOW[package] - {package} if file != LOOKS_UP else set()
        wrong += [f"{file}:{line} {n}" for n, line in imports(tree) if n in above | OTHERS]
    assert wrong == []


def test_nothing_imports_the_command_line():
    modules = {
        file: [n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
        for file, tree in trees().items()
    }
    assert [file for file, names in modules.items() if "symgraph.run" in names] == []


def test_imports_are_absolute():
    relative = [f"{f}:{line}" for f, t in trees().items() for n, line in imports(t) if n[0] == "."]
    assert relative == []


@pytest.mark.parametrize("package", sorted(ON_DEMAND))
def test_an_optional_package_is_imported_in_one_file_and_on_demand(package):
    files = [f for f, tree in trees().items() if package in {n for n, _ in imports(tree)}]
    assert len(files) <= 1
    for file in files:
        assert package not in {n for n, _ in imported_at_once(trees()[file])}, file


def test_what_only_some_programs_need_is_imported_when_they_do():
    code = "import sys, runtime; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = set(done.stdout.split())
    assert {"runtime.session", "numba"} <= found
    assert found & LATER == set()


def test_files_and_functions_stay_small():
    large = []
    for file, tree in trees().items():
        lines = len((ROOT / file).read_text(encoding="utf-8").splitlines())
        if lines > FILE_LINES:
            large.append(f"{file}: {lines} lines")
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = node.end_lineno - node.lineno + 1
                if lines > FUNCTION_LINES:
                    large.append(f"{file}: {node.name} has {lines} lines")
    assert large == []


def test_every_module_says_what_it_is():
    assert [file for file, tree in trees().items() if not ast.get_docstring(tree)] == []
