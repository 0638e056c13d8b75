"""GPUs for tests: real ones where there are any, and a stand-in everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from symgraph import arrays, gpu
from symgraph.errors import PlacementError
from tests.cuda.emulation import MISSING, compiler
from tests.fake_cupy import fake_cupy

STAND_IN = "stand-in"
KINDS = [STAND_IN, pytest.param("real", marks=pytest.mark.gpu)]


@contextmanager
def shared_card(kind: str, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Any number of contexts on one card; kind: of KINDS. Skips the test where there is none."""
    patch.setenv(arrays.SHARE, "1")
    if kind == STAND_IN:
        if compiler() is None:
            pytest.skip(MISSING)
        with fake_cupy(cards=1):
            yield
        return
    try:
        arrays.require(gpu(0))
    except PlacementError as error:
        pytest.skip(str(error))
    yield
