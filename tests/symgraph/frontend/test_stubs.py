"""The stub files of `sg.sym` and `sg.nd`: what editors and type checkers know of operators."""

from __future__ import annotations

import inspect
import subprocess
import sys

import jedi
import pytest

import symgraph as sg
from symgraph.core.registry import OPS
from symgraph.frontend.namespace import signature
from symgraph.frontend.stubs import PATH, PATH_OF_ARRAYS

SCRIPT = """
import symgraph as mx

data = mx.sym.Variable("data")
good = mx.sym.FullyConnected(data, num_hidden=10, name="fc")
joined = mx.symbol.Concat(good, good, dim=1)
drawn = mx.sym.random.uniform(0, 1, shape=(3, 4))
total = mx.sym.sum(good, axis=1).sum(axis=0) + mx.sym.zeros((2, 3))
mx.sym.FullyConnected(data, num_hiden=10)
mx.sym.Fullyconnected(data, num_hidden=10)

x = mx.nd.random.uniform(0, 1, shape=(2, 3)) + mx.nd.zeros((2, 3))
y = mx.nd.linalg.gemm2(x, x, transpose_b=True)
mx.nd.FullyConnected(x, num_hiden=10)
"""


@pytest.mark.parametrize(
    ("made_by", "path"), [("stub", PATH), ("stub_of_arrays", PATH_OF_ARRAYS)], ids=["sym", "nd"]
)
def test_the_stub_file_is_the_committed_one(made_by, path):
    """Write it anew by: python -m symgraph.frontend.stubs."""
    code = f"from symgraph.frontend import stubs; print(stubs.{made_by}(), end='')"
    command = [sys.executable, "-X", "utf8", "-c", code]
    made = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=PATH.parents[2])
    assert made.stdout == path.read_text(encoding="utf-8"), made.stderr


def test_help_shows_inputs_and_parameters():
    text = str(inspect.signature(sg.sym.LeakyReLU))
    assert "gamma: 'Symbol | None' = None" in text  # which only one act_type has
    assert "slope: 'float' = 0.25" in text
    assert str(inspect.signature(sg.sym.zeros)).startswith("(shape: 'int | Sequence[int]',")


@pytest.mark.parametrize("name", [n for n in OPS if n[0] != "_"])
def test_signatures_take_what_calls_take(name):
    """As many inputs by position as the operator has, and every parameter by name."""
    op = OPS[name]
    given = signature(op)
    inputs = (None,) * (2 if op.variadic else len(op.inputs) if type(op.inputs) is tuple else 1)
    params = {key: 1 for key, p in op.params.items() if key != op.variadic and not p.gathers}
    given.bind(*inputs, **params, name="n", attr={})


@pytest.mark.slow
def test_mypy_finds_misspelt_arguments(tmp_path):
    pytest.importorskip("mypy")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "mypy", "--strict", str(script)]
    found = subprocess.run(command, capture_output=True, text=True, cwd=PATH.parents[2])
    errors = [line.split(": ", 2)[2] for line in found.stdout.splitlines() if ": error: " in line]
    assert len(errors) == 3, found.stdout
    assert 'did you mean "num_hidden"?' in errors[0]
    assert 'maybe "FullyConnected"?' in errors[1]
    assert 'did you mean "num_hidden"?' in errors[2]


@pytest.mark.parametrize("space", ["sym", "nd"])
def test_editors_complete_parameters(space):
    call = f"y = sg.{space}.FullyConnected(x, num"
    code = f"import symgraph as sg\nx = sg.{space}.zeros((2, 3))\n{call}"
    script = jedi.Script(code, path=str(PATH.parents[2] / "script.py"))
    assert "num_hidden=" in {c.name for c in script.complete(3, len(call))}


def test_help_on_arrays_names_arrays_and_completion_no_imports():
    """`help(sg.nd.FullyConnected)` said that it takes symbols, and `dir(sg.sym)` had `Mapping`."""
    given = inspect.signature(sg.nd.FullyConnected)
    assert given.parameters["data"].annotation == "NDArray | None"
    assert {"out", "ctx"} <= {*given.parameters}
    assert all(hasattr(sg.nd, name) for name in dir(sg.nd))
    assert not {"Mapping", "OPS", "Shape"} & {*dir(sg.sym), *dir(sg.nd)}
