"""Sentences in buckets: words as ids, and batches of sentences padded to a few lengths.

Names and arguments are those of MXNet's `mx.rnn`. MXNet drops sentences silently; here they are
counted. Ids are int32, so all of them are exact.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np

from symgraph.core.errors import ConfigError, nearest
from symgraph.core.types import Array
from symgraph.frontend.io import DataBatch, DataDesc, DataIter
from symgraph.frontend.ndarray import viewed

LAYOUTS = ("NT", "TN")


def encode_sentences(
    sentences: Iterable[Iterable[Hashable]],
    vocab: Mapping[Hashable, int] | None = None,
    invalid_label: int = -1,
    invalid_key: Hashable = "\n",
    start_label: int = 0,
    unknown_token: Hashable | None = None,
) -> tuple[list[list[int]], dict[Hashable, int]]:
    """Encode words as ids; return (sentences, vocabulary) (`mx.rnn.encode_sentences`).

    Args:
        sentences: lists of words.
        vocab: ids by word, which are not changed; None makes a new vocabulary.
        invalid_label: the id of `invalid_key` in a new vocabulary.
        invalid_key: the word for padding in a new vocabulary.
        start_label: the smallest id of new words; each gets the next free one.
        unknown_token: with a `vocab`, the word whose id stands for unknown words; it is added to
            the result if it has no id.

    Raises:
        ConfigError: for a word outside `vocab`, if there is no `unknown_token`.
    """
    table = {invalid_key: invalid_label} if vocab is None else dict(vocab)
    used = {*table.values(), invalid_label}
    free = start_label

    def learn(word: Hashable) -> int:
        nonlocal free
        while free in used:
            free += 1
        used.add(free)
        table[word] = free
        return free

    def code(word: Hashable) -> int:
        known = table.get(word)
        if known is not None:
            return known
        if vocab is None:
            return learn(word)
        if unknown_token is None:
            known_words = [w for w in table if isinstance(w, str)]
            raise ConfigError(
                f"word {word!r} is not in the vocabulary of {len(table)} words; set unknown_token "
                f"for such words, or correct it: {nearest(str(word), known_words)}"
            )
        code_of_unknown = table.get(unknown_token)
        return learn(unknown_token) if code_of_unknown is None else code_of_unknown

    return [[code(word) for word in sentence] for sentence in sentences], table


class BucketSentenceIter(DataIter):
    """Iterator over batches of sentences of similar length (`mx.rnn.BucketSentenceIter`).

    A sentence goes to the smallest bucket that it fits into. Labels are the data shifted by one
    time step. Each epoch (`reset`) has a random order of its own, which depends on the seed only.

    `discarded` counts sentences longer than the largest bucket, which are in no batch. `dropped`
    counts sentences of incomplete last batches of buckets, which are left out of an epoch.

    Args:
        sentences: lists of ids.
        batch_size: sentences per batch.
        buckets: lengths; None makes a bucket of each length that fills a batch.
        invalid_label: the padding of labels.
        data_name: name of the data.
        label_name: name of the label.
        dtype: dtype of data and label.
        layout: NT (batch first) or TN; a C behind it is allowed.
        pad_tail: fill up incomplete batches with empty sentences instead of dropping them.
        shuffle: whether the order is random.
        seed: seed of the order.
        data_pad: the padding of data. By default invalid_label, or 0 for one below 0, which is what
            MXNet's Embedding makes of it: a loss can ignore an id such as -1, but an Embedding
            cannot look it up.

    Raises:
        ConfigError: if there is no sentence or no batch, an argument is out of range, or ids do not
            fit the dtype.
    """

    def __init__(
        self,
        sentences: Iterable[Sequence[int] | Array],
        batch_size: int,
        buckets: Iterable[int] | None = None,
        invalid_label: int = -1,
        data_name: str = "data",
        label_name: str = "softmax_label",
        dtype: str = "int32",
        layout: str = "NT",
        *,
        pad_tail: bool = False,
        shuffle: bool = True,
        seed: int = 0,
        data_pad: int | None = None,
    ) -> None:
        _check(layout, batch_size)
        super().__init__(batch_size)
        self.layout, self.dtype, self.invalid_label = layout, dtype, invalid_label
        self.data_name, self.label_name = data_name, label_name
        self.major_axis = layout.find("N")
        self._data_pad = 0 if data_pad is None and invalid_label < 0 else data_pad
        self._shuffle, self._seed, self._pad_tail = shuffle, seed, pad_tail
        rows = [encoded(number, s, dtype) for number, s in enumerate(sentences)]
        if not rows:
            raise ConfigError("there are no sentences")
        lengths = [len(row) for row in rows]
        self.buckets = _bucket_lengths(lengths, batch_size, buckets, pad_tail)
        self.default_bucket_key = self.buckets[-1]
        places = np.searchsorted(self.buckets, lengths)
        self._lengths = [np.array(lengths)[places == b] for b in range(len(self.buckets))]
        self.data = [
            _padded([rows[i] for i in np.flatnonzero(places == b)], length, invalid_label, dtype)
            for b, length in enumerate(self.buckets)
        ]
        self.discarded = int(np.count_nonzero(places == len(self.buckets)))
        if self.discarded:
            warnings.warn(
                f"{self.discarded} of {len(rows)} sentences are longer than the largest bucket "
                f"({self.default_bucket_key}) and are left out; add a bucket of {max(lengths)}",
                stacklevel=2,
            )
        sizes = [len(array) for array in self.data]
        self.dropped = 0 if pad_tail else sum(size % batch_size for size in sizes)
        if not len(self):
            self._raise_no_batch(sizes, max(lengths, default=0))
        self._begin(0)

    def _raise_no_batch(self, sizes: list[int], longest: int) -> None:
        remedy = "lower batch_size or set pad_tail"
        if self.discarded and not any(sizes):
            remedy = f"all are longer; add a bucket of {longest}"
        raise ConfigError(
            f"no bucket has the {self.batch_size} sentences of a batch (sentences by bucket: "
            f"{dict(zip(self.buckets, sizes, strict=True))}); {remedy}"
        )

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return sum(self._batches(len(array)) for array in self.data)

    def _batches(self, sentences: int) -> int:
        return -(-sentences // self.batch_size) if self._pad_tail else sentences // self.batch_size

    @property
    def provide_data(self) -> list[DataDesc]:
        """The description of the default bucket's data."""
        return [self._describe(self.data_name, self.default_bucket_key)]

    @property
    def provide_label(self) -> list[DataDesc]:
        """The description of the default bucket's label."""
        return [self._describe(self.label_name, self.default_bucket_key)]

    def _describe(self, name: str, length: int) -> DataDesc:
        shape = (self.batch_size, length) if self.major_axis == 0 else (length, self.batch_size)
        return DataDesc(name, shape, self.dtype, self.layout)

    def reset(self) -> None:
        """Begin the next epoch, with a new order of sentences and batches."""
        self._begin(self._epoch + 1)

    def _begin(self, epoch: int) -> None:
        self._epoch = epoch
        rng = np.random.default_rng((self._seed, epoch))
        self._orders = [np.arange(len(array)) for array in self.data]
        self._plan = [
            (bucket, at * self.batch_size)
            for bucket, array in enumerate(self.data)
            for at in range(self._batches(len(array)))
        ]
        if self._shuffle:
            for order in self._orders:
                rng.shuffle(order)
            self._plan = [self._plan[i] for i in rng.permutation(len(self._plan))]
        self._next = 0

    def next(self) -> DataBatch:
        if self._next == len(self._plan):
            raise StopIteration
        self._next += 1
        return self._batch(*self._plan[self._next - 1])

    def batch(self, number: int) -> DataBatch:
        """Return a batch by its number, counted over epochs; moves the iterator to that epoch."""
        epoch, at = divmod(number, len(self))
        if epoch != self._epoch:
            self._begin(epoch)
        return self._batch(*self._plan[at])

    def _batch(self, bucket: int, start: int) -> DataBatch:
        rows = self._orders[bucket][start : start + self.batch_size]
        pairs = zip(self.data[bucket][rows], self._lengths[bucket][rows], strict=True)
        length = self.buckets[bucket]
        described = [self._describe(n, length) for n in (self.data_name, self.label_name)]
        return sentence_batch(
            [row[:end] for row, end in pairs], described, length, self.invalid_label, self._data_pad
        )


