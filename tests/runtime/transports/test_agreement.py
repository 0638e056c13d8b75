"""Ranks agree on what multiplies their matrices: another back end would give other bits."""

from __future__ import annotations

import threading
from typing import NamedTuple

import pytest

from runtime.backends.cpu import choice
from runtime.backends.cpu.choice import Choice, named
from runtime.transports import make_cluster
from runtime.transports.agreement import agree_on_blas, agree_on_plan
from symgraph.core.errors import RunError

USUAL = named("openblas")
TURNED = USUAL._replace(turned="mkl")


class Plan(NamedTuple):
    digest: str = "d"


@pytest.fixture
def own(monkeypatch):
    """What each rank's host has: as a process of its own would."""
    found = threading.local()
    monkeypatch.setattr("runtime.transports.agreement.chosen", lambda: found.choice)
    monkeypatch.setattr("runtime.transports.agreement.kinds_there", lambda: found.libraries)
    monkeypatch.setattr("runtime.transports.agreement.choice_of", lambda name: found.choice)
    monkeypatch.setattr(choice, "_settled", {"auto": USUAL})
    return found


def on_ranks(work, ranks):
    with make_cluster("threads", ranks) as cluster:
        return cluster.run(work)


def test_ranks_with_other_back_ends_are_refused(own):
    def work(transport):
        own.choice = (USUAL, USUAL, TURNED)[transport.rank]
        with pytest.raises(RunError, match=r"rank 2 multiplies by mkl \(weight gradients\), but"):
            agree_on_plan(transport, Plan())
        return True

    assert on_ranks(work, 3) == [True] * 3


def test_another_plan_is_told_before_another_back_end(own):
    def work(transport):
        own.choice = (USUAL, TURNED)[transport.rank]
        with pytest.raises(RunError, match="rank 1 has another graph, placement or schedule"):
            agree_on_plan(transport, Plan("de"[transport.rank]))

    on_ranks(work, 2)


def test_auto_is_what_rank_0_has_measured(own):
    def work(transport):
        own.choice = (TURNED, USUAL)[transport.rank]
        own.libraries = ["openblas", "mkl", "amx"]
        agree_on_blas(transport, "auto")

    on_ranks(work, 2)
    assert choice.choice_of("auto") == TURNED


@pytest.mark.parametrize("name", ["auto", "mkl"])
def test_all_hosts_need_what_is_chosen(name, own):
    def work(transport):
        own.choice = named("mkl")
        own.libraries = (["openblas", "mkl"], ["openblas"])[transport.rank]
        with pytest.raises(RunError, match=r"rank 1 has no mkl: pip install 'symgraph\[mkl\]' on"):
            agree_on_blas(transport, name)
        return True

    assert on_ranks(work, 2) == [True] * 2
    assert choice.choice_of("auto") == USUAL


def test_without_the_library_openblas_is_agreed_on(own):
    def work(transport):
        own.choice, own.libraries = USUAL, (["openblas", "mkl"], ["openblas"])[transport.rank]
        agree_on_blas(transport, "openblas")
        agree_on_plan(transport, Plan())

    on_ranks(work, 2)


@pytest.mark.parametrize("name", ["auto", "openblas"])
@pytest.mark.parametrize("without", [0, 1])
def test_amx_that_a_host_lacks_is_used_by_none(name, without, own, monkeypatch):
    usual = Choice("packed", "openblas", "openblas", "packed")
    monkeypatch.setattr("runtime.transports.agreement.named", lambda name: own.choice)

    def work(transport):
        has = transport.rank != without
        own.choice = usual._replace(bfloat16="amx") if has else usual
        own.libraries = ["openblas", *["amx"] * has]
        agree_on_blas(transport, name)

    on_ranks(work, 2)
    assert choice.choice_of(name) == usual
