"""The memory account's walk: compiled loops over the instructions of one rank."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from partitioner.base.compiled import compiled, inner
from runtime.schedule.instructions import FREE, RECV, RUN, SEND
from runtime.schedule.program import Columns
from runtime.schedule.replay.tape import KIND, KINDS, MB, NAMES

Array = npt.NDArray[Any]

SUMS, KEPT, MESSAGES = 0, 1, 2  # what `held` counts


class Bodies(NamedTuple):
    """Bytes of each body, by its number, see partitioner.memory.memory_plan; int64."""

    top: Array
    kept: Array
    sending: Array
    sums: Array
    #: Of the messages from other ranks that it is the first to read.
    received: Array
    #: Its rank's number for a body with sums, else -1.
    slot: Array


@compiled(nogil=True)
def profile(
    words: Array,
    bodies: Bodies,
    nbytes: Array,
    early: Array,
    widths: Array,
    waiting: Array,
    worst: Array,
    out: Array,
) -> None:
    """Write the bytes held after each instruction, beside those that stay for the run, into `out`.

    Args:
        words: A rank's, see Tape.
        nbytes: Of a message, by edge.
        early: By edge, whether a message is held from the run before its receive on.
        widths: TreeSum's nodes on each level.
        waiting: [slot, level, node], whether that partial sum waits, for `merged`.
        worst: Written: the instruction of the first worst moment, and what was held then: partial
            sums, what runs kept, messages and what the running body held beyond these.
    """
    top, kept, sending, sums, received, slot = bodies
    held = np.zeros(3, np.int64)
    most = -1
    ran = False
    for i in range(len(words)):
        kind, name = words[i] & KINDS, words[i] >> KIND & NAMES
        if kind < FREE:
            ran = True
            held[MESSAGES] += coming(words, i + 1, nbytes, early)
            added = 0
            if slot[name] >= 0:
                added = sums[name] * merged(waiting[slot[name]], widths, words[i] >> MB)
            copied = added if added > 0 and len(widths) > 1 else 0  # a term beside its copy
            held[SUMS] += copied
            most = _moment(i, top[name], held, most, worst)
            held[SUMS] += added - copied
            held[KEPT] += kept[name] + received[name]
            held[MESSAGES] += sending[name] - received[name]
        elif kind < SEND:
            held[MESSAGES] -= sending[name]
        elif kind == RECV and not (ran and early[name]):
            held[MESSAGES] += nbytes[name]
        most = _moment(i, 0, held, most, worst)
        out[i] = _sum_of(held)


@inner()
def coming(words: Array, i: int, nbytes: Array, early: Array) -> int:
    """Count the bytes of early messages that are received from word i on, before the next run."""
    total = 0
    while i < len(words) and words[i] & KINDS >= FREE:
        tag = words[i] >> KIND & NAMES
        if words[i] & KINDS == RECV and early[tag]:
            total += nbytes[tag]
        i += 1
    return total


@inner()
def _sum_of(held: Array) -> int:
    """Return `held.sum()`: numba's would import its linear algebra, and scipy's, at every start."""
    total: int = held[SUMS] + held[KEPT] + held[MESSAGES]
    return total


@inner()
def _moment(i: int, running: int, held: Array, most: int, worst: Array) -> int:
    """Return the most that was held so far."""
    now = _sum_of(held) + running
    if now > most:
        worst[0], worst[1], worst[2] = i, held[SUMS], held[KEPT]
        worst[3] = held[MESSAGES] + running
        return int(now)
    return most


@inner()
def merged(waiting: Array, widths: Array, index: int) -> int:
    """Return by how much the number of partial sums changes when TreeSum adds this term."""
    change = 1
    level = 0
    while level < len(widths) - 1:
        sibling = index ^ 1
        if sibling < widths[level]:
            if not waiting[level, sibling]:
                break
            waiting[level, sibling] = False
            change -= 1
        level, index = level + 1, index // 2
    waiting[level, index] = True
    return change


@compiled(nogil=True)
def in_flight(columns: Columns, backward: Array, left: Array) -> int:
    """Count the most pairs of stage and micro-batch between first forward and last backward run.

    Args:
        backward: By stage, the number of backward bodies.
        left: [stage, micro-batch], the number of them to run; 0 before the forward run, -1 after
            the last one.

    Returns:
        -1 if a run is of a stage or micro-batch that does not exist.
    """
    code, at, mb, _ = columns
    stages, mbs = left.shape
    now = most = 0
    for i in range(len(code)):
        if code[i] >= FREE:
            continue
        if not (0 <= at[i] < stages and 0 <= mb[i] < mbs):
            return -1
        bodies, before = backward[at[i]], left[at[i], mb[i]]
        if code[i] == RUN:
            if before == 0 and bodies > 0:
                left[at[i], mb[i]] = bodies
                now += 1
                most = max(most, now)
        elif before > 0:
            left[at[i], mb[i]] = before - 1 if before > 1 else -1
            now -= before == 1
    return most
