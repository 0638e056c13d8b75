"""Tests of the threads transport and of the choice of a transport."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

import numpy as np
import pytest

from runtime.backends.parcels import Parcel
from runtime.transports import (
    TRANSPORTS,
    Failure,
    ThreadCluster,
    Transport,
    launched_by_mpi,
    make_cluster,
)
from symgraph.core.errors import ConfigError, PeerFailed, RunError
from tests.contracts.stalls import STALLS
from tests.contracts.transport import CHECKS, PATIENT, received

ROOT = Path(__file__).resolve().parents[3]


def rank_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("symgraph-")]


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    assert rank_threads() == []


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("check", [*CHECKS, *STALLS], ids=lambda check: check.__name__)
def test_threads_keep_the_contract(check, size, monkeypatch):
    monkeypatch.setattr("tests.contracts.stalls.LATE", 0.3)  # a stall of threads is found at once
    check(lambda timeout: ThreadCluster(size, timeout))


@pytest.mark.parametrize(
    ("tags", "shape", "error"),
    [
        ((7,), (3,), "2 messages were sent together, but 1 are received"),
        ((7, 8, 9), (3,), "2 messages were sent together, but 3 are received"),
        ((7, 9), (3,), "the next message has tag 8, but tag 9 is asked for"),
        ((7, 8), (4,), r"tag 7: the message is float64 \(3,\), .* is float64 \(4,\)"),
    ],
)
def test_messages_that_are_not_received_as_they_were_sent(tags, shape, error):
    def work(end: Transport) -> None:
        if end.rank == 0:
            end.send_all(Parcel([np.zeros(3)] * 2), 1, (7, 8))
        else:
            end.recv_all(Parcel([np.zeros(shape) for _ in tags]), 0, tags)

    with ThreadCluster(2, PATIENT) as cluster, pytest.raises(RunError, match=error):
        cluster.run(work)


def test_wrong_type_of_equal_size_names_both():
    def work(end: Transport) -> None:
        if end.rank == 0:
            end.send(np.zeros((2, 3), "int32"), 1, 7)
        else:
            end.recv(np.zeros((3, 2), "float32"), 0, 7)

    with (
        ThreadCluster(2, PATIENT) as cluster,
        pytest.raises(RunError, match=r"is int32 \(2, 3\), .* buffer is float32 \(3, 2\)"),
    ):
        cluster.run(work)


def test_allreduce_of_unequal_vectors_names_the_lengths():
    with (
        ThreadCluster(2, PATIENT) as cluster,
        pytest.raises(RunError, match=r"vectors of ranks 0\.\.1 have 3, 4 values"),
    ):
        cluster.run(lambda end: end.allreduce(np.zeros(3 + end.rank)))


def test_results_come_by_rank_and_from_lasting_threads():
    def work(end: Transport) -> tuple[int, str, int]:
        return end.rank, threading.current_thread().name, threading.get_ident()

    with ThreadCluster(3, PATIENT) as cluster:
        first, second = cluster.run(work), cluster.run(work)
    assert first == second
    assert [(rank, name) for rank, name, _ in first] == [
        (rank, f"symgraph-rank-{rank}") for rank in range(3)
    ]


def test_one_rank_alone():
    def work(end: Transport) -> list[object]:
        total = np.array([2.5])
        end.allreduce(total)
        return [total.tolist(), end.exchange("me"), end.size]

    with ThreadCluster(1, PATIENT) as cluster:
        assert cluster.run(work) == [[[2.5], ["me"], 1]]


def test_usable_after_a_failure_without_stale_messages():
    def fails(end: Transport) -> None:
        end.send(np.full(3, -1.0), 1 - end.rank, 7)
        if end.rank == 1:
            raise ZeroDivisionError
        end.recv(np.zeros(3), 1, 7)
        end.recv(np.zeros(3), 1, 8)

    def works(end: Transport) -> float:
        ticket = end.send(np.full(3, float(end.rank)), 1 - end.rank, 7)
        got = received(end, np.zeros(3), 1 - end.rank, 7)
        ticket.wait()
        return got[0]

    with ThreadCluster(2, PATIENT) as cluster:
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                cluster.run(fails)
            assert cluster.run(works) == [1.0, 0.0]


def test_first_real_error_is_raised_with_its_traceback_and_a_note():
    def deep_inside(end: Transport) -> None:
        end.waiting_for("2F0")
        raise KeyError("w")

    def work(end: Transport) -> None:
        if end.rank == 2:
            deep_inside(end)
        end.recv(np.zeros(3), 2, 7)  # ranks 0 and 1 raise PeerFailed, which is only an echo

    with ThreadCluster(3, PATIENT) as cluster, pytest.raises(KeyError) as caught:
        cluster.run(work)
    assert "deep_inside" in [frame.name for frame in traceback.extract_tb(caught.tb)]
    assert caught.value.__notes__ == ["on rank 2, at 2F0"]


def test_a_rank_that_calls_exit_is_an_error():
    """The program ended without a word, with status 0 while another rank was waiting."""

    def work(end):
        if end.rank == 1:
            sys.exit(0)
        end.recv(np.empty(1), 1, 7)

    with ThreadCluster(2) as cluster, pytest.raises(RunError, match=r"rank 1 called sys.exit\(0\)"):
        cluster.run(work)


def test_an_echo_that_comes_before_the_real_error_is_not_raised():
    """A rank may tell its failure first, clean up, and raise only after others have stopped."""
    echoed = threading.Event()

    def work(end: Transport) -> None:
        if end.rank == 0:
            end.abort(Failure(0, "1F0", "bad sum"))
            assert echoed.wait(PATIENT)
            time.sleep(0.05)
            raise ValueError("bad sum")
        try:
            end.recv(np.zeros(3), 0, 7)
        finally:
            echoed.set()

    with ThreadCluster(2, PATIENT) as cluster, pytest.raises(ValueError, match="bad sum"):
        cluster.run(work)


def test_an_echo_is_raised_if_nothing_else_was():
    """A rank may tell a failure and end without raising: the run has failed all the same."""

    def work(end: Transport) -> None:
        if end.rank == 0:
            end.abort(Failure(0, "", "gave up"))
        else:
            end.recv(np.zeros(3), 0, 7)

    with (
        ThreadCluster(2, PATIENT) as cluster,
        pytest.raises(PeerFailed, match="rank 0 failed: gave up"),
    ):
        cluster.run(work)


@pytest.mark.every(4)
@pytest.mark.parametrize("delay", [0.0, 0.001, 0.05, 0.3])
def test_ctrl_c_stops_all_ranks(delay):
    """It used to go lost now and then: before the caller blocked, or while threads were started."""
    heard: list[str] = []
    at_work, told = threading.Barrier(3), threading.Event()

    def work(end: Transport) -> None:
        at_work.wait(PATIENT)
        if end.rank == 1:
            told.wait(PATIENT)  # at work: else both would wait for ever
        try:
            end.recv(np.zeros(3), 1 - end.rank, 7)
        except PeerFailed as error:
            heard.append(str(error))
            told.set()
            raise

    def press() -> None:
        at_work.wait(PATIENT)
        time.sleep(delay)
        os.kill(os.getpid(), signal.SIGINT)

    with ThreadCluster(2, PATIENT) as cluster:
        for _ in range(4):
            presser = threading.Thread(target=press)
            presser.start()
            with pytest.raises(KeyboardInterrupt):
                cluster.run(work)
            presser.join()
            assert sorted(heard) == [
                "rank 0 stopped while waiting for tag 7 from rank 1: interrupted",
                "rank 1 stopped while waiting for tag 7 from rank 0: interrupted",
            ]
            heard.clear()
            told.clear()
            assert cluster.run(lambda end: end.rank) == [0, 1]


STUCK = """
import time
from runtime.transports.threads import cluster as threads
threads.LEAVE_SECONDS = 0.2
ranks = threads.ThreadCluster(2)
try:
    ranks.run(lambda end: time.sleep(1000) if end.rank else signal.raise_signal(signal.SIGINT))
