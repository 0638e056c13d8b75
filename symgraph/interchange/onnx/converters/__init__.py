"""Converters of ONNX's operators by family; importing this room fills their table.

May import onnx, whose door imports this room.
Start reading: elementwise.py.
"""

from symgraph.interchange.onnx.converters import (
    control,
    elementwise,
    index,
    movement,
    products,
    quantized,
    recurrent,
    reductions,
    resize,
    sampling,
    windows,
)

__all__ = [
    "control",
    "elementwise",
    "index",
    "movement",
    "products",
    "quantized",
    "recurrent",
    "reductions",
    "resize",
    "sampling",
    "windows",
]
