"""The network in a PT2 archive: nodes, values and what inputs stand for, checked and typed.

A dynamic dimension is an expression of symbols. One symbol is the batch; the others have the
lengths of the exported example, or those that the caller states. A dimension that depends on the
batch is a `Free`: its value is only that of the example.
"""

from __future__ import annotations

import ast
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from symgraph.core.errors import ConfigError, nearest
from symgraph.interchange.torch.archive import dtype_of, field

MAJOR = 8
MOST_SIZE = 1 << 40


class Free(int):
    """A dimension that depends on the batch, with its value for the exported example."""


class Ref(str):
    """The name of a tensor."""


class Meta(NamedTuple):
    """The type of a tensor."""

    shape: tuple[int, ...]
    dtype: str


class Input(NamedTuple):
    """An input of the network's graph."""

    #: user_input, parameter, buffer or tensor_constant.
    kind: str
    #: The name in the graph.
    name: str
    #: The name in the module; that in the graph for a user's input.
    target: str


@dataclass(frozen=True)
class Node:
    """One call."""

    #: The name that errors tell.
    name: str
    #: The operator, as `aten.add.Tensor`.
    target: str
    #: Arguments by name; tensors are Refs.
    args: Mapping[str, Any]
    #: The names of the outputs; None for one that is no tensor.
    outputs: tuple[str | None, ...]

    @property
    def reads(self) -> Iterator[str]:
        """The tensors that the call reads."""
        for arg in self.args.values():
            yield from (a for a in (arg if isinstance(arg, list) else [arg]) if isinstance(a, Ref))


@dataclass(frozen=True)
class Program:
    """A whole network."""

    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    #: The names of the tensors that users get.
    outputs: tuple[str, ...]
    #: The next values of buffers: tensor -> buffer.
    mutations: Mapping[str, str]
    #: The types of all tensors by name.
    metas: Mapping[str, Meta]
    #: The parameters that need no gradient, by their names in the graph.
    frozen: frozenset[str] = frozenset()
    #: Whether run_decompositions has been called already.
    decomposed: bool = False


# -- sizes -----------------------------------------------------------------------------------------


def _two(rule: Callable[[int, int], int]) -> Callable[..., int]:
    return lambda *numbers: rule(*numbers)


