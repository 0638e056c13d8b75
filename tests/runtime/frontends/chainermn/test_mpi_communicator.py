"""Communicators over MPI: the contract of the threads' ones, and ends without anybody hanging."""

from __future__ import annotations

import time

import pytest

from tests.mpi.launch import Ended, launch, needs_mpi

pytestmark = needs_mpi
PROGRAM = "tests.runtime.frontends.chainermn.mpi_ranks"


RANKS = [
    pytest.param(n, marks=pytest.mark.xdist_group(f"mpi-communicators-{n}")) for n in (2, 3, 4)
]


@pytest.fixture(scope="module", params=RANKS)
def ranks(request) -> int:
    """With `--dist loadgroup`, a worker of xdist runs all tests of one launch."""
    return request.param


@pytest.fixture(scope="module")
def ended(ranks) -> Ended:
    """What one launch has said that did all which ends well."""
    done = launch(ranks, PROGRAM, "well")
    assert done.status == 0, done
    return done


def test_contract(ended, ranks):
    assert ended.lines("contract kept") == ["contract kept"] * ranks


def test_all_ranks_train_alike(ended, ranks):
    """X10 and X11: as one process does."""
    digests = ended.lines("^digest")
    assert (len(digests), len(set(digests))) == (ranks, 1), ended


def test_ranks_that_describe_their_own_part(ended, ranks):
    """X5, and X16: the same error on all ranks."""
    assert ended.lines("gradients$") == [*["2 gradients"] * (ranks - 1), "4 gradients"]
    assert len(ended.lines("^'s' of rank 0 has tag 3, but rank 1 receives 'r' with tag 0")) == ranks


def test_an_exception_ends_all_ranks_and_is_named():
    """chainermn#236: mpiexec waited for ever."""
    begin = time.monotonic()
    ended = launch(3, PROGRAM, "fails")
    assert ended.status == 1, ended
    assert time.monotonic() - begin < 30
    assert len(ended.lines("^ZeroDivisionError: division by zero")) == 1
    told = ended.lines("rank 1 failed: ZeroDivisionError: division by zero")
    assert [line.split(" stopped")[0] for line in told] == ["rank 0", "rank 2"], ended


def test_an_error_without_words_is_named():
    """The line ended with "KeyboardInterrupt: ", as if its end were lost."""
    ended = launch(2, PROGRAM, "is-interrupted")
    assert ended.lines("^rank 0 stopped while .*: rank 1 failed: KeyboardInterrupt$"), ended


def test_a_wrong_tag_ends_all_ranks():
    ended = launch(2, PROGRAM, "wrong-tag")
    assert ended.status == 1, ended
    assert ended.lines("the next message of rank 0 has tag 4, but tag 5 is asked for"), ended


def test_waits_in_two_communicators_are_told_apart():
    """All ranks were said to wait for the same call of all."""
    ended = launch(3, PROGRAM, "wait-in-two-communicators")
    assert ended.status == 1, ended
    assert ended.lines(r"^  rank 0 waits for allreduce of float64\(1,\) with ranks 0, 2 alone$")
    assert ended.lines(r"^  rank 2 waits for allreduce of float64\(1,\) with all ranks$")


def test_more_communicators_than_mpi_can_make():
    """It was an error stack of MPICH."""
    ended = launch(2, PROGRAM, "splits-for-ever")
    assert ended.status == 0, ended
    assert len(ended.lines("^split: MPI makes no more communicators; make them once")) == 2, ended


@pytest.mark.parametrize("case", ["ends-early", "wait-for-each-other"])
def test_waits_that_never_end_are_an_error_at_once(case):
    ended = launch(3, PROGRAM, case)
    assert ended.status == 1, ended
    told = ended.lines("stopped while waiting for .*: ranks that wait for ever:$")
    assert len(told) == 3, ended  # the rank that ended early waits for the others to end
    if case == "ends-early":
        assert ended.lines("^  rank 0 waits for bcast of root 0 with all ranks$")
        assert ended.lines("^  rank 1 has ended$")
    else:
        assert ended.lines("^  rank 0 waits for a message with tag 7 of rank 1$")
        assert ended.lines("^  rank 1 waits for gather of root 0 with all ranks$")


def test_a_run_whose_rank_died_in_a_save_goes_on(tmp_path):
    """X17, multi-node: from the newest iteration that all ranks have, to the same bits."""
    died = launch(2, PROGRAM, "dies-in-a-save", tmp_path / "a")
    assert died.status != 0
    assert died.lines("rank 1 failed: its process was lost"), died
    ended = launch(2, PROGRAM, "goes-on", tmp_path / "a", tmp_path / "b")
    assert ended.status == 0, ended
    assert ended.lines("^goes on") == ["goes on at 4"] * 2
    assert len(ended.lines("^digest")) == 4
    assert len(set(ended.lines("^digest"))) == 1


def test_pure_nccl_joins_cards():
    """Sums, broadcasts and gathers of arrays of GPUs, also in a subgroup of another order."""
    ended = launch(3, "tests.runtime.frontends.chainermn.nccl_ranks", "main")
    assert (ended.status, ended.lines("cards")) == (0, ["cards joined"] * 3), ended


def test_an_error_of_the_network_ends_all_ranks():
    ended = launch(2, "tests.runtime.frontends.chainermn.nccl_ranks", "network")
    assert ended.status == 1, ended
    told = ended.lines("stopped while waiting for .*: rank 1 failed.*: NCCL says 6$")
    assert [line.split(" stopped")[0] for line in told] == ["rank 0", "rank 1"], ended
