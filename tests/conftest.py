"""Options, marks, fixtures of tests that run on GPUs, and what the tests' processes inherit."""

from __future__ import annotations

import gc
import os
from zlib import crc32

import pytest

from runtime.transports.threads.collectives import ThreadCollectives
from tests.helpers.gpus import KINDS, shared_card

# Unbuffered, a print is several writes, and a launcher may put another rank's between them.
os.environ.pop("PYTHONUNBUFFERED", None)
# Workers of xdist and the tests start hundreds of processes: each would compile all of our modules.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# xdist sets it for its workers, and readline for pytest without workers, which os.environ does not
# see; what is printed would be folded to fit.
os.environ.pop("COLUMNS", None)
os.unsetenv("COLUMNS")


def pytest_addoption(parser):
    parser.addoption(
        "--stand-in",
        action="store_true",
        help="compute operators' results on the stand-in for CuPy as well (tests/symgraph/ops)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark cases of tests marked `every(n)` as slow: all but the first and one in n, by a hash."""
    tests = set()
    for item in items:
        mark = item.get_closest_marker("every")
        if mark is None:
            continue
        test = item.nodeid.partition("[")[0]
        if test in tests and crc32(item.nodeid.encode()) % mark.args[0]:
            item.add_marker(pytest.mark.slow)
        tests.add(test)


def pytest_collection_finish():
    """Keep modules and tests out of garbage collections, which took a quarter second each.

    Collections of what tests leave took an eighth of their time: they come less often.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


@pytest.fixture(params=KINDS)
def shared_gpu(request, monkeypatch):
    """Any number of contexts on one card."""
    with shared_card(request.param, monkeypatch):
        yield


@pytest.fixture
def groups(request, monkeypatch):
    """A map of groups to devices, which are there; see tests.helpers.gpus.everywhere."""
    kind, places = request.param
    if kind is None:
        yield places
        return
    with shared_card(kind, monkeypatch):
        yield places


@pytest.fixture(params=[True, False], ids=["lent", "sent"])
def lent(request, monkeypatch) -> bool:
    """Whether threads read each other's arrays where they are, or send them as processes do."""
    if not request.param:
        monkeypatch.setattr(ThreadCollectives, "lend", None)
    return bool(request.param)


@pytest.fixture(scope="session", autouse=True)
def usual_products():
    """Make `blas: auto` mean the same with MKL as without, since tests look at packed weights."""
    from runtime.backends.cpu.choice import OPENBLAS, named, settle

    settle(named(OPENBLAS))


@pytest.fixture(scope="session", autouse=True)
def quick_profiles():
    """Measure kernels with the fewest passes: on a busy machine each profile took three seconds."""
    from runtime.profiling.calibration import pricing

    pricing.SECONDS = 0.0
