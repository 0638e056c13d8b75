"""What MXNet 1.9.1 makes of recurrent cells, parameter files and data iterators, as test data.

    PYTHON_WITH_MXNET tests/symgraph/data/write_mxnet.py

Writes mxnet_rnn.npz and mxnet.params beside itself. Needs a Python with MXNet 1.9.1 only.
"""

import json
from pathlib import Path

import numpy as np

np.bool = bool  # what MXNet 1.9.1 asks of numpy has gone since
import mxnet as mx  # noqa: E402

HERE = Path(__file__).parent
FUSED = {
    "lstm": {"mode": "lstm", "num_layers": 2, "bidirectional": True, "prefix": "a_"},
    "gru": {"mode": "gru", "num_layers": 2, "bidirectional": False, "prefix": "b_"},
    "rnn": {"mode": "rnn_relu", "num_layers": 1, "bidirectional": True, "prefix": "c_"},
}
HIDDEN, INPUT, STEPS, BATCH = 3, 4, 3, 2


def main():
    """Unpack a vector of 0, 1, 2, ... / 100, and run the unfused stack with those weights."""
    data = np.random.RandomState(0).normal(size=(BATCH, STEPS, INPUT)).astype("float32")
    arrays = {"data": data}
    names = {}
    for key, settings in FUSED.items():
        cell = mx.rnn.FusedRNNCell(HIDDEN, **settings)
        layers, both = settings["num_layers"], 1 + settings["bidirectional"]
        gates = {"lstm": 4, "gru": 3}.get(settings["mode"], 1)
        size = (INPUT + HIDDEN + 2) * HIDDEN * gates * both
        size += (layers - 1) * gates * HIDDEN * (HIDDEN + both * HIDDEN + 2) * both
        vector = np.sin(np.arange(size)).astype("float32")
        unpacked = cell.unpack_weights({cell._prefix + "parameters": mx.nd.array(vector)})
        packed = cell.unfuse().pack_weights(unpacked)
        outputs, _ = cell.unfuse().unroll(STEPS, mx.sym.Variable("data"), merge_outputs=True)
        steps, _ = cell.unfuse().unroll(STEPS, mx.sym.Variable("data"), merge_outputs=False)
        executor = outputs.simple_bind(mx.cpu(), data=data.shape)
        executor.copy_params_from(packed)
        (made,) = executor.forward(is_train=True, data=mx.nd.array(data))
        executor.backward(mx.nd.ones(made.shape))
        names[key] = {
            "arguments": outputs.list_arguments(),
            "merged": outputs.list_outputs(),
            "outputs": mx.sym.Group(steps).list_outputs(),
            "unpacked": sorted(unpacked),
        }
        arrays[f"{key}/vector"] = vector
        arrays[f"{key}/output"] = made.asnumpy()
        arrays |= {f"{key}/unpacked/{n}": a.asnumpy() for n, a in unpacked.items()}
        arrays |= {f"{key}/packed/{n}": a.asnumpy() for n, a in packed.items()}
        arrays |= {f"{key}/grad/{n}": a.asnumpy() for n, a in executor.grad_dict.items()}
    arrays["names"] = np.array(json.dumps(names))
    np.savez_compressed(HERE / "mxnet_rnn.npz", **arrays)
    mx.nd.save(
        str(HERE / "mxnet.params"),
        {
            "arg:fc_weight": mx.nd.array(np.arange(6).reshape(2, 3)),
            "arg:ids": mx.nd.array([[1, 2]], dtype="int64"),
            "arg:half": mx.nd.array([0.5], dtype="float16"),
            "aux:bn_moving_mean": mx.nd.array([1.5, 2.5], dtype="float64"),
        },
    )


main()
