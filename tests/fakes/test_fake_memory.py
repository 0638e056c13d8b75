"""The stand-in for CuPy notices uses of memory that no event keeps in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.fakes.fake_cupy import fake_cupy


class Card(NamedTuple):
    """Memory that is watched, and three streams."""

    cupy: Any
    memory: Any
    a: Any
    b: Any
    c: Any


@pytest.fixture
def card() -> Iterator[Card]:
    with fake_cupy() as cupy:
        memory = cupy.zeros(64, np.uint8)
        cupy.cuda.get_current_stream().synchronize()
        yield Card(cupy, memory, *(cupy.cuda.Stream(non_blocking=True) for _ in range(3)))


def write(stream: Any, array: Any) -> None:
    with stream:
        array[...] = 1


def read(stream: Any, array: Any) -> None:
    with stream:
        _ = array + array


def uses(first: Callable[..., None], then: Callable[..., None]) -> Any:
    return pytest.param(first, then, id=f"{first.__name__}, {then.__name__}")


CLASHES = pytest.mark.parametrize(
    ("first", "then"), [uses(write, read), uses(write, write), uses(read, write)]
)


@CLASHES
def test_uses_without_an_event_are_an_error(card, first, then):
    first(card.a, card.memory[8:16])
    then(card.a, card.memory)
    with pytest.raises(AssertionError, match=r"stream \d+ (reads|writes) what stream \d+ has"):
        then(card.b, card.memory[15:20])


@CLASHES
def test_uses_after_an_event_are_none(card, first, then):
    first(card.a, card.memory)
    card.b.wait_event(card.a.record())
    then(card.b, card.memory)


@CLASHES
def test_an_event_that_comes_too_early(card, first, then):
    event = card.a.record()
    first(card.a, card.memory)
    card.b.wait_event(event)
    with pytest.raises(AssertionError, match="no event says when"):
        then(card.b, card.memory)


def test_memory_is_filled_before_it_is_used(card):
    with card.a:
        memory = card.cupy.zeros(64, np.uint8)
    with pytest.raises(AssertionError, match="no event says when"):
        write(card.b, memory)


def test_who_waited_for_somebody_who_waited(card):
    write(card.a, card.memory)
    card.b.wait_event(card.a.record())
    card.c.wait_event(card.b.record())
    write(card.c, card.memory)


def test_what_the_host_has_waited_for_is_over(card):
    write(card.a, card.memory)
    card.a.synchronize()
    write(card.b, card.memory)
    card.b.record().synchronize()
    with card.c:
        card.memory.get()
    write(card.a, card.memory)


def test_reads_at_once_and_uses_of_other_bytes_are_none(card):
    table = card.memory.reshape(8, 8)
    read(card.a, table)
    read(card.b, table)
    for stream in (card.a, card.b):
        stream.synchronize()
    write(card.a, table[:, :4])
    write(card.b, table[:, 4:])
    with pytest.raises(AssertionError, match="no event says when"):
        write(card.b, table[:, 3])


def test_a_graph_uses_memory_when_it_is_launched(card):
    with card.a:
        card.a.begin_capture()
        card.cupy.add(card.memory, 1, out=card.memory)
        graph = card.a.end_capture()
    write(card.b, card.memory)
    with pytest.raises(AssertionError, match="no event says when"), card.a:
        graph.launch(card.a)
