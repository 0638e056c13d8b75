"""The task: spell numbers below a million, and write spelled numbers in digits.

    2 4 1 0   ->  two thousand four hundred ten
    two thousand four hundred ten  ->  2 4 1 0

Where digits are short, words are long, and vice versa. A bucket is therefore a pair of lengths, and
no bucket is the largest in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from symgraph.io import DataBatch, DataDesc

SMALL = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
)
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
PAD, BEGIN, END = 0, 1, 2
VOCABULARY = ("<pad>", "<begin>", "<end>", *"0123456789", *SMALL, *TENS, "hundred", "thousand")
IDS = {token: i for i, token in enumerate(VOCABULARY)}
DIGITS = 6

# (source tokens, target tokens with <end>): up to 3 digits and up to 6, in both directions
BUCKETS = ((3, 5), (4, 4), (6, 10), (9, 7))

Pair = tuple[list[str], list[str]]
Key = tuple[int, int]


def spell(number: int) -> list[str]:
    """Spell 0 to 999,999 in English."""
    if number < 20:
        return [SMALL[number]]
    if number < 100:
        return [TENS[number // 10 - 2], *(spell(number % 10) if number % 10 else [])]
    unit, name = (100, "hundred") if number < 1000 else (1000, "thousand")
    rest = spell(number % unit) if number % unit else []
    return [*spell(number // unit), name, *rest]


def pairs(count: int, seed: int, digits: int = DIGITS) -> tuple[list[Pair], list[Pair]]:
    """Draw `count` numbers; return the pairs to train on, and a tenth of them held out.

    All lengths from 1 to `digits` are equally probable; a number that is drawn twice counts once.
    """
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, digits + 1, count)
    drawn = [int(rng.integers(10 ** (n - 1), 10**n)) for n in lengths]
    numbers = sorted(set(drawn))
    rng.shuffle(numbers)
    held_out = set(numbers[: len(numbers) // 10])

    def both(numbers: Sequence[int]) -> list[Pair]:
        return [p for n in numbers for p in ((list(str(n)), spell(n)), (spell(n), list(str(n))))]

    return both([n for n in numbers if n not in held_out]), both(sorted(held_out))


def bucket_of(pair: Pair, buckets: Sequence[Key]) -> Key:
    """Return the bucket with the fewest cells that holds a pair and the target's `<end>`."""
    source, target = pair
    candidates = [k for k in buckets if len(source) <= k[0] and len(target) < k[1]]
    return min(candidates, key=lambda key: (key[0] * key[1], key))


def provide(key: Key, size: int) -> tuple[list[DataDesc], list[DataDesc]]:
    """Describe data and labels of a batch; `target` is `label` delayed by one step."""
    source, target = key
    data = [("source", (size, source)), ("source_length", (size,)), ("target", (size, target))]
    descriptions = [DataDesc(n, shape, "int32", "NT"[: len(shape)]) for n, shape in data]
    return descriptions, [DataDesc("label", (size, target), "int32", "NT")]


def batch(pairs: Sequence[Pair], key: Key, size: int) -> DataBatch:
    """Make a batch of pairs of one bucket; padding fills it up to its size."""
    arrays = [np.full(d.shape, PAD, d.dtype) for side in provide(key, size) for d in side]
    source, length, target, label = arrays
    length[:] = 1
    target[:, 0] = BEGIN
    for row, (words, answer) in enumerate(pairs):
        source[row, : len(words)] = [IDS[w] for w in words]
        length[row] = len(words)
        target[row, 1 : len(answer) + 1] = [IDS[w] for w in answer]
        label[row, : len(answer) + 1] = [*(IDS[w] for w in answer), END]
    data, labels = provide(key, size)
    return DataBatch(
        [source, length, target],
        [label],
        size - len(pairs),
        bucket_key=key,
        provide_data=data,
        provide_label=labels,
    )


def batches(
    all_pairs: Sequence[Pair],
    size: int,
    rng: np.random.Generator | None = None,
    buckets: Sequence[Key] = BUCKETS,
) -> Iterator[DataBatch]:
    """Yield all pairs once, in batches of one bucket each, in random order with an rng."""
    order = np.arange(len(all_pairs)) if rng is None else rng.permutation(len(all_pairs))
    members: dict[Key, list[Pair]] = {key: [] for key in buckets}
    for at in order:
        members[bucket_of(all_pairs[at], buckets)].append(all_pairs[at])
    starts = [(key, at) for key, pairs in members.items() for at in range(0, len(pairs), size)]
    if rng is not None:
        starts = [starts[i] for i in rng.permutation(len(starts))]
    for key, at in starts:
        yield batch(members[key][at : at + size], key, size)
