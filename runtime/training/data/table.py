"""The kinds of data, by the `kind` of a config's `data:` section."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from runtime.training.data.arrays import load_arrays
from runtime.training.data.base import Dataset
from runtime.training.data.python import load_python
from runtime.training.data.random_values import load_random
from runtime.training.data.text import load_stdlib_text, load_text
from symgraph.app.config import Config

SOURCES: Mapping[str, Callable[[Any], Dataset]] = {
    "stdlib_text": load_stdlib_text,
    "text": load_text,
    "arrays": load_arrays,
    "python": load_python,
    "random": load_random,
}


def load_data(config: Config) -> Dataset:
    """Load the data that a config names; ConfigError if it cannot be read or is empty."""
    return SOURCES[config.data.kind](config.data)
