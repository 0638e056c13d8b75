"""Text corpora: a vocabulary, word ids of a training and a held-out part, and batches of them.

A language model is trained on one long stream of word ids. Every corpus reserves two ids: 0 is
`<unk>` (any word outside the vocabulary), and 1 is `<eos>` (the end of a line).
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
import re
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from symgraph.core.errors import ConfigError
from symgraph.core.reading import read_bytes, read_text
from symgraph.core.units import count_text
from symgraph.core.writing import keep

Ids = npt.NDArray[np.int32]

UNKNOWN, EOS = 0, 1
RESERVED = ("<unk>", "<eos>")

HELD_OUT = 0.05  # share of files (stdlib_text) or lines (text) held out for validation
LINES_AT_ONCE = 10_000  # lines encoded at a time, which bounds the memory of Python strings

# Installed packages and tests are not part of the standard library. encodings/ and pydoc_data/ are
# generated tables, so regular that any model would look good on them.
SKIPPED = frozenset(
    (
        "site-packages",
        "dist-packages",
        "test",
        "tests",
        "idle_test",
        "__pycache__",
        "encodings",
        "pydoc_data",
    )
)

CODE_TOKEN = re.compile(
    r"""
    \n                                      # a line end, becomes <eos>
    | [^\W\d]\w*                            # a name, keyword, or word of a string or comment
    | \d[\w.]*                              # a number
    | \\\S                                  # an escape such as \n inside a string
    | \"{3} | '{3}
    | \*\*=? | //=? | <<=? | >>=? | -> | \.\.\.
    | [-+*/%@&|^=!<>:]=
    | [^\w\s]                               # any other sign; blanks and indentation are dropped
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, eq=False)
class Corpus:
    """Word ids of a training and a held-out part over one vocabulary."""

    name: str
    #: The token of each id.
    vocabulary: tuple[str, ...]
    #: Word ids to train on.
    train: Ids
    #: Held-out word ids.
    valid: Ids
    #: How often each id occurs in `train`.
    counts: npt.NDArray[np.int64]
    #: The id of words outside the vocabulary.
    unknown: int = UNKNOWN

    @property
    def digest(self) -> str:
        """Hex digest of the whole corpus; it differs between ranks that read different text."""
        h = hashlib.blake2b("\n".join(self.vocabulary).encode())
        for ids in (self.train, self.valid):
            h.update(len(ids).to_bytes(8, "little"))
            h.update(ids.tobytes())
        return h.hexdigest()[:32]

    @property
    def vocabulary_digest(self) -> str:
        """Hex digest of the vocabulary."""
        return hashlib.blake2b("\n".join(self.vocabulary).encode()).hexdigest()[:32]

    def unigram_perplexity(self) -> float:
        """Return the held-out perplexity of word frequencies, a baseline that ignores word order.

        It is exp(-mean log p(w)) over `valid`, with p(w) = (count + 1) / (tokens + vocabulary
        size).
        """
        log_p = np.log((self.counts + 1) / (self.counts.sum() + len(self.counts)))
        return math.exp(-float(log_p[self.valid].mean()))


def stdlib_text(
    vocab: int = 10_000, max_train_tokens: int | None = None, *, root: str | None = None
) -> Corpus:
    """Return the source code of the running interpreter's standard library as a corpus.

    It is real text that every machine has. Tokens are names, numbers, operators, string escapes and
    the words of strings and comments (`CODE_TOKEN`); indentation is dropped; a line end is `<eos>`,
    and blank lines add none. The hash of a file's path decides whether it is held out (about 1 in
    20, the same files everywhere) and orders the files, so the stream mixes modules. The text
    depends on the Python version, which is part of the corpus's name. The library's word ids are
    kept in the user's cache folder until a file of it changes.

    Args:
        vocab: size of the vocabulary, with both reserved ids.
        max_train_tokens: use only the first tokens, for the vocabulary too; None: all.
        root: another folder instead of the library's.

    Raises:
        ConfigError: if the folder has no source files, or a file cannot be read.
    """
    folder = root or sysconfig.get_path("stdlib")
    files = sorted((_path_hash(path), path) for path in _source_files(folder))
    held_out = max(1, sum(key < HELD_OUT * 2**64 for key, _ in files))
    if len(files) <= held_out:
        raise ConfigError(
            f"stdlib_text needs the .py files of the standard library, found {len(files)} in"
            f" {folder}; install them or use kind: text with a path"
        )

    def read() -> Corpus:
        words = _Words()
        valid = [_encode_code(words, folder, path) for _, path in files[:held_out]]
        train = [np.empty(0, np.int32)]
        tokens_left = math.inf if max_train_tokens is None else max_train_tokens
        for _, path in files[held_out:]:
            if tokens_left <= 0:
                break
            train.append(_encode_code(words, folder, path))
            tokens_left -= len(train[-1])
        stream = np.concatenate(train)[:max_train_tokens]
        name = f"stdlib_text (Python {platform.python_version()})"
        return words.corpus(name, stream, np.concatenate(valid), vocab)

    if root is not None:
        return read()
    stats = [(path, os.lstat(os.path.join(folder, path))) for _, path in files]
    about = [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]
    return _kept(repr((sys.version, folder, vocab, max_train_tokens, about)), read)


