"""No receive takes a message of any source, and no wait depends on which of several ends first.

That is the condition under which one run of a schedule tells what all of its runs do; see
"Independent proof" in docs/reliability.md. A receive may take any tag: it takes the head of its
channel, whose messages are one queue, and compares the tag itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FORBIDDEN = {
    "ANY_SOURCE",
    "Waitany",
    "Waitsome",
    "Testany",
    "Testsome",
    "Cancel",
    "waitany",
    "waitsome",
    "testany",
    "testsome",
    "cancel",
}
RECEIVES = {  # how many arguments come before the source, by mpi4py's name of the call
    **dict.fromkeys(("Recv", "Irecv", "Recv_init", "recv", "irecv"), 1),
    **dict.fromkeys(("Probe", "Iprobe", "Mprobe", "Improbe"), 0),
    **dict.fromkeys(("probe", "iprobe", "mprobe", "improbe"), 0),
}
MATCHED = {"message", "found"}  # names of messages that a probe has matched: they have a source
MPI = ("runtime/transports/mpi", "runtime/frontends/chainermn/mpi_group.py")


def trees() -> Iterator[tuple[str, ast.Module]]:
    for package in ("symgraph", "partitioner", "runtime"):
        for path in sorted((ROOT / package).rglob("*.py")):
            file = path.relative_to(ROOT).as_posix()
            yield file, ast.parse(path.read_text(encoding="utf-8"))


def receives(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and source of each receive of mpi4py's; "": the source is not named."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called, on = node.func.attr, ast.unparse(node.func.value)
            if called in RECEIVES and on not in MATCHED and "comm" in on:
                named = node.args[RECEIVES[called] :][:1]
                named += [k.value for k in node.keywords if k.arg == "source"]
                yield node.lineno, ast.unparse(named[0]) if named else ""


def test_the_walk_sees_receives_without_a_source():
    code = "comm.Irecv(x)\nself._comm.Improbe(0, 1)\nmessage.Irecv(x)\ncomm.recv(x, source=2)\n"
    assert list(receives(ast.parse(code))) == [(1, ""), (2, "0"), (4, "2")]


@pytest.mark.slow
def test_every_receive_names_its_source():
    found = {
        (file, line): source
        for file, tree in trees()
        if file.startswith(MPI)
        for line, source in receives(tree)
    }
    assert {file for file, _ in found} >= {
        "runtime/transports/mpi/endpoint.py",
        "runtime/transports/mpi/collectives.py",
        "runtime/frontends/chainermn/mpi_group.py",
    }
    assert [where for where, source in found.items() if source not in ("src", "i")] == []


@pytest.mark.slow
def test_nothing_depends_on_who_is_first():
    found = [
        f"{file}:{node.lineno} {node.attr}"
        for file, tree in trees()
        if file.startswith(MPI)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in FORBIDDEN
    ]
    assert found == []


@pytest.mark.slow
def test_any_tag_is_for_heads_of_channels_only():
    """Where it is used, the tag that came is compared with the one that was awaited."""
    files = {
        file
        for file, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("ANY_TAG", "ANY_SOURCE")
    }
    assert files == {
        "runtime/transports/mpi/endpoint.py",
        "runtime/frontends/chainermn/mpi_group.py",
    }