def sentence_batch(
    sentences: Sequence[Array],
    described: Sequence[DataDesc],
    bucket_key: Hashable,
    invalid_label: int,
    data_pad: int | None = None,
) -> DataBatch:
    """Return sentences as a batch, whose labels are the data shifted by one time step.

    Args:
        sentences: the ids of each.
        described: the data and the label, of one shape and layout; empty sentences fill them up.
        bucket_key: the key of the batch's bucket.
        invalid_label: the padding of labels, and of data without a `data_pad`.
        data_pad: the padding of data.
    """
    provide, _ = described
    by_time = provide.layout.startswith("T")
    shape = provide.shape[::-1] if by_time else provide.shape
    data = np.full(shape, invalid_label, provide.dtype)
    for target, sentence in zip(data, sentences, strict=False):
        target[: len(sentence)] = sentence
    label = np.full(shape, invalid_label, provide.dtype)
    label[:, :-1] = data[:, 1:]
    if data_pad is not None:
        ends = np.zeros((len(data), 1), np.int64)
        ends[: len(sentences), 0] = [*map(len, sentences)]
        data[np.arange(shape[1]) >= ends] = data_pad
    if by_time:
        data, label = np.ascontiguousarray(data.T), np.ascontiguousarray(label.T)
    return DataBatch(
        [viewed(data)],
        [viewed(label)],
        shape[0] - len(sentences),
        bucket_key=bucket_key,
        provide_data=[*described[:1]],
        provide_label=[*described[1:]],
    )


