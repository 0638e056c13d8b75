"""symgraph's record of a network, bound with each of its groups on a device of its own."""

from __future__ import annotations

import numpy as np

import symgraph as sg
from benchmarks.parity.networks import Network
from benchmarks.parity.record import Record, feeds, shapes_by_name
from symgraph.name import NameManager


def record(network: Network) -> Record:
    with NameManager():
        symbol = network.build(sg)
    arg_shapes, out_shapes, aux_shapes = symbol.infer_shape(**network.shapes)
    names, states, outputs = (
        symbol.list_arguments(),
        symbol.list_auxiliary_states(),
        symbol.list_outputs(),
    )
    groups = dict.fromkeys(
        a["__ctx_group__"] for a in symbol.attr_dict().values() if "__ctx_group__" in a
    )
    devices = {group: sg.cpu(i) for i, group in enumerate(groups)} or None
    given = feeds(network, dict(zip(names + states, arg_shapes + aux_shapes, strict=True)))
    wanted = {n: "null" if n in network.ids else "write" for n in names}
    with symbol.simple_bind(sg.cpu(), wanted, group2ctx=devices, **network.shapes) as executor:
        executor.copy_params_from(*({n: given[n] for n in of} for of in (names, states)))
        executor.forward(is_train=True)
        executor.backward([np.ones(shape) for shape in out_shapes])
        arrays = {f"output {n}": a for n, a in executor.output_dict.items()}
        arrays |= {f"grad {n}": a.copy() for n, a in executor.grad_dict.items()}
        arrays |= {f"state {n}": a.copy() for n, a in executor.aux_dict.items()}
    return Record(
        shapes_by_name(names, arg_shapes),
        shapes_by_name(states, aux_shapes),
        shapes_by_name(outputs, out_shapes),
        arrays,
    )
