"""A disk that remembers its operations, and what may be left of them after the power is cut.

A file's content is there once the file is synced, a name in a folder once the folder is. What was
not synced may be lost, or be there in part: of a file any beginning, of each folder any of the
states that it has had since its last sync, independently of the other folders. (Real file systems
keep more order than this.)
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from runtime.training.checkpoints.disk import Disk


class Operation(NamedTuple):
    """One operation on paths below the disk's root."""

    kind: str
    path: Path
    #: The new name, of a rename.
    to: Path | None = None
    #: What is written.
    data: bytes = b""


class RecordingDisk(Disk):
    """A disk that keeps a list of what is done below a folder that is on the disk already."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.operations: list[Operation] = []

    def _note(self, kind: str, path: Path, to: Path | None = None, data: bytes = b"") -> None:
        if path == self.root or self.root in path.parents:
            here = path.relative_to(self.root)
            self.operations.append(Operation(kind, here, to and to.relative_to(self.root), data))

    def make(self, folder: Path) -> None:
        if not folder.exists():
            self._note("make", folder)
        super().make(folder)

    def write(self, file: Path, chunks: Iterable[bytes | memoryview]) -> None:
        data = b"".join(bytes(chunk) for chunk in chunks)
        self._note("write", file, data=data)
        super().write(file, [data])

    def sync(self, path: Path) -> None:
        self._note("sync", path)
        super().sync(path)

    def rename(self, old: Path, new: Path) -> None:
        self._note("rename", old, new)
        super().rename(old, new)

    def remove(self, path: Path) -> None:
        for inner in sorted(path.iterdir()) if path.is_dir() else []:
            self._note("remove", inner)
        self._note("remove", path)
        super().remove(path)


@dataclass
class _File:
    data: bytes
    synced: bool = False


@dataclass
class _Folder:
    now: dict[str, _File | _Folder] = field(default_factory=dict)
    #: What the disk may hold: the state of the last sync, and all later ones.
    states: list[dict[str, _File | _Folder]] = field(default_factory=lambda: [{}])

    def change(self, changes: dict[str, _File | _Folder | None]) -> None:
        merged = {**self.now, **changes}
        self.now = {name: node for name, node in merged.items() if node is not None}
        self.states.append(self.now)


class CutDisk:
    """What the disk may hold after some operations and a cut of the power."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._root = _Folder()
        for operation in operations:
            self._apply(operation)

    def _at(self, path: Path) -> _File | _Folder:
        node: _File | _Folder = self._root
        for part in path.parts:
            assert isinstance(node, _Folder)
            node = node.now[part]
        return node

    def _apply(self, operation: Operation) -> None:
        kind, path, to, data = operation
        if kind == "sync":
            node = self._at(path)
            if isinstance(node, _File):
                node.synced = True
            else:
                node.states = [node.now]
            return
        folder = self._at(path.parent)
        assert isinstance(folder, _Folder)
        if kind == "rename":
            assert to is not None
            assert to.parent == path.parent
            assert to.name not in folder.now, "a rename over what is there"
            folder.change({path.name: None, to.name: folder.now[path.name]})
        else:
            made = {"make": _Folder(), "write": _File(data), "remove": None}[kind]
            folder.change({path.name: made})

    def leave(self, target: Path, draw: random.Random, mode: str = "any") -> None:
        """Write what is left into an empty folder.

        mode: "least", what was synced; "names", all names, but of files only what was synced;
        "any", drawn.
        """
        self._leave(self._root, target, draw, mode)

    def _leave(self, node: _File | _Folder, at: Path, draw: random.Random, mode: str) -> None:
        if isinstance(node, _File):
            kept = {"least": 0, "names": 0, "any": draw.randint(0, len(node.data))}[mode]
            at.write_bytes(node.data if node.synced else node.data[:kept])
            return
        at.mkdir(exist_ok=True)
        index = {"least": 0, "names": -1, "any": draw.randrange(len(node.states))}[mode]
        for name, inner in node.states[index].items():
            self._leave(inner, at / name, draw, mode)
