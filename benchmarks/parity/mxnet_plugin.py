"""A pytest plugin for MXNet's own tests: `import mxnet` is symgraph, and each result is a line.

The environment has PARITY_MXNET (the checkout), PARITY_RESULTS (the file of results, JSON lines),
PARITY_SECONDS (the limit of a test) and PARITY_DONE (a file of the tests to leave out).
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.parity.mxnet_adapter import OutOfScope, install

# A test that does not pass is out of scope if its own code, or a function of its file that it
# calls, has one of these names or strings; the first part that matches counts.
USES = {
    "sparse": {
        "row_sparse",
        "csr",
        "stype",
        "sparse",
        "cast_storage",
        "rand_sparse_ndarray",
        "check_format",
    },
    "Gluon": {"gluon"},
    "autograd": {"autograd", "attach_grad"},
    "numpy interface": {"use_np", "np_shape", "npx", "mx.np"},
    "quantised": {"quantize", "quantization", "quantized_conv"},
    "image": {
        "mx.image",
        "mx.img",
        "ImageRecordIter",
        "ImageRecordIter_v1",
        "recordio",
        "ImageDetIter",
    },
    "MXNet's internals": {
        *("DataParallelExecutorGroup", "_LIB", "check_call", "profiler"),
        *("_total_exec_bytes", "_updater", "_optimizer", "_gen_atomic_symbol", "_exec_group"),
        *("get_optimized_symbol", "_curr_module", "get_all_registered_operators"),
        "get_operator_arguments",
    },
    "mixed precision as amp": {"amp", "amp_cast", "all_finite"},
}
# Tests of what docs/from_mxnet.md says that symgraph does otherwise: "What differs on purpose".
DIFFERS = {
    "test_symbol_infer_shape": "infer_shape without enough shapes is an error",
    "test_prelu": "head gradients for more outputs than there are are an error",
    "test_maximum_minimum": "two variables of one name are an error",
    "test_module_layout": "contexts hold parts of a network, and its outputs are whole",
    "test_mathematical": "two variables of one name are an error",
    "test_cast": "arguments of integers have no gradients",
    "test_tile": "backward without a forward before it is an error",
    "test_repeat": "backward without a forward before it is an error",
    "test_bucket_module": "an id outside an Embedding is an error",
    "test_parallel_random_seed_setting_for_context": "nodes of other names draw other numbers",
    "test_zero_prop2": "arguments of integers have no gradients, and asking is no error",
    "test_load_000800": "a label that is no class is an error",
    "test_ctc_loss": "a label that is no class is an error",
    "test_sequence_last": "a length outside the axis is an error",
    "test_bucketing_save_load": "an id outside an Embedding is an error",
    "test_monitor": "monitors show no gradients of values between nodes",
    "test_op_all_names_monitor": "inputs without a name in MXNet have one here",
    "test_sgld": "random numbers are not those that MXNet draws",
    "test_sequence_mask": "arguments of integers have no gradients",
    "test_sequence_reverse": "arguments of integers have no gradients",
    "test_custom_op_exc": "an error in a CustomOp of mx.nd is raised as it is",
    "test_depthtospace": "mx.nd computes operators on arrays without elements",
    "test_spacetodepth": "mx.nd computes operators on arrays without elements",
    "test_valid_max_pooling_pad_type_same": "pad has a value for each axis of the kernel",
    "test_transpose_infer_shape_back": "only the batch axis of `ones` may be open",
    "test_transpose_infer_shape_mixed": "only the batch axis of `ones` may be open",
    "test_convolution_independent_gradients": "grad_req of a name that is no argument is an error",
    **dict.fromkeys(
        (
            *("test_lstm_sym", "test_lstm_bidirectional", "test_gru_sym", "test_gru_bidirectional"),
            *("test_rnntanh_sym", "test_rnntanh_bidirectional"),
            *("test_rnnrelu_sym", "test_rnnrelu_bidirectional"),
        ),
        "a FusedRNNCell has the parameters of its stack",
    ),
}
# Operators outside of `contrib` and `linalg` that docs/from_mxnet.md names as missing.
OPERATORS = (
    r"random_pdf_\w+|shape_array|size_array|ravel_multi_index|unravel_index|diag|split_v2|moments|"
    r"im2col|col2im|image"
)
PARAMETERS = "use_length|out_dtype|output_mean_var|axis|infer_range"  # and parameters
# Names that tell that a test is of networks, or of what trains them, and not of mx.nd alone.
SYMBOLIC = {
    *("sym", "symbol", "mod", "module", "optimizer", "opt", "metric", "init", "initializer", "io"),
    *("rnn", "random", "executor", "viz", "visualization", "model", "models", "callback", "mon"),
    *("lr_scheduler", "attribute", "AttrScope", "name", "simple_forward", "check_consistency"),
    *("check_symbolic_forward", "check_symbolic_backward", "check_numeric_gradient"),
}
IMPERATIVE = {"nd", "ndarray"}


def pytest_configure(config: Any) -> None:
    """Install the adapter before any test file is imported."""
    install(Path(os.environ["PARITY_MXNET"]))


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Leave out the tests that ran before."""
    done = set(Path(os.environ["PARITY_DONE"]).read_text().split("\n"))
    items[:] = [item for item in items if item.name not in done]


