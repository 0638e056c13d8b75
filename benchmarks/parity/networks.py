"""Network definitions as MXNet's examples write them; `mx` is either mxnet or symgraph.

Each function takes the module and returns a symbol. Nothing here depends on which of the two it is:
benchmarks/parity shows that one text makes the same network in both.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from benchmarks.parity import extensions, operators

LSTMState = namedtuple("LSTMState", ["c", "h"])
LSTMParam = namedtuple("LSTMParam", ["i2h_weight", "i2h_bias", "h2h_weight", "h2h_bias"])
VOCAB, HIDDEN, EMBED, STEPS, BATCH = 12, 6, 5, 4, 3


class Network(NamedTuple):
    """A definition and the shapes of its inputs.

    ids maps inputs of whole numbers, which have no gradient, to their upper limit (exclusive).
    """

    build: Callable[[Any], Any]
    shapes: Mapping[str, tuple[int, ...]]
    ids: Mapping[str, int] = {}


def mlp(mx: Any) -> Any:
    """example/image-classification/symbols/mlp.py, smaller."""
    data = mx.sym.Variable("data")
    data = mx.sym.Flatten(data=data)
    fc1 = mx.sym.FullyConnected(data=data, name="fc1", num_hidden=16)
    act1 = mx.sym.Activation(data=fc1, name="relu1", act_type="relu")
    fc2 = mx.sym.FullyConnected(data=act1, name="fc2", num_hidden=8)
    act2 = mx.sym.Activation(data=fc2, name="relu2", act_type="relu")
    fc3 = mx.sym.FullyConnected(data=act2, name="fc3", num_hidden=10)
    return mx.sym.SoftmaxOutput(data=fc3, name="softmax")


def lenet(mx: Any) -> Any:
    """example/image-classification/symbols/lenet.py, smaller."""
    data = mx.symbol.Variable("data")
    conv1 = mx.symbol.Convolution(data=data, kernel=(5, 5), num_filter=4)
    tanh1 = mx.symbol.Activation(data=conv1, act_type="tanh")
    pool1 = mx.symbol.Pooling(data=tanh1, pool_type="max", kernel=(2, 2), stride=(2, 2))
    conv2 = mx.symbol.Convolution(data=pool1, kernel=(3, 3), num_filter=5)
    tanh2 = mx.symbol.Activation(data=conv2, act_type="tanh")
    pool2 = mx.symbol.Pooling(data=tanh2, pool_type="max", kernel=(2, 2), stride=(2, 2))
    flatten = mx.symbol.Flatten(data=pool2)
    fc1 = mx.symbol.FullyConnected(data=flatten, num_hidden=12)
    tanh3 = mx.symbol.Activation(data=fc1, act_type="tanh")
    fc2 = mx.symbol.FullyConnected(data=tanh3, num_hidden=10)
    return mx.symbol.SoftmaxOutput(data=fc2, name="softmax")


def text_cnn(mx: Any) -> Any:
    """example/cnn_text_classification/text_cnn.py: windows of words, the largest of each filter."""
    sentence, filters = 7, 3
    data, label = mx.sym.Variable("data"), mx.sym.Variable("softmax_label")
    embed = mx.sym.Embedding(data=data, input_dim=VOCAB, output_dim=EMBED, name="vocab_embed")
    conv_input = mx.sym.Reshape(data=embed, target_shape=(BATCH, 1, sentence, EMBED))
    pooled = []
    for size in (2, 3, 4):
        conv = mx.sym.Convolution(data=conv_input, kernel=(size, EMBED), num_filter=filters)
        relu = mx.sym.Activation(data=conv, act_type="relu")
        pooled.append(
            mx.sym.Pooling(
                data=relu, pool_type="max", kernel=(sentence - size + 1, 1), stride=(1, 1)
            )
        )
    concat = mx.sym.Concat(*pooled, dim=1)
    h_pool = mx.sym.Reshape(data=concat, target_shape=(BATCH, 3 * filters))
    h_drop = mx.sym.Dropout(data=h_pool, p=0.0)
    weight, bias = mx.sym.Variable("cls_weight"), mx.sym.Variable("cls_bias")
    fc = mx.sym.FullyConnected(data=h_drop, weight=weight, bias=bias, num_hidden=2)
    return mx.sym.SoftmaxOutput(data=fc, label=label, name="softmax")


def lstm_cell(
    mx: Any, hidden: int, indata: Any, prev: LSTMState, param: LSTMParam, seqidx: int, layer: int
) -> LSTMState:
    """One step of example/model-parallel/lstm: gates in the order in, transform, forget, out."""
    i2h = mx.sym.FullyConnected(
        data=indata,
        weight=param.i2h_weight,
        bias=param.i2h_bias,
        num_hidden=hidden * 4,
        name=f"t{seqidx}_l{layer}_i2h",
    )
    h2h = mx.sym.FullyConnected(
        data=prev.h,
        weight=param.h2h_weight,
        bias=param.h2h_bias,
        num_hidden=hidden * 4,
        name=f"t{seqidx}_l{layer}_h2h",
    )
    gates = i2h + h2h
    slice_gates = mx.sym.SliceChannel(gates, num_outputs=4, name=f"t{seqidx}_l{layer}_slice")
    in_gate = mx.sym.Activation(slice_gates[0], act_type="sigmoid")
    in_transform = mx.sym.Activation(slice_gates[1], act_type="tanh")
    forget_gate = mx.sym.Activation(slice_gates[2], act_type="sigmoid")
    out_gate = mx.sym.Activation(slice_gates[3], act_type="sigmoid")
    next_c = (forget_gate * prev.c) + (in_gate * in_transform)
    next_h = out_gate * mx.sym.Activation(next_c, act_type="tanh")
    return LSTMState(c=next_c, h=next_h)


def lstm_parameters(mx: Any, layers: int) -> tuple[list[LSTMParam], list[LSTMState]]:
    """The variables of each layer, in its group."""
    params, states = [], []
    for i in range(layers):
        with mx.AttrScope(ctx_group=f"layer{i}"):
            params.append(
                LSTMParam(*[mx.sym.Variable(f"l{i}_{kind}") for kind in LSTMParam._fields])
            )
            states.append(
                LSTMState(c=mx.sym.Variable(f"l{i}_init_c"), h=mx.sym.Variable(f"l{i}_init_h"))
            )
    return params, states


def lstm_unroll(mx: Any, concat_decode: bool = True, use_loss: bool = False) -> Any:
    """example/model-parallel/lstm/lstm.py: groups embed, layer0, layer1 and decode."""
    layers = 2
    with mx.AttrScope(ctx_group="embed"):
        embed_weight = mx.sym.Variable("embed_weight")
    with mx.AttrScope(ctx_group="decode"):
        cls_weight, cls_bias = mx.sym.Variable("cls_weight"), mx.sym.Variable("cls_bias")
    params, states = lstm_parameters(mx, layers)
    last_hidden, out_prob = [], []
    for seqidx in range(STEPS):
        with mx.AttrScope(ctx_group="embed"):
            data = mx.sym.Variable(f"t{seqidx}_data")
            hidden = mx.sym.Embedding(
                data=data,
                weight=embed_weight,
                input_dim=VOCAB,
                output_dim=EMBED,
                name=f"t{seqidx}_embed",
            )
        for i in range(layers):
            with mx.AttrScope(ctx_group=f"layer{i}"):
                states[i] = lstm_cell(mx, HIDDEN, hidden, states[i], params[i], seqidx, i)
                hidden = states[i].h
        last_hidden.append(hidden)
    decoded = {"weight": cls_weight, "bias": cls_bias, "num_hidden": VOCAB}
    with mx.AttrScope(ctx_group="decode"):
        if concat_decode:
            concat = mx.sym.Concat(*last_hidden, dim=0)
            fc = mx.sym.FullyConnected(data=concat, **decoded)
            label = mx.sym.Variable("label")
            if use_loss:
                out_prob.append(mx.sym.softmax_cross_entropy(fc, label, name="softmax_xent"))
            else:
                out_prob.append(mx.sym.SoftmaxOutput(data=fc, label=label, name="softmax"))
        else:
            for seqidx, hidden in enumerate(last_hidden):
                fc = mx.sym.FullyConnected(data=hidden, name=f"t{seqidx}_cls", **decoded)
                label = mx.sym.Variable(f"t{seqidx}_label")
                out_prob.append(mx.sym.SoftmaxOutput(data=fc, label=label, name=f"t{seqidx}_sm"))
    last = []
    for i, state in enumerate(states):
        with mx.AttrScope(ctx_group=f"layer{i}"):
            last.append(mx.sym.BlockGrad(state.c, name=f"l{i}_last_c"))
            last.append(mx.sym.BlockGrad(state.h, name=f"l{i}_last_h"))
    return mx.sym.Group(out_prob + last)


def char_rnn(mx: Any) -> Any:
    """example/rnn/char-rnn: one sliced embedding, a hand-written LSTM, merged softmax."""
    params, (state,) = lstm_parameters(mx, 1)
    label = mx.sym.Variable("softmax_label")
    embed = mx.sym.Embedding(
        data=mx.sym.Variable("data"), input_dim=VOCAB, output_dim=EMBED, name="embed"
    )
    wordvec = mx.sym.SliceChannel(data=embed, num_outputs=STEPS, axis=1, squeeze_axis=True)
    hidden_all = []
    for seqidx in range(STEPS):
        state = lstm_cell(mx, HIDDEN, wordvec[seqidx], state, params[0], seqidx, 0)
        hidden_all.append(state.h)
    hidden_concat = mx.sym.Concat(*hidden_all, dim=0)
    pred = mx.sym.FullyConnected(data=hidden_concat, num_hidden=VOCAB, name="pred")
    label = mx.sym.transpose(data=label)
    label = mx.sym.Reshape(data=label, target_shape=(0,))
    return mx.sym.SoftmaxOutput(data=pred, label=label, name="softmax")


def recurrent(mx: Any, cell: Any) -> Any:
    """example/rnn/bucketing: a cell from mx.rnn between an embedding and a decoder."""
    data, label = mx.sym.Variable("data"), mx.sym.Variable("softmax_label")
    embed = mx.sym.Embedding(data=data, input_dim=VOCAB, output_dim=EMBED, name="embed")
    outputs, _ = cell.unroll(STEPS, inputs=embed, merge_outputs=True)
    pred = mx.sym.Reshape(outputs, shape=(-1, HIDDEN))
    pred = mx.sym.FullyConnected(data=pred, num_hidden=VOCAB, name="pred")
    label = mx.sym.Reshape(label, shape=(-1,))
    return mx.sym.SoftmaxOutput(
        data=pred,
        label=label,
        name="softmax",
        use_ignore=True,
        ignore_label=0,
        normalization="valid",
    )


def stacked_lstm(mx: Any) -> Any:
    stack = mx.rnn.SequentialRNNCell()
    for i in range(2):
        stack.add(mx.rnn.LSTMCell(num_hidden=HIDDEN, prefix=f"lstm_l{i}_"))
    return recurrent(mx, stack)


def gru(mx: Any) -> Any:
    return recurrent(mx, mx.rnn.GRUCell(num_hidden=HIDDEN, prefix="gru_"))


def rnn(mx: Any) -> Any:
    return recurrent(mx, mx.rnn.RNNCell(num_hidden=HIDDEN, activation="relu", prefix="rnn_"))


def attention(mx: Any) -> Any:
    """Masked dot-product attention over padded sequences, and the last state of each."""
    data, length = mx.sym.Variable("data"), mx.sym.Variable("length")
    scores = mx.sym.batch_dot(data, data, transpose_b=True) / EMBED**0.5
    weights = scores.softmax(axis=-1)
    mixed = mx.sym.batch_dot(weights, data)
    mixed = mx.sym.SequenceMask(mixed, length, use_sequence_length=True, axis=1)
    back = mx.sym.SequenceReverse(
        mixed.transpose((1, 0, 2)), length, use_sequence_length=True, name="back"
    )
    last = mx.sym.SequenceLast(back, length, use_sequence_length=True, name="last")
    first = mx.sym.slice_axis(mixed, axis=1, begin=0, end=1).reshape((0, -1))
    both = mx.sym.concat(last, first + mx.sym.zeros((0, EMBED)), dim=1)
    fc = mx.sym.FullyConnected(both, num_hidden=1, name="fc")
    return mx.sym.LinearRegressionOutput(fc, mx.sym.Variable("target"), name="out")


def convolve(
    mx: Any, data: Any, filters: int, kernel: tuple[int, int], name: str, **window: Any
) -> Any:
    """Convolution, BatchNorm and relu: ConvFactory of symbols/inception-bn.py."""
    conv = mx.symbol.Convolution(
        data=data, workspace=256, num_filter=filters, kernel=kernel, name=f"conv_{name}", **window
    )
    bn = mx.symbol.BatchNorm(data=conv, fix_gamma=False, eps=1e-5, momentum=0.9, name="bn_" + name)
    return mx.symbol.Activation(data=bn, act_type="relu", name=f"relu_{name}")


def inception_bn(mx: Any) -> Any:
    """The stem and one module of each kind of symbols/inception-bn.py, a quarter as wide."""
    data = mx.symbol.Variable(name="data")
    stem = convolve(mx, data, 8, (7, 7), "1", stride=(2, 2), pad=(3, 3))
    body = mx.symbol.Pooling(
        data=stem,
        kernel=(3, 3),
        stride=(2, 2),
        name="pool_1",
        pool_type="max",
        pooling_convention="full",
    )
    for name, pool in (("3a", "avg"), ("3b", "max")):
        c1 = convolve(mx, body, 4, (1, 1), name + "_1x1")
        c3r = convolve(mx, body, 4, (1, 1), name + "_3x3_reduce")
        c3 = convolve(mx, c3r, 6, (3, 3), name + "_3x3", pad=(1, 1))
        pooling = mx.symbol.Pooling(
            data=body,
            kernel=(3, 3),
            stride=(1, 1),
            pad=(1, 1),
            pool_type=pool,
            name=f"{pool}_pool_{name}_pool",
        )
        cproj = convolve(mx, pooling, 3, (1, 1), name + "_proj")
        body = mx.symbol.Concat(*[c1, c3, cproj], name=f"ch_concat_{name}_chconcat")
    d3r = convolve(mx, body, 4, (1, 1), "3c_3x3_reduce")
    d3 = convolve(mx, d3r, 5, (3, 3), "3c_3x3", pad=(1, 1), stride=(2, 2))
    shrunk = mx.symbol.Pooling(
        data=body, kernel=(3, 3), stride=(2, 2), pad=(1, 1), name="max_pool_3c", pool_type="max"
    )
    body = mx.symbol.Concat(*[d3, shrunk], name="ch_concat_3c_chconcat")
    avg = mx.symbol.Pooling(
        data=body, kernel=(7, 7), name="global_pool", global_pool=True, pool_type="avg"
    )
    fc1 = mx.symbol.FullyConnected(data=mx.symbol.Flatten(data=avg), num_hidden=10, name="fc1")
    return mx.symbol.SoftmaxOutput(data=fc1, name="softmax")


STATES = {f"l{i}_init_{s}": (BATCH, HIDDEN) for i in range(2) for s in "ch"}
WORDS = {f"t{t}_data": (BATCH,) for t in range(STEPS)}
LABELS = {f"t{t}_label": (BATCH,) for t in range(STEPS)}
SENTENCES = {"data": (BATCH, STEPS), "softmax_label": (BATCH, STEPS)}
UNROLLED = {**WORDS, **STATES}
CLASSES = {"softmax_label": 10}


def ids(*names: str) -> dict[str, int]:
    return dict.fromkeys(names, VOCAB)


NETWORKS: dict[str, Network] = {
    "mlp": Network(mlp, {"data": (BATCH, 1, 4, 5)}, CLASSES),
    "lenet": Network(lenet, {"data": (BATCH, 1, 14, 14)}, CLASSES),
    "text_cnn": Network(text_cnn, {"data": (BATCH, 7)}, {"data": VOCAB, "softmax_label": 2}),
    "char_rnn": Network(
        char_rnn,
        {**SENTENCES, "l0_init_c": (BATCH, HIDDEN), "l0_init_h": (BATCH, HIDDEN)},
        ids(*SENTENCES),
    ),
    "lstm_unroll": Network(
        lstm_unroll, {**UNROLLED, "label": (BATCH * STEPS,)}, ids(*WORDS, "label")
    ),
    "lstm_unroll_steps": Network(
        lambda mx: lstm_unroll(mx, concat_decode=False),
        {**UNROLLED, **LABELS},
        ids(*WORDS, *LABELS),
    ),
    "lstm_unroll_loss": Network(
        lambda mx: lstm_unroll(mx, use_loss=True),
        {**UNROLLED, "label": (BATCH * STEPS,)},
        ids(*WORDS, "label"),
    ),
    "stacked_lstm": Network(stacked_lstm, SENTENCES, ids(*SENTENCES)),
    "gru": Network(gru, SENTENCES, ids(*SENTENCES)),
    "rnn": Network(rnn, SENTENCES, ids(*SENTENCES)),
    "attention": Network(
        attention,
        {"data": (BATCH, STEPS, EMBED), "length": (BATCH,), "target": (BATCH, 1)},
        {"length": STEPS, "target": 2},
    ),
    "functions": Network(operators.functions, {"x": (3, 4)}),
    "operators": Network(operators.operators, {"x": (3, 2, 4, 3), "y": (3, 2, 4, 3)}),
    "selection": Network(
        operators.selection, {"x": (3, 4), "y": (4, 3, 2), "places": (2, 5)}, {"places": 3}
    ),
    "reductions": Network(operators.reductions, {"x": (2, 3, 4), "y": (5, 4, 3)}),
    "images": Network(operators.images, {"x": (2, 4, 3, 2), "y": (2, 4, 6, 4)}),
    "soft_labels": Network(
        operators.soft_labels,
        {"x": (3, 4), "y": (2, 3, 4), "p": (3, 4), "q": (2, 3, 4)},
        {"p": 3, "q": 2},
    ),
    "svm": Network(
        operators.svm, {"x": (5, 4), "squared_label": (5,)}, {"squared_label": 4, "hinge_label": 4}
    ),
    "ctc": Network(
        extensions.ctc,
        {"data": (6, 4, 5), "label": (4, 3), "length": (4,)},
        {"label": 5, "length": 6},
    ),
    "loop": Network(extensions.loop, {"x": (STEPS, BATCH, EMBED), "begin": (BATCH, HIDDEN)}),
    "matrices": Network(extensions.matrices, {"a": (2, 3, 3), "b": (2, 3, 4), "c": (2, 3, 4)}),
    "places": Network(
        extensions.places,
        {
            **{"x": (2, 3, 6, 7), "y": (2, 3, 6, 7), "theta": (2, 6), "flow": (2, 2, 6, 7)},
            **{"image": (5, 1), "corners": (5, 4)},
        },
        {"image": 2, "corners": 10},
    ),
    "detector": Network(
        extensions.detector,
        {
            **{"x": (1, 1, 3, 4), "low": (2, 3, 2), "size": (2, 3, 2), "classes": (2, 3, 1)},
            **{"scores": (2, 36, 4), "shift": (2, 144)},
        },
        {"classes": 3, "low": 5, "size": 3},  # MXNet does not set the gradient of labels
    ),
    "custom": Network(extensions.custom, {"x": (BATCH, 4), "y": (2, 2)}),
    "inception_bn": Network(inception_bn, {"data": (BATCH, 3, 32, 32)}, CLASSES),
}