def _kept(key: str, read: Callable[[], Corpus]) -> Corpus:
    """Return the corpus that is kept on disk under a key, or else read it and keep it.

    A file that is damaged, or cannot be read or written, is as good as none.
    """
    digest = hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=16)
    digest.update(Path(__file__).read_bytes())
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    file = Path(home, "symgraph", f"stdlib_text-{digest.hexdigest()}.npz")
    with suppress(OSError, ValueError, KeyError, BadZipFile), file.open("rb") as source:
        kept = np.load(source)
        name, *vocabulary = kept["words"].tobytes().decode().split("\n")
        return Corpus(name, tuple(vocabulary), kept["train"], kept["valid"], kept["counts"])
    found = read()
    words = np.frombuffer("\n".join([found.name, *found.vocabulary]).encode(), np.uint8)

    def write(to: BinaryIO) -> None:
        np.savez(to, words=words, train=found.train, valid=found.valid, counts=found.counts)

    keep(file, write)
    return found


def text(path: str, valid_path: str | None = None, vocab: int = 10_000) -> Corpus:
    """Read a UTF-8 file (PTB, WikiText) as a corpus: tokens between blanks, `<eos>` at line ends.

    Args:
        path: the text to train on; `<unk>` in it is id 0.
        valid_path: the held-out text; None: the last 5 % of the lines of `path`.
        vocab: size of the vocabulary, with both reserved ids.

    Raises:
        ConfigError: if a file cannot be read, is not UTF-8, or is too short.
    """
    lines = _read_lines(path)
    if valid_path is not None:
        held_out = _read_lines(valid_path)
    elif len(lines) < 2:
        raise ConfigError(
            f"{path}: has {count_text(len(lines), 'line')}, but at least 2 are needed to hold some "
            "out for validation; or set valid_path"
        )
    else:
        at = len(lines) - max(1, round(HELD_OUT * len(lines)))
        lines, held_out = lines[:at], lines[at:]
    words = _Words()
    train, valid = _encode_lines(words, lines), _encode_lines(words, held_out)
    return words.corpus(f"text ({path})", train, valid, vocab)


class TimeMajorBatches:
    """A stream of word ids as consecutive (data, label) batches, both int32 of shape (T, B).

    The stream is split into B parallel ones. Batch i holds steps i·T to (i+1)·T of each, so
    recurrent states that carry over between batches see continuous text. Labels are the next
    tokens.

        ids 0 1 2 3 4 5 6 7 8, B=2, T=2    data   0 4 | 2 6     label  1 5 | 3 7
                                                  1 5 | 3 7            2 6 | 4 8

    Arrays are read-only views. `tokens` is the number of labels. `dropped` is the number of tokens
    that are no batch's label: the first one, and those at the ends of the B streams that do not
    fill a batch. Raises ConfigError for a stream that does not fill one batch.
    """

    def __init__(self, ids: Ids, batch_size: int, sequence_length: int) -> None:
        needed = batch_size * sequence_length + 1
        if len(ids) < needed:
            raise ConfigError(
                f"{len(ids)} tokens do not fill one batch: batch_size {batch_size} times"
                f" sequence_length {sequence_length} needs {needed}; use a longer text or smaller"
                " batches"
            )
        self.batch_size, self.sequence_length = batch_size, sequence_length
        steps = (len(ids) - 1) // batch_size
        self._data = _time_major(ids[: steps * batch_size], batch_size)
        self._label = _time_major(ids[1 : steps * batch_size + 1], batch_size)
        self._batches = steps // sequence_length
        self.tokens = self._batches * sequence_length * batch_size
        self.dropped = len(ids) - self.tokens

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[tuple[Ids, Ids]]:
        return map(self.batch, range(self._batches))

    def batch(self, i: int) -> tuple[Ids, Ids]:
        """Return batch i of the epoch, 0 <= i < len(self)."""
        if not 0 <= i < self._batches:
            raise IndexError(f"batch {i} of {self._batches}")
        rows = slice(i * self.sequence_length, (i + 1) * self.sequence_length)
        return self._data[rows], self._label[rows]


