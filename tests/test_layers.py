"""The layers of the design: rooms import only what is below them, with no circle anywhere."""

from __future__ import annotations

import ast
import gc
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import networkx
import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("symgraph", "partitioner", "runtime")

# Every room, lowest first: a room may import itself and those before it in this list. The door of
# a room with others inside, its `__init__.py`, comes behind all of them.
ORDER = (
    "symgraph.core",
    "symgraph.ops",
    "symgraph.passes",
    "symgraph.frontend",
    "symgraph.frontend.optimizer",
    "symgraph.rnn",
    "symgraph.interchange",
    "symgraph.interchange.onnx",
    "symgraph.interchange.onnx.converters",
    "symgraph.interchange.onnx.writing",
    "symgraph.interchange.torch",
    "symgraph.chainermn",
    "symgraph.app",
    "symgraph",
    "partitioner.base",
    "partitioner.placement",
    "partitioner.costs",
    "partitioner.cutting",
    "partitioner.memory",
    "partitioner.solve",
    "partitioner.strategies",
    "partitioner.views",
    "partitioner",
    "runtime.schedule",
    "runtime.schedule.replay",
    "runtime.schedule.generators",
    "runtime.schedule.lowering",
    "runtime.schedule.search",
    "runtime.schedule.views",
    "runtime.backends.device",
    "runtime.backends.cpu",
    "runtime.backends.cuda",
    "runtime.backends",
    "runtime.transports",
    "runtime.transports.threads",
    "runtime.transports.mpi",
    "runtime.transports.nccl",
    "runtime.planning.costs",
    "runtime.planning.memory",
    "runtime.planning",
    "runtime.engine",
    "runtime.training.data",
    "runtime.training.checkpoints",
    "runtime.training",
    "runtime.profiling.calibration",
    "runtime.profiling.analysis",
    "runtime.profiling.report",
    "runtime.profiling.trials",
    "runtime.profiling.search",
    "runtime.profiling",
    "runtime.frontends",
    "runtime.frontends.chainermn",
    "runtime.frontends.mxnet",
    "runtime.frontends.cli",
    "runtime",
)
# Wings of the runtime that stand side by side: neither imports the other, whatever ORDER allows.
APART = (
    ("runtime.schedule", "runtime.backends"),
    ("runtime.schedule", "runtime.transports"),
    ("runtime.planning", "runtime.transports"),
    ("runtime.backends.cpu", "runtime.backends.cuda"),
    ("runtime.frontends.chainermn", "runtime.frontends.mxnet"),
)
BY_NAME = "symgraph/frontend/backend.py"  # the only file that names modules above it, as strings
OTHERS = {"examples", "benchmarks", "tests"}  # for nobody to import
ON_DEMAND = {"mpi4py", "cupy", "matplotlib", "jinja2", "onnx"}
LATER = {"scipy.sparse", "networkx", "pydantic"}  # what every start would wait for
# The command line's start: modes load what they need, so that `--help` and errors come at once.
STARTS = ("runtime/frontends/cli/", "runtime/frontends/cli/commands.py", "partitioner/__main__.py")
FILE_LINES, FUNCTION_LINES, LOBBY = 600, 50, 12


@cache
def trees() -> dict[str, ast.Module]:
    """The files of the layers, parsed. None is garbage; looking for it took most of the time.

    It also made tests that follow take up to five times as long.
    """
    gc.disable()
    try:
        return {
            path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
            for package in PACKAGES
            for path in sorted((ROOT / package).rglob("*.py"))
        }
    finally:
        gc.freeze()
        gc.enable()


