"""docs/from_mxnet.md: its programs print what it says, and its names are there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from symgraph.core.registry import ALIASES, OPS
from symgraph.frontend import sym
from symgraph.frontend.left_out import LEFT_OUT
from symgraph.frontend.symbol import Symbol

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "from_mxnet.md").read_text(encoding="utf-8")


def listed(start: str) -> list[str]:
    """The names in the paragraph that starts with these words."""
    (paragraph,) = [p for p in TEXT.split("\n\n") if p.startswith(start)]
    return re.findall(r"`([\w]+)`", paragraph)


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_the_programs_print_what_the_page_says(number, tmp_path):
    program = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)[1 + number]
    said = re.findall(r"^prints\n\n```\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)[number]
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == said


def test_what_is_left_out_is_in_the_table():
    section = TEXT.partition("## Left out on purpose")[2].partition("\n## ")[0]
    for name in LEFT_OUT:
        assert f"`{name}`" in section or name == "nd.image", name


def test_every_name_is_there_and_every_operator_is_named():
    starts = ("Layers", "Sequences", "Products", "Order", "Shapes", "One input", "Creation")
    names = {name for start in starts for name in listed(start)}
    two = listed("Two inputs")
    prefix = two.index("broadcast_")
    names |= {*two[:prefix], *(f"broadcast_{name}" for name in two[prefix + 1 :])}
    places, inner = listed("Regions"), listed("Regions").index("contrib")
    names |= {*places[:inner], "Custom"} & {*OPS, *ALIASES}
    for name in names:
        assert callable(getattr(sym, name)), name
    for space, start in ((sym.random, "Draws"), (sym.linalg, "Matrices")):
        for name in listed(start)[1:]:
            assert name == "_like" or callable(getattr(space, name)), name
    draws = listed("Draws")[1:]
    names |= {f"{kind}_{name}" for kind in ("random", "sample") for name in draws}
    names |= {f"random_{name}_like" for name in draws} | {"shuffle"}
    names |= {f"linalg_{name}" for name in listed("Matrices")[1:]}
    for name in places[inner + 1 :]:
        assert name == "ROIPooling" or callable(getattr(sym.contrib, name)), name
    # Other tests register operators of their own.
    ours = {n for n, op in OPS.items() if op.compute.__module__.startswith("symgraph.")}
    ours |= {alias for alias, name in ALIASES.items() if name in ours}
    public = {n for n in ours if not n.startswith("_")} - {"nll_stats"}
    assert public <= names


def methods(of: str) -> list[str]:
    (found,) = re.findall(rf"- \*\*`{of}`\*\*:(.*?)^- ", TEXT, re.MULTILINE | re.DOTALL)
    return re.findall(r"`(\w+)`", found)


def test_the_methods_are_there():
    for name in methods("Symbol"):
        assert callable(getattr(Symbol, name)), name
    with (sym.Variable("x") * 2).simple_bind(x=(1,)) as executor:
        executor.forward()
        for name in methods("Executor"):
            assert hasattr(executor, name), name
