"""The warning of a BLAS that is kept below what the processor can do."""

from __future__ import annotations

import pytest

from runtime.blas import slowed_down

AVX512, AVX2 = {"avx", "avx2", "avx512f"}, {"avx", "avx2"}


@pytest.mark.parametrize(
    ("kernels", "flags", "missing"),
    [("Haswell", AVX512, "AVX512F"), ("Zen", AVX512, "AVX512F"), ("Sandybridge", AVX2, "AVX2"),
     ("SkylakeX", AVX512, ""), ("Haswell", AVX2, ""), ("Prescott", {"sse2"}, "")],
)  # fmt: skip
def test_kernels_below_what_the_processor_can_do(kernels, flags, missing):
    said = slowed_down({"OPENBLAS_CORETYPE": kernels}, kernels, flags)
    assert (missing in said and f"OPENBLAS_CORETYPE={kernels}" in said) if missing else said == ""


def test_nothing_is_said_where_nothing_is_set():
    assert slowed_down({}, "Haswell", AVX512) == ""
    assert slowed_down({"OPENBLAS_CORETYPE": ""}, "Haswell", AVX512) == ""
