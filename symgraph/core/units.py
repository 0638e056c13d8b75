"""Figures as text and back: bytes, operations, seconds and plain numbers with their units."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from numbers import Integral, Real

# `exact_text` uses the first of several prefixes for one power.
PREFIXES = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "µ": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "k": Fraction(1000),
    "K": Fraction(1000),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "Ki": Fraction(1024),
    "Mi": Fraction(1024**2),
    "Gi": Fraction(1024**3),
    "Ti": Fraction(1024**4),
}


def value_text(value: object) -> str:
    """Format a table's cell: four digits, thousands separated, - for None.

    >>> value_text(1234567), value_text(0.00123456), value_text(23456.7), value_text(None)
    ('1,234,567', '0.001235', '23,457', '-')
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return f"{int(value):,}"
    if isinstance(value, Real):
        number = float(value)
        return f"{number:,.0f}" if 1000 <= abs(number) < 1e15 else f"{number:.4g}"
    return str(value)


def count_text(count: int, noun: str) -> str:
    """Format a count with its noun.

    >>> count_text(1, "stage"), count_text(1024, "micro-batch")
    ('1 stage', '1,024 micro-batches')
    """
    plural = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{plural}"


def but_only(count: int, noun: str) -> str:
    """Format the end of an error: there are only that many.

    >>> but_only(1, "edge"), but_only(5, "edge")
    ('but there is only 1 edge', 'but there are only 5 edges')
    """
    return f"but there {'is' if count == 1 else 'are'} only {count_text(count, noun)}"


def bytes_text(count: float) -> str:
    """Format bytes in binary units.

    >>> bytes_text(512), bytes_text(1536), bytes_text(4 * 2**30)
    ('512 B', '1.50 KiB', '4.00 GiB')
    """
    return _scaled(count, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def parse_bytes(text: str) -> int:
    """Parse bytes from a number with or without a unit; ValueError for anything else.

    >>> parse_bytes("4GiB"), parse_bytes("1.5 MiB"), parse_bytes("200MB"), parse_bytes("512")
    (4294967296, 1572864, 200000000, 512)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?)B|B)?\s*", text, re.IGNORECASE)
    if match is None:
        raise ValueError(f"expected bytes, such as 4GiB, 500MB or 1048576, got {text!r}")
    number, scale, binary = match.groups()
    power = "KMGT".index(scale.upper()) + 1 if scale else 0
    return int(float(number) * (1024 if binary else 1000) ** power)


def flops_text(count: float) -> str:
    """Format floating-point operations in decimal units.

    >>> flops_text(13_920_000)
    '13.9 MFLOP'
    """
    return si_text(count, "FLOP")


def si_text(value: float, unit: str) -> str:
    """Format a figure in decimal multiples of its unit.

    >>> si_text(12.34e9, "B/s")
    '12.3 GB/s'
    """
    return _scaled(value, 1000, [prefix + unit for prefix in ("", "k", "M", "G", "T", "P")])


def exact_text(value: float, unit: str) -> str:
    """Format a finite figure above 0 with all its digits, so that `parse_si` reads it back.

    >>> exact_text(1.25e-05, "s"), exact_text(245.7e9, "FLOP/s")
    ('12.5 us', '245.7 GFLOP/s')
    """
    number = Decimal(repr(float(value)))
    power = min(max(number.adjusted() // 3 * 3, -9), 15)
    prefix = next(p for p, factor in PREFIXES.items() if factor == Fraction(10) ** power)
    return f"{number.scaleb(-power).normalize():f} {prefix}{unit}"


def parse_si(text: str, unit: str) -> float:
    """Parse a figure with its unit or a multiple of it; ValueError for anything else.

    >>> parse_si("2us", "s"), parse_si("100 GFLOP/s", "FLOP/s"), parse_si("1.5GiB/s", "B/s")
    (2e-06, 100000000000.0, 1610612736.0)
    """
    number = r"\d+(?:\.\d*)?(?:[eE][-+]?\d{1,2})?"
    match = re.fullmatch(rf"\s*({number})\s*({'|'.join(PREFIXES)}){unit}\s*", text)
    if match is None:
        example = exact_text(10e-6 if unit == "s" else 10e9, unit)
        raise ValueError(f"expected a figure in {unit}, such as {example}, got {text!r}")
    return float(Fraction(match[1]) * PREFIXES[match[2]])


def seconds_text(seconds: float) -> str:
    """Format a duration, from microseconds to hours.

    >>> seconds_text(1.234e-5), seconds_text(0.25), seconds_text(7.891), seconds_text(3725)
    ('12.3 µs', '250 ms', '7.89 s', '1 h 02 min')
    """
    if not math.isfinite(seconds) or seconds < 0:
        return f"{seconds:.4g} s"
    if seconds < 59.95:
        return _scaled(seconds * 1e6, 1000, ("µs", "ms", "s"))
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02} min"


def _scaled(value: float, base: int, units: Sequence[str]) -> str:
    """Format three significant digits in the largest unit of which there is at least 1."""
    at = 0
    while abs(value) >= base - 0.5 and at < len(units) - 1:  # 999.6 would be shown as 1000
        value, at = value / base, at + 1
    size = abs(value)
    whole = value == int(value) and at == 0 if math.isfinite(value) else True
    digits = 0 if whole or size >= 99.95 else 1 if size >= 9.995 else 2
    return f"{value:,.{digits}f} {units[at]}"
