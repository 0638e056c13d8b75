"""What MXNet 1.9.1 makes of recurrent cells, modules and parameter files, as test data.

    PYTHON_WITH_MXNET tests/symgraph/data/write_mxnet.py

Writes mxnet_rnn.npz, mxnet_cells.npz, mxnet_module.npz, mxnet_optimizers.npz, mxnet.params and
mxnet_list.params beside itself. Needs MXNet 1.9.1 alone.
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

    unnamed = [mx.nd.arange(3), mx.nd.ones((2, 2), dtype="int8")]
    mx.nd.save(str(HERE / "mxnet_list.params"), unnamed)

    np.savez_compressed(HERE / "mxnet_module.npz", **trained())
    np.savez_compressed(HERE / "mxnet_optimizers.npz", **updated())
    np.savez_compressed(HERE / "mxnet_cells.npz", **convolved())


def trained():
    """Two epochs of `fit` from given parameters, for each optimizer; what it then predicts."""
    rng = np.random.RandomState(1)
    data = rng.normal(size=(10, 4)).astype("float32")
    label = rng.randint(0, 3, 10).astype("float32")
    first = {
        "fc1_weight": rng.normal(size=(8, 4)),
        "fc1_bias": rng.normal(size=8),
        "fc2_weight": rng.normal(size=(3, 8)),
        "fc2_bias": rng.normal(size=3),
    }
    arrays = {"data": data, "label": label} | {f"first/{n}": a for n, a in first.items()}
    optimizers = {
        "sgd": {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01},
        "adam": {"learning_rate": 0.05},
        "rmsprop": {"learning_rate": 0.01, "clip_gradient": 0.1},
        "adagrad": {"learning_rate": 0.1, "wd": 0.01},
        "ftrl": {"wd": 0.01},
        "lamb": {"learning_rate": 0.05, "wd": 0.01},
    }
    for kind, settings in optimizers.items():
        x = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=8, name="fc1")
        x = mx.sym.Activation(x, act_type="tanh", name="act")
        x = mx.sym.FullyConnected(x, num_hidden=3, name="fc2")
        module = mx.mod.Module(mx.sym.SoftmaxOutput(x, name="softmax"))
        batches = mx.io.NDArrayIter(data, label, batch_size=4)
        figures = []
        module.fit(
            batches,
            eval_metric=["acc", "ce"],
            optimizer=kind,
            optimizer_params=settings,
            num_epoch=2,
            arg_params={n: mx.nd.array(a) for n, a in first.items()},
            batch_end_callback=lambda p, figures=figures: figures.append(
                [value for _, value in p.eval_metric.get_name_value()]
            ),
        )
        arrays[f"{kind}/figures"] = np.array(figures)
        arrays[f"{kind}/settings"] = np.array(json.dumps(settings))
        arrays[f"{kind}/predicted"] = module.predict(batches).asnumpy()
        arrays |= {f"{kind}/{n}": a.asnumpy() for n, a in module.get_params()[0].items()}
    return arrays


CONVOLUTIONAL = {
    "ConvRNNCell": {"activation": "tanh"},
    "ConvLSTMCell": {"i2h_stride": (2, 1), "h2h_kernel": (3, 1)},
    "ConvGRUCell": {"h2h_dilate": (2, 2), "i2h_kernel": (1, 3), "i2h_pad": (0, 1)},
}


def convolved():
    """Two time steps of each convolutional cell, from zeros: outputs and gradients."""
    arrays, names = {}, {}
    for kind, settings in CONVOLUTIONAL.items():
        cell = getattr(mx.rnn, kind)((2, 2, 4, 5), 3, prefix="c_", **settings)
        images = [mx.sym.Variable(f"in_t{t}_data") for t in range(2)]
        outputs, states = cell.unroll(2, images, merge_outputs=False)
        net = mx.sym.Group([*outputs, *states[1:]])  # states[0] is the last output
        shapes = {f"in_t{t}_data": (2, 2, 4, 5) for t in range(2)}
        executor = net.simple_bind(mx.cpu(), **shapes)
        rng = np.random.RandomState(5)
        for name in sorted(executor.arg_dict):
            value = rng.normal(scale=0.5, size=executor.arg_dict[name].shape).astype("float32")
            executor.arg_dict[name][:] = value
            arrays[f"{kind}/{name}"] = value
        made = executor.forward(is_train=True)
        executor.backward([mx.nd.ones(array.shape) for array in made])
        names[kind] = [net.list_arguments(), net.list_outputs()]
        arrays |= {f"{kind}/made/{i}": array.asnumpy() for i, array in enumerate(made)}
        arrays |= {f"{kind}/grad/{n}": a.asnumpy() for n, a in executor.grad_dict.items()}
    arrays["names"] = np.array(json.dumps(names))
    arrays["settings"] = np.array(json.dumps(CONVOLUTIONAL))
    return arrays


UPDATES = {
    "sgd": [{}, {"momentum": 0.9}],
    "nag": [{"momentum": 0.9, "wd": 0.0}],  # its decay of the momentum reads the new weight
    "adam": [{}],
    "rmsprop": [{}, {"centered": True, "gamma2": 0.5}, {"clip_weights": 0.75}],
    "adagrad": [{}, {"eps": 0.01}],
    "adadelta": [{}, {"rho": 0.7, "epsilon": 0.001}],
    "adamax": [{}],
    "ftml": [{}, {"beta1": 0.3, "epsilon": 0.01}],
    "ftrl": [{}, {"lamda1": 0.5, "beta": 0.3}],
    "lamb": [{}, {"lower_bound": 2.0, "upper_bound": 3.0, "bias_correction": False}],
    "nadam": [{}, {"schedule_decay": 0.1, "beta1": 0.7}],
    "signum": [{}, {"wd_lh": 0.1}, {"momentum": 0.0}],
}


def updated():
    """A weight after each of 4 updates, for each optimizer and its settings."""
    rng = np.random.RandomState(2)
    weight = rng.normal(size=(3, 4)).astype("float32")
    grads = rng.normal(size=(4, 3, 4)).astype("float32")
    arrays = {"weight": weight, "grads": grads}
    common = {"learning_rate": 0.1, "wd": 0.05, "rescale_grad": 0.5}
    for kind, cases in UPDATES.items():
        for number, own in enumerate(cases):
            for clip in (None, 0.3):
                settings = {**common, **own, **({} if clip is None else {"clip_gradient": clip})}
                updater = mx.optimizer.get_updater(mx.optimizer.create(kind, **settings))
                here, found = mx.nd.array(weight), []
                for grad in grads:
                    updater(0, mx.nd.array(grad), here)
                    found.append(here.asnumpy())
                key = f"{kind}/{number}/{clip}"
                arrays[key] = np.array(found)
                arrays[f"{key}/settings"] = np.array(json.dumps(settings))
    return arrays


main()
