"""MXNet's record of every network, written to an npz file by the Python that has MXNet 1.9.1.

    PYTHON -m benchmarks.parity.with_mxnet FILE [NAME ...]

`python -m benchmarks.parity` calls it.
"""

from __future__ import annotations

import os
import sys

import numpy as np

# MXNet's in-place sum of 8 or more gradients of one value is wrong when values are shared; it sums
# them as one operator below this many.
os.environ["MXNET_EXEC_INPLACE_GRAD_SUM_CAP"] = "100"

for kind in (bool, float, int, object):  # names that MXNet 1.9.1 uses and numpy has removed
    if kind.__name__ not in vars(np):
        setattr(np, kind.__name__, kind)

import mxnet as mx  # noqa: E402  (needs the names above)

from benchmarks.parity.networks import NETWORKS, Network  # noqa: E402
from benchmarks.parity.record import Record, feeds, pack, shapes_by_name  # noqa: E402


def record(network: Network) -> Record:
    with mx.name.NameManager():
        symbol = network.build(mx)
    arg_shapes, out_shapes, aux_shapes = symbol.infer_shape(**network.shapes)
    names, states, outputs = (
        symbol.list_arguments(),
        symbol.list_auxiliary_states(),
        symbol.list_outputs(),
    )
    wanted = {n: "null" if n in network.ids else "write" for n in names}
    executor = symbol.simple_bind(mx.cpu(), grad_req=wanted, **network.shapes)
    given = feeds(network, dict(zip(names + states, arg_shapes + aux_shapes)))  # noqa: B905
    for name, array in given.items():
        target = executor.arg_dict if name in executor.arg_dict else executor.aux_dict
        target[name][:] = array
    executor.forward(is_train=True)
    executor.backward([mx.nd.ones(shape) for shape in out_shapes])  # losses ignore them
    arrays = {f"output {n}": a.asnumpy() for n, a in executor.output_dict.items()}
    trained = [n for n in names if n not in network.ids]
    arrays.update({f"grad {n}": executor.grad_dict[n].asnumpy() for n in trained})
    arrays.update({f"state {n}": a.asnumpy() for n, a in executor.aux_dict.items()})
    return Record(
        shapes_by_name(names, arg_shapes),
        shapes_by_name(states, aux_shapes),
        shapes_by_name(outputs, out_shapes),
        arrays,
    )


if __name__ == "__main__":
    path, *wanted = sys.argv[1:]
    np.savez_compressed(path, **pack({n: record(NETWORKS[n]) for n in wanted or NETWORKS}))
