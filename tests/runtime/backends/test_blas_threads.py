"""BLAS: the warning where it is kept below what the processor can do, and its threads."""

from __future__ import annotations

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from runtime.backends.device.blas_threads import SharedCores, slowed_down

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
    said = slowed_down({"OPENBLAS_CORETYPE": kernels}, kernels, flags)
    assert (missing in said and f"OPENBLAS_CORETYPE={kernels}" in said) if missing else said == ""


def test_nothing_is_said_where_nothing_is_set():
    assert slowed_down({}, "Haswell", AVX512) == ""
    assert slowed_down({"OPENBLAS_CORETYPE": ""}, "Haswell", AVX512) == ""


def test_ranks_share_the_threads_that_products_may_use():
    def now() -> set[int]:
        return {b["num_threads"] for b in threadpool_info() if b["user_api"] == "blas"}

    before = now()
    with threadpool_limits(limits=1, user_api="blas"):
        assert SharedCores(1).threads == 1  # no more than it was allowed
    many = SharedCores(1000)
    with many.limit():
        assert (many.threads, now()) == (1, {1})
    assert now() == before
