"""BLEU, by which translations are compared (Papineni et al. 2002)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

LONGEST = 4


def bleu(found: Sequence[Sequence[str]], wanted: Sequence[Sequence[str]]) -> float:
    """Of a whole corpus with one reference a sentence, from 0 to 1, without smoothing.

    exp(min(0, 1 - r / c)) * (p1 p2 p3 p4) ** (1/4), with r and c the tokens of references and of
    translations, and pn the share of translations' n-grams that are in their references. Lengths n
    of which the translations have no n-gram are left out.
    """
    shares = []
    for n in range(1, LONGEST + 1):
        pairs = [(_grams(f, n), _grams(w, n)) for f, w in zip(found, wanted, strict=True)]
        total = sum(f.total() for f, _ in pairs)
        if total:
            shares.append(sum((f & w).total() for f, w in pairs) / total)
    if not shares or min(shares) == 0:
        return 0.0
    lengths = sum(map(len, wanted)) / sum(map(len, found))
    return math.exp(min(0.0, 1 - lengths) + sum(map(math.log, shares)) / len(shares))


def _grams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
