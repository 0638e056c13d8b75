"""symgraph: split one symbolic network over several devices.

    import symgraph as sg

    with sg.AttrScope(ctx_group="a"):
        hidden = sg.sym.FullyConnected(sg.sym.Variable("data"), num_hidden=100, name="fc1")
    executor = hidden.simple_bind(sg.cpu(0), group2ctx={"a": sg.cpu(1)}, data=(20, 50))

Names are MXNet's, so a network definition for `mx.sym` and `mx.rnn` runs after its import line is
changed to `import symgraph as mx`. Importing this package loads numpy and little else.
"""

# First, because operators build gradient graphs and graphs look operators up.
from symgraph import ops as ops  # isort: split

import sys

from symgraph import rnn
from symgraph.core import context, errors
from symgraph.core.context import Context, cpu, gpu
from symgraph.core.errors import SymgraphError
from symgraph.core.types import TensorType
from symgraph.frontend import (
    attribute,
    callback,
    init,
    io,
    lr_scheduler,
    metric,
    name,
    optimizer,
    sym,
    viz,
)
from symgraph.frontend import module as mod
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.model import Model
from symgraph.frontend.symbol import Symbol
from symgraph.passes import testing
from symgraph.passes.batching import Feed

__version__ = "0.1.0"

initializer = init
module = mod
visualization = viz
symbol = sym  # MXNet's two names of one namespace; the class is in symgraph.frontend.symbol

# Public modules live in rooms; `import symgraph.io` and `from symgraph.io import ...` find them
# too.
_PUBLIC = (
    attribute,
    callback,
    context,
    errors,
    init,
    io,
    lr_scheduler,
    metric,
    mod,
    name,
    optimizer,
    sym,
    testing,
    viz,
)
sys.modules.update({f"symgraph.{m.__name__.rpartition('.')[2]}": m for m in _PUBLIC})
sys.modules.update(
    {
        "symgraph.initializer": init,
        "symgraph.mod": mod,
        "symgraph.symbol": sym,
        "symgraph.visualization": viz,
    }
)

__all__ = [
    "AttrScope",
    "Context",
    "Feed",
    "Model",
    "Symbol",
    "SymgraphError",
    "TensorType",
    "attribute",
    "callback",
    "context",
    "cpu",
    "errors",
    "gpu",
    "init",
    "initializer",
    "io",
    "lr_scheduler",
    "metric",
    "mod",
    "module",
    "name",
    "optimizer",
    "rnn",
    "sym",
    "symbol",
    "testing",
    "visualization",
    "viz",
]
