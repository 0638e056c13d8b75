"""All sources of runtime/cuda, in all the dtypes that they are compiled for."""

from __future__ import annotations

from itertools import product

from runtime.cuda.base import FLOATS, FOLDER, NAMES, code_of, options

SOURCES = sorted(path.stem for path in FOLDER.glob("*.cu"))


def variants(source: str) -> list[tuple[str, tuple[str, ...]]]:
    """(code, options) of a source for every dtype of floats, and of ids if it has any."""
    code = code_of(source)
    ids = list(NAMES) if "const number*" in code else [""]
    chosen = [
        {"real": real} | ({"number": number} if number else {})
        for real, number in product(FLOATS, ids)
    ]
    return [(code, options(**types)) for types in chosen]
