"""Sentences in buckets: ids, padding, counts of what is left out, and the order of batches."""

from __future__ import annotations

import numpy as np
import pytest

import symgraph as sg
from symgraph.core.errors import ConfigError


def sentences(lengths):
    return [list(range(1, n + 1)) for n in lengths]


def test_encode_sentences_with_an_unknown_word():
    """mxnet tests/python/unittest/test_rnn.py: test_encode_sentences."""
    given = {"a": 1, "b": 2, "c": 3}
    coded, vocab = sg.rnn.encode_sentences(
        [["a", "b", "c"], ["b", "c", "d"]], vocab=given, unknown_token="UNK"
    )
    assert coded == [[1, 2, 3], [2, 3, 0]]
    assert vocab == {"a": 1, "b": 2, "c": 3, "UNK": 0}
    assert given == {"a": 1, "b": 2, "c": 3}


def test_encode_sentences_makes_a_vocabulary_around_the_invalid_label():
    coded, vocab = sg.rnn.encode_sentences([["x", "y"], ["z", "x"]], invalid_label=1)
    assert coded == [[0, 2], [3, 0]]
    assert vocab == {"\n": 1, "x": 0, "y": 2, "z": 3}


def test_all_unknown_words_share_one_id():
    """mxnet gives the unknown token a new id at every word that it stands for."""
    coded, vocab = sg.rnn.encode_sentences([["q", "r", "a"]], vocab={"a": 0}, unknown_token="?")
    assert coded == [[1, 1, 0]]
    assert vocab["?"] == 1


def test_an_unknown_word_without_a_token_for_it_is_an_error():
    with pytest.raises(ConfigError, match=r"word 'wrod' is not in the vocabulary.*'word'"):
        sg.rnn.encode_sentences([["wrod"]], vocab={"word": 1})


def test_automatic_buckets():
    batches = sg.rnn.BucketSentenceIter(sentences([3, 3, 3, 5, 5, 2]), 2, data_pad=-1)
    assert (batches.buckets, batches.default_bucket_key) == ([3, 5], 5)
    assert (len(batches), batches.discarded, batches.dropped) == (3, 0, 0)
    found = list(batches)
    assert sorted(b.bucket_key for b in found) == [3, 3, 5]
    for batch in found:
        data, label = batch.data[0], batch.label[0]
        assert data.dtype == label.dtype == np.int32
        assert data.shape == label.shape == (2, batch.bucket_key)
        np.testing.assert_array_equal(label[:, :-1], data[:, 1:])
        assert (label[:, -1] == -1).all()
    rows = sorted(tuple(r[r >= 0]) for b in found for r in b.data[0])
    assert rows == sorted(tuple(s) for s in sentences([3, 3, 3, 5, 5, 2]))


def test_padding_can_be_looked_up_by_default():
    """MXNet's Embedding reads row 0 for -1."""
    (batch,) = sg.rnn.BucketSentenceIter([[4, 5, 6], [7, 8]], 2, buckets=[3])
    assert sorted(batch.data[0].tolist()) == [[4, 5, 6], [7, 8, 0]]
    assert sorted(batch.label[0].tolist()) == [[5, 6, -1], [8, -1, -1]]


def test_a_sentence_that_is_too_long_is_counted():
    with pytest.warns(UserWarning, match="1 of 7 sentences are longer than the largest bucket"):
        batches = sg.rnn.BucketSentenceIter(sentences([3, 3, 3, 5, 5, 2, 9]), 2)
    assert (batches.discarded, len(batches)) == (1, 3)


@pytest.mark.parametrize("pad_tail", [False, True])
def test_the_tail_is_dropped_and_counted_or_padded(pad_tail):
    batches = sg.rnn.BucketSentenceIter(
        sentences([4] * 5 + [7] * 3), 3, [4, 7], invalid_label=0, pad_tail=pad_tail, shuffle=False
    )
    found = list(batches)
    assert [(b.bucket_key, b.pad) for b in found] == (
        [(4, 0), (4, 1), (7, 0)] if pad_tail else [(4, 0), (7, 0)]
    )
    assert batches.dropped == (0 if pad_tail else 2)
    if pad_tail:
        assert (found[1].data[0][-1] == 0).all()
        assert (found[1].label[0][-1] == 0).all()


@pytest.mark.filterwarnings("ignore:3 of 3 sentences are longer")
@pytest.mark.parametrize("pad_tail", [False, True])
def test_sentences_that_are_all_too_long_need_a_longer_bucket(pad_tail):
    with pytest.raises(ConfigError, match=r"\{2: 0\}\); all are longer; add a bucket of 5"):
        sg.rnn.BucketSentenceIter(sentences([3, 3, 5]), 2, [2], pad_tail=pad_tail)


