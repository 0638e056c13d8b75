"""The stub files of `sg.sym` and `sg.nd`, by which editors and type checkers know operators.

    python -m symgraph.frontend.stubs          writes symgraph/frontend/sym.pyi and nd.pyi

Operators are looked up when they are first used, so their functions cannot be read in the source.
"""

from __future__ import annotations

import inspect
import keyword
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from symgraph.core.registry import ALIASES, OPS
from symgraph.frontend import nd, sym
from symgraph.frontend.namespace import Namespace, operator
from symgraph.frontend.ndarray import ArrayNamespace

PATH = Path(__file__).with_name("sym.pyi")
PATH_OF_ARRAYS = Path(__file__).with_name("nd.pyi")
HEAD = '''\
"""Written by python -m symgraph.frontend.stubs."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from numpy import dtype

from symgraph.core.types import Shape
from symgraph.frontend import comm as comm
from symgraph.frontend import sym_random
from symgraph.frontend.control_flow import Nested
from symgraph.frontend.symbol import Symbol

'''
HEAD_OF_ARRAYS = '''\
"""Written by python -m symgraph.frontend.stubs."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Literal

from numpy import dtype

from symgraph.core.context import Context
from symgraph.core.types import Array, Shape
from symgraph.frontend import random as random
from symgraph.frontend.control_flow import Nested
from symgraph.frontend.ndarray import NDArray as NDArray
from symgraph.frontend.ndarray import array as array

'''
WIDTH = 100


def stub() -> str:
    """Return the text of the stub file."""
    functions: dict[str, Callable[..., Any]] = {
        name: value
        for name, value in vars(sym).items()
        if inspect.isfunction(value) and _is_public(name) and _is_here(name, value)
    }
    spaces = {n: s for n, s in vars(sym).items() if isinstance(s, Namespace)}
    names = [n for n in (*OPS, *ALIASES) if _is_public(n) and n not in functions]
    others = {n: ALIASES[n] for n in names if n in ALIASES and _is_public(ALIASES[n])}
    functions |= {n: operator(n) for n in names if n not in others}
    parts = _parts(functions, others, spaces, "Symbol")
    return HEAD + "\n".join([*parts, "random = sym_random"]) + "\n"


def stub_of_arrays() -> str:
    """Return the text of the stub file of `sg.nd`."""
    names = [n for n in dir(nd) if _is_public(n) and n not in ("NDArray", "array", "random")]
    found = {name: getattr(nd, name) for name in names}
    own = {n for n, value in found.items() if getattr(value, "__module__", "") == nd.__name__}
    others = {n: ALIASES[n] for n in names if ALIASES.get(n) in found and n not in own}
    spaces = {n: space for n, space in found.items() if isinstance(space, ArrayNamespace)}
    functions = {n: f for n, f in found.items() if n not in others and n not in spaces}
    return HEAD_OF_ARRAYS + "\n".join(_parts(functions, others, spaces, "Any")) + "\n"


def _parts(
    functions: Mapping[str, Callable[..., Any]],
    others: Mapping[str, str],
    spaces: Mapping[str, Namespace | ArrayNamespace],
    result: str,
) -> list[str]:
    """Return the stubs of a module's functions, other names of them, and namespaces.

    Operators whose names begin with an underscore have a type only: calls that give a `result`.
    """
    parts = [_function(name, functions[name]) for name in sorted(functions)]
    parts += [f"{name} = {others[name]}" for name in sorted(others)]
    for name, space in sorted(spaces.items()):
        inner = [_function(n, getattr(space, n), static=True) for n in sorted(_listed(space))]
        body = textwrap.indent("".join(inner), "    ") or "    ...\n"
        parts += [f"class _{name}:", body, f"{name}: _{name}\n"]
    hidden = sorted(n for n in (*OPS, *ALIASES) if n[0] == "_")
    return parts + [f"{n}: Callable[..., {result}]" for n in hidden]


def _is_public(name: str) -> bool:
    return not name.startswith("_") and name.isidentifier() and not keyword.iskeyword(name)


def _is_here(name: str, function: Callable[..., Any]) -> bool:
    """Tell whether a function is the module's own, or an import under another name."""
    return function.__module__ == sym.__name__ or function.__name__ != name


def _listed(space: Namespace | ArrayNamespace) -> Iterator[str]:
    return (n for n in dir(space) if _is_public(n) and callable(getattr(space, n)))


def _function(name: str, function: Callable[..., Any], *, static: bool = False) -> str:
    """Return a function's stub: its signature, and its docstring for editors to show."""
    given = inspect.signature(function)
    words = [_parameter(p) for p in given.parameters.values()]
    kinds = [p.kind for p in given.parameters.values()]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        words.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    line = f"def {name}({', '.join(words)}) -> {_type(given.return_annotation)}:"
    if len(line) > WIDTH:
        listed = "".join(f"    {word},\n" for word in words)
        line = f"def {name}(\n{listed}) -> {_type(given.return_annotation)}:"
    text = (inspect.getdoc(function) or "").partition("\n\nInputs:")[0]
    if "\n" not in text:
        text = textwrap.fill(text, WIDTH - 11)
    if text.endswith('"'):
        text += "\n"
    body = textwrap.indent(f'r"""{text}"""', "    ", lambda line: bool(line.strip()))
    return f"{'@staticmethod' + chr(10) if static else ''}{line}\n{body}\n"


def _parameter(parameter: inspect.Parameter) -> str:
    stars: Mapping[Any, str] = {
        inspect.Parameter.VAR_POSITIONAL: "*",
        inspect.Parameter.VAR_KEYWORD: "**",
    }
    word = f"{stars.get(parameter.kind, '')}{parameter.name}: {_type(parameter.annotation)}"
    if parameter.default is inspect.Parameter.empty:
        return word
    plain = isinstance(parameter.default, bool | int | float | str | tuple | None)
    return f"{word} = {parameter.default!r}" if plain else f"{word} = ..."


def _type(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


if __name__ == "__main__":
    PATH.write_text(stub(), encoding="utf-8")
    PATH_OF_ARRAYS.write_text(stub_of_arrays(), encoding="utf-8")