except KeyboardInterrupt:
    ranks.leave(130)
"""


def test_a_rank_that_never_stops_does_not_keep_the_process():
    """After Ctrl-C, a run waited for ever for a rank that was stuck in a reader."""
    ended = subprocess.run(
        [sys.executable, "-c", f"import signal{STUCK}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 130, ended
    assert ended.stderr == "symgraph: error: rank 1 did not stop within 0.2 s; the process ends\n"


def test_a_run_inside_a_run_is_refused():
    with (
        ThreadCluster(2, PATIENT) as cluster,
        pytest.raises(RunError, match="busy with another run"),
    ):
        cluster.run(lambda end: cluster.run(lambda inner: None))


def test_a_forgotten_close_does_not_keep_the_interpreter():
    program = (
        "from runtime.transports import ThreadCluster\n"
        "cluster = ThreadCluster(2)\n"
        "print(cluster.run(lambda end: end.exchange(end.rank)))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=PATIENT
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "[[0, 1], [0, 1]]\n", "")


def test_many_messages_both_ways_under_load():
    """A lost wake-up would show as a timeout here."""

    def work(end: Transport) -> None:
        rng = np.random.default_rng(end.rank)
        peer = 1 - end.rank
        tickets = []
        for tag in range(2000):
            tickets.append(end.send(np.array([tag]), peer, tag))
            if rng.random() < 0.1:
                time.sleep(0)
            assert received(end, np.zeros(1, int), peer, tag)[0] == tag
        for ticket in tickets:
            ticket.wait()

    with ThreadCluster(2, PATIENT) as cluster:
        cluster.run(work)


def test_make_cluster():
    assert list(TRANSPORTS) == ["threads", "mpi", "nccl"]
    with make_cluster("threads", 3, 5.0) as cluster:
        assert cluster.run(lambda end: (end.size, end.timeout)) == [(3, 5.0)] * 3
    with pytest.raises(ConfigError, match=r"transport 'thread' is unknown: did you mean 'threads'"):
        make_cluster("thread", 2)
    with pytest.raises(ConfigError, match="at least 1 rank, not 0"):
        make_cluster("threads", 0)


def test_launched_by_mpi():
    assert not launched_by_mpi({"PATH": "/bin", "OMPI_MCA_btl": "self"})
    for name in ("PMI_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK"):
        assert launched_by_mpi({name: "0"})