@pytest.mark.parametrize("buckets", [None, [3, 8]])
def test_without_sentences_no_smaller_batch_is_recommended(buckets):
    with pytest.raises(ConfigError, match=r"^there are no sentences$"):
        sg.rnn.BucketSentenceIter([], 4, buckets, pad_tail=True)


def test_no_bucket_that_reaches_a_batch_is_a_clear_error():
    with pytest.raises(ConfigError, match=r"no length of sentence fills a batch of 4.*has 2 sen"):
        sg.rnn.BucketSentenceIter(sentences([3, 3, 5]), 4)
    with pytest.raises(ConfigError, match=r"no bucket has the 4 sentences.*\{3: 2, 8: 1\}"):
        sg.rnn.BucketSentenceIter(sentences([3, 3, 5]), 4, [3, 8])
    with pytest.raises(ConfigError, match="no layout 'NCT'"):
        sg.rnn.BucketSentenceIter(sentences([3, 3, 5]), 2, layout="NCT")


def test_time_major_is_the_transpose():
    given = sentences([4, 3, 4, 2])
    batch_major = next(sg.rnn.BucketSentenceIter(given, 4, [4], seed=3))
    time_major = next(sg.rnn.BucketSentenceIter(given, 4, [4], seed=3, layout="TN"))
    np.testing.assert_array_equal(time_major.data[0], batch_major.data[0].T)
    np.testing.assert_array_equal(time_major.label[0], batch_major.label[0].T)
    assert time_major.provide_data[0].shape == (4, 4)
    assert time_major.feeds.keys() == {"data", "softmax_label"}


def test_epochs_differ_and_seeds_repeat():
    def epochs(seed):
        batches = sg.rnn.BucketSentenceIter([[i] * 3 for i in range(40)], 4, seed=seed)
        found = []
        for _ in range(2):
            found.append([int(b.data[0][0, 0]) for b in batches])
            batches.reset()
        return found

    first, second = epochs(1)
    assert first != second
    assert epochs(1) == [first, second]
    assert epochs(2) != [first, second]


def test_data_may_be_padded_with_a_word_that_has_a_row():
    batch = next(sg.rnn.BucketSentenceIter(sentences([2, 4]), 2, [4], data_pad=7, shuffle=False))
    np.testing.assert_array_equal(batch.data[0], [[1, 2, 7, 7], [1, 2, 3, 4]])
    np.testing.assert_array_equal(batch.label[0], [[2, -1, -1, -1], [2, 3, 4, -1]])


def test_words_with_the_id_of_the_pad_stay():
    """Wherever the data had `invalid_label` it got `data_pad`, in the midst of a sentence too."""
    batches = sg.rnn.BucketSentenceIter(
        [[3, 0, 2]], 2, [4], invalid_label=0, data_pad=7, pad_tail=True
    )
    (batch,) = batches
    assert batch.data[0].tolist() == [[3, 0, 2, 7], [7, 7, 7, 7]]
    assert batch.label[0].tolist() == [[0, 2, 0, 0], [0, 0, 0, 0]]


def test_batches_by_number_are_those_of_the_iteration():
    batches = sg.rnn.BucketSentenceIter([[i] * 3 for i in range(12)], 4, seed=2)
    first = [b.data[0] for b in batches]
    batches.reset()
    second = [b.data[0] for b in batches]
    for number in (4, 0, 5, 2):
        want = [*first, *second][number]
        np.testing.assert_array_equal(batches.batch(number).data[0], want)


@pytest.mark.parametrize(
    ("sentences", "more", "words"),
    [
        ([[1, 2], [1.5, 2]], {}, r"sentence 1 is not a list of ids of type int32: \[1.5, 2\]"),
        ([[2**40, 2]], {}, "sentence 0 is not a list of ids of type int32"),
        ([[2**24 + 1]], {"dtype": "float32"}, "sentence 0 is not a list of ids of type float32"),
        (["ab"], {}, "sentence 0 is not a list of ids of type int32: 'ab'"),
        ([[1, 2]], {"batch_size": 2.0}, "batch_size is 2.0; it must be a number of 1 or more"),
        ([[1, 2]], {"buckets": [4.5]}, r"buckets must be a list of lengths .*not \[4.5\]"),
        ([[1, 2]], {"buckets": 4}, "buckets must be a list of lengths .*not 4"),
    ],
)
def test_what_sentences_are_not(sentences, more, words):
    """Fractions of ids were cut off, and numbers too large ended in numpy's words."""
    with pytest.raises(ConfigError, match=words):
        sg.rnn.BucketSentenceIter(sentences, **({"batch_size": 1, "buckets": [4]} | more))
