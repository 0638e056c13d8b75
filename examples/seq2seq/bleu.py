"""BLEU, a score of translations (Papineni et al. 2002)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

LONGEST = 4


def bleu(translations: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> float:
    """Compute BLEU of a corpus with one reference per sentence, from 0 to 1, without smoothing.

    exp(min(0, 1 - r / c)) * (p1 p2 p3 p4) ** (1/4), where r and c are the numbers of tokens of
    references and translations, and pn is the share of the translations' n-grams that are in their
    references. Lengths n without any n-gram are left out.
    """
    shares = []
    for n in range(1, LONGEST + 1):
        pairs = [
            (_grams(f, n), _grams(w, n)) for f, w in zip(translations, references, strict=True)
        ]
        total = sum(f.total() for f, _ in pairs)
        if total:
            shares.append(sum((f & w).total() for f, w in pairs) / total)
    if not shares or min(shares) == 0:
        return 0.0
    lengths = sum(map(len, references)) / sum(map(len, translations))
    return math.exp(min(0.0, 1 - lengths) + sum(map(math.log, shares)) / len(shares))


def _grams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
