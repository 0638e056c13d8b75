"""What is supported of a model: every operator that is missing is found before any is converted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from symgraph.core.errors import GraphError
from symgraph.interchange.onnx.folding import FOLDS
from symgraph.interchange.onnx.package import is_function, onnx_package
from symgraph.interchange.onnx.reader import STANDARD
from symgraph.interchange.onnx.registry import converter_of

SHOWN = 3  # nodes named for each operator


def require_support(model: Any, opsets: Mapping[str, int]) -> None:
    """Raise GraphError that lists all operators of a model which are not supported.

    Args:
        model: The ModelProto.
        opsets: The versions of operators by domain.
    """
    own = {(f.domain, f.name) for f in model.functions}
    missing: dict[tuple[str, int], list[str]] = {}
    bodies = [(model.graph.node, opsets)]
    bodies += [
        (f.node, dict(opsets) | {o.domain: o.version for o in f.opset_import})
        for f in model.functions
    ]
    for protos, versions in bodies:
        for proto in _all_nodes(protos):
            if not isinstance(proto.op_type, str) or not isinstance(proto.domain, str):
                raise GraphError(f"an operator's name is no UTF-8 text: {proto.op_type!r}")
            if (proto.domain, proto.op_type) in own or _supported(proto, versions):
                continue
            domain = "" if proto.domain in STANDARD else f"{proto.domain}."
            version = versions.get("" if not domain else proto.domain, 0)
            names = missing.setdefault((f"{domain}{proto.op_type}", version), [])
            names.append(proto.name or (proto.output[0] if proto.output else "?"))
    if missing:
        lines = [
            f"{op} of opset {version} (node{'s' * (len(names) > 1)} "
            f"{', '.join(map(repr, names[:SHOWN]))}"
            f"{f' and {len(names) - SHOWN} more' if len(names) > SHOWN else ''})"
            for (op, version), names in sorted(missing.items())
        ]
        raise GraphError(f"operators that are not supported ({len(lines)}): " + "; ".join(lines))


def _supported(proto: Any, opsets: Mapping[str, int]) -> bool:
    domain = "" if proto.domain in STANDARD else proto.domain
    version = opsets.get(domain, 0)
    if not domain and (converter_of(proto.op_type, version) or proto.op_type in FOLDS):
        return True
    return is_function(proto.op_type, version, domain)


def _all_nodes(protos: Any) -> Iterator[Any]:
    """Iterate over nodes, and those of the graphs in their attributes."""
    kinds = onnx_package().AttributeProto
    stack = list(reversed(protos))
    while stack:
        proto = stack.pop()
        yield proto
        for attribute in proto.attribute:
            if attribute.type == kinds.GRAPH:
                stack.extend(reversed(attribute.g.node))
