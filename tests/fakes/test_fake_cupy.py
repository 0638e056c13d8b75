"""The stand-in for CuPy is as strict as CuPy, and has nothing that CuPy has not."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest

from tests.fakes import fake_cupy as module
from tests.fakes.fake_cupy import fake_cupy

LOOK = """
import json, sys
import cupy
print(json.dumps([name for name in sys.argv[1].split() if not hasattr(cupy, name)]
                 + [name for name in sys.argv[2].split() if not hasattr(cupy.ndarray, name)]))
"""


@pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="cupy is not installed")
def test_cupy_has_all_that_the_stand_in_has():
    """In a process of its own: CuPy warns of a machine without a driver."""
    functions = " ".join((*module.UFUNCS, *module.FUNCTIONS, *module.CONSTANTS))
    methods = " ".join((*module.METHODS, *(n for n in vars(module.ndarray) if n[0] != "_")))
    done = subprocess.run(
        [sys.executable, "-c", LOOK, functions, methods], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == []


def test_the_two_kinds_of_arrays_do_not_mix():
    with fake_cupy() as cupy:
        there, here = cupy.ones((2, 3)), np.ones((2, 3))
        for mixed in (
            lambda: there + here,
            lambda: here + there,
            lambda: cupy.add(there, here),
            lambda: cupy.concatenate([there, here]),
            lambda: there.__setitem__(0, here[0]),
            lambda: np.asarray(there),
            lambda: np.concatenate([there]),
            lambda: np.add(here, there),
            lambda: cupy.zeros((2, 3)).__setitem__(Ellipsis, here),
        ):
            with pytest.raises(TypeError):
                mixed()


def test_what_cupy_has_not_is_an_attribute_error():
    with fake_cupy() as cupy:
        for missing in ("errstate", "nditer", "float128", "vectorize"):
            assert not hasattr(cupy, missing)
        with pytest.raises(AttributeError):
            cupy.maximum.reduce(cupy.ones(3))
        with pytest.raises(AttributeError):
            cupy.ones(3).flags.writeable  # noqa: B018


def test_reductions_and_elements_stay_there():
    with fake_cupy() as cupy:
        x = cupy.arange(6, dtype="float32").reshape(2, 3)
        for made in (x.sum(), cupy.max(x), x[1, 2], x.mean(axis=0), x[x > 2], -x, x.T):
            assert type(made) is cupy.ndarray
        assert float(x.sum()) == 15.0
        x[0] = x[1] * 2
        assert x.get().tolist() == [[6, 8, 10], [3, 4, 5]]


def test_the_stand_in_is_gone_afterwards():
    before = sys.modules.get("cupy")
    with fake_cupy() as made:
        assert sys.modules["cupy"] is made
    assert sys.modules.get("cupy") is before
    with fake_cupy(cards=3), fake_cupy(cards=5):
        pass
    assert module.CARDS == [1]


def test_views_take_nothing_from_a_pool():
    with fake_cupy() as cupy:
        x, pool = cupy.zeros((2, 3)), cupy.cuda.MemoryPool()
        with cupy.cuda.using_allocator(pool.malloc):
            views = x.T, x[:, 1:]
            assert pool.total_bytes() == 0
            made = x + 1, x.T.copy(), views
            assert pool.total_bytes() == 2 * 512 == pool.used
        del made
        assert pool.used == 0


def test_zeros_are_zeros_whenever_a_graph_is_launched():
    with fake_cupy() as cupy:
        stream, out = cupy.cuda.Stream(non_blocking=True), cupy.ones(3)
        with stream:
            stream.begin_capture()
            total = cupy.zeros(3)
            total += 1
            cupy.copyto(out, total)
            graph = stream.end_capture()
            for _ in range(3):
                graph.launch(stream)
        stream.synchronize()
        assert out.get().tolist() == [1, 1, 1]
