"""The stub file of `sg.sym`, so that editors and type checkers know every operator's arguments.

    python -m symgraph.frontend.stubs          writes symgraph/frontend/sym.pyi

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
from symgraph.frontend import sym
from symgraph.frontend.namespace import Namespace, operator

PATH = Path(__file__).with_name("sym.pyi")
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
    parts = [_function(name, functions[name]) for name in sorted(functions)]
    parts += [f"{name} = {others[name]}" for name in sorted(others)]
    for name, space in sorted(spaces.items()):
        inner = [_function(n, getattr(space, n), static=True) for n in sorted(_listed(space))]
        parts += [
            f"class _{name}:",
            textwrap.indent("".join(inner), "    ") or "    ...\n",
            f"{name}: _{name}\n",
        ]
    parts += [f"{n}: Callable[..., Symbol]" for n in sorted((*OPS, *ALIASES)) if n[0] == "_"]
    parts.append("random = sym_random")
    return HEAD + "\n".join(parts) + "\n"


def _is_public(name: str) -> bool:
    return not name.startswith("_") and name.isidentifier() and not keyword.iskeyword(name)


def _is_here(name: str, function: Callable[..., Any]) -> bool:
    """Tell whether a function is the module's own, or an import under another name."""
    return function.__module__ == sym.__name__ or function.__name__ != name


def _listed(space: Namespace) -> Iterator[str]:
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
