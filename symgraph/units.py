"""Figures as people read them: bytes, operations, seconds and plain numbers as text."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from numbers import Integral, Real


def value_text(value: object) -> str:
    """A cell of a table: figures to four digits, thousands apart, - for nothing.

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


def bytes_text(count: float) -> str:
    """Bytes in binary units.

    >>> bytes_text(512), bytes_text(1536), bytes_text(4 * 2**30)
    ('512 B', '1.50 KiB', '4.00 GiB')
    """
    return _scaled(count, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def parse_bytes(text: str) -> int:
    """Bytes from a number with or without a unit; ValueError for anything else.

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
    """Floating-point operations in decimal units.

    >>> flops_text(13_920_000)
    '13.9 MFLOP'
    """
    return _scaled(count, 1000, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"))


def seconds_text(seconds: float) -> str:
    """A length of time, from microseconds to hours.

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
    """Three significant digits in the largest unit that leaves at least 1 before the point."""
    at = 0
    while abs(value) >= base - 0.5 and at < len(units) - 1:  # 999.6 would be shown as 1000
        value, at = value / base, at + 1
    size = abs(value)
    whole = value == int(value) and at == 0 if math.isfinite(value) else True
    digits = 0 if whole or size >= 99.95 else 1 if size >= 9.995 else 2
    return f"{value:,.{digits}f} {units[at]}"
