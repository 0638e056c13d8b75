"""All sources of runtime/backends/cuda, in all the dtypes that they are compiled for."""

from __future__ import annotations

from itertools import product

from runtime.backends.cuda.base import FLOATS, FOLDER, HEADERS, code_of, options
from runtime.backends.device.operands import ID_DTYPES

SOURCES = sorted(path.stem for path in FOLDER.glob("*.cu"))


def variants(source: str) -> list[tuple[str, tuple[str, ...]]]:
    """(code, options) of a source for every dtype of floats, and of ids if it has any.

    A source that computes with nothing but `real` is not for 16 bits.
    """
    code = code_of(source)
    if "const given*" in code:
        pairs = [("float32", half) for half in HEADERS]
        both = [*pairs, *(pair[::-1] for pair in pairs)]
        return [(code, options(real=real, given=given)) for real, given in both]
    reals = (
        FLOATS
        if "calc" in (FOLDER / f"{source}.cu").read_text()
        else [real for real in FLOATS if real not in HEADERS]
    )
    ids = list(ID_DTYPES) if "const number*" in code else [""]
    chosen = [
        {"real": real} | ({"number": number} if number else {})
        for real, number in product(reals, ids)
        if real not in HEADERS or number in ("", "int32")
    ]
    return [(code, options(**types)) for types in chosen]
