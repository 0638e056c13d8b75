"""Buckets: one array a parameter, each bucket its own length, several of them in one step."""

from __future__ import annotations

import numpy as np
import pytest

import symgraph as sg
from runtime.bucketing import BucketSession
from runtime.schedules import SCHEDULES
from runtime.session import initialize
from runtime.transports import ThreadCluster
from symgraph.errors import GraphError, RunError
from tests.buckets import (
    HIDDEN,
    PAD,
    VOCAB,
    batch,
    gradients_of,
    halves,
    judge,
    lstm,
    make_buckets,
    options,
    padded,
    start,
)

pytestmark = pytest.mark.filterwarnings("ignore:group2ctx maps groups")


def copied(session):
    return {n: a.copy() for n, a in session.parameters().items()}


def assert_right(got, want):
    assert got.keys() == want.keys()
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_step_of_several_buckets_equals_the_reference(schedule, devices):
    batches = [batch(7), batch(3), batch(5, 1), batch(3, 2)]
    buckets = make_buckets(lstm(), batches[0], options(devices, schedule))
    with ThreadCluster(devices) as cluster:
        session, _ = start(buckets, cluster)
        before = copied(session)
        figures = session.step_batches(batches)
        grads, nll, words = judge(lstm(), batches, before)
        assert_right(gradients_of(session), grads)
        assert figures["nll_count"] == words
        assert figures["nll_nll"] == pytest.approx(nll, rel=1e-10)
        after = session.parameters()
        assert_right(after, {n: w - 0.1 * grads[n] for n, w in before.items()})
