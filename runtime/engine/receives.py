"""Receives beside work: on a GPU, messages come on a stream of their own.

The host is ahead of its card, so when it comes to a receive, the card may still be at the runs
before it. The message then comes while they are under way, as soon as its place in the arena is
free: after the last instruction that needs what was there before. Which one that is, is known
before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from runtime.backends.device.receive_stream import ReceiveStream
from runtime.planning.memory.arena import Message
from runtime.schedule.instructions import RECV
from runtime.schedule.program import Program

Call = Callable[[], None]


def beside_work(
    stream: ReceiveStream,
    program: Program,
    calls: Sequence[Call],
    free: Mapping[Message, int],
    begin: int,
) -> list[Call]:
    """The calls of a program, where early messages come on the stream.

    free: see Arena. begin: the instructions of the programs before it.
    """
    found = list(calls)
    waited = begin  # the stream waits for the work so far, and then goes in order
    code, at, mb, _ = (column.tolist() for column in program.columns)
    for place, message in enumerate(zip(at, mb, strict=True)):
        if code[place] == RECV and message in free:
            last, event = free[message], None
            if last > waited:
                waited, event = last, stream.event()
                before = last - begin - 1
                found[before] = partial(_then_record, found[before], stream, event)
            found[place] = partial(stream.receive, found[place], event)
    return found


def _then_record(call: Call, stream: ReceiveStream, event: Any) -> None:
    call()
    stream.record(event)
