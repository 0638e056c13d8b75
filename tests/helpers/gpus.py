"""GPUs for tests: real ones where there are any, and a stand-in everywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from runtime.backends.bodies import BoundBody
from runtime.backends.cuda_graphs import CapturedRun
from runtime.backends.device import arrays, settings
from runtime.engine.session import Session
from symgraph import gpu
from symgraph.core.errors import PlacementError
from tests.fakes.fake_cupy import fake_cupy
from tests.runtime.backends.cuda.emulation import MISSING, compiler

STAND_IN = "stand-in"
REAL = "real"
KINDS = [STAND_IN, pytest.param(REAL, marks=pytest.mark.gpu)]


@contextmanager
def shared_card(kind: str, patch: pytest.MonkeyPatch, cards: int = 2) -> Iterator[None]:
    """Share cards among any number of contexts: `cards` of the stand-in, or those that are here.

    Skips the test where there is none. kind: one of KINDS.
    """
    patch.setenv(settings.SHARE_GPUS, "1")
    if kind == STAND_IN:
        if compiler() is None:
            pytest.skip(MISSING)
        with fake_cupy(cards=cards):
            yield
        return
    try:
        arrays.require(gpu(0))
    except PlacementError as error:
        pytest.skip(str(error))
    yield


def everywhere(on_gpus: Any, **on_cpus: Any) -> pytest.MarkDecorator:
    """The fixture `groups` in turn: maps of groups to CPUs, by name, and one to GPUs."""
    cpus: Sequence[Any] = [pytest.param((None, given), id=name) for name, given in on_cpus.items()]
    real = pytest.param((REAL, on_gpus), id=REAL, marks=pytest.mark.gpu)
    given = [*cpus, pytest.param((STAND_IN, on_gpus), id=STAND_IN), real]
    return pytest.mark.parametrize("groups", given, indirect=True)


def replays(session: Session) -> list[CapturedRun]:
    """The runs of the first rank that CUDA graphs hold, or would hold."""
    found = []
    for bound in session.workers[0].bound:
        for call in bound.calls:
            for part in getattr(call, "args", ()):
                steps = part.steps if isinstance(part, BoundBody) else ()
                found += [step.function for step in steps if isinstance(step.function, CapturedRun)]
    return found
