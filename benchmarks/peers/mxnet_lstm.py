"""MXNet 1.9.1: an unrolled symbol in two groups over two CPU contexts, as example/model-parallel.

    PYTHON -m benchmarks.peers.mxnet_lstm CONFIG

The embedding is with the first half of the layers, the decoder with the second half.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

for kind in (bool, float, int, object):  # names that MXNet 1.9.1 uses and numpy has removed
    if kind.__name__ not in vars(np):
        setattr(np, kind.__name__, kind)

import mxnet as mx  # noqa: E402  (needs the names above)

from benchmarks.peers.protocol import (  # noqa: E402
    CLIP,
    CONFIGS,
    RATE,
    VOCAB,
    Config,
    batches,
    serve,
)

S = mx.sym


def group(part: int) -> mx.AttrScope:
    return mx.AttrScope(ctx_group=f"part{part}")


def layer(inputs: list[Any], hidden: int, name: str) -> list[Any]:
    """Build one unrolled layer of the example's cells."""
    weights = {
        kind: {n: S.Variable(f"{name}_{kind}_{n}") for n in ("weight", "bias")}
        for kind in ("i2h", "h2h")
    }
    c, h = S.Variable(f"{name}_init_c"), S.Variable(f"{name}_init_h")
    outputs = []
    for x in inputs:
        projection = S.FullyConnected(x, num_hidden=4 * hidden, **weights["i2h"])
        recurrent = S.FullyConnected(h, num_hidden=4 * hidden, **weights["h2h"])
        gates = S.SliceChannel(projection + recurrent, num_outputs=4)
        i, f, o = (S.Activation(gates[k], act_type="sigmoid") for k in (0, 2, 3))
        c = f * c + i * S.Activation(gates[1], act_type="tanh")
        h = o * S.Activation(c, act_type="tanh")
        outputs.append(h)
    return outputs


def network(config: Config) -> Any:
    with group(0):
        embedded = S.Embedding(
            S.Variable("data"), input_dim=VOCAB, output_dim=config.hidden, name="embed"
        )
        x = list(S.SliceChannel(embedded, num_outputs=config.steps, axis=0, squeeze_axis=True))
    for i in range(config.layers):
        with group(2 * i // config.layers):
            x = layer(x, config.hidden, f"layer{i}")
    with group(1):
        scores = S.FullyConnected(S.Concat(*x, dim=0), num_hidden=VOCAB, name="decode")
        return S.SoftmaxOutput(scores, S.Variable("label"), normalization="batch", name="softmax")


def main() -> None:
    config = CONFIGS[sys.argv[1]]
    shapes = {"data": (config.steps, config.batch), "label": (config.count,)}
    for i in range(config.layers):
        shapes |= {f"layer{i}_init_{s}": (config.batch, config.hidden) for s in "ch"}
    symbol = network(config)
    names = [n for n in symbol.list_arguments() if n not in shapes]
    executor = symbol.simple_bind(
        mx.cpu(0),
        group2ctx={"part0": mx.cpu(0), "part1": mx.cpu(1)},
        grad_req={**dict.fromkeys(shapes, "null"), **dict.fromkeys(names, "write")},
        **shapes,
    )
    rng = np.random.RandomState(0)
    bound = config.hidden**-0.5
    for name, array in executor.arg_dict.items():
        array[:] = 0 if name in shapes else rng.uniform(-bound, bound, array.shape).astype("f")
    given = batches(config)
    data = [(mx.nd.array(x), mx.nd.array(label.reshape(-1))) for x, label in given]

    def step(number: int) -> float:
        executor.arg_dict["data"][:], executor.arg_dict["label"][:] = data[number]
        executor.forward(is_train=True)
        executor.backward()
        norms = [mx.nd.norm(executor.grad_dict[n]) for n in names]
        norm = sum(float(n.asscalar()) ** 2 for n in norms) ** 0.5
        scale = min(1.0, CLIP / (norm + 1e-6))
        for name in names:
            weight = executor.arg_dict[name]
            mx.nd.sgd_update(
                weight, executor.grad_dict[name], out=weight, lr=RATE, rescale_grad=scale, wd=0.0
            )
        mx.nd.waitall()
        return norm  # SoftmaxOutput returns no loss

    serve(step, f"mxnet {mx.__version__}")


if __name__ == "__main__":
    main()
