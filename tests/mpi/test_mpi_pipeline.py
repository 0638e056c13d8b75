"""The pipeline over MPI ranks: equal to the reference, and to threads and one device by the bit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from runtime.transports import ThreadCluster
from tests.helpers.pipelines import judge
from tests.mpi.cases import Arrays, Run, Step, alone, gathered, named, runs
from tests.mpi.launch import launch, needs_mpi

pytestmark = [*needs_mpi, pytest.mark.filterwarnings("ignore:group2ctx maps groups")]

DEVICES = (2, 3)
ON_ONE = runs(1)
NAMES = list(ON_ONE)
ROUNDING = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-10}


@pytest.fixture(
    scope="module",
    params=[pytest.param(n, marks=pytest.mark.xdist_group(f"mpi-pipeline-{n}")) for n in DEVICES],
)
def devices(request) -> int:
    """With `--dist loadgroup`, a worker of xdist runs all tests of one launch."""
    return request.param


@pytest.fixture(scope="module")
def table(devices) -> dict[str, Run]:
    return runs(devices)


@pytest.fixture(scope="module")
def over_mpi(devices, tmp_path_factory) -> dict[str, Arrays]:
    """The arrays of every run, from one launch; each must come from exactly one rank."""
    folder = tmp_path_factory.mktemp("mpi")
    ended = launch(devices, "tests.mpi.step", folder)
    assert (ended.status, ended.stdout, ended.stderr) == (0, "", "")
    found: dict[str, Arrays] = {name: {} for name in NAMES}
    for rank in range(devices):
        with np.load(folder / f"rank{rank}.npz") as arrays:
            for key, array in arrays.items():
                run, _, name = key.partition(": ")
                assert name not in found[run]
                found[run][name] = array
    return found


@pytest.fixture(autouse=True)
def _one_blas_thread() -> Iterator[None]:
    """As the ranks have: the bits of a product may depend on it."""
    with threadpool_limits(1, "blas"):
        yield


def on_threads(run: Run, devices: int) -> Arrays:
    with ThreadCluster(devices) as cluster:
        return gathered(run(cluster))


@cache
def on_one_device(name: str) -> Arrays:
    """What all numbers of devices are compared with; it knows nothing of them."""
    return on_threads(alone(ON_ONE[name]), 1)


@cache
def by_the_reference(name: str) -> Arrays:
    return named(judge(ON_ONE[name].case))


def assert_same_bits(got: Arrays, want: Arrays) -> None:
    assert got.keys() == want.keys()
    for name, array in want.items():
        assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape), name
        assert got[name].tobytes() == array.tobytes(), name


def test_a_worker_of_xdist_runs_all_tests_of_one_launch(request, devices):
    """With pytest 9.2, xdist 3.8 lost the groups unseen: each worker made each launch, and more."""
    if request.config.getoption("loadgroup", None):
        assert request.node.nodeid.endswith(f"@mpi-pipeline-{devices}")


@pytest.mark.parametrize("name", NAMES)
def test_same_bits_as_threads_and_as_one_device(name, over_mpi, table, devices):
    assert_same_bits(over_mpi[name], on_threads(table[name], devices))
    assert_same_bits(over_mpi[name], on_one_device(name))


@pytest.mark.parametrize("name", [n for n, run in ON_ONE.items() if isinstance(run, Step)])
def test_equals_the_reference(name, over_mpi):
    want, got = by_the_reference(name), over_mpi[name]
    assert got.keys() == want.keys()
    for key, array in want.items():
        near = ROUNDING[str(array.dtype)]
        scale = max(1.0, float(np.abs(array).max(initial=0.0)))
        np.testing.assert_allclose(got[key], array, rtol=near, atol=near * scale, err_msg=key)


@pytest.mark.parametrize("name", [n for n, r in ON_ONE.items() if isinstance(r, Step) and r.want])
def test_published_values(name, over_mpi, table):
    run, got = table[name], over_mpi[name]
    for key, value in run.want.items():
        want = np.broadcast_to(np.asarray(value, "float64"), got[key].shape)
        np.testing.assert_allclose(got[key], want, rtol=run.digits, atol=run.digits, err_msg=key)


def test_training_gets_somewhere(over_mpi):
    """X18: equal losses that never change would prove nothing."""
    losses = over_mpi["X18-m4"]["losses"]
    assert len(set(losses.tolist())) == 5
