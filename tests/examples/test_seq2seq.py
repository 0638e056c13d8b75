"""The encoder-decoder of ChainerMN's example: its pairs, batches, numbers, and that it learns."""

from __future__ import annotations

import argparse
import math
import re
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import symgraph as sg
from examples.seq2seq.__main__ import SAMPLES, Task, main, make_session
from examples.seq2seq.batches import Batches, batch, bucket_of, choose_buckets, encode
from examples.seq2seq.bleu import bleu
from examples.seq2seq.network import Sizes, training
from examples.seq2seq.pairs import Corpus, cldr, tab_separated
from examples.seq2seq.translator import SIZE, Translator
from examples.seq2seq.vocabulary import BEGIN, END, PAD, UNKNOWN, Vocabulary
from runtime import ThreadCluster
from symgraph.core.errors import ConfigError
from symgraph.core.reference import evaluate
from symgraph.core.registry import Env
from symgraph.frontend.lower import lower
from tests.helpers.buckets import gradients_of, judge, make_buckets, options, start
from tests.mpi.launch import launch, needs_mpi

LETTERS = dict(
    zip("abcdefgh", ("uno", "due", "tre", "sei", "otto", "nove", "ieri", "oggi"), strict=True)
)
SMALL = ("--epochs", "14", "--units", "40", "--layers", "2", "--batch", "16", "--held-out", "60")


def spelled(count: int, longest: int = 4) -> list[tuple[str, str]]:
    """Letters, and a word for each of them the other way round."""
    rng = np.random.default_rng(5)
    drawn = [rng.choice([*LETTERS], rng.integers(1, longest + 1)).tolist() for _ in range(count)]
    return [(" ".join(x), " ".join(LETTERS[letter] for letter in x[::-1])) for x in drawn]


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "pairs.tsv"
    path.write_text("\n".join("\t".join(pair) for pair in spelled(900)), encoding="utf-8")
    return path


@pytest.fixture
def task() -> Task:
    chosen = argparse.Namespace(least=1, units=6, layers=2, batch=4)
    return Task(Corpus(spelled(60, 8), spelled(70, 8)[60:], []), chosen)


# -- pairs -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_dates_and_names_are_those_of_cldr():
    pytest.importorskip("babel", reason="needs the extra `examples`")
    corpus = cldr("de", 36_000, 525, 1)
    learnt = dict(corpus.train + corpus.held_out)
    assert learnt["Thursday, January 5, 2012"] == "Donnerstag, 5. Januar 2012"
    assert learnt["January 5, 2012"] == "5. Januar 2012"
    assert learnt["Jan 5, 2012"] == "05.01.2012"
    assert learnt["1/5/12"] == "05.01.12"
    assert learnt["May 5, 2012"] == "5. Mai 2012"  # long, as it is for a medium date as well
    assert dict(corpus.names)["United Kingdom"] == "Vereinigtes Königreich"


@pytest.mark.slow
@pytest.mark.parametrize("language", ["fr", "ja"])
def test_no_held_out_date_is_learnt_and_none_has_two_translations(language):
    pytest.importorskip("babel", reason="needs the extra `examples`")
    corpus = cldr(language, 3000, 400, 2)
    sources = [source for source, _ in corpus.train + corpus.held_out]
    assert len(set(sources)) == len(sources)
    assert 4 * 400 - 40 < len(corpus.held_out) <= 4 * 400
    assert cldr(language, 3000, 400, 2) == corpus
    assert cldr(language, 3000, 400, 3).held_out != corpus.held_out


@pytest.mark.parametrize("language", ["xx", "no locale", ""])
def test_an_unknown_language_is_an_error(language):
    pytest.importorskip("babel", reason="needs the extra `examples`")
    with pytest.raises(ConfigError, match=f"--language '{language}' is not a locale of CLDR"):
        cldr(language, 10, 5, 1)


