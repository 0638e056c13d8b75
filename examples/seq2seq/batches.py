"""Batches of pairs of similar lengths, the input of the network.

All arrays are time-major (T, N). A source ends at the last time step, whose states go to the
decoder; padding precedes it, and the encoder learns to ignore that. A target begins at the first
time step, and labels of padding do not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from examples.seq2seq.pairs import Pair
from examples.seq2seq.vocabulary import BEGIN, END, PAD, Vocabulary
from symgraph.core.types import Array
from symgraph.io import DataBatch, DataDesc

STEP = 4  # lengths of buckets are multiples of this

Key = tuple[int, int]  # steps of the encoder and of the decoder
Encoded = tuple[list[int], list[int]]


def encode(pairs: Iterable[Pair], source: Vocabulary, target: Vocabulary) -> list[Encoded]:
    """Encode pairs as numbers of tokens: the source reversed, the target followed by END.

    Reversed, the first words of both are close to each other (Sutskever et al. 2014).
    """
    return [(source.encode(s)[::-1], [*target.encode(t), END]) for s, t in pairs]


def choose_buckets(pairs: Iterable[Encoded], least: int) -> list[Key]:
    """Choose the rounded lengths that at least `least` pairs have.

    The last bucket holds all pairs.
    """
    counts = Counter((_rounded(source), _rounded(target)) for source, target in pairs)
    largest = max(s for s, _ in counts), max(t for _, t in counts)
    return [*sorted(k for k, n in counts.items() if n >= least and k != largest), largest]


def _rounded(words: Sequence[int]) -> int:
    return max(1, -(-len(words) // STEP)) * STEP


def bucket_of(pair: Encoded, buckets: Iterable[Key]) -> Key:
    """Return the bucket with the fewest steps that holds a pair."""
    source, target = map(len, pair)
    return min((k for k in buckets if source <= k[0] and target <= k[1]), key=lambda k: (sum(k), k))


def provide(key: Key, size: int) -> tuple[list[DataDesc], list[DataDesc]]:
    """Describe data and labels of a batch; `target` is `label` delayed by one step."""
    steps = {"source": key[0], "target": key[1], "label": key[1]}
    source, target, label = (DataDesc(n, (t, size), "int32", "TN") for n, t in steps.items())
    return [source, target], [label]


def sources(rows: Sequence[Sequence[int]], steps: int, size: int) -> Array:
    """Put encoded sources into the columns of a padded array (steps, size)."""
    padded = np.full((steps, size), PAD, np.int32)
    for column, words in enumerate(rows):
        padded[steps - len(words) :, column] = words
    return padded


def batch(pairs: Sequence[Encoded], key: Key, size: int) -> DataBatch:
    """Make a batch of pairs of one bucket; padding fills it up to its size."""
    target, label = np.full((2, key[1], size), PAD, np.int32)
    target[0] = BEGIN
    for column, (_, words) in enumerate(pairs):
        target[1 : len(words), column] = words[:-1]
        label[: len(words), column] = words
    data, labels = provide(key, size)
    return DataBatch(
        [sources([words for words, _ in pairs], key[0], size), target],
        [label],
        size - len(pairs),
        bucket_key=key,
        provide_data=data,
        provide_label=labels,
    )


class Batches:
    """All pairs in batches of one bucket each, in an order by the seed and the epoch."""

    def __init__(
        self, pairs: Iterable[Encoded], buckets: Iterable[Key], size: int, seed: int
    ) -> None:
        self.size, self.seed = size, seed
        self.members: dict[Key, list[Encoded]] = {key: [] for key in buckets}
        for pair in pairs:
            self.members[bucket_of(pair, self.members)].append(pair)

    def __len__(self) -> int:
        return sum(-(-len(pairs) // self.size) for pairs in self.members.values())

    def epoch(self, number: int) -> Iterator[DataBatch]:
        rng = np.random.default_rng((self.seed, number))
        batches: list[tuple[Key, list[Encoded]]] = []
        for key, pairs in self.members.items():
            mixed = [pairs[i] for i in rng.permutation(len(pairs))]
            starts = range(0, len(pairs), self.size)
            batches += [(key, mixed[at : at + self.size]) for at in starts]
        for i in rng.permutation(len(batches)):
            key, members = batches[i]
            yield batch(members, key, self.size)
