import math
import sysconfig
from itertools import pairwise

import numpy as np
import pytest

from symgraph.app import corpus
from symgraph.app.corpus import (
    EOS,
    UNKNOWN,
    Corpus,
    TimeMajorBatches,
    sentences,
    stdlib_text,
    text,
)
from symgraph.core.errors import ConfigError


def words(corpus, ids):
    return " ".join(corpus.vocabulary[i] for i in ids)


@pytest.fixture
def library(tmp_path):
    """Thirty small modules, and things beside them that are not library source."""
    for i in range(30):
        (tmp_path / f"m{i}.py").write_text(f"def f{i}(x):\n\n    return x + {i}\n")
    for skipped in ("site-packages", "test", "pkg/tests", "__pycache__", "encodings"):
        (tmp_path / skipped).mkdir(parents=True)
        (tmp_path / skipped / "a.py").write_text("forbidden = 1\n")
    (tmp_path / "latin.py").write_bytes(b"forbidden = '\xe9'\n")
    (tmp_path / "data.txt").write_text("forbidden\n")
    return tmp_path


@pytest.fixture
def write(tmp_path):
    def write(content, name="words.txt"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


def test_lines_without_a_next_token_are_no_sentences():
    """A batch of blank lines only had no label, which ended the training."""
    ids = np.array([EOS, 2, 3, EOS, EOS, 2, EOS, EOS, 4], np.int32)
    assert [line.tolist() for line in sentences(ids)] == [[2, 3, EOS], [2, EOS]]


# -- the standard library's source ------------------------------------------------------------


def test_tokens_of_source_code(tmp_path):
    source = (
        '\n\ndef f(a):\n    """Is it?"""\n\n    s = "a\\n" + x_1  # why\n    return a**2 != 0x1F\n'
    )
    for name in ("a.py", "b.py", "c.py"):  # the same text, whichever is held out
        (tmp_path / name).write_text(source)
    corpus = stdlib_text(100, root=str(tmp_path))
    assert words(corpus, corpus.valid) == (
        'def f ( a ) : <eos> """ Is it ? """ <eos> s = " a \\n " + x_1 # why <eos>'
        " return a ** 2 != 0x1F <eos>"
    )


def test_library_leaves_out_packages_tests_tables_and_other_encodings(library):
    corpus = stdlib_text(1000, root=str(library))
    assert "forbidden" not in corpus.vocabulary
    assert UNKNOWN not in corpus.train
    assert len(corpus.train) + len(corpus.valid) == 30 * 12


def test_held_out_files_are_few_fixed_and_never_trained_on(library):
    corpus = stdlib_text(1000, root=str(library))
    held_out = len(corpus.valid) // 12
    assert 1 <= held_out <= 6
    # names of held-out functions occur in no training file, so they have no id
    assert (corpus.valid == UNKNOWN).sum() >= held_out
    # another file in the library moves none of the old ones to the other side
    (library / "zz.py").write_text("pass\n")
    again = stdlib_text(1000, root=str(library))
    old = set(words(corpus, corpus.train).split())
    assert old <= set(words(again, again.train).split())


def test_library_order_mixes_files(library):
    corpus = stdlib_text(1000, root=str(library))
    names = [w for w in words(corpus, corpus.train).split() if w[0] == "f" and w[1:].isdigit()]
    assert names != sorted(names)
    assert names != sorted(names, key=lambda w: int(w[1:]))


def test_max_train_tokens_cuts_the_stream_and_the_vocabulary(library):
    full = stdlib_text(1000, root=str(library))
    part = stdlib_text(1000, 17, root=str(library))
    assert words(part, part.train) == words(full, full.train[:17])
    assert len(part.valid) == len(full.valid)
    assert part.counts.sum() == 17
    assert len(part.vocabulary) < len(full.vocabulary)


def test_vocabulary_is_by_frequency_then_by_text(write):
    path = write("b a c c b a d\n" * 3 + "e e e e e e e\n")
    corpus = text(path, write("a", "valid.txt"), vocab=6)
    assert corpus.vocabulary == ("<unk>", "<eos>", "e", "a", "b", "c")
    assert corpus.counts.tolist() == [3, 4, 7, 6, 6, 6]
    assert corpus.unknown == UNKNOWN


def test_two_readings_are_equal_and_digests_tell_texts_apart(library):
    one, two = (stdlib_text(50, root=str(library)) for _ in range(2))
    assert one.digest == two.digest
    np.testing.assert_array_equal(one.train, two.train)
    assert stdlib_text(49, root=str(library)).digest != one.digest


def test_library_without_source_says_what_to_do(tmp_path):
    (tmp_path / "only.py").write_text("pass\n")
    with pytest.raises(ConfigError, match=r"found 1 in .*kind: text"):
        stdlib_text(100, root=str(tmp_path))


def test_the_real_standard_library(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    corpus = stdlib_text(500, 200_000)
    assert sysconfig.get_python_version() in corpus.name
    assert corpus.train.dtype == corpus.valid.dtype == np.int32
    assert len(corpus.train) == 200_000
    assert len(corpus.valid) > 5_000
    assert len(corpus.vocabulary) == 500
    assert corpus.vocabulary[:2] == ("<unk>", "<eos>")
    assert {"self", "def", "return", "("} <= set(corpus.vocabulary)
    assert 0 <= corpus.train.min() <= corpus.train.max() < 500
    assert 20 < corpus.unigram_perplexity() < 200


def test_its_words_are_kept_on_disk(tmp_path, monkeypatch):
    """Reading them took 1.5 of the 4 seconds before the first step of the main job."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    want = stdlib_text(500, 20_000)
    (file,) = (tmp_path / "symgraph").iterdir()
    with monkeypatch.context() as once:
        once.setattr(corpus, "_encode_code", lambda *args: pytest.fail("read again"))
        got = stdlib_text(500, 20_000)
    assert (got.name, got.digest) == (want.name, want.digest)
    np.testing.assert_array_equal(got.counts, want.counts)
    assert stdlib_text(499, 20_000).digest != want.digest
    file.write_bytes(file.read_bytes()[:-100])
    assert stdlib_text(500, 20_000).digest == want.digest
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    assert stdlib_text(500, 20_000).digest == want.digest


# -- text files -------------------------------------------------------------------------------


def test_text_ends_each_line_and_keeps_unknowns(write):
    path = write("the <unk> sat\n\non the mat")
    corpus = text(path, write("the cat <unk>\r\n", "valid.txt"))
    assert words(corpus, corpus.train) == "the <unk> sat <eos> <eos> on the mat <eos>"
    assert corpus.train[1] == UNKNOWN
    assert corpus.train[3] == EOS
    assert words(corpus, corpus.valid) == "the <unk> <unk> <eos>"


def test_text_holds_out_its_last_lines(write):
    corpus = text(write("".join(f"w{i}\n" for i in range(100))))
    assert len(corpus.train) == 2 * 95
    assert words(corpus, corpus.train[-2:]) == "w94 <eos>"
    assert words(corpus, corpus.valid) == "<unk> <eos> " * 4 + "<unk> <eos>"


def test_text_of_more_lines_than_are_read_at_once(write, monkeypatch):
    path = write("".join(f"a{i % 7} b\n" for i in range(50)))
    whole = text(path)
    monkeypatch.setattr("symgraph.app.corpus.LINES_AT_ONCE", 7)
    assert text(path).digest == whole.digest


def test_text_ignores_a_byte_order_mark(write):
    corpus = text(write("\ufeffa b\n"), write("a\n", "valid.txt"))
    assert words(corpus, corpus.valid) == "a <eos>"


def test_text_that_is_missing_or_not_utf8(write, tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere.txt: no such text$"):
        text(str(tmp_path / "nowhere.txt"))
    with pytest.raises(ConfigError, match=r"words.txt:1: not a text: not UTF-8 text at byte 4$"):
        text(write(b"abc \xff\n"))
    with pytest.raises(ConfigError, match=r"valid.txt:1: not a text: not UTF-8 text at byte 0$"):
        text(write("a\n"), write(b"\xff", "valid.txt"))


def test_text_too_short_to_hold_anything_out(write):
    with pytest.raises(ConfigError, match="has 1 line, but at least 2"):
        text(write("one line\n"))


def test_vocabulary_too_small(write):
    with pytest.raises(ConfigError, match="vocab 2 is too small"):
        text(write("a\nb\n"), vocab=2)


# -- perplexity of word frequencies (case B7) -------------------------------------------------


def test_uniform_frequencies_have_the_perplexity_of_the_vocabulary_size():
    size = 37
    ids = np.arange(size, dtype=np.int32)
    corpus = Corpus("", ("",) * size, ids, ids[::3], np.full(size, 5))
    assert corpus.unigram_perplexity() == pytest.approx(size, rel=1e-12)


def test_unigram_perplexity_by_hand():
    counts = np.array([0, 1, 5])  # probabilities 1/9, 2/9, 6/9
    valid = np.array([0, 2, 2], np.int32)
    corpus = Corpus("", ("a", "b", "c"), valid, valid, counts)
    want = math.exp(-(math.log(1 / 9) + 2 * math.log(6 / 9)) / 3)
    assert corpus.unigram_perplexity() == pytest.approx(want, rel=1e-12)


# -- batches ----------------------------------------------------------------------------------


def test_batches_by_hand():
    batches = list(TimeMajorBatches(np.arange(9, dtype=np.int32), 2, 2))
    assert [(d.tolist(), label.tolist()) for d, label in batches] == [
        ([[0, 4], [1, 5]], [[1, 5], [2, 6]]),
        ([[2, 6], [3, 7]], [[3, 7], [4, 8]]),
    ]


@pytest.mark.parametrize("count", [7, 8, 23, 24, 25, 100])
@pytest.mark.parametrize(("batch_size", "length"), [(1, 1), (2, 3), (3, 2)])
def test_batches_are_continuous_and_count_every_token(count, batch_size, length):
    ids = np.arange(count, dtype=np.int32)
    batches = TimeMajorBatches(ids, batch_size, length)
    seen = list(batches)
    assert len(seen) == len(batches) >= 1
    for data, label in seen:
        assert data.shape == label.shape == (length, batch_size)
        assert data.dtype == label.dtype == np.int32
        np.testing.assert_array_equal(label, data + 1)
    for (before, _), (after, _) in pairwise(seen):
        np.testing.assert_array_equal(after[0], before[-1] + 1)
    labels = np.concatenate([label.ravel() for _, label in seen])
    assert len(set(labels.tolist())) == batches.tokens
    assert batches.tokens + batches.dropped == count
    assert 1 <= batches.dropped <= batch_size * length + batch_size


def test_batches_at_random_are_those_of_the_epoch():
    batches = TimeMajorBatches(np.arange(50, dtype=np.int32), 3, 4)
    for i, (data, label) in reversed(list(enumerate(batches))):
        np.testing.assert_array_equal(batches.batch(i)[0], data)
        np.testing.assert_array_equal(batches.batch(i)[1], label)
    for i in (-1, len(batches)):
        with pytest.raises(IndexError, match=f"batch {i} of 4"):
            batches.batch(i)


def test_batches_are_views_that_cannot_be_written():
    data, label = TimeMajorBatches(np.arange(50, dtype=np.int32), 3, 4).batch(1)
    assert data.flags.c_contiguous
    assert label.flags.c_contiguous
    with pytest.raises(ValueError, match="read-only"):
        data[0, 0] = 1


def test_stream_too_short_for_one_batch():
    ids = np.arange(7, dtype=np.int32)
    assert len(TimeMajorBatches(ids, 2, 3)) == 1
    with pytest.raises(ConfigError, match=r"6 tokens .* batch_size 2 .* sequence_length 3 needs 7"):
        TimeMajorBatches(ids[:6], 2, 3)
