"""Figures as people read them: bytes, operations, seconds and plain numbers as text."""

from __future__ import annotations

import math
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
