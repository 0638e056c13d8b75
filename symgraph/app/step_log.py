"""The log of a training run: a JSON object a line, one for each step and each evaluation."""

from __future__ import annotations

import json
import math
from contextlib import ExitStack
from typing import Any, BinaryIO

from symgraph.core.errors import ConfigError, RunError


class StepLog(ExitStack):
    """Appends to a file, so that a run that goes on from a checkpoint goes on here; None: nowhere.

    As a context manager it closes the file. ConfigError if that cannot be opened.
    """

    def __init__(self, path: str | None) -> None:
        super().__init__()
        self._path = path
        self._file: BinaryIO | None = None
        if path is not None:
            try:
                file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by us
                self._file = self.enter_context(file)
            except OSError as error:
                raise ConfigError(f"cannot write the log {path}: {error.strerror}") from None

    def write(self, **figures: float) -> None:
        """Write a line; what is no finite number is null. RunError if the disk is full."""
        if self._file is not None:
            plain: dict[str, Any] = {k: v if math.isfinite(v) else None for k, v in figures.items()}
            try:
                self._file.write(json.dumps(plain).encode() + b"\n")
            except OSError as error:
                raise RunError(f"cannot write the log {self._path}: {error.strerror}") from None
