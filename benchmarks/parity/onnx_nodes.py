"""ONNX's own tests of operators: which of them the import passes, and what it says of the others.

    python -m benchmarks.parity.onnx_nodes [--write] [OPERATOR ...]

Runs the node tests of the package onnx (without those of functions' bodies, `_expanded`) on the
reference interpreter and on executors of one and of two devices, whose bits must be equal. OPERATOR
is a module of onnx.backend.test.case.node, such as `conv`; all by default. --write stores the names
of the tests that pass, and the table in docs/onnx.md. The exit status is 1 if a test gives wrong
numbers, or if one that is stored as passing does not pass.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import symgraph as sg
from symgraph.core.errors import SymgraphError
from symgraph.core.reference import evaluate
from symgraph.frontend.lower import lower
from symgraph.frontend.symbol import Symbol
from symgraph.interchange.onnx.registry import converter_of

ROOT = Path(__file__).parents[2]
STORED = ROOT / "tests/symgraph/data/onnx_nodes.txt"
TABLE = ROOT / "docs/onnx.md"
BEGIN, END = "<!-- made by benchmarks.parity.onnx_nodes -->", "<!-- end -->"
# Operators that become others: the inputs on which their shapes depend.
KNOWN = {"AffineGrid": (1,), "CenterCropPad": (1,), "ConstantOfShape": (0,), "Range": (0, 1, 2)}
KNOWN |= dict.fromkeys(["BlackmanWindow", "HammingWindow", "HannWindow"], (0,))
# ONNX's numbers are rounded in another way: sums of float16 in float16, a Fourier transform.
ROUNDED = {"test_attention_4d_causal_fp16", "test_dft_inverse", "test_dft_inverse_opset19"}
BFLOAT16 = 2**-6  # the tolerance of BackendTest for bfloat16: two units in the last place


class Outcome(NamedTuple):
    """The result of a test."""

    name: str
    op: str
    #: passed, refused, rounded or wrong.
    kind: str
    #: Why it did not pass.
    reason: str = ""


def cases(modules: Iterable[str] = ()) -> list[Any]:
    """Return the node tests of some modules of onnx.backend.test.case.node, of all by default."""
    from onnx.backend.test.case import node

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        every = [m.name for m in pkgutil.walk_packages(node.__path__, f"{node.__name__}.")]
        for name in [f"{node.__name__}.{module}" for module in modules] or every:
            importlib.import_module(name)
    found = [case for case in node._NodeTestCases if "_expanded" not in case.name]
    stems = {module.replace("_", "") for module in modules}
    return [
        case
        for case in found
        if not stems or any(n.op_type.lower() in stems for n in case.model.graph.node)
    ]


def constants(model: Any, inputs: Iterable[Any]) -> dict[str, Any]:
    """Return the inputs of a test whose values an importer needs: shapes, axes and the like."""
    by_name = dict(zip([i.name for i in model.graph.input], inputs, strict=False))
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    known = {}
    for node in model.graph.node:
        converter = converter_of(node.op_type, opset)
        places = converter.known if converter else KNOWN.get(node.op_type, ())
        for name in [node.input[p] for p in places if p < len(node.input)]:
            if name in by_name:
                known[name] = by_name[name]
    return known


def array(value: Any) -> Any:
    """Return a test's value as an array."""
    from onnx import TensorProto, numpy_helper

    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, (np.ndarray, np.generic)) else value


