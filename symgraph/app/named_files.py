"""The files that a config names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from symgraph.core.yaml_lines import Document, KeyPath
from symgraph.frontend.model import FUNCTION

SCHEDULE_FILES = (".csv", ".txt")
KEYS: tuple[KeyPath, ...] = (
    ("model",),
    ("machine",),
    ("partition", "costs"),
    *(("data", key) for key in ("path", "valid_path", "function", "valid")),
)


def find_files(document: Document, folder: Path) -> None:
    """Replace the names of files to read by where the files are.

    A name is looked for in the config's folder, then in the current one; that of an override
    in the current folder first.
    """
    for path in _file_keys(document.data):
        section: Any = document.data
        for key in path[:-1]:
            section = section.get(key) if isinstance(section, dict) else None
        name = section.get(path[-1]) if isinstance(section, dict) else None
        if isinstance(name, str):
            file, colon, function = name.rpartition(":") if ".py:" in name else (name, "", "")
            folders = (folder, Path())
            for parent in reversed(folders) if document.place(path).is_override else folders:
                if os.path.exists(parent / file):  # False, too, for names that are too long
                    names = os.path.relpath(parent / file), os.path.abspath(parent / file)
                    section[path[-1]] = min(names, key=len) + colon + function
                    break


def _file_keys(data: Mapping[str, Any]) -> Iterator[KeyPath]:
    """Yield the keys that name files to read."""
    yield from KEYS
    if not FUNCTION.fullmatch(str(data.get("model"))):
        yield "args", "params"
    pipeline = data.get("pipeline")
    if isinstance(pipeline, dict) and str(pipeline.get("schedule")).endswith(SCHEDULE_FILES):
        yield "pipeline", "schedule"
    source = data.get("data")
    if isinstance(source, dict):
        for key in ("files", "valid_files"):
            files = source.get(key)
            yield from (("data", key, name) for name in (files if isinstance(files, dict) else ()))


def file_mistakes(at: KeyPath, path: str, *, folder: bool = False) -> Iterator[tuple[KeyPath, str]]:
    """Yield what is wrong with a file that a key names; folder: whether it may be a folder."""
    if os.path.isdir(path) and not folder:
        yield at, f"is a folder, not a file: {path}"
    elif not os.path.exists(path):
        yield at, f"no such file: {path}"
