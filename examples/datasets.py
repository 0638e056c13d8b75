"""Data for the configs of this folder: digits as images, a table of measurements, lines of code.

Functions for `data: {kind: python, function: datasets.py:digits, ...}`: each returns the batches of
an epoch, dicts from the network's inputs to arrays.
"""

from __future__ import annotations

import io
import keyword
import sysconfig
import token
import tokenize
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from symgraph.errors import ConfigError

HELD_OUT = 0.1  # share of the samples
MODULES = 40  # of the standard library
KINDS = ("blank", "name", "keyword", "number", "operator", "string", "comment")
Batch = dict[str, Any]


def digits(batch_size: int, epoch: int, side: int = 32, channels: int = 3) -> Iterator[Batch]:
    """Yield scikit-learn's digits, enlarged: data (B, channels, side, side), label (B,)."""
    return _batches(_digits(side, channels), batch_size, epoch)


def held_out_digits(batch_size: int, side: int = 32, channels: int = 3) -> Iterator[Batch]:
    """Yield the held-out digits."""
    return _batches(_digits(side, channels), batch_size, None)


def tumors(batch_size: int, epoch: int) -> Iterator[Batch]:
    """Yield scikit-learn's table of tumors: data (B, 30), label (B,), 1 for a benign one."""
    return _batches(_tumors(), batch_size, epoch)


def held_out_tumors(batch_size: int) -> Iterator[Batch]:
    """Yield the held-out rows of the table."""
    return _batches(_tumors(), batch_size, None)


def lines(batch_size: int, epoch: int, length: int = 32) -> Iterator[Batch]:
    """Yield lines of Python code whose characters are to be told apart by the kind of their token.

    data (length, B) is the characters' codes, `length` (B,) how many a line has, and label
    (length, B) the numbers of KINDS, -1 behind the end of a line.
    """
    return _batches(_lines(length), batch_size, epoch, axes={"data": 1, "label": 1})


def held_out_lines(batch_size: int, length: int = 32) -> Iterator[Batch]:
    """Yield the held-out lines."""
    return _batches(_lines(length), batch_size, None, axes={"data": 1, "label": 1})


def _batches(
    arrays: Batch, batch_size: int, epoch: int | None, axes: dict[str, int] | None = None
) -> Iterator[Batch]:
    """Yield batches in the order of an epoch; for None, the held-out samples."""
    count = len(next(iter(arrays.values())))
    shuffled = np.random.default_rng(0).permutation(count)
    held_out = round(HELD_OUT * count)
    rows = shuffled[:held_out]
    if epoch is not None:
        rows = np.random.default_rng([1, epoch]).permutation(shuffled[held_out:])
    for start in range(0, len(rows), batch_size):
        some = rows[start : start + batch_size]
        yield {n: np.moveaxis(a[some], 0, (axes or {}).get(n, 0)) for n, a in arrays.items()}


def _of_sklearn(name: str) -> Any:
    try:
        import sklearn.datasets
    except ImportError:
        raise ConfigError("scikit-learn is missing: pip install 'symgraph[examples]'") from None
    load: Callable[..., Any] = getattr(sklearn.datasets, name)
    return load(return_X_y=True)


def enlarged_digits(side: int) -> tuple[Any, Any]:
    """Load scikit-learn's 1,797 digits: (N, side, side) float64 from 0 to 1, and their labels."""
    images, labels = _of_sklearn("load_digits")
    grid = np.arange(side) * 8 // side
    return (images.reshape(-1, 8, 8) / 16.0)[:, grid][:, :, grid], labels


@cache
def _digits(side: int, channels: int) -> Batch:
    images, labels = enlarged_digits(side)
    one = (images[:, None] - 0.5).astype("float32")
    return {"data": np.repeat(one, channels, axis=1), "label": labels.astype("float32")}


@cache
def _tumors() -> Batch:
    rows, labels = _of_sklearn("load_breast_cancer")
    normal = (rows - rows.mean(0)) / rows.std(0)
    return {"data": normal.astype("float32"), "label": labels.astype("float32")}


@cache
def _lines(length: int) -> Batch:
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:MODULES]
    found = [pair for file in files for pair in _kinds(file.read_text(encoding="utf-8"))]
    found = [(text[:length], kinds[:length]) for text, kinds in found]
    data = np.zeros((len(found), length), "int32")
    label = np.full((len(found), length), -1, "int32")
    for row, (text, kinds) in enumerate(found):
        data[row, : len(text)] = [min(ord(c), 127) for c in text]
        label[row, : len(text)] = kinds
    lengths = np.array([len(text) for text, _ in found], "int32")
    return {"data": data, "length": lengths, "label": label}


def _kinds(source: str) -> Iterator[tuple[str, list[int]]]:
    """Yield the lines of a module that are not blank, with the kind of each character."""
    rows = [line.rstrip() for line in source.split("\n")]
    kinds = [[0] * len(line) for line in rows]
    for found in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = _kind(found)
        (first, begin), (last, end) = found.start, found.end
        for row in range(first, last + 1):
            of_row = kinds[row - 1] if row <= len(kinds) else []
            for at in range(begin if row == first else 0, end if row == last else len(of_row)):
                if at < len(of_row):
                    of_row[at] = kind
    yield from ((text, of_row) for text, of_row in zip(rows, kinds, strict=True) if text.strip())


def _kind(found: tokenize.TokenInfo) -> int:
    if found.type == token.NAME:
        return KINDS.index("keyword" if keyword.iskeyword(found.string) else "name")
    by_type = {token.NUMBER: "number", token.OP: "operator", token.STRING: "string"}
    by_type[token.COMMENT] = "comment"
    return KINDS.index(by_type.get(found.type, "blank"))
