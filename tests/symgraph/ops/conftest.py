"""Operators on GPUs: with --stand-in, what the tests here compute with numpy runs on CuPy as well.

Once call by call, and once by a CUDA graph, unless the operator says that none can hold it.

Without a GPU, tests.fakes.fake_cupy stands in for CuPy; SYMGRAPH_TEST_GPU=1 takes the real one.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np
import pytest

import symgraph.core.reference as reference
from runtime.backends.device.arrays import on_host
from runtime.backends.scratch import own_bytes
from symgraph.core.params import Attrs
from symgraph.core.registry import Env, OpDef, run
from symgraph.core.types import TensorType
from tests.fakes.fake_cupy import fake_cupy

REAL = "SYMGRAPH_TEST_GPU"
TOLERANCE = {"float16": 2e-3, "float32": 1e-4, "float64": 1e-10}


def _on_both(opdef: OpDef, env: Env, attrs: Attrs, arrays: Sequence[Any]) -> tuple[Any, ...]:
    """The operator's results by numpy, which are equal to those by CuPy."""
    found = run(opdef, env, attrs, arrays)
    if env.xp is not np:
        return found
    cupy = importlib.import_module("cupy")
    given = [cupy.array(np.asarray(array, order="C")) for array in arrays]
    there = env._replace(xp=cupy)
    _agree(opdef, found, _as_planned(opdef, there, attrs, given))
    if not (opdef.random or opdef.reads_on_host):
        with suppress(NotImplementedError):  # CuPy refuses its own products there
            _agree(opdef, found, _captured(opdef, there, attrs, given))
    return found


def _as_planned(opdef: OpDef, env: Env, attrs: Attrs, given: Sequence[Any]) -> tuple[Any, ...]:
    """The operator's results, which take no more memory on the way than plans set aside."""
    if os.environ.get(REAL) == "1":  # a card's pool has gaps
        return run(opdef, env, attrs, given)
    pool = env.xp.cuda.MemoryPool()
    with env.xp.cuda.using_allocator(pool.malloc):
        made = run(opdef, env, attrs, given)
    ins, outs = ([TensorType(a.shape, a.dtype.name) for a in some] for some in (given, made))
    assert pool.total_bytes() <= own_bytes(opdef, attrs, ins, outs), opdef.name
    return made


def _captured(opdef: OpDef, env: Env, attrs: Attrs, given: Sequence[Any]) -> tuple[Any, ...]:
    """The operator's results by a CUDA graph."""
    stream = env.xp.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        try:
            made = run(opdef, env, attrs, given)
        finally:
            graph = stream.end_capture()
        graph.launch(stream)
    stream.synchronize()
    return made


def _agree(opdef: OpDef, found: Sequence[Any], there: Sequence[Any]) -> None:
    for ours, theirs in zip(found, there, strict=True):
        assert not isinstance(theirs, np.ndarray), f"{opdef.name} leaves the device"
        assert (theirs.shape, theirs.dtype) == (ours.shape, ours.dtype), opdef.name
        close = TOLERANCE.get(str(ours.dtype), 0)
        np.testing.assert_allclose(
            on_host(theirs), ours, rtol=close, atol=close, err_msg=opdef.name
        )


@pytest.fixture(autouse=True)
def on_gpus_too(monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config) -> Iterator[None]:
    """Compute every operator's result on both kinds of arrays, if that is asked for."""
    real = os.environ.get(REAL) == "1"
    if not (real or pytestconfig.getoption("--stand-in")):
        yield
        return
    monkeypatch.setattr(reference, "run", _on_both)
    with nullcontext() if real else fake_cupy():
        yield
