"""symgraph: split one symbolic network over several devices.

    import symgraph as sg

    with sg.AttrScope(ctx_group="a"):
        hidden = sg.sym.FullyConnected(sg.sym.Variable("data"), num_hidden=100, name="fc1")
    executor = hidden.simple_bind(sg.cpu(0), group2ctx={"a": sg.cpu(1)}, data=(20, 50))

The names are MXNet's: a network definition written for `mx.sym` and `mx.rnn` runs once its import
line is changed to `import symgraph as mx`. Importing this package loads numpy and little else.
"""

# Imported first: it catches a Ctrl-C during the imports that follow.
from symgraph.app import door as door  # isort: split

# Imported next: operators build gradient graphs, and graphs look operators up.
from symgraph import ops as ops  # isort: split

import sys

from symgraph import operator, rnn
from symgraph.app import command_line
from symgraph.core import errors
from symgraph.core.context import Context, cpu, cpu_pinned, current_context, gpu
from symgraph.core.errors import SymgraphError
from symgraph.core.errors import SymgraphError as MXNetError
from symgraph.core.types import TensorType
from symgraph.frontend import (
    attribute,
    callback,
    context,
    init,
    io,
    kvstore,
    left_out,
    lr_scheduler,
    metric,
    model,
    monitor,
    name,
    nd,
    optimizer,
    random,
    sym,
    viz,
)
from symgraph.frontend import module as mod
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.context import gpu_memory_info, num_gpus
from symgraph.frontend.model import Model
from symgraph.frontend.profiling import compare, profile, search
from symgraph.frontend.symbol import Symbol
from symgraph.interchange import onnx
from symgraph.interchange.torch import from_torch
from symgraph.passes import testing
from symgraph.passes.batching import Feed

__version__ = "0.2.0.dev0"

initializer = init
kv = kvstore
module = mod
mon = monitor
ndarray = nd
rnd = random
visualization = viz
symbol = sym  # MXNet has two names for this namespace; the class is Symbol

# Public modules live in rooms, but `import symgraph.io` and `from symgraph.io import ...` work.
PUBLIC_MODULES = {
    "attribute": attribute,
    "callback": callback,
    "command_line": command_line,
    "context": context,
    "errors": errors,
    "init": init,
    "initializer": init,
    "io": io,
    "kv": kvstore,
    "kvstore": kvstore,
    "lr_scheduler": lr_scheduler,
    "metric": metric,
    "mod": mod,
    "model": model,
    "module": mod,
    "mon": monitor,
    "monitor": monitor,
    "name": name,
    "nd": nd,
    "ndarray": nd,
    "onnx": onnx,
    "optimizer": optimizer,
    "random": random,
    "rnd": random,
    "sym": sym,
    "symbol": sym,
    "testing": testing,
    "visualization": viz,
    "viz": viz,
}
sys.modules.update({f"symgraph.{name}": module for name, module in PUBLIC_MODULES.items()})

__all__ = [
    "AttrScope",
    "Context",
    "Feed",
    "MXNetError",
    "Model",
    "Symbol",
    "SymgraphError",
    "TensorType",
    "attribute",
    "callback",
    "command_line",
    "compare",
    "context",
    "cpu",
    "cpu_pinned",
    "current_context",
    "errors",
    "from_torch",
    "gpu",
    "gpu_memory_info",
    "init",
    "initializer",
    "io",
    "kv",
    "kvstore",
    "lr_scheduler",
    "metric",
    "mod",
    "model",
    "module",
    "mon",
    "monitor",
    "name",
    "nd",
    "ndarray",
    "num_gpus",
    "onnx",
    "operator",
    "optimizer",
    "profile",
    "random",
    "rnd",
    "rnn",
    "search",
    "sym",
    "symbol",
    "testing",
    "visualization",
    "viz",
]

left_out.word_imports()


def __getattr__(name: str) -> object:
    left_out.refuse(name)
    raise AttributeError(f"symgraph has no {name!r}; {errors.nearest(name, __all__)}")