@pytest.mark.parametrize(("days", "held_out"), [(36_500, 26), (0, 5), (5, 0)])
def test_numbers_of_days_that_cannot_be(days, held_out):
    pytest.importorskip("babel", reason="needs the extra `examples`")
    with pytest.raises(ConfigError, match=rf"--days {days} and --held-out {held_out} .* 36525"):
        cldr("de", days, held_out, 1)


def test_babel_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "babel", None)
    with pytest.raises(ConfigError, match=r"pip install 'symgraph\[examples\]'"):
        cldr("de", 10, 5, 1)


def test_lines_of_a_file(tmp_path):
    path = tmp_path / "pairs.tsv"
    lines = ["Go.\tGeh.\tCC-BY 2.0", "Hi. \t Hallo.", "Go.\tLos.", "Yes.\tJa."]
    path.write_text("\n".join(lines), encoding="utf-8")
    corpus = tab_separated(path, 1, 1)
    assert sorted(corpus.train + corpus.held_out) == [
        ("Go.", "Geh."),
        ("Hi.", "Hallo."),
        ("Yes.", "Ja."),
    ]
    assert (len(corpus.held_out), corpus.names) == (1, [])
    with pytest.raises(ConfigError, match="has 3 different sources, of which --held-out 3 cannot"):
        tab_separated(path, 3, 1)
    path.write_text("Go.\tGeh.\nHi.\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"pairs.tsv:2 must be a text, a tab and its translation"):
        tab_separated(path, 1, 1)
    with pytest.raises(ConfigError, match=r"--pairs .*nowhere"):
        tab_separated(tmp_path / "nowhere", 1, 1)


# -- tokens and batches ----------------------------------------------------------------------------


def test_tokens_are_words_and_digits():
    text = "Donnerstag, 5. Januar 2012"
    want = ["Donnerstag", ",", " ", "5", ".", " Januar", " ", "2", "0", "1", "2"]
    assert Vocabulary([text]).split(text) == want


@pytest.mark.parametrize("least", [1, 2])
def test_tokens_joined_are_the_text(least):
    texts = [
        "2012年1月5日木曜日",
        "05\u200f/01",
        "Côte\tIvoire\n",
        "5 января 2012\u202fd.",
        "Chad",
        "Chad",
    ]
    vocabulary = Vocabulary(texts, least)
    for text in texts:
        assert "".join(vocabulary.split(text)) == text
        ids = vocabulary.encode(text)
        assert min(ids) > UNKNOWN
        assert vocabulary.decode([*ids, END, *ids]) == text
    assert vocabulary.split("Chad") == ["Chad"]
    assert vocabulary.split("Chadt") == [*"Chad", "t"]
    assert vocabulary.split("Côte") == (["Côte"] if least == 1 else [*"Côte"])
    assert vocabulary.encode("Z") == [UNKNOWN]


def test_batches_have_every_pair_once(task):
    pairs = encode(spelled(60, 8), task.source, task.target)
    batches = Batches(pairs, task.buckets, 4, seed=1)
    orders = []
    for number in (0, 0, 1):
        found = []
        for given in batches.epoch(number):
            (source, target), (label,) = given.data, given.label
            assert (len(source), len(target)) == given.bucket_key
            assert (target[0] == BEGIN).all()
            for column in range(4 - given.pad):
                words = source[:, column][source[:, column] != PAD].tolist()
                answer = label[:, column][label[:, column] != PAD].tolist()
                assert source[:, column].tolist()[-len(words) :] == words
                assert label[:, column].tolist()[: len(answer)] == answer
                assert target[1 : len(answer), column].tolist() == answer[:-1]
                assert answer.index(END) == len(answer) - 1
                found.append((words, answer))
            assert (label[:, 4 - given.pad :] == PAD).all()
        assert sorted(found) == sorted(pairs)
        orders.append(found)
    assert orders[0] == orders[1] != orders[2]
    assert sum(1 for _ in batches.epoch(0)) == len(batches)


def test_buckets_hold_all_pairs():
    pairs = [([4] * s, [4] * t) for s, t in [(3, 2), (4, 4), (5, 4), (1, 9)]]
    assert choose_buckets(pairs, 2) == [(4, 4), (8, 12)]
    assert choose_buckets(pairs, 1) == [(4, 4), (4, 12), (8, 4), (8, 12)]
    assert bucket_of(pairs[2], [(4, 4), (8, 12)]) == (8, 12)
    assert bucket_of(pairs[1], [(8, 12), (4, 4)]) == (4, 4)


def test_bleu_of_known_sentences():
    found, wanted = ["the", "cat", "sat", "on", "mat"], ["the", "cat", "sat", "on", "the", "mat"]
    share = 5 / 5 * 3 / 4 * 2 / 3 * 1 / 2
    assert bleu([found], [wanted]) == pytest.approx(math.exp(1 - 6 / 5) * share**0.25)
    assert bleu([wanted], [wanted]) == 1
    assert bleu([["a"], ["b", "c"]], [["a"], ["b", "c"]]) == 1  # no grams of 3
    assert bleu([["the"] * 4], [["the", "cat", "is", "here"]]) == 0
    assert bleu([["the"] * 2], [["the", "the", "the"]]) == pytest.approx(math.exp(-0.5))
    assert bleu([[]], [["a"]]) == 0


# -- the network -----------------------------------------------------------------------------------

SIZES = Sizes(13, 12, 5, 2)
SYM_GEN = partial(training, sizes=SIZES)
STILL = {"optimizer": sg.optimizer.create("sgd", learning_rate=0.0)}


def two_batches():
    rng = np.random.default_rng(0)
    found = []
    for key in ((4, 4), (4, 8)):
        lengths = rng.integers(1, np.array(key) + 1, (3, 2))
        pairs = [
            (rng.integers(4, 12, s).tolist(), rng.integers(4, 12, t).tolist()) for s, t in lengths
        ]
        found.append(batch(pairs, key, 4))
    return found


def made(devices):
    groups = {"rank0": sg.cpu(0), "rank1": sg.cpu(devices - 1)}
    return make_buckets(SYM_GEN, two_batches()[-1], options(devices, "1f1b", groups=groups))


def test_two_ranks_equal_the_reference_and_one_device():
    given = two_batches()
    bits = []
    for devices in (1, 2):
        with ThreadCluster(devices) as cluster:
            session, _ = start(made(devices), cluster, **STILL)
            figures = session.step_batches(given)
            grads, nll, words = judge(SYM_GEN, given, session.parameters())
            assert figures["nll_nll"] == pytest.approx(nll, rel=1e-10)
            assert figures["nll_count"] == words
            found = gradients_of(session)
            assert found.keys() == grads.keys()
            for name, value in found.items():
                np.testing.assert_allclose(value, grads[name], rtol=1e-10, atol=1e-12, err_msg=name)
                assert value.any()
            bits.append({name: value.tobytes() for name, value in found.items()})
    assert bits[0] == bits[1]


def test_greedy_decoding_reads_what_it_wrote(task):
    """Given its own translations to read, the network in training finds each word most probable."""
    chosen = argparse.Namespace(batch=4, epochs=1, schedule="gpipe", micro_batches=2)
    steps = task.buckets[-1][1]
    found = {}
    with ThreadCluster(2) as cluster:
        session = make_session(task, cluster, chosen)
        rng = np.random.default_rng(3)
        for array in session.parameters().values():
            array[:] = rng.standard_normal(array.shape)
        for given in task.batches.epoch(0):
            session.step_batches([given])  # other weights, and memory that both use in turns
        translator = Translator(session, task.buckets, task.sizes, (task.source, task.target))
        for length, writing in translator.sessions.items():
            source = rng.integers(4, len(task.source), (length, SIZE)).astype("int32")
            writing.step({"source": source, "begin": np.full(SIZE, BEGIN, "int32")})
            found[length] = source, writing.outputs()[0]
        weights = {name: array.copy() for name, array in session.parameters().items()}
    assert len(found) > 1
    for length, (source, words) in found.items():
        assert len(np.unique(words)) > 4
        read = np.concatenate([np.full((1, SIZE), BEGIN, "int32"), words[:-1]])
        values = {"source": source, "target": read, "label": words, **weights}
        graph = lower(
            training((length, steps), task.sizes)[0],
            {n: a.shape for n, a in values.items()},
            {n: str(a.dtype) for n, a in values.items()},
        )
        best = evaluate(graph, values, Env())[0].argmax(axis=1).reshape(words.shape)
        np.testing.assert_array_equal(best, words)


def test_translations_are_those_of_the_texts_in_order(task):
    """Whatever their lengths, and in batches that they do not fill."""
    texts = [source for source, _ in task.corpus.train]
    chosen = argparse.Namespace(batch=4, epochs=1, schedule="gpipe", micro_batches=2)
    with ThreadCluster(2) as cluster:
        session = make_session(task, cluster, chosen)
        rng = np.random.default_rng(3)
        for array in session.parameters().values():
            array[:] = rng.standard_normal(array.shape)
        translator = Translator(session, task.buckets, task.sizes, (task.source, task.target))
        alone = {text: translator([text])[0] for text in texts}
        assert len({*alone.values()}) > 10
        many = [texts[i] for i in rng.integers(0, len(texts), 2 * SIZE + 3)]
        assert translator(many) == [alone[text] for text in many]


# -- the program -----------------------------------------------------------------------------------


def said(text: str) -> list[str]:
    """The lines, without how long it took."""
    return [re.sub(r", \d+ s$", "", line) for line in text.splitlines()]


def on_threads(capsys, monkeypatch, *arguments: str) -> list[str]:
    monkeypatch.setattr(sys, "argv", ["seq2seq", *arguments])
    assert main() == 0
    return said(capsys.readouterr().out)


@pytest.mark.slow
def test_it_learns_texts_that_it_has_not_seen(capsys, monkeypatch, file):
    lines = on_threads(capsys, monkeypatch, "--pairs", str(file), *SMALL)
    assert len(lines) == 14 + SAMPLES + 1
    last = re.fullmatch(r"([\d.]+)% of 60 held-out texts exact, BLEU ([\d.]+)", lines[-1])
    assert last is not None
    assert float(last[1]) > 60
    assert float(last[2]) > 0.6


def test_it_translates_dates(capsys, monkeypatch):
    pytest.importorskip("babel", reason="needs the extra `examples`")
    few = ("--days", "60", "--held-out", "5", "--units", "16", "--layers", "1", "--epochs", "2")
    lines = on_threads(capsys, monkeypatch, "--language", "fr", *few)
    losses = [float(re.search(r"loss per word ([\d.]+),", line)[1]) for line in lines[:2]]
    assert losses[1] < losses[0]
    assert re.fullmatch(r"[\d.]+% of \d+ learned names exact", lines[-2])


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=needs_mpi)])
def test_mpi_ranks_say_the_same(ranks, capsys, monkeypatch, file):
    """To the last digit of every loss, and every translation."""
    few = ("--pairs", str(file), *SMALL, "--epochs", "3")
    ended = launch(ranks, "examples.seq2seq", *few)
    assert (ended.status, ended.stderr) == (0, ""), ended
    assert said(ended.stdout) == on_threads(capsys, monkeypatch, *few)


def test_a_mistake_is_one_line(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["seq2seq", "--pairs", str(tmp_path / "nowhere")])
    assert main() == 2
    assert re.fullmatch(r"symgraph: error: --pairs .*nowhere.*\n", capsys.readouterr().err)
