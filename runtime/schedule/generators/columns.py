"""Parts: pieces of a rank's compute list as columns, which are joined into its program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from partitioner.base.types import BACKWARD, FORWARD, INPUT, PHASES, WEIGHT
from runtime.schedule.instructions import RUN
from runtime.schedule.program import Columns, Program

Ints = npt.NDArray[Any]

F, B, I, W = (RUN + PHASES.index(p) for p in (FORWARD, BACKWARD, INPUT, WEIGHT))  # noqa: E741


class Part(NamedTuple):
    """Runs in order, all of segment 0, by code, stage and micro-batch."""

    code: Ints
    at: Ints
    mb: Ints


def program(*parts: Part) -> Program:
    """Return the program of these parts, one after the other."""
    code, at, mb = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Program(
        Columns(
            code.astype(np.uint8),
            at.astype(np.int32),
            mb.astype(np.int32),
            np.zeros(len(code), np.int32),
        )
    )


def stages_by_rank(rank_of: Sequence[int]) -> list[Ints]:
    """Return, by rank, the stages, rising."""
    ends = np.cumsum(np.bincount(rank_of))
    return np.split(np.argsort(rank_of, kind="stable"), ends[:-1])


def sweep(code: int, blocks: Sequence[Ints], mbs: Ints) -> Part:
    """Run each block in turn: every micro-batch through its stages, then the next micro-batch."""
    empty = np.empty(0, np.int32)
    at = np.concatenate([empty, *(np.tile(block, len(mbs)) for block in blocks)])
    mb = np.concatenate([empty, *(np.repeat(mbs, len(block)) for block in blocks)])
    return Part(np.full(len(at), code), at, mb)
