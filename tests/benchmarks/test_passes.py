"""The benchmark of passes: what its variants replace is there."""

from __future__ import annotations

import pytest

from benchmarks.passes import VARIANTS


@pytest.mark.parametrize("name", VARIANTS)
def test_replaced_names_exist(name):
    """After a move, mock.patch would fail only when the benchmark runs."""
    assert [what for where, what, _ in VARIANTS[name] if not hasattr(where, what)] == []