def sentences(ids: Ids) -> list[Ids]:
    """Split a stream into lines, each with its `<eos>`.

    The rest after the last one is a line too. One of a single token, such as a blank line, is left
    out: it has no next token to predict.
    """
    ends = np.flatnonzero(ids == EOS) + 1
    return [line for line in np.split(ids, ends) if len(line) > 1]


def _time_major(ids: Ids, batch_size: int) -> Ids:
    array = np.ascontiguousarray(ids.reshape(batch_size, -1).T)
    array.setflags(write=False)
    return array


class _Words:
    """Provisional word ids in order of first use; `corpus` renumbers them by frequency.

    This way the text is tokenized once, and its tokens are never all in memory as strings.
    """

    def __init__(self) -> None:
        self._index: defaultdict[str, int] = defaultdict()
        self._index.default_factory = self._index.__len__
        for token in RESERVED:
            self._index[token]
        self._index["\n"] = EOS

    def encode(self, tokens: list[str]) -> Ids:
        return np.fromiter(map(self._index.__getitem__, tokens), np.int32, len(tokens))

    def corpus(self, name: str, train: Ids, valid: Ids, vocab: int) -> Corpus:
        if vocab <= len(RESERVED):
            raise ConfigError(f"vocab {vocab} is too small: {' and '.join(RESERVED)} take two ids")
        seen = np.bincount(train, minlength=len(self._index) + 1)
        words = [(t, i) for t, i in self._index.items() if i >= len(RESERVED) and seen[i]]
        words.sort(key=lambda word: (-seen[word[1]], word[0]))
        del words[vocab - len(RESERVED) :]
        new_id = np.full(len(seen), UNKNOWN, np.int32)
        new_id[EOS] = EOS
        new_id[[i for _, i in words]] = np.arange(len(words), dtype=np.int32) + len(RESERVED)
        vocabulary = RESERVED + tuple(token for token, _ in words)
        train, valid = new_id[train], new_id[valid]
        counts = np.bincount(train, minlength=len(vocabulary))
        return Corpus(name, vocabulary, train, valid, counts)


def _source_files(folder: str) -> Iterable[str]:
    """Yield the relative paths of the library's .py files below folder, with / as separator."""
    for parent, children, names in os.walk(folder):
        children[:] = [c for c in children if c not in SKIPPED]
        for name in names:
            if name.endswith(".py"):
                yield Path(parent, name).relative_to(folder).as_posix()


def _path_hash(path: str) -> int:
    digest = hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def _encode_code(words: _Words, folder: str, path: str) -> Ids:
    """Return the ids of a source file; empty if it is not UTF-8."""
    try:
        source = read_bytes(os.path.join(folder, path), "source file").decode()
    except UnicodeDecodeError:
        return np.empty(0, np.int32)
    ids = words.encode(CODE_TOKEN.findall(source + "\n"))
    line_end = ids == EOS
    line_end[1:] &= line_end[:-1].copy()  # now true only for a line end that follows another
    compact: Ids = ids[~line_end]
    return compact


def _encode_lines(words: _Words, lines: list[str]) -> Ids:
    parts = [np.empty(0, np.int32)]
    for at in range(0, len(lines), LINES_AT_ONCE):
        block = [*lines[at : at + LINES_AT_ONCE], ""]
        parts.append(words.encode(f" {RESERVED[EOS]} ".join(block).split()))
    return np.concatenate(parts)


def _read_lines(path: str) -> list[str]:
    lines = read_text(path, "text").split("\n")
    return lines if lines[-1] else lines[:-1]