FUNCTIONS: dict[str, Callable[..., int]] = {
    "Integer": lambda n: n,
    "Mul": lambda *ns: math.prod(ns),
    "Add": lambda *ns: sum(ns),
    "Max": max,
    "Min": min,
    "FloorDiv": _two(lambda a, b: a // b),
    "CleanDiv": _two(lambda a, b: a // b),
    "Mod": _two(lambda a, b: a % b),
    "PythonMod": _two(lambda a, b: a % b),
    "Pow": _two(lambda a, b: a**b if 0 <= b < 8 else 0),
}


class Sizes:
    """The values of symbols, and of expressions of them."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        self.batch = ""
        self._trees: dict[str, ast.expr] = {}

    def of(self, size: Any) -> int:
        """Return the value of a size in JSON: a Free if it depends on the batch."""
        kind, value = union(size)
        if kind in ("as_int", "as_expr") and isinstance(value, dict | int):
            if kind == "as_int" and type(value) is int and 0 <= value < MOST_SIZE:
                return value
            if kind == "as_expr":
                return self._evaluated(field(value, "expr_str", str))
        raise ConfigError(f"a size is {str(size)[:80]}, which it cannot be")

    def symbol(self, size: Any) -> str:
        """Return the name of the symbol that a size is, or ""."""
        kind, value = union(size)
        if kind != "as_expr":
            return ""
        return _symbol(self._tree(field(value, "expr_str", str)))

    def _tree(self, text: str) -> ast.expr:
        if text not in self._trees:
            if len(text) > 2000:
                raise ConfigError(f"the size {text[:60]}... is too long an expression")
            try:
                self._trees[text] = ast.parse(text, mode="eval").body
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                raise ConfigError(f"the size {text[:60]!r} is no expression") from None
        return self._trees[text]

    def _evaluated(self, text: str) -> int:
        used: set[str] = set()
        value = self._value(self._tree(text), used, text)
        return Free(value) if self.batch in used else value

    def _value(self, tree: ast.expr, used: set[str], text: str) -> int:
        name = _symbol(tree)
        if name in self.values:
            used.add(name)
            return self.values[name]
        if isinstance(tree, ast.Constant) and type(tree.value) is int:
            return tree.value
        if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
            return -self._value(tree.operand, used, text)
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
            rule = FUNCTIONS.get(tree.func.id)
            try:
                if rule is not None:
                    value = rule(*[self._value(arg, used, text) for arg in tree.args])
                    if abs(value) < MOST_SIZE:
                        return value
            except (TypeError, ZeroDivisionError):
                pass
        raise ConfigError(f"the size {text[:100]} is not supported: export it with a fixed length")


def _symbol(tree: ast.expr) -> str:
    """Return the name of `Symbol('s0', ...)`, or ""."""
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.args:
        first = tree.args[0]
        if tree.func.id == "Symbol" and isinstance(first, ast.Constant):
            return str(first.value)
    return ""


def union(table: Any) -> tuple[str, Any]:
    """Return the kind and value of one of the JSON's `{"as_int": 3}`."""
    if isinstance(table, dict):
        set_ = [(k, v) for k, v in table.items() if v is not None]
        if len(set_) == 1:
            return set_[0]
    raise ConfigError(f"a value in the JSON is {str(table)[:60]}, not one of a known kind")


# -- the whole -------------------------------------------------------------------------------------


class _Reader:
    """The JSON of a network on its way to a Program."""

    def __init__(self, text: Any, shapes: Mapping[str, tuple[int, ...]]) -> None:
        version = field(text, "schema_version", dict)
        if field(version, "major", int) != MAJOR:
            raise ConfigError(
                f"its schema is {version}, but only {MAJOR}.x is known: export the network again "
                "with PyTorch 2.6 or newer"
            )
        verifiers = text.get("verifiers")
        self.decomposed = isinstance(verifiers, list) and "ATEN" in verifiers
        module = field(text, "graph_module", dict)
        self.graph = field(module, "graph", dict)
        self.signature = field(module, "signature", dict)
        self.sizes = Sizes()
        self._raw = field(self.graph, "tensor_values", dict)
        self._sym_ints = field(self.graph, "sym_int_values", dict)
        self.inputs = [self._input(spec) for spec in field(self.signature, "input_specs", list)]
        self._settle(text, shapes)

    def _settle(self, text: Any, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Find the values of all symbols, and the one that is the batch."""
        fed = [i.name for i in self.inputs if i.kind == "user_input"]
        for name in shapes:
            if name not in fed:
                raise ConfigError(f"shapes: no input {name!r}; {nearest(name, fed)}")
        dims: list[tuple[str, int, Any]] = []  # input, axis, size
        for name in fed:
            sizes = field(self._raw.get(name), "sizes", list)
            if len(shapes.get(name, sizes)) != len(sizes):
                raise ConfigError(f"shapes: {name!r} has {len(sizes)} axes, not {shapes[name]}")
            dims += [(name, axis, size) for axis, size in enumerate(sizes)]
        symbols = [(s, name, axis) for name, axis, d in dims if (s := self.sizes.symbol(d))]
        self._read_hints(text)
        stated: dict[str, int] = {}
        for symbol, name, axis in symbols:
            if name in shapes:
                stated.setdefault(symbol, shapes[name][axis])
        zeros = {symbol for symbol, size in stated.items() if size == 0}
        if len(zeros) > 1:
            raise ConfigError("shapes: 0 stands for the batch, which is one dimension alone")
        counts = Counter({s: n for s, n in Counter(s for s, _, _ in symbols).items()})
        free = [s for s, _, _ in symbols if s in zeros or (not zeros and s not in stated)]
        first = {s: axis for s, _, axis in reversed(symbols)}
        self.sizes.batch = min(free, key=lambda s: (-counts[s], first[s]), default="")
        self.sizes.values |= {s: size for s, size in stated.items() if size}
        for name, axis, size in dims:
            wanted, given = shapes.get(name), self.sizes.of(size)
            if wanted is not None and not isinstance(given, Free) and wanted[axis] != given:
                raise ConfigError(f"shapes: axis {axis} of {name!r} is {given}, not {wanted[axis]}")

    def _read_hints(self, text: Any) -> None:
        """Read the lengths that symbols had in the exported example, or else their least ones."""
        for symbol, limits in field(text, "range_constraints", dict).items():
            least = limits.get("min_val") if isinstance(limits, dict) else None
            self.sizes.values[symbol] = max(2, least if type(least) is int else 2)
        every = [size for raw in self._raw.values() for size in field(raw, "sizes", list)]
        for size in (*every, *self._sym_ints.values()):
            _, value = union(size)
            symbol = self.sizes.symbol(size)
            hint = value.get("hint") if isinstance(value, dict) else None
            if symbol and isinstance(hint, dict) and type(hint.get("as_int")) is int:
                self.sizes.values[symbol] = hint["as_int"]

    def _input(self, spec: Any) -> Input:
        kind, body = union(spec)
        if kind == "user_input":
            inner, value = union(field(body, "arg", dict))
            if inner != "as_tensor":
                raise ConfigError(f"an input is {str(value)[:60]}, but only tensors are supported")
            name = field(value, "name", str)
            return Input(kind, name, name)
        keys = {"parameter": "parameter_name", "buffer": "buffer_name"}
        keys["tensor_constant"] = "tensor_constant_name"
        if kind not in keys:
            raise ConfigError(f"an input is a {kind}, which is not supported")
        name = field(field(body, "arg", dict), "name", str)
        return Input(kind, name, field(body, keys[kind], str))

    def program(self) -> Program:
        metas = {
            name: Meta(tuple(map(self.sizes.of, field(raw, "sizes", list))), self._dtype(raw))
            for name, raw in self._raw.items()
        }
        outputs, mutations = [], {}
        for spec in field(self.signature, "output_specs", list):
            kind, body = union(spec)
            inner, value = union(field(body, "arg", dict)) if kind == "user_output" else ("", body)
            if inner == "as_tensor":
                outputs.append(field(value, "name", str))
            elif kind in ("loss_output", "gradient_to_parameter"):
                raise ConfigError("it holds a training step: export the module alone")
            elif kind == "buffer_mutation":
                name = field(field(body, "arg", dict), "name", str)
                mutations[name] = field(body, "buffer_name", str)
            elif kind != "user_output":
                raise ConfigError(f"it has an output of kind {kind}, which is not supported")
        if not outputs:
            raise ConfigError("it has no outputs that are tensors")
        nodes = tuple(map(self._node, field(self.graph, "nodes", list)))
        frozen = frozenset(
            i.name
            for i in self.inputs
            if i.kind == "parameter" and self._raw.get(i.name, {}).get("requires_grad") is False
        )
        return Program(
            tuple(self.inputs), nodes, tuple(outputs), mutations, metas, frozen, self.decomposed
        )

    def _dtype(self, raw: Any) -> str:
        return dtype_of(field(raw, "dtype", int))

    def _node(self, raw: Any) -> Node:
        args = {
            field(entry, "name", str): self._argument(field(entry, "arg", dict))
            for entry in field(raw, "inputs", list)
        }
        outputs: list[str | None] = []
        for output in field(raw, "outputs", list):
            kind, value = union(output)
            if kind == "as_tensor":
                outputs.append(field(value, "name", str))
            elif kind == "as_tensors":
                outputs += [field(v, "name", str) for v in field(output, kind, list)]
            else:
                outputs.append(None)
        target = field(raw, "target", str).removeprefix("torch.ops.")
        if target == "aten.alias.default" and _is_detach(raw):  # as run_decompositions writes it
            target = "aten.detach.default"
        name = raw.get("name") or next((o for o in outputs if o), target)
        return Node(str(name), target, args, tuple(outputs))

    def _argument(self, arg: Any) -> Any:
        """Return an argument as a Python value; tensors as Refs."""
        kind, value = union(arg)
        if kind == "as_none":
            return None
        if kind in ("as_tensor", "as_optional_tensor"):
            return self._tensor(value)
        if kind in ("as_tensors", "as_optional_tensors"):
            return [self._tensor(v) for v in field(arg, kind, list)]
        if kind == "as_sym_int":
            return self._sym_int(value)
        if kind == "as_sym_ints":
            return [self._sym_int(v) for v in field(arg, kind, list)]
        if kind == "as_float":
            return self._float(value)
        if kind == "as_scalar_type":
            return dtype_of(value)
        if kind in ("as_int", "as_bool", "as_string", "as_ints", "as_bools", "as_floats"):
            return value
        return None if kind in ("as_device", "as_layout", "as_memory_format") else Opaque(kind)

    def _tensor(self, value: Any) -> Ref | None:
        if isinstance(value, dict) and "as_none" in value:
            return None
        inner = value.get("as_tensor", value) if isinstance(value, dict) else value
        return Ref(field(inner, "name", str))

    def _float(self, value: Any) -> float:
        """Return a number; infinities and what is no number are words in the JSON."""
        if value in ("Infinity", "-Infinity", "NaN"):
            return float(value)
        return float(field({"as_float": value}, "as_float", (int, float)))

    def _sym_int(self, value: Any) -> int:
        kind, inner = union(value)
        if kind == "as_int":
            return int(field(value, kind, int))
        return self.sizes.of(self._sym_ints.get(str(inner)))


class Opaque(str):
    """An argument of a kind that no operator here takes."""


def _is_detach(raw: Any) -> bool:
    """Tell whether a call was `detach` in the user's code; `x[...]` is an alias as well."""
    metadata = raw.get("metadata")
    called = metadata.get("torch_fn") if isinstance(metadata, dict) else None
    return str(called).rpartition(".")[2] in ("detach", "detach_")


def read_program(text: Any, shapes: Mapping[str, tuple[int, ...]]) -> Program:
    """Return the network of an archive's JSON. Raises ConfigError if it is not one.

    Args:
        text: the parsed JSON.
        shapes: shapes of inputs by name, with 0 for the batch; they state dynamic dimensions.
    """
    return _Reader(text, shapes).program()
