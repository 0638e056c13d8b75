"""Receives on streams of their own: they come while runs are under way, and never too early.

The stand-in for CuPy notices a use of an arena that no event keeps in order
(tests/fakes/fake_memory.py), here as in all tests of GPUs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from threading import Lock
from types import SimpleNamespace

import pytest

from runtime.backends.cuda import copies
from runtime.backends.device import arrays
from runtime.backends.device.receive_stream import ReceiveStream
from runtime.engine import bound_program
from runtime.engine.bound_program import beside_work
from runtime.engine.worker import Worker
from runtime.planning.options import Options
from runtime.schedule.generators.table import SCHEDULES
from runtime.schedule.timeline import Track
from runtime.transports import ThreadCluster
from runtime.transports.nccl.communicators import NcclChannel
from symgraph import cpu, gpu
from symgraph.core.errors import RunError
from tests.helpers.gpus import STAND_IN, shared_card
from tests.helpers.networks import random_case, random_groups
from tests.helpers.pipelines import (
    Result,
    assert_close,
    assert_same_bits,
    judge,
    local_result,
    make_plan,
    merged,
    on_threads,
)
from tests.helpers.recurrent import lstm_case

CASE = lstm_case(3, 4, batch=8)


@pytest.fixture(autouse=True)
def _card(monkeypatch) -> Iterator[None]:
    with shared_card(STAND_IN, monkeypatch):
        yield


def on_two(schedule: str, **how) -> Options:
    """Layers 0 and 2 on one context, layer 1 and the head on the other."""
    groups = {"layer0": gpu(0), "layer1": gpu(1), "layer2": gpu(0), "head": gpu(1)}
    return replace(Options(groups, gpu(0), (), schedule, 4), **how)


def waits(monkeypatch) -> dict[int, list[tuple[int, int]]]:
    """By stream, of each receive from now on: the works that its context has been asked for, and
    how many of them come before it for its place's sake, or because it is behind another receive.
    """
    found: dict[int, list[tuple[int, int]]] = {}
    receive = ReceiveStream.receive

    def noted(stream: ReceiveStream, call, free) -> None:
        work, own = stream._work, stream._stream

        def now() -> None:
            found.setdefault(own.number, []).append((work.work, own.knows(work.number)))
            call()

        receive(stream, now, free)

    monkeypatch.setattr(ReceiveStream, "receive", noted)
    return found


@pytest.mark.every(15)
@pytest.mark.parametrize("segment", [None, 2])
@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_a_receive_does_not_wait_for_the_run_before_it(monkeypatch, schedule, segment):
    found = waits(monkeypatch)
    options = on_two(schedule, time_segment=segment)
    assert_close(on_threads(CASE, options), judge(CASE))
    after_runs = 0
    for receives in found.values():
        asked = receives[0][0]
        for works, before in receives:
            if works > asked:  # there was a run since the last one
                after_runs += 1
                assert before < works
            asked = works
    assert after_runs >= 4


def test_receives_wait_for_what_was_asked_before_the_run():
    """A user's loop may work with a context's arrays between the parts of a step."""
    made = make_plan(CASE, on_two("gpipe"))

    def work(transport) -> Result:
        here = arrays.device(gpu(transport.rank))
        with here.use():
            own = {name: here.put(array) for name, array in CASE.arrays.items()}
        rank = Worker(made, transport.rank, own)
        rank.begin(transport, CASE.feeds, train=True, seed=0, step=0)
        with here.use():
            rank.memory.fill(0)
        rank.run(transport, *rank.bound)
        return local_result(made, rank)

    with ThreadCluster(2) as cluster:
        assert_close(merged(dict(enumerate(cluster.run(work)))), judge(CASE))


def test_a_place_that_is_taken_for_free_too_early_is_noticed(monkeypatch):
    """On a card, a message would now and then overwrite what a run still reads."""

    def hasty(stream, bound, free, begin):
        return beside_work(stream, bound, dict.fromkeys(free, begin), begin)

    monkeypatch.setattr(bound_program, "beside_work", hasty)
    with pytest.raises(RunError, match=r"writes what stream \d+ has .*, and no event says when"):
        on_threads(CASE, on_two("1f1b"))


def test_what_nccl_brings_waits_for_its_place_and_not_for_later_work():
    """A wire waits for the stream that it is asked on, and the work for the wire."""
    here = arrays.device(gpu(0))
    came: list[int] = []

    def bring(*given: int) -> None:
        with wire.stream:
            memory[:32] = 3
        came.append(wire.stream.knows(here.stream.number))
        assert given[-1] == wire.stream.ptr

    comm, nccl = SimpleNamespace(recv=bring), SimpleNamespace(NCCL_UINT8=1, NcclError=OSError)
    with here.use():
        memory, stream = here.bytes(64), here.receive_stream
        wire = NcclChannel(SimpleNamespace(nccl=nccl, lock=Lock(), aborted=False), comm, 1)
        free = stream.event()
        memory[:32] = 1
        stream.record(free)
        needed = here.stream.work
        memory[32:] = 2
        stream.receive(lambda: arrays.after(wire.recv(memory[:32], ""), memory), free)
        assert came == [needed]
        assert needed < here.stream.work
        memory[:] = 4


@pytest.mark.every(18)
@pytest.mark.parametrize("segment", [None, 2])
@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_messages_that_travel_together_on_one_card(monkeypatch, schedule, segment):
    """The same bits as on two, in fewer copies; their receives end together."""
    options = on_two(schedule, time_segment=segment)
    apart = on_threads(CASE, options, times=3)
    copied: list[int] = []
    bind = copies.bind

    def noted(places):
        copied.append(len(rows := list(places)))
        return bind(rows)

    monkeypatch.setattr(copies, "bind", noted)
    with shared_card(STAND_IN, monkeypatch, cards=1):
        together = on_threads(CASE, options, times=3)
    assert_same_bits(together, apart)
    assert_close(together, judge(CASE))
    assert max(copied) == (segment or 4)


def test_the_times_of_messages_that_travel_together():
    """The first has the time of all."""
    made = make_plan(CASE, on_two("gpipe", micro_batches=1))

    def work(transport) -> tuple[Track, list[list[int]]]:
        here = arrays.device(gpu(transport.rank))
        with here.use():
            own = {name: here.put(array) for name, array in CASE.arrays.items()}
        rank = Worker(made, transport.rank, own)
        rank.step(transport, CASE.feeds)
        return rank.timeline.tracks[transport.rank], [*rank.bound[0].bundles.values()]

    with ThreadCluster(2) as cluster:
        found = cluster.run(work)
    for track, bundles in found:
        assert (track.start <= track.end).all()
        assert (track.end[:-1] <= track.start[1:]).all()
        assert max(map(len, bundles)) == 4
        for first, *others in bundles:
            assert track.start[first] < track.end[first]
            assert all(track.start[at] == track.end[at] for at in others)


@pytest.mark.every(9)
@pytest.mark.filterwarnings("ignore:group2ctx maps groups")
@pytest.mark.parametrize("number", range(24))
def test_random_networks_and_placements(number):
    """CPUs among them; call by call, captured, and launched again."""
    rng = random.Random(number)
    count = rng.randint(2, 4)
    devices = [gpu(i) if rng.random() < 0.8 else cpu(i) for i in range(count)]
    if number % 2:
        case = lstm_case(3, rng.randint(2, 5), batch=5, hidden=2, seed=number)
        groups = {name: rng.choice(devices) for name in ("layer0", "layer1", "layer2", "head")}
    else:
        case = random_case(number)
        on_cpus = random_groups(number, count)
        groups = {name: devices[context.index] for name, context in on_cpus.items()}
    name = sorted(SCHEDULES)[number % len(SCHEDULES)]
    mbs, segment = rng.choice([1, 2, 3, 5]), rng.choice([None, 1, 2])
    options = Options(groups, devices[0], tuple(devices), name, mbs, time_segment=segment)
    assert_close(on_threads(case, options, times=3), judge(case))