def _write(**line: Any) -> None:
    with open(os.environ["PARITY_RESULTS"], "a") as file:
        file.write(json.dumps(line) + "\n")


def pytest_collectreport(report: Any) -> None:
    """Note a file that cannot be imported."""
    if report.failed:
        _write(test="(import)", outcome="failed", error=str(report.longrepr)[-400:])


def _late(*_: Any) -> None:
    raise TimeoutError(f"longer than {os.environ['PARITY_SECONDS']} s")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: Any) -> Iterator[None]:
    """Note that a test begins, and end it at the limit."""
    _write(test=item.name, outcome="began")
    signal.signal(signal.SIGPROF, _late)  # time of the processor: a busy machine must not count
    signal.setitimer(signal.ITIMER_PROF, int(os.environ["PARITY_SECONDS"]))
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Iterator[None]:
    """Note what a test did."""
    report: Any = yield
    if call.when == "call" or (call.when == "setup" and not report.passed):
        error = call.excinfo.value if call.excinfo else None
        outcome, kind = report.outcome, None
        if outcome == "failed":
            kind = "differs on purpose" if item.name in DIFFERS else part_of_error(error)
            kind = kind or part_of_code(item.function)
        elif outcome == "skipped":
            outcome, kind = "failed", "skipped by itself"
        where = _frame(call.excinfo)
        text = "" if error is None else f"{type(error).__name__}: {error}".split("\n\n")[0][:300]
        _write(test=item.name, outcome=outcome, part=kind, error=text, where=where)
    return report


def _frame(excinfo: Any) -> str:
    if excinfo is None:
        return ""
    last = [entry for entry in excinfo.traceback if "mxnet" in str(entry.path)]
    return f"{last[-1].path.name}:{last[-1].lineno + 1}" if last else ""


def part_of_error(error: BaseException | None) -> str | None:
    """Return the part that an error says is left out."""
    if re.search(rf"\b({PARAMETERS})=\S+ is not (offered|a valid value)", str(error)):
        return "parameters that docs/from_mxnet.md names as missing"
    if match := re.search(rf"has (?:no operator|no) '({OPERATORS})'", str(error)):
        return "operators that docs/from_mxnet.md names as missing"
    while error is not None:
        if isinstance(error, OutOfScope):
            return str(error)
        if match := re.search(r"symgraph has no (\S+): .*Left out on purpose", str(error)):
            return match[1]
        if match := re.match(r"sym\.(contrib|linalg) has no '", str(error)):
            return f"other operators of {match[1]}"
        error = error.__cause__ or error.__context__
    return None


def part_of_code(function: Any) -> str | None:
    """Return the part that the code of a test uses, by the names in it; None if there is none."""
    names = _names(function)
    for part, words in USES.items():
        if names & words:
            return part
    return "imperative (mx.nd alone)" if names & IMPERATIVE and not names & SYMBOLIC else None


def _names(function: Any) -> set[str]:
    """Return the names and strings in a function and in those of its file that it calls."""
    function = inspect.unwrap(function)
    tree = ast.parse(Path(inspect.getfile(function)).read_text("utf-8"))
    bodies = {n.name: n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    found: set[str] = set()
    todo, seen = [function.__name__], set()
    while todo:
        name = todo.pop()
        if name in seen or name not in bodies:
            continue
        seen.add(name)
        for node in ast.walk(bodies[name]):
            if isinstance(node, ast.Attribute):
                found.add(node.attr)
                if isinstance(node.value, ast.Name):
                    found.add(f"{node.value.id}.{node.attr}")
            elif isinstance(node, ast.Name):
                found.add(node.id)
                todo.append(node.id)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
            elif isinstance(node, ast.keyword) and node.arg:
                found.add(node.arg)
    return found
