"""The encoder-decoder example on few units: its task, buckets, numbers, and that it learns."""

from __future__ import annotations

import re
import sys
from functools import partial

import numpy as np
import pytest

import symgraph as sg
from examples.seq2seq_attention.__main__ import main
from examples.seq2seq_attention.network import network
from examples.seq2seq_attention.numerals import (
    BUCKETS,
    END,
    PAD,
    VOCABULARY,
    batch,
    batches,
    bucket_of,
    pairs,
    spell,
)
from runtime import ThreadCluster
from tests.helpers.buckets import gradients_of, judge, make_buckets, options, start

UNITS, SIZE = 5, 4
SYM_GEN = partial(network, units=UNITS)
GROUPS = {"encoder": sg.cpu(0), "decoder": sg.cpu(1)}
STILL = {"optimizer": sg.optimizer.create("sgd", learning_rate=0.0)}


def first_batches():
    """A full batch of every bucket, by key."""
    found = {}
    for given in batches(pairs(80, 3)[0], SIZE):
        found.setdefault(given.bucket_key, given)
    assert sorted(found) == sorted(BUCKETS)
    return found


def made(largest, devices=2):
    groups = GROUPS if devices == 2 else dict.fromkeys(GROUPS, sg.cpu(0))
    return make_buckets(SYM_GEN, largest, options(devices, "1f1b", groups=groups))


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"),
        (13, "thirteen"),
        (20, "twenty"),
        (100, "one hundred"),
        (70_000, "seventy thousand"),
        (1_001, "one thousand one"),
        (777_777, "seven hundred seventy seven thousand seven hundred seventy seven"),
    ],
)
def test_numbers_are_spelled(number, words):
    assert " ".join(spell(number)) == words


def test_batches_have_every_pair_once_and_none_that_is_held_out():
    learnt, held_out = pairs(300, 1)
    assert not {tuple(s) for s, _ in learnt} & {tuple(s) for s, _ in held_out}
    found = []
    for given in batches(learnt, SIZE, np.random.default_rng(0)):
        (source, length, target), (label,) = given.data, given.label
        assert (source.shape[1], target.shape[1]) == given.bucket_key
        for row in range(SIZE - given.pad):
            stop = label[row].tolist().index(END)
            np.testing.assert_array_equal(target[row, 1 : stop + 1], label[row, :stop])
            words = [[VOCABULARY[i] for i in ids] for ids in (source[row], label[row, :stop])]
            assert words[0][length[row] :] == ["<pad>"] * (source.shape[1] - length[row])
            found.append((words[0][: length[row]], words[1]))
        assert (label[SIZE - given.pad :] == PAD).all()
    assert sorted(found) == sorted(learnt)


def test_no_bucket_is_the_largest_along_both_axes():
    """A pair whose source is long has a short target, so the largest of both would be wasted."""
    longest = [max(key[axis] for key in BUCKETS) for axis in (0, 1)]
    assert tuple(longest) not in BUCKETS
    digits, words = list("777777"), spell(777_777)
    assert bucket_of((digits, words), BUCKETS) == (6, 10)
    assert bucket_of((words, digits), BUCKETS) == (9, 7)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_a_step_of_all_buckets_equals_the_reference(devices):
    given = list(first_batches().values())
    with ThreadCluster(devices) as cluster:
        session, _ = start(made(given[-1], devices), cluster, **STILL)
        figures = session.step_batches(given)
        grads, nll, words = judge(SYM_GEN, given, session.parameters())
        assert figures["nll_nll"] == pytest.approx(nll, rel=1e-10)
        assert figures["nll_count"] == words
        for name, value in gradients_of(session).items():
            np.testing.assert_allclose(value, grads[name], rtol=1e-10, atol=1e-12, err_msg=name)
            assert value.any()


def test_two_devices_train_to_the_bits_of_one():
    found = []
    for devices in (1, 2):
        given = first_batches()
        with ThreadCluster(devices) as cluster:
            session, _ = start(made(given[9, 7], devices), cluster)
            losses = [session.step_batches([b])["nll_nll"] for b in given.values()]
            found.append((losses, {n: a.tobytes() for n, a in session.parameters().items()}))
    assert found[0] == found[1]


def test_pads_of_both_axes_change_nothing():
    """Neither those behind a sentence nor what they hold: pairs of (4, 4) as pairs of (9, 7)."""
    given = [p for p in pairs(200, 2)[0] if bucket_of(p, BUCKETS) == (4, 4)][:SIZE]
    exact, wide = (batch(given, key, SIZE) for key in ((4, 4), (9, 7)))
    other = batch(given, (9, 7), SIZE)
    for array, real in (
        (other.data[0], wide.data[0] != PAD),
        (other.data[2], wide.label[0] != PAD),
    ):
        array[~real] = len(VOCABULARY) - 1
    found = []
    with ThreadCluster(2) as cluster:
        session, _ = start(made(wide), cluster, **STILL)
        for each in (exact, wide, other):
            figures = session.step_batches([each])
            found.append((figures, gradients_of(session)))
    (figures, grads), *padded = found
    for others, other_grads in padded:
        assert others["nll_count"] == figures["nll_count"]
        assert others["nll_nll"] == pytest.approx(figures["nll_nll"], rel=1e-12)
        for name, value in grads.items():
            np.testing.assert_allclose(other_grads[name], value, rtol=1e-10, atol=1e-14)


@pytest.mark.slow
def test_the_memory_is_what_the_largest_step_needs_in_any_order():
    given = first_batches()
    alone = {}
    for key, each in given.items():
        with ThreadCluster(2) as cluster:
            session, _ = start(made(each), cluster)
            session.step_batches([each])
            alone[key] = session.held
    assert len({str(held) for held in alone.values()}) == len(BUCKETS)
    for order in (BUCKETS, BUCKETS[::-1]):
        with ThreadCluster(2) as cluster:
            session, _ = start(made(given[order[0]]), cluster)
            for key in order:
                session.step_batches([given[key]])
            assert session.held == {r: max(held[r] for held in alone.values()) for r in (0, 1)}


def test_answers_are_right_if_all_their_words_are():
    """With weights of 0 and a bias of 1 for `<end>`, that is what every answer consists of."""
    given = first_batches()[4, 4]
    label = given.label[0]
    with ThreadCluster(1) as cluster:
        session, arrays = start(made(given, 1), cluster, **STILL)
        for array in arrays[0].values():
            array[:] = 0
        arrays[0]["words_bias"][END] = 1
        assert session.step_batches([given])["right_output"] == 0
        label[:] = [[END] * 4, [END, END, END, END + 1], [END, PAD, PAD, PAD], [PAD] * 4]
        assert session.step_batches([given])["right_output"] == 2


@pytest.mark.slow
def test_it_learns_numbers_that_it_has_not_seen(capsys, monkeypatch):
    arguments = "--numbers 2000 --digits 3 --units 32 --epochs 12"
    monkeypatch.setattr(sys, "argv", ["seq2seq_attention", *arguments.split()])
    assert main() == 0
    shares = re.findall(r"([0-9.]+)% of \d+ held-out answers right", capsys.readouterr().out)
    assert len(shares) == 12
    assert float(shares[-1]) > 60
