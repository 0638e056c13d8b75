"""The package onnx, an optional one: imported here alone, at the first use."""

from __future__ import annotations

from typing import Any

from symgraph.core.errors import ConfigError


def onnx_package() -> Any:
    """Import and return the package onnx. Raises ConfigError if it is not installed."""
    try:
        import onnx
        import onnx.numpy_helper
    except ImportError as error:
        raise ConfigError(
            f"ONNX files need the package onnx ({error}): pip install 'symgraph[onnx]'"
        ) from None
    return onnx


def function_of(proto: Any, version: int, types: list[Any]) -> Any | None:
    """Return the body of an operator that ONNX defines by others; None if it has none.

    Args:
        proto: The node that calls the operator.
        version: The version of the operators of its domain.
        types: The types of the node's inputs, as TypeProto.
    """
    onnx = onnx_package()
    schema = _schema(proto.op_type, version, proto.domain)
    if schema is None:
        return None
    text = b""
    dependent = _newest(schema.context_dependent_function_opset_versions, version)
    plain = _newest(schema.function_opset_versions, version)
    if schema.has_context_dependent_function and dependent:
        text = schema.get_context_dependent_function_with_opset_version(
            dependent, proto.SerializeToString(), [t.SerializeToString() for t in types]
        )
    elif schema.has_function and plain:
        text = schema.get_function_with_opset_version(plain)
    if not text:
        return None
    body = onnx.FunctionProto()
    body.ParseFromString(text)
    given = {attribute.name for attribute in body.attribute_proto}
    for name, attribute in schema.attributes.items():
        if name not in given and attribute.default_value.type:
            body.attribute_proto.append(attribute.default_value)
    return body


def is_function(op: str, version: int, domain: str) -> bool:
    """Tell whether ONNX defines an operator by others."""
    schema = _schema(op, version, domain)
    if schema is None:
        return False
    return bool(
        (schema.has_function and _newest(schema.function_opset_versions, version))
        or (
            schema.has_context_dependent_function
            and _newest(schema.context_dependent_function_opset_versions, version)
        )
    )


def _schema(op: str, version: int, domain: str) -> Any | None:
    onnx = onnx_package()
    domain = "" if domain == "ai.onnx" else domain
    return onnx.defs.get_schema(op, version, domain) if onnx.defs.has(op, version, domain) else None


def _newest(versions: list[int], limit: int) -> int:
    return max([v for v in versions if v <= limit], default=0)
