"""Padded sequences with attention and noise, cut over devices and into micro-batches.

Sequence operators, batch_dot, random values and zeros that are shaped by the batch, all in one
network whose numbers are those of the reference interpreter on the whole batch.
"""

from __future__ import annotations

import numpy as np
import pytest

import symgraph as sg
from runtime.planning.options import Options
from symgraph.frontend import sym
from symgraph.frontend.name import NameManager
from tests.helpers.pipelines import Case, assert_close, assert_same_bits, judge, on_threads
from tests.system.test_replicated import in_pipeline

T, B, H = 4, 6, 3
DEVICES = {"read": sg.cpu(0), "attend": sg.cpu(1), "judge": sg.cpu(0)}


def case(**marks: str) -> Case:
    """Time-major data; attention among the steps of each sample; its last step is judged."""
    with NameManager():
        with sg.AttrScope(ctx_group="read", **marks):
            length = sym.Variable("length")
            x = sym.Variable("data") + sym.random.normal(0, 0.1, (T, 0, H), "float64", name="noise")
            x = sym.SequenceReverse(x, length, use_sequence_length=True)
        with sg.AttrScope(ctx_group="attend", **marks):
            x = x.transpose((1, 0, 2))
            weights = sym.batch_dot(x, x, transpose_b=True).softmax(axis=-1)
            x = sym.batch_dot(weights, x).swapaxes(0, 1)
            x = sym.SequenceMask(x, length, use_sequence_length=True, value=0.5)
        with sg.AttrScope(ctx_group="judge"):
            last = sym.SequenceLast(x, length, use_sequence_length=True)
            last = sym.concat(last, sym.zeros((0, 2), dtype="float64"), dim=1)
            fc = sym.FullyConnected(last, num_hidden=2, name="fc")
            net = sym.LinearRegressionOutput(fc, sym.Variable("target"), name="out")
    rng = np.random.default_rng(6)
    feeds = {
        "data": rng.standard_normal((T, B, H)),
        "length": np.array([4, 2, 1, 3, 4, 2]),
        "target": rng.standard_normal((B, 2)),
    }
    weights = {"fc_weight": rng.standard_normal((2, H + 2)), "fc_bias": rng.standard_normal(2)}
    return Case(net, feeds, weights, {"data": 1})


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("micro_batches", [1, 2, 4])
def test_the_numbers_are_the_references(micro_batches, schedule):
    net = case()
    options = Options(DEVICES, sg.cpu(0), (), schedule, micro_batches)
    cut = on_threads(net, options)
    alone = Options(dict.fromkeys(DEVICES, sg.cpu(0)), sg.cpu(0), (), schedule, micro_batches)
    assert_same_bits(cut, on_threads(net, alone))
    assert_close(cut, judge(net))


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_samples_that_are_dealt_out_to_two_devices_have_the_same_noise(micro_batches):
    """Each replica draws the numbers, and makes the zeros, of its own samples."""
    both = (sg.cpu(0), sg.cpu(1))
    groups = {"read": both, "attend": both, "judge": sg.cpu(0)}
    options = Options(groups, sg.cpu(0), both, "1f1b", micro_batches)
    assert_close(in_pipeline(case(replicate="2"), options), judge(case()))