def _check(layout: str, batch_size: object) -> None:
    if not isinstance(layout, str) or layout.removesuffix("C") not in LAYOUTS:
        raise ConfigError(f"no layout {layout!r}; {nearest(str(layout), LAYOUTS)}")
    if not _is_count(batch_size):
        raise ConfigError(f"batch_size is {batch_size!r}; it must be a number of 1 or more")


def _is_count(number: object) -> bool:
    return isinstance(number, int | np.integer) and bool(number >= 1)


def encoded(number: int, sentence: Sequence[int] | Array, dtype: str) -> Array:
    """Return the ids of a sentence; ConfigError if the dtype cannot represent them exactly."""
    values = np.asarray(sentence)
    if values.dtype.kind in "biuf":
        ids = values.astype(dtype).reshape(-1)
        if np.array_equal(ids, values.reshape(-1)):
            return ids
    raise ConfigError(f"sentence {number} is not a list of ids of type {dtype}: {sentence!r}")


def _bucket_lengths(
    lengths: Sequence[int], batch_size: int, requested: Iterable[int] | None, pad_tail: bool
) -> list[int]:
    """Return the lengths of the buckets in rising order."""
    if requested is not None:
        buckets = [*requested] if isinstance(requested, Iterable) else []
        if not buckets or not all(map(_is_count, buckets)):
            raise ConfigError(f"buckets must be a list of lengths of 1 or more, not {requested!r}")
        return sorted({int(length) for length in buckets})
    counts = Counter(lengths)
    least = 1 if pad_tail else batch_size
    buckets = sorted(length for length, count in counts.items() if length and count >= least)
    if not buckets:
        largest = max(counts.values(), default=0)
        raise ConfigError(
            f"no length of sentence fills a batch of {batch_size} (the most common one has "
            f"{largest} "
            "sentences), so there are no buckets; set buckets, or lower batch_size"
        )
    return buckets


def _padded(rows: Sequence[Array], length: int, pad: int, dtype: str) -> Array:
    """Return sentences as rows of one length."""
    padded = np.full((len(rows), length), pad, dtype)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    return padded
