"""The manifest of a checkpoint: what it holds, to the last bit, and its place in the order.

runs/a/step-00000500/checkpoint.json
    format, generation, steps, files {name: [bytes, SHA-256]}, checksum (of all the rest)
    and the facts of its writer: config, plan, versions, updates ...
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.training.checkpoints.disk import Disk
from runtime.training.checkpoints.tensors import SUFFIX, FileFacts, facts_of
from symgraph.core.errors import ConfigError

ABOUT = "checkpoint.json"
FORMAT = 1
STEP = "step-{:08d}"
NAME = re.compile(r"step-(\d{8,})")


class Damaged(ConfigError):
    """A checkpoint is not what was written."""


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says of itself."""

    #: How many checkpoints were written into the folder before it. It decides which is newest.
    generation: int
    #: The number of steps done.
    steps: int
    #: Name -> facts, of every other file.
    files: Mapping[str, FileFacts]
    #: The facts of its writer.
    facts: Mapping[str, Any]

    @property
    def order(self) -> tuple[int, int]:
        """Its place among checkpoints: larger is newer."""
        return self.generation, self.steps

    @property
    def checksum(self) -> str:
        """The SHA-256 of all of it."""
        return _checksum(self._content())

    def _content(self) -> dict[str, Any]:
        files = {name: list(facts) for name, facts in sorted(self.files.items())}
        own = {"format": FORMAT, "generation": self.generation, "steps": self.steps}
        return {**own, **self.facts, "files": files}

    def write(self, disk: Disk, folder: Path) -> None:
        """Write it into a folder; done once it is on the disk."""
        content = {**self._content(), "checksum": self.checksum}
        lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()]
        text = ",\n".join(lines)
        disk.write(folder / ABOUT, [f"{{\n{text}\n}}\n".encode()])
        disk.sync(folder / ABOUT)

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Read that of a checkpoint; Damaged if it is not as it was written.

        Raises ConfigError if this user may not read it: it can be whole.
        """
        try:
            content = json.loads((path / ABOUT).read_text(encoding="utf-8"))
        except PermissionError as error:
            raise ConfigError(f"cannot read {path / ABOUT}: {error.strerror}") from None
        except FileNotFoundError:
            raise Damaged(f"{ABOUT} is missing") from None
        except (OSError, ValueError, RecursionError) as error:
            raise Damaged(f"{ABOUT} cannot be read: {error}") from None
        if not isinstance(content, dict) or "checksum" not in content:
            raise Damaged(
                f"{ABOUT} has no checksum: it is cut off, or of a version before symgraph's format "
                f"{FORMAT}"
            )
        if content.pop("checksum") != _checksum(content):
            raise Damaged(f"{ABOUT} is not as it was written (its checksum differs)")
        if content.pop("format") != FORMAT:
            raise Damaged(
                f"{ABOUT} has another format than {FORMAT}; use the version that wrote it"
            )
        generation, steps, files = (content.pop(key) for key in ("generation", "steps", "files"))
        if path.name != STEP.format(steps):
            raise Damaged(f"{ABOUT} is that of {STEP.format(steps)}")
        return cls(generation, steps, {n: FileFacts(*f) for n, f in files.items()}, content)

    def damage(self, path: Path, names: Collection[str] | None = None) -> str | None:
        """Compare a checkpoint's files with what was written; say what is wrong first.

        Args:
            path: The checkpoint.
            names: The files to compare; None: all, and that there are no others.
        """
        for name, facts in self.files.items():
            if names is not None and name not in names:
                continue
            try:
                size = (path / name).stat().st_size
                if size != facts.size:
                    return f"{name} has {size} bytes, but {facts.size} were written"
                if facts_of(path / name) != facts:
                    return f"{name} is not as it was written (its checksum differs)"
            except FileNotFoundError:
                return f"{name} is missing"
            except PermissionError as error:  # no damage, after which it would be set aside
                raise ConfigError(f"cannot read {path / name}: {error.strerror}") from None
            except OSError as error:
                return f"{name} cannot be read: {error.strerror}"
        others = sorted(file.name for file in path.glob(f"*{SUFFIX}"))
        strange = [name for name in others if name not in self.files]
        return f"{strange[0]} is not one of its files" if strange else None


def _checksum(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