def module_of(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def room_of(file: str) -> str:
    return file.rpartition("/")[0].replace("/", ".")


def place_of(file: str) -> int:
    """Where a file stands in ORDER."""
    room = room_of(file)
    if file.endswith("/__init__.py"):
        return max(i for i, inner in enumerate(ORDER) if f"{inner}.".startswith(f"{room}."))
    return ORDER.index(room)


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All statements in a tree, at any depth; a walk of all nodes takes four times as long."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            yield node
            yield from statements(node)


def imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The modules imported anywhere in a tree (functions, type checking), with their lines."""
    for node in (tree, *statements(tree)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from ((f"{module}.{alias.name}", node.lineno) for alias in node.names)


def imported_at_once(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """What is imported when the module itself is, and not only by type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from imports(node)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from imported_at_once(ast.Module(node.orelse, []))
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from imported_at_once(node)


@cache
def imports_of(file: str) -> list[tuple[str, int]]:
    return list(imports(trees()[file]))


def packages(found: Iterable[tuple[str, int]]) -> list[str]:
    return [name.split(".")[0] or "." for name, _ in found]


@cache
def arrows() -> dict[tuple[str, str], int]:
    """(file, file that it imports) -> line; `from room import name` is the room's own file."""
    modules = {module_of(file): file for file in trees()}
    found = {}
    for file in trees():
        for name, line in imports_of(file):
            to = modules.get(name) or modules.get(name.rpartition(".")[0])
            if to is not None and to != file:
                found[file, to] = line
    return found


def test_the_walks_see_what_they_should():
    """The tests below would pass if they saw nothing."""
    tree = ast.parse(
        "import a\ntry:\n  from b.c import d\nexcept V:\n  import k\ndef f():\n  import e\n"
        "  match e:\n    case 1:\n      import l\n"
        "class G:\n  import h\nif TYPE_CHECKING:\n  import i\nelse:\n  import j\nfrom . import m\n"
    )
    assert sorted(packages(imports(tree))) == [".", "a", "b", "e", "h", "i", "j", "k", "l"]
    assert packages(imported_at_once(tree)) == ["a", "b", "k", "h", "j", "."]
    found = {name for file in trees() for name in packages(imports_of(file))}
    assert {"numpy", "symgraph", "partitioner", "runtime", "mpi4py"} <= found
    assert len(arrows()) > 1000


def test_every_folder_is_a_room_in_the_order():
    assert {room_of(file) for file in trees()} == set(ORDER)


def test_a_room_imports_only_rooms_below_it():
    wrong = [
        f"{file}:{line} imports {to}"
        for (file, to), line in arrows().items()
        if place_of(to) > place_of(file)
        or any(
            room_of(file).startswith(a) and room_of(to).startswith(b)
            for pair in APART
            for a, b in (pair, pair[::-1])
        )
    ]
    assert wrong == []


def test_nobody_imports_examples_benchmarks_or_tests():
    wrong = [f for f in trees() if OTHERS & set(packages(imports_of(f)))]
    assert wrong == []


def test_no_file_imports_itself_by_way_of_others():
    graph = networkx.DiGraph(arrows().keys())
    circles = [sorted(c) for c in networkx.strongly_connected_components(graph) if len(c) > 1]
    assert circles == []


def test_layers_above_are_named_in_one_file_only():
    """Imports by string would pass the tests above unseen."""
    strings = {
        file: [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        for file, tree in trees().items()
    }
    modules = {module_of(file) for file in trees()} - set(PACKAGES)
    naming = [f for f, texts in strings.items() if modules & set(texts) and "symgraph" in f]
    assert set(naming) <= {BY_NAME, "symgraph/__init__.py"}


def test_imports_are_absolute():
    relative = [f"{f}:{line}" for f in trees() for n, line in imports_of(f) if n[0] == "."]
    assert relative == []


def test_only_optional_packages_and_command_lines_are_imported_late():
    """An import inside a function hides a circle, or costs somebody's first step."""
    ours = {*PACKAGES}
    late = [
        f"{file}:{line} {name}"
        for file, tree in trees().items()
        if not file.startswith(STARTS)
        for name, line in set(imports_of(file)) - set(imported_at_once(tree))
        if name.split(".")[0] in ours and not _for_types_only(tree, line)
    ]
    assert late == []


def _for_types_only(tree: ast.AST, line: int) -> bool:
    return any(
        isinstance(node, ast.If)
        and "TYPE_CHECKING" in ast.unparse(node.test)
        and node.lineno < line <= node.end_lineno
        for node in ast.walk(tree)
    )


@pytest.mark.parametrize("package", sorted(ON_DEMAND))
def test_an_optional_package_is_imported_in_one_file_and_on_demand(package):
    files = [f for f in trees() if package in packages(imports_of(f))]
    assert len(files) <= 1
    for file in files:
        assert package not in packages(imported_at_once(trees()[file])), file


def loaded(code: str) -> set[str]:
    """Return the names of all modules that some code imports."""
    code = f"import sys\n{code}\nprint(*sys.modules, file=sys.stderr)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_what_only_some_programs_need_is_imported_when_they_do():
    found = loaded("from runtime import Session")
    assert {"runtime.engine.session", "numba"} <= found
    assert found & LATER == set()


def test_a_help_text_needs_no_kernels():
    """It took a second, four times as long."""
    found = loaded(
        "import contextlib, symgraph.__main__ as symgraph\n"
        "with contextlib.suppress(SystemExit): symgraph.main(['train', '--help'])"
    )
    assert "runtime.frontends.cli.command" in found
    assert found & (LATER | {"numba", "runtime.planning.plan"}) == set()


def test_lobbies_files_and_functions_stay_small():
    large = []
    for package in PACKAGES:
        entries = {file.split("/")[1] for file in trees() if file.startswith(f"{package}/")}
        if len(entries) > LOBBY:
            large.append(f"{package}/ has {len(entries)} entries")
    for file, tree in trees().items():
        lines = len((ROOT / file).read_text(encoding="utf-8").splitlines())
        if lines > FILE_LINES:
            large.append(f"{file}: {lines} lines")
        for node in statements(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = node.end_lineno - node.lineno + 1
                if lines > FUNCTION_LINES:
                    large.append(f"{file}: {node.name} has {lines} lines")
    assert large == []


def test_every_module_says_what_it_is():
    assert [file for file, tree in trees().items() if not ast.get_docstring(tree)] == []


def test_every_room_says_what_it_may_import_and_where_to_start():
    for room in ORDER:
        door = f"{room.replace('.', '/')}/__init__.py"
        words = ast.get_docstring(trees()[door]) or ""
        if room == "symgraph":  # for users: it shows a program
            continue
        assert re.search(r"(May import|imports nothing|Imports nothing)", words), door
        start = words.partition("Start reading: ")[2]
        assert re.findall(r"[\w/]+\.py", start), f"{door} names no file to start with"
        for file in re.findall(r"[\w/]+\.py", words):
            assert (ROOT / room.replace(".", "/") / file).exists(), f"{door} names {file}"


def test_the_formatter_rules():
    marked = [f for f in trees() if "# fmt:" in (ROOT / f).read_text(encoding="utf-8")]
    assert marked == []
