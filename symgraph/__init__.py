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

from symgraph import (
    attribute,
    callback,
    errors,
    init,
    io,
    lr_scheduler,
    metric,
    mod,
    name,
    optimizer,
    rnn,
    sym,
    viz,
)
from symgraph.attribute import AttrScope
from symgraph.batching import Feed
from symgraph.context import Context, cpu, gpu
from symgraph.errors import SymgraphError
from symgraph.model import Model
from symgraph.symbol import Symbol
from symgraph.types import TensorType

__version__ = "0.1.0"

initializer = init
module = mod
visualization = viz
symbol = sym  # MXNet's two names of one namespace; the class is in the module symgraph.symbol

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
    "visualization",
    "viz",
]
