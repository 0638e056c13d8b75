"""The parts of MXNet that are left out on purpose, each with the nearest way here.

Asking for one, as an attribute or by an import, is an error that says so and names the page.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

PAGE = "docs/from_mxnet.md, 'Left out on purpose'"
TRAIN = "build the network with sym and train it with mod.Module"
IMAGES = "read and augment images with a library such as Pillow, and give arrays to io.NDArrayIter"
LEFT_OUT = {
    **dict.fromkeys(("io.ImageDetRecordIter", "io.ImageRecordIter", "recordio"), IMAGES),
    "autograd": f"gradients are planned before anything runs: {TRAIN}, or bind it",
    "contrib": "operators are in sym.contrib, ONNX in onnx, 16 bits are Module(precision=)",
    "gluon": f"networks are symbolic: {TRAIN}",
    "image": IMAGES,
    "img": IMAGES,
    "nd.image": IMAGES,
    "nd.sparse": "arrays are dense",
    "np": "numpy itself works on all arrays here",
    "npx": "the operators are in sym and nd",
    "profiler": "symgraph.profile measures a network",
    "rtc": "write an operator with symgraph.operator",
    "sym.sparse": "arrays are dense",
    "test_utils": "numpy.testing compares arrays",
}


def refuse(name: str) -> None:
    """Raise AttributeError if this part of MXNet is left out."""
    if name in LEFT_OUT:
        raise AttributeError(_message(name))


def _message(name: str) -> str:
    return f"symgraph has no {name}: {LEFT_OUT[name]} ({PAGE})"


class LeftOutFinder:
    """Finds no module: it words the error of `from symgraph import gluon`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise ImportError for a module that is left out."""
        package, _, name = fullname.partition(".")
        if package == "symgraph" and name in LEFT_OUT:
            raise ImportError(_message(name), name=fullname)
        return None


def word_imports() -> None:
    """Let imports of what is left out raise these errors, once in a process."""
    if not any(isinstance(finder, LeftOutFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, LeftOutFinder())
