"""Pairs to translate: dates and names of territories from Unicode's CLDR, or lines of a file.

    Thursday, January 5, 2012  ->  Donnerstag, 5. Januar 2012
    Jan 5, 2012                ->  05.01.2012
    United Kingdom             ->  Vereinigtes Königreich

A source has one translation, the first one: "May 5, 2012" is both a long and a medium date, and
counts as long. So no held-out source is among the learned ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from symgraph.errors import ConfigError

Pair = tuple[str, str]
FORMATS = ("full", "long", "medium", "short")
# A century, so years of two digits are unambiguous.
FIRST, LAST = date(1950, 1, 1), date(2049, 12, 31)


class Corpus(NamedTuple):
    """Pairs to train on, held-out pairs, and names, which can only be memorized."""

    train: list[Pair]
    held_out: list[Pair]
    names: list[Pair]


def cldr(language: str, days: int, held_out: int, seed: int) -> Corpus:
    """Draw dates of `days` days and of `held_out` others, in four formats, and all territories.

    language is the name of a locale, such as de or pt_BR. Raises ConfigError if Babel is missing,
    for a language that CLDR does not have, and for too many days.
    """
    english, other = _locales("en", language)
    total = (LAST - FIRST).days + 1
    if not 0 < held_out <= total - days < total:
        raise ConfigError(
            f"--days {days} and --held-out {held_out} must be 1 or more, and no more than {total} "
            f"together: the days from {FIRST} to {LAST}"
        )
    drawn = np.random.default_rng(seed).permutation(total)[: days + held_out].tolist()
    names = {
        english.territories[code]: name
        for code, name in sorted(other.territories.items())
        if code in english.territories
    }
    return Corpus(
        _dates(drawn[held_out:], english, other),
        _dates(drawn[:held_out], english, other),
        list(names.items()),
    )


def _locales(*languages: str) -> list[Any]:
    try:
        from babel import Locale, UnknownLocaleError
    except ImportError:
        raise ConfigError("Babel is missing: pip install 'symgraph[examples]'") from None
    locales = []
    for language in languages:
        try:
            locales.append(Locale.parse(language))
        except (UnknownLocaleError, ValueError):
            raise ConfigError(
                f"--language {language!r} is not a locale of CLDR; use one such as de, fr, ja or "
                f"pt_BR"
            ) from None
    return locales


def _dates(days: Iterable[int], english: Any, other: Any) -> list[Pair]:
    from babel.dates import format_date

    dates: dict[str, str] = {}
    for day in days:
        for style in FORMATS:
            source, target = (
                format_date(FIRST + timedelta(day), style, locale=locale)
                for locale in (english, other)
            )
            dates.setdefault(source, target)
    return list(dates.items())


def tab_separated(path: Path, held_out: int, seed: int) -> Corpus:
    """Read the lines of a UTF-8 file: source, tab, translation; further columns are ignored.

    Raises ConfigError for a file that cannot be read, an incomplete line, and too few lines.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--pairs {path}: {error}") from None
    translations: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        source, *others = (column.strip() for column in line.split("\t"))
        if not source or not others or not others[0]:
            raise ConfigError(
                f"{path}:{number} must be a text, a tab and its translation: {line!r}"
            )
        translations.setdefault(source, others[0])
    if not 0 < held_out < len(translations):
        raise ConfigError(
            f"{path} has {len(translations)} different sources, of which --held-out {held_out} "
            f"cannot be "
            "held out; hold out 1 or more, and leave some to train on"
        )
    pairs = list(translations.items())
    drawn = [pairs[i] for i in np.random.default_rng(seed).permutation(len(pairs))]
    return Corpus(drawn[held_out:], drawn[:held_out], [])
