"""The processor: what the system says of its caches, and the threads and kernels of its BLAS."""

from __future__ import annotations

from pathlib import Path

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from partitioner.costs.cost import Caches
from runtime.backends.device.processor import (
    USUAL_CACHES,
    CacheFlusher,
    SharedCores,
    find_caches,
    limit_blas,
    product_threads,
    slow_blas_warning,
)
from runtime.transports import ThreadCluster
from runtime.transports.threads import cluster as threads


def described(folder: Path, *caches: str) -> Path:
    """A folder as Linux has it; a cache is its level, type, size and cores."""
    for number, words in enumerate(caches):
        index = folder / f"index{number}"
        index.mkdir()
        names = ("level", "type", "size", "shared_cpu_list")
        for name, word in zip(names, words.split(), strict=True):
            (index / name).write_text(word + "\n")
    return folder


@pytest.mark.parametrize(("workers", "share"), [(1, 32), (2, 16), (4, 8), (100, 4)])
def test_the_last_cache_is_shared_by_those_who_work(tmp_path, workers, share):
    folder = described(
        tmp_path,
        "1 Data 32K 0-1",
        "1 Instruction 64K 0-1",
        "2 Unified 1024K 0-1",
        "3 Unified 32M 0-3,8-11",
    )
    assert find_caches(workers, folder) == Caches(1 << 20, share << 20)


def test_a_part_of_the_shared_cache_is_no_less_than_the_own_one(tmp_path):
    folder = described(tmp_path, "1 Data 32K 0", "2 Unified 2M 0", "3 Unified 4M 0-7")
    assert find_caches(8, folder) == Caches(2 << 20, 2 << 20)


@pytest.mark.parametrize("caches", [(), ("2 Unified 1M 0",), ("2 Unified ? 0", "3 Unified 8M x")])
def test_where_the_system_says_little_the_usual_is_assumed(tmp_path, caches):
    assert find_caches(2, described(tmp_path, *caches)) == Caches(
        USUAL_CACHES.own, USUAL_CACHES.shared // 2
    )
    assert find_caches(1, tmp_path / "none") == USUAL_CACHES


def test_this_machine_has_some():
    found = find_caches(2)
    assert 0 < found.own <= found.shared
    sweeps = CacheFlusher(found)
    sweeps.own()
    sweeps.shared()


# -- BLAS ---------------------------------------------------------------------------------------

AVX512, AVX2 = {"avx", "avx2", "avx512f"}, {"avx", "avx2"}


@pytest.mark.parametrize(
    ("kernels", "flags", "missing"),
    [
        ("Haswell", AVX512, "AVX512F"),
        ("Zen", AVX512, "AVX512F"),
        ("Sandybridge", AVX2, "AVX2"),
        ("SkylakeX", AVX512, ""),
        ("Haswell", AVX2, ""),
        ("Prescott", {"sse2"}, ""),
    ],
)
def test_kernels_below_what_the_processor_can_do(kernels, flags, missing):
    said = slow_blas_warning({"OPENBLAS_CORETYPE": kernels}, kernels, flags)
    assert (missing in said and f"OPENBLAS_CORETYPE={kernels}" in said) if missing else said == ""


def test_nothing_is_said_where_nothing_is_set():
    assert slow_blas_warning({}, "Haswell", AVX512) == ""
    assert slow_blas_warning({"OPENBLAS_CORETYPE": ""}, "Haswell", AVX512) == ""


def now() -> set[int]:
    """The threads that products on this thread may use."""
    return {b["num_threads"] for b in threadpool_info() if b["user_api"] == "blas"}


def test_ranks_share_the_threads_that_products_may_use():
    before = now()
    with threadpool_limits(limits=1, user_api="blas"):
        assert SharedCores(9).threads == 1  # no more than it was allowed
    one = SharedCores(1)
    with one.limit():
        assert (one.threads, now()) == (1, {1})
        with limit_blas(2), one.limit():
            assert product_threads() == 2  # those of our own kernels
        assert product_threads() == 1
    assert now() == before


def test_threads_of_ranks_and_of_their_products_are_not_more_than_the_cores(monkeypatch):
    monkeypatch.setattr(threads, "CORES", 2)
    with threadpool_limits(limits=2, user_api="blas"), ThreadCluster(2) as cluster:
        assert cluster.run(lambda _: now()) == [{1}, {1}]
        with limit_blas(2):
            assert cluster.run(lambda _: now()) == [{2}, {2}]
        assert now() == {2}