def halved(symbol: Symbol) -> Symbol:
    """Return a symbol whose second half is in the group "second"."""
    layout = json.loads(symbol.tojson())
    rows = [row for row in layout["nodes"] if row["op"] != "null"]
    for row in rows[len(rows) // 2 :]:
        row.setdefault("attrs", {})["__ctx_group__"] = "second"
    return sg.sym.load_json(json.dumps(layout))


def on_devices(symbol: Symbol, values: dict[str, Any], devices: int) -> list[Any]:
    """Compute the outputs on one device, or the second half of the network on another one."""
    net = halved(symbol) if devices > 1 else symbol
    shapes = {name: value.shape for name, value in values.items() if value.shape}
    groups = {"second": sg.cpu(1)} if devices > 1 else None
    with net.simple_bind(sg.cpu(0), grad_req="null", group2ctx=groups, **shapes) as executor:
        for table in (executor.arg_dict, executor.aux_dict):
            for name in table:
                table[name][...] = values[name]
        return [np.array(output) for output in executor.forward()]


def outputs(case: Any, inputs: Iterable[Any], executors: bool) -> list[list[Any]]:
    """Return the outputs of a test on the reference interpreter and on executors."""
    inputs = [array(value) for value in inputs]
    given = constants(case.model, inputs)
    symbol, args, aux = sg.onnx.import_model(case.model, constants=given)
    known = symbol.list_inputs()
    values = dict(zip([i.name for i in case.model.graph.input], inputs, strict=False))
    values = {**{k: v for k, v in values.items() if k in known}, **args, **aux}
    graph = lower(symbol, {name: value.shape for name, value in values.items()})
    found = [evaluate(graph, values)]
    return found + [on_devices(symbol, values, n) for n in (1, 2)] if executors else found


def agrees(got: Any, wanted: Any, case: Any) -> bool:
    """Compare as BackendTest does; a value without axes has one of length 1 here."""
    rtol = case.rtol
    if got.shape != (wanted.shape or (1,)) or got.dtype != wanted.dtype:
        return False
    if str(got.dtype) == "bfloat16":
        rtol, got, wanted = max(rtol, BFLOAT16), got.astype("float32"), wanted.astype("float32")
    return np.allclose(got.reshape(wanted.shape), wanted, rtol, case.atol, equal_nan=True)


def outcome(case: Any, executors: bool = True) -> Outcome:
    """Run one test."""
    op = case.model.graph.node[0].op_type
    kind, reason = "passed", ""
    with np.errstate(all="ignore"):
        for inputs, wanted in case.data_sets:
            try:
                runs = outputs(case, inputs, executors)
            except SymgraphError as error:
                return Outcome(case.name, op, "refused", str(error))
            for found in runs:
                if not all(agrees(g, array(w), case) for g, w in zip(found, wanted, strict=True)):
                    kind = "rounded" if case.name in ROUNDED else "wrong"
            one, two = runs[-2:] if executors else (runs[0], runs[0])
            if [a.tobytes() for a in one] != [a.tobytes() for a in two]:
                kind, reason = "wrong", "other bits on two devices than on one"
    return Outcome(case.name, op, kind, reason)


def stored() -> list[str]:
    """Return the names of the tests that pass."""
    return STORED.read_text().split()


# -- the table -------------------------------------------------------------------------------------


def table(found: Iterable[Outcome]) -> Iterator[str]:
    """Write the table of operators in Markdown."""
    by_op: dict[str, list[Outcome]] = {}
    for each in found:
        by_op.setdefault(each.op, []).append(each)
    yield "| operator | tests | passed | why the others do not |"
    yield "|---|---:|---:|---|"
    for op, rows in sorted(by_op.items()):
        passed = sum(row.kind == "passed" for row in rows)
        reasons = Counter(_reason(row) for row in rows if row.kind != "passed")
        why = "; ".join(f"{text} ({n})" for text, n in reasons.most_common())
        yield f"| {op} | {len(rows)} | {passed} | {why} |"


def _reason(row: Outcome) -> str:
    """Return why a test does not pass, without what is its own."""
    if row.kind == "rounded":
        return "ONNX's numbers are rounded otherwise"
    text = row.reason.removeprefix("ONNX model: ")
    if "operators that are not supported" in text:
        return "not supported"
    if text.endswith("no elements"):
        return "no elements"
    for begin in ("input ", "the result "):
        if text.startswith(begin) or f": {begin}" in text:
            for word in (" holds ", " is a "):
                if word in text:
                    return "of " + text.partition(word)[2].partition(";")[0].partition(",")[0]
    return text.rpartition("): ")[2].partition(": it may")[0].replace("|", "/")


def write(found: list[Outcome]) -> None:
    """Store the names of tests that pass, and the table."""
    STORED.write_text("\n".join(sorted(o.name for o in found if o.kind == "passed")) + "\n")
    text = TABLE.read_text()
    head, _, rest = text.partition(BEGIN)
    tail = rest.partition(END)[2]
    passed = sum(o.kind == "passed" for o in found)
    summary = f"{passed} of {len(found)} tests pass."
    body = "\n".join(["", summary, "", *table(found), ""])
    TABLE.write_text(f"{head}{BEGIN}{body}{END}{tail}")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.parity.onnx_nodes", description=__doc__
    )
    parser.add_argument("--write", action="store_true")
    parser.add_argument("operators", nargs="*", metavar="OPERATOR")
    given = parser.parse_args()
    found = [outcome(case) for case in cases(given.operators)]
    for each in found:
        if each.kind != "passed":
            print(f"{each.kind:8} {each.name}: {each.reason}")
    counts = Counter(each.kind for each in found)
    print(", ".join(f"{n} {kind}" for kind, n in counts.most_common()))
    if given.write:
        write(found)
    names = {each.name for each in found}
    lost = [n for n in stored() if n in names] if STORED.exists() else []
    lost = [n for n in lost if n not in {e.name for e in found if e.kind == "passed"}]
    for name in lost:
        print(f"lost     {name}")
    return int(bool(lost or counts["wrong"]))


if __name__ == "__main__":
    sys.exit(main())
