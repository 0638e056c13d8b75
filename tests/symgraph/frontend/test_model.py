"""Models of users' own modules: what goes wrong in them is said in one line that names theirs."""

from __future__ import annotations

import pytest

import symgraph as sg
from runtime.planning.options import Options, require_options
from symgraph.core.errors import ConfigError, GraphError, ShapeError
from symgraph.frontend import init, sym
from symgraph.frontend.model import load_model


@pytest.mark.parametrize(
    ("name", "source", "words"),
    [
        ("raises_at_import", "x = 1\nraise ValueError('no')", "line 2: ValueError: no"),
        ("has_bad_syntax", "def build(:\n    pass", "line 1: SyntaxError: invalid syntax"),
        ("imports_nothing", "import not_there_at_all", "line 1: ModuleNotFoundError: No module"),
        ("exits_at_import", "import sys\nsys.exit(5)", "line 2: SystemExit: 5"),
        ("divides", "def build():\n    return 1 / 0", "line 2: ZeroDivisionError: division"),
    ],
)
def test_a_failure_of_the_users_code_names_its_line(tmp_path, monkeypatch, name, source, words):
    """It was a traceback of 38 lines, most of them importlib's, or status 5 without a word."""
    file = tmp_path / f"{name}.py"
    file.write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as raised:
        load_model(f"{name}:build", {})
    assert f"model: {name}:build failed at {file}, {words}" in str(raised.value)


def test_mistakes_that_were_errors_of_pythons():
    """They were AttributeErrors of lists and strings, or accepted."""
    with pytest.raises(ConfigError, match=r"'cpu\(0\)' is not a device|is not a device"):
        sg.cpu("0")
    with pytest.raises(TypeError, match="group2ctx maps groups to devices"):
        require_options({}, Options([sg.cpu(1)], sg.cpu(0)))
    with pytest.raises(TypeError, match="a module is made of a symbol, not 'x'"):
        sg.mod.Module("x")
    with pytest.raises(GraphError, match="is not JSON of"):
        init.create('[["xavier"], 3]')
    with pytest.raises(GraphError, match="it has no heads"):
        sym.load_json('{"nodes": [], "heads": [], "arg_nodes": []}')


def test_sizes_that_no_memory_holds_are_refused_where_they_arise():
    """A `num_hidden` of 10**9 in a large layer was "Python int too large to convert to C long"."""
    wide = sym.FullyConnected(sym.Variable("x"), num_hidden=10**9, name="wide")
    with pytest.raises(ShapeError, match="FullyConnected 'wider': no memory holds an array"):
        sym.FullyConnected(wide, num_hidden=4 * 10**9, name="wider").infer_shape(x=(2, 3))
