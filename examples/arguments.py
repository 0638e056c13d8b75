"""Types of the examples' command-line arguments."""

from __future__ import annotations

from argparse import ArgumentTypeError


def positive(text: str) -> int:
    """Return a whole number of 1 or more."""
    if not text.isdecimal() or int(text) == 0:
        raise ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)
