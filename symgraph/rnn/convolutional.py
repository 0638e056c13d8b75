"""Cells whose states are images: convolutions in place of dense layers (MXNet's Conv...Cell)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from symgraph.core.errors import GraphError
from symgraph.frontend import sym
from symgraph.frontend.symbol import Symbol
from symgraph.rnn.cells import BaseRNNCell, RNNParams, States, require_count, with_batch_of

Pair = tuple[int, int]
Act = str | Callable[..., Symbol]


def leaky(x: Symbol, **name: Any) -> Symbol:
    """Apply a leaky relu of slope 0.2, the cells' usual activation."""
    return sym.LeakyReLU(x, act_type="leaky", slope=0.2, **name)


class BaseConvRNNCell(BaseRNNCell):
    """Base class of cells with a convolution of the inputs (i2h) and of the state (h2h).

    Args:
        input_shape: shape of the inputs of a time step, (B, channels, height, width); B is not
            used.
        num_hidden: channels of the state.
        h2h_kernel: odd height and width of the state's kernel, whose padding keeps the size.
        h2h_dilate: dilation of the state's kernel.
        i2h_kernel: height and width of the inputs' kernel.
        i2h_stride: its stride.
        i2h_pad: its padding.
        i2h_dilate: its dilation.
        i2h_weight_initializer: initializer of the inputs' kernel; None: the network's.
        h2h_weight_initializer: the same of the state's kernel.
        i2h_bias_initializer: initializer of the inputs' bias.
        h2h_bias_initializer: the same of the state's bias.
        activation: the `act_type` of an Activation, or a function of a symbol and a `name`.
        prefix: prefix of the names of nodes and parameters.
        params: a container of variables to share with another cell.
        conv_layout: layout of images, NCHW.

    Raises:
        GraphError: for an even h2h_kernel, or a wrong number.
        ShapeError: for an input_shape that the inputs' kernel does not fit.
    """

    PREFIX = ""
    STATES = 1

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_hidden: int,
        h2h_kernel: Pair = (3, 3),
        h2h_dilate: Pair = (1, 1),
        i2h_kernel: Pair = (3, 3),
        i2h_stride: Pair = (1, 1),
        i2h_pad: Pair = (1, 1),
        i2h_dilate: Pair = (1, 1),
        i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros",
        h2h_bias_initializer: Any = "zeros",
        activation: Act = leaky,
        prefix: str | None = None,
        params: RNNParams | None = None,
        conv_layout: str = "NCHW",
    ) -> None:
        super().__init__(self.PREFIX if prefix is None else prefix, params)
        who = f"{type(self).__name__} {self._prefix!r}"
        require_count(who, "num_hidden", num_hidden)
        if not all(size % 2 for size in h2h_kernel):
            raise GraphError(f"{who}: h2h_kernel is {h2h_kernel}, but both sizes must be odd")
        self._num_hidden, self._activation = num_hidden, activation
        same = tuple(d * (k - 1) // 2 for d, k in zip(h2h_dilate, h2h_kernel, strict=True))
        kernels = {
            "i2h": (i2h_kernel, i2h_stride, i2h_pad, i2h_dilate),
            "h2h": (h2h_kernel, (1, 1), same, h2h_dilate),
        }
        self._convolutions: dict[str, dict[str, Any]] = {
            kind: dict(zip(("kernel", "stride", "pad", "dilate"), pairs, strict=True))
            for kind, pairs in kernels.items()
        }
        self._layout = conv_layout
        self._weights = {
            "i2h": self._variables("i2h", i2h_weight_initializer, i2h_bias_initializer),
            "h2h": self._variables("h2h", h2h_weight_initializer, h2h_bias_initializer),
        }
        image = sym.Variable("data", shape=(1, *input_shape[1:]))
        made = sym.Convolution(
            image, num_filter=num_hidden, layout=conv_layout, **self._convolutions["i2h"]
        )
        _, (shape,), _ = made.infer_shape()
        self._shape = (0, *shape[1:])

    def _variables(self, kind: str, weight: Any, bias: Any) -> tuple[Symbol, Symbol]:
        """Return the weight and the bias of a convolution, with these initializers."""
        get = self.params.get
        return get(f"{kind}_weight", init=weight), get(f"{kind}_bias", init=bias)

    @property
    def state_info(self) -> list[dict[str, Any]]:
        return [{"shape": self._shape, "__layout__": self._layout} for _ in range(self.STATES)]

    def _gates(self, name: str, inputs: Symbol, state: Symbol) -> list[Symbol]:
        """Return the convolutions of the inputs and of the state, for all gates."""
        filters = len(self.gates) * self._num_hidden
        return [
            sym.Convolution(
                data,
                *self._weights[kind],
                num_filter=filters,
                layout=self._layout,
                name=f"{name}{kind}",
                **self._convolutions[kind],
            )
            for kind, data in (("i2h", inputs), ("h2h", state))
        ]


class ConvRNNCell(BaseConvRNNCell):
    """A plain cell: h' = activation(W_i * x + b_i + W_h * h + b_h) (`mx.rnn.ConvRNNCell`).

    Arguments are those of `BaseConvRNNCell`.
    """

    PREFIX = "ConvRNN_"
    gates = ("",)

    def _step(self, name: str, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        i2h, h2h = self._gates(name, inputs, with_batch_of(states[0], inputs))
        output = self._get_activation(i2h + h2h, self._activation, name=f"{name}out")
        return output, [output]


class ConvLSTMCell(BaseConvRNNCell):
    """Long short-term memory with convolutions (`mx.rnn.ConvLSTMCell`; arXiv:1506.04214).

    Arguments are those of `BaseConvRNNCell`.
    """

    PREFIX = "ConvLSTM_"
    STATES = 2
    gates = ("_i", "_f", "_c", "_o")

    def _step(self, name: str, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        h, c = (with_batch_of(state, inputs) for state in states)
        i2h, h2h = self._gates(name, inputs, h)
        i, f, new, o = sym.SliceChannel(i2h + h2h, num_outputs=4, axis=1, name=f"{name}slice")
        i = sym.Activation(i, act_type="sigmoid", name=f"{name}i")
        f = sym.Activation(f, act_type="sigmoid", name=f"{name}f")
        new = self._get_activation(new, self._activation, name=f"{name}c")
        o = sym.Activation(o, act_type="sigmoid", name=f"{name}o")
        next_c = sym.elemwise_add(f * c, i * new, name=f"{name}state")
        active = self._get_activation(next_c, self._activation)
        next_h = sym.elemwise_mul(o, active, name=f"{name}out")
        return next_h, [next_h, next_c]


class ConvGRUCell(BaseConvRNNCell):
    """Gated recurrent unit with convolutions (`mx.rnn.ConvGRUCell`).

    Arguments are those of `BaseConvRNNCell`.
    """

    PREFIX = "ConvGRU_"
    gates = ("_r", "_z", "_o")

    def _step(self, name: str, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        h = with_batch_of(states[0], inputs)
        i2h, h2h = self._gates(name, inputs, h)
        inner = f"{name}_"  # in MXNet, names of inner nodes have a second underscore
        i_r, i_z, i_new = sym.SliceChannel(i2h, num_outputs=3, name=f"{inner}i2h_slice")
        h_r, h_z, h_new = sym.SliceChannel(h2h, num_outputs=3, name=f"{inner}h2h_slice")
        r = sym.Activation(i_r + h_r, act_type="sigmoid", name=f"{inner}r_act")
        z = sym.Activation(i_z + h_z, act_type="sigmoid", name=f"{inner}z_act")
        new = self._get_activation(i_new + r * h_new, self._activation, name=f"{inner}h_act")
        output = sym.elemwise_add((1.0 - z) * new, z * h, name=f"{name}out")
        return output, [output]
