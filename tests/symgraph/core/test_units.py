"""Figures with units, written and read. What the console shows is tested in test_console.py."""

from __future__ import annotations

import random
import re

import pytest

from symgraph.core.units import exact_text, parse_si, si_text


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("2us", "s", 2e-6),
        ("2 µs", "s", 2e-6),
        ("1.5 ms", "s", 1.5e-3),
        ("3s", "s", 3.0),
        (" 7 ns ", "s", 7e-9),
        ("1e-3s", "s", 1e-3),
        ("10GB/s", "B/s", 1e10),
        ("5. kB/s", "B/s", 5e3),
        ("5 KB/s", "B/s", 5e3),
        ("1.5 GiB/s", "B/s", 1.5 * 2**30),
        ("100GFLOP/s", "FLOP/s", 1e11),
        ("8 Gbit/s", "bit/s", 8e9),
        ("0.1 PB/s", "B/s", 1e14),
    ],
)
def test_figures_with_units(text, unit, value):
    assert parse_si(text, unit) == value


@pytest.mark.parametrize(
    ("text", "unit", "example"),
    [
        ("2", "s", "10 us"),
        ("us", "s", "10 us"),
        ("-2us", "s", "10 us"),
        ("2 US", "s", "10 us"),
        ("10 GB", "B/s", "10 GB/s"),
        ("10 Gb/s", "B/s", "10 GB/s"),
        ("1,5 GB/s", "B/s", "10 GB/s"),
        ("1e999 FLOP/s", "FLOP/s", "10 GFLOP/s"),
        ("nan s", "s", "10 us"),
        ("2 s 3", "s", "10 us"),
    ],
)
def test_text_that_is_no_figure(text, unit, example):
    message = f"expected a figure in {unit}, such as {example}, got {text!r}"
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_si(text, unit)


def test_exact_text_reads_as_the_same_float():
    rng = random.Random(1)
    figures = [rng.uniform(1, 10) * 10 ** rng.randint(-12, 18) for _ in range(2000)]
    for value in [*figures, 1.0, 1000.0, 1e-9, 999.9e9]:
        assert parse_si(exact_text(value, "B/s"), "B/s") == value


@pytest.mark.parametrize(
    ("value", "exact", "short"),
    [
        (245.678e9, "245.678 GB/s", "246 GB/s"),
        (1e10, "10 GB/s", "10.0 GB/s"),
        (999.9, "999.9 B/s", "1.00 kB/s"),
    ],
)
def test_texts_of_a_rate(value, exact, short):
    assert (exact_text(value, "B/s"), si_text(value, "B/s")) == (exact, short)
