"""Written by python -m symgraph.frontend.stubs."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Literal

from numpy import dtype

from symgraph.core.context import Context
from symgraph.core.types import Array, Shape
from symgraph.frontend import random as random
from symgraph.frontend.control_flow import Nested
from symgraph.frontend.ndarray import NDArray as NDArray
from symgraph.frontend.ndarray import array as array

def Activation(
    data: NDArray | None = None,
    *,
    act_type: Literal['relu', 'sigmoid', 'tanh', 'softsign', 'softrelu'] | str,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""One of relu, sigmoid, tanh, softrelu, softsign, element by element. MXNet Activation."""

def BatchNorm(
    data: NDArray | None = None,
    gamma: NDArray | None = None,
    beta: NDArray | None = None,
    moving_mean: NDArray | None = None,
    moving_var: NDArray | None = None,
    eps: float = 0.001,
    momentum: float = 0.9,
    fix_gamma: bool = True,
    use_global_stats: bool = False,
    output_mean_var: bool = False,
    axis: int = 1,
    cudnn_off: bool = False,
    min_calib_range: Any = None,
    max_calib_range: Any = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""(data - mean) / sqrt(var + eps) * gamma + beta over all axes but `axis`; gamma, beta and
    the moving mean and variance are vectors along `axis`. Training uses the mean and
    (biased) variance of the batch and updates moving to momentum * moving + (1 - momentum) *
    batch; evaluation and use_global_stats use the moving ones. fix_gamma: gamma is 1 and its
    gradient 0. cudnn_off is accepted and ignored. MXNet BatchNorm."""

def BilinearSampler(
    data: NDArray | None = None,
    grid: NDArray | None = None,
    cudnn_off: Any = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The data (N, C, H, W) at the places of a grid (N, 2, h, w), from -1 to 1, by bilinear
    interpolation, with zeros outside: (N, C, h, w). MXNet BilinearSampler."""

def BlockGrad(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The same value, through which no gradient flows. MXNet BlockGrad."""

def CTCLoss(
    data: NDArray | None = None,
    label: NDArray | None = None,
    data_lengths: NDArray | None = None,
    label_lengths: NDArray | None = None,
    use_data_lengths: bool = False,
    use_label_lengths: bool = False,
    blank_label: Literal['first', 'last'] | str = 'first',
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""-log of the probability of the labels under connectionist temporal classification: (N,).
    data (T, N, C): activations, of which softmax is taken; label (N, L): classes, with L at
    most T. The blank is class 0 (blank_label first; labels end at a 0) or C - 1 (last; they
    end at a -1). use_data_lengths, use_label_lengths: two more inputs (N,), the numbers of
    time steps and of labels that count. A sample with too few steps for its labels has loss
    and gradient 0, as in MXNet; a label or length out of range raises IndexError. MXNet
    CTCLoss."""

def Cast(
    data: NDArray | None = None,
    *,
    dtype: str | type[Any] | dtype[Any],
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The same values in another dtype; gradients flow between floats only. MXNet Cast."""

def Concat(
    *args: NDArray | Sequence[NDArray],
    dim: int = 1,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Values joined along axis `dim`; all other axes have equal lengths. MXNet Concat."""

def Convolution(
    data: NDArray | None = None,
    weight: NDArray | None = None,
    bias: NDArray | None = None,
    *,
    kernel: int | Sequence[int],
    stride: int | Sequence[int] = (),
    dilate: int | Sequence[int] = (),
    pad: int | Sequence[int] = (),
    num_filter: int,
    num_group: int = 1,
    workspace: int = 1024,
    no_bias: bool = False,
    cudnn_tune: Literal['off', 'limited_workspace', 'fastest'] | str | None = None,
    cudnn_off: bool = False,
    layout: Literal['NCW', 'NCHW', 'NCDHW'] | str | None = None,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Convolution of data (batch, channel, *spatial), with one to three spatial axes, with
    weight (num_filter, channel / num_group, *kernel), plus bias (num_filter,). An axis of
    length n becomes floor((n + 2 pad - dilate (kernel - 1) - 1) / stride) + 1. With groups,
    each group of filters reads its group of channels. workspace and cudnn_* are accepted and
    ignored. MXNet Convolution."""

def Correlation(
    data1: NDArray | None = None,
    data2: NDArray | None = None,
    kernel_size: int = 1,
    max_displacement: int = 1,
    stride1: int = 1,
    stride2: int = 1,
    pad_size: int = 0,
    is_multiply: bool = True,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The mean product (or, with is_multiply=False, distance) of patches of kernel_size squared
    pixels of data1 and of data2 (N, C, H, W), displaced by up to max_displacement in steps
    of stride2; a channel for each displacement, a place for every stride1 pixels
    (Dosovitskiy et al. 2015). pad_size: zeros around both. MXNet Correlation."""

def Crop(
    *args: NDArray | Sequence[NDArray],
    offset: int | Sequence[int] = (0, 0),
    h_w: int | Sequence[int] = (0, 0),
    center_crop: bool = False,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""A window of (batch, channel, height, width) data, as large as a second input or h_w, that
    begins at `offset` or lies in the middle (center_crop). MXNet Crop."""

def Custom(
    *args: NDArray | Sequence[NDArray],
    op_type: str,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
    **kwargs: Any,
) -> Any:
    r"""The operator that a CustomOpProp registered as op_type describes; see
    symgraph.operator.CustomOp. Further arguments are passed to the CustomOpProp, as strings.
    MXNet Custom."""

def Deconvolution(
    data: NDArray | None = None,
    weight: NDArray | None = None,
    bias: NDArray | None = None,
    *,
    kernel: int | Sequence[int],
    stride: int | Sequence[int] = (),
    dilate: int | Sequence[int] = (),
    pad: int | Sequence[int] = (),
    adj: int | Sequence[int] = (),
    target_shape: int | Sequence[int] = (),
    num_filter: int,
    num_group: int = 1,
    workspace: int = 512,
    no_bias: bool = True,
    cudnn_tune: Literal['off', 'limited_workspace', 'fastest'] | str | None = None,
    cudnn_off: bool = False,
    layout: Literal['NCW', 'NCHW', 'NCDHW'] | str | None = None,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The transpose of Convolution: data (batch, channel, *spatial), weight (channel,
    num_filter / num_group, *kernel). An axis of length n becomes stride (n - 1) + dilate
    (kernel - 1) + 1 - 2 pad + adj, or target_shape, which sets pad and adj. MXNet
    Deconvolution."""

def Dropout(
    data: NDArray | None = None,
    p: float = 0.5,
    mode: Literal['training', 'always'] | str = 'training',
    axes: int | Sequence[int] = (),
    cudnn_off: bool = False,
    stream: str = '',
    axis: int = -1,
    outer: int = 1,
    inner: int = 1,
    first: int = 0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""In training (or always, with mode='always'), zero for a share p of the elements and 1 /
    (1 - p) times the data for the others. axes: one draw for all elements along them. The
    mask is a function of seed, step, `stream` (the node's name) and the sample; axis, outer
    and inner say where the batch lies (batch_layout.Split; axis -1: nowhere); first: samples
    of the micro-batch before these. cudnn_off is accepted and ignored. MXNet Dropout."""

def Embedding(
    data: NDArray | None = None,
    weight: NDArray | None = None,
    *,
    input_dim: int,
    output_dim: int,
    dtype: str | type[Any] | dtype[Any] = 'float32',
    sparse_grad: bool = False,
    begin: int = 0,
    classes: int = 0,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Rows of weight (input_dim, output_dim), selected by data of any shape that holds ids as
    integers or floats. An id outside 0..input_dim-1 raises IndexError (MXNet clips it).
    dtype: the weight's, if nothing else determines it. sparse_grad is accepted and ignored.
    begin, classes: for shards of the weight, which have the rows from `begin` on of
    `classes` and give zeros for other ids. MXNet Embedding."""

def Flatten(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""All axes but the first merged into one. MXNet Flatten."""

def FullyConnected(
    data: NDArray | None = None,
    weight: NDArray | None = None,
    bias: NDArray | None = None,
    *,
    num_hidden: int,
    no_bias: bool = False,
    flatten: bool = True,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""y = x W^T + b with data (B, ...), weight (num_hidden, inputs) and bias (num_hidden,).
    With flatten=False only the last axis is the input axis. MXNet FullyConnected."""

def GridGenerator(
    data: NDArray | None = None,
    *,
    transform_type: Literal['affine', 'warp'] | str,
    target_shape: int | Sequence[int] = (0, 0),
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The grid of a spatial transformer: (N, 2, h, w). affine: of target_shape (h, w), by a
    matrix of 2 rows and 3 columns for each sample, data (N, 6). warp: the place of each
    pixel, moved by data (N, 2, h, w) pixels. MXNet GridGenerator."""

def GroupNorm(
    data: NDArray | None = None,
    gamma: NDArray | None = None,
    beta: NDArray | None = None,
    num_groups: int = 1,
    eps: float = 1e-05,
    output_mean_var: bool = False,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""(data - mean) / sqrt(var + eps) * gamma + beta with mean and (biased) variance of each
    sample and group of channels; gamma and beta have one number for each group. data:
    (batch, channel, ...). MXNet GroupNorm."""

def IdentityAttachKLSparseReg(
    data: NDArray | None = None,
    moving_avg: NDArray | None = None,
    sparseness_target: float = 0.1,
    penalty: float = 0.001,
    momentum: float = 0.9,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The data (batch, units), which are outputs of a sigmoid; the gradient has penalty * ((1 -
    target) / (1 - average) - target / average) added, so that each unit is as seldom active
    as sparseness_target says. Training moves the average of each unit, moving_avg, to
    momentum * moving_avg + (1 - momentum) * the batch's mean; the gradient sees it moved.
    MXNet IdentityAttachKLSparseReg."""

def InstanceNorm(
    data: NDArray | None = None,
    gamma: NDArray | None = None,
    beta: NDArray | None = None,
    eps: float = 0.001,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""(data - mean) / sqrt(var + eps) * gamma + beta with mean and (biased) variance of each
    sample and channel; gamma and beta have one number for each channel. data: (batch,
    channel, ...). MXNet InstanceNorm."""

def L2Normalization(
    data: NDArray | None = None,
    eps: float = 1e-10,
    mode: Literal['channel', 'instance', 'spatial'] | str = 'instance',
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""data / sqrt(sum(data ** 2) + eps). The sum is over all axes but the first (mode
    instance), over axis 1 (channel), or over all but the first two (spatial). MXNet
    L2Normalization."""

def LRN(
    data: NDArray | None = None,
    *,
    alpha: float = 0.0001,
    beta: float = 0.75,
    knorm: float = 2.0,
    nsize: int,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""data / (knorm + alpha / nsize * s) ** beta, where s is the sum of squares of the nsize
    channels (axis 1) around each. MXNet LRN."""

def LayerNorm(
    data: NDArray | None = None,
    gamma: NDArray | None = None,
    beta: NDArray | None = None,
    axis: int = -1,
    eps: float = 1e-05,
    output_mean_var: bool = False,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""(data - mean) / sqrt(var + eps) * gamma + beta with mean and (biased) variance along
    `axis`; gamma and beta are vectors along it. MXNet LayerNorm."""

def LeakyReLU(
    data: NDArray | None = None,
    gamma: NDArray | None = None,
    act_type: Literal['leaky', 'elu', 'selu', 'gelu', 'prelu'] | str = 'leaky',
    slope: float = 0.25,
    lower_bound: float = 0.125,
    upper_bound: float = 0.334,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Data where it is positive; else slope * data (leaky), gamma * data with gamma of shape
    (1,) or one for each position of axis 1 (prelu), or slope * (e ** data - 1) (elu). selu:
    elu with constants that keep mean and variance. gelu: data times the normal
    distribution's cdf at data. The bounds are rrelu's, which is not offered. MXNet
    LeakyReLU."""

def LinearRegressionOutput(
    data: NDArray | None = None,
    label: NDArray | None = None,
    grad_scale: float = 1.0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The data, and the head of the backward pass: the gradient of (data - label) ** 2 / 2,
    summed over samples and averaged over the elements of a sample, times grad_scale. label:
    any dtype, as many elements a row of axis 0 as the data. MXNet LinearRegressionOutput."""

def LogisticRegressionOutput(
    data: NDArray | None = None,
    label: NDArray | None = None,
    grad_scale: float = 1.0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""sigmoid(data), and the head of the backward pass: the gradient of the cross entropy with
    the label, summed over samples and averaged over the elements of a sample, times
    grad_scale. label: any dtype, as many elements a row of axis 0 as the data. MXNet
    LogisticRegressionOutput."""

def MAERegressionOutput(
    data: NDArray | None = None,
    label: NDArray | None = None,
    grad_scale: float = 1.0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The data, and the head of the backward pass: the gradient of |data - label|, summed over
    samples and averaged over the elements of a sample, times grad_scale. label: any dtype,
    as many elements a row of axis 0 as the data. MXNet MAERegressionOutput."""

def MakeLoss(
    data: NDArray | None = None,
    grad_scale: float = 1.0,
    valid_thresh: float = 0.0,
    normalization: Literal['null', 'batch', 'valid'] | str = 'null',
    count: int = 0,
    share: float = 1.0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The data as a loss: a head of the backward pass whose gradient is grad_scale, divided by
    the length of axis 0 (normalization 'batch') or by the number of elements above
    valid_thresh ('valid'). share: the part of a loss without samples that each micro-batch
    contributes. MXNet MakeLoss."""

def Pad(
    data: NDArray | None = None,
    *,
    mode: Literal['constant', 'edge', 'reflect'] | str,
    pad_width: int | Sequence[int],
    constant_value: float = 0.0,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Data with more elements at both ends of each axis, pad_width=(before, after, ...):
    constant_value, copies of the outermost element (edge), or the elements mirrored
    (reflect). MXNet Pad."""

def Pooling(
    data: NDArray | None = None,
    kernel: int | Sequence[int] = (),
    pool_type: Literal['max', 'avg', 'sum', 'lp'] | str = 'max',
    global_pool: bool = False,
    cudnn_off: bool = False,
    pooling_convention: Literal['valid', 'full', 'same'] | str = 'valid',
    stride: int | Sequence[int] = (),
    pad: int | Sequence[int] = (),
    p_value: int | None = None,
    count_include_pad: bool | None = None,
    layout: Literal['NCW', 'NCHW', 'NCDHW'] | str | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Windows of data (batch, channel, *spatial) reduced to their max, avg, sum or lp norm (the
    p_value-th root of the sum of powers). With x = n + 2 pad - kernel an axis becomes
    floor(x / stride) + 1 long (pooling_convention valid), ceil(x / stride) + 1 (full: the
    last windows may reach over the end), or ceil(n / stride) (same, without pad).
    global_pool: one window over everything. An average divides by the size of the window,
    including its padding unless count_include_pad=False. The gradient of a maximum goes to
    the first of equal elements. MXNet Pooling."""

def RNN(
    data: NDArray | None = None,
    parameters: NDArray | None = None,
    state: NDArray | None = None,
    state_cell: NDArray | None = None,
    sequence_length: NDArray | None = None,
    *,
    mode: Literal['rnn_relu', 'rnn_tanh', 'lstm', 'gru'] | str,
    state_size: int,
    num_layers: int = 1,
    p: float = 0.0,
    state_outputs: bool = False,
    use_sequence_length: bool = False,
    bidirectional: bool = False,
    projection_size: int | None = None,
    lstm_state_clip_min: Any = None,
    lstm_state_clip_max: Any = None,
    lstm_state_clip_nan: Any = False,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""A recurrent network of mode rnn_relu, rnn_tanh, lstm or gru on data (T, B, I). D is 2 if
    bidirectional=True, else 1. `parameters` is one vector: the weights of all layers and
    directions, each for the input and then for the state, then all biases in the same order;
    rnn.FusedRNNCell packs and unpacks it. `state`, and `state_cell` of an lstm, are
    (num_layers * D, B, state_size). projection_size=P of an lstm multiplies each output by a
    weight (P, state_size), which follows that for the state in the vector, so outputs and
    `state` have P units. With use_sequence_length=True, sequence_length (B,) tells how many
    steps of each sample count, 1 or more. Outputs are (T, B, D * state_size) and, with
    state_outputs=True, the last states. Dropout of probability p is between layers. In a
    graph, the nodes of cells stand in its place. MXNet RNN."""

def ROIPooling(
    data: NDArray | None = None,
    rois: NDArray | None = None,
    *,
    pooled_size: int | Sequence[int],
    spatial_scale: float,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The maxima of pooled_size (rows, columns) parts of regions: (R, C, *pooled_size). data
    (N, C, H, W); rois (R, 5): the number of an image and the corners x1, y1, x2, y2, which
    are multiplied by spatial_scale and rounded, and belong to the region. A part outside the
    image is 0. An image's number out of range raises IndexError (Girshick 2015). MXNet
    ROIPooling."""

def Reshape(
    data: NDArray | None = None,
    shape: int | Sequence[int] | None = None,
    reverse: bool = False,
    target_shape: int | Sequence[int] = (),
    keep_highest: bool = False,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The same elements in another shape. In `shape`, 0 keeps a dimension, -1 is inferred, -2
    keeps all remaining ones, -3 merges two, and (-4, a, b) splits one into a x b (one may be
    -1); reverse=True matches dimensions from the right, and has -4 behind a, b. target_shape
    is MXNet 0.x's form: 0 is inferred, and keep_highest keeps the first dimension. MXNet
    Reshape."""

def SVMOutput(
    data: NDArray | None = None,
    label: NDArray | None = None,
    margin: float = 1.0,
    regularization_coefficient: float = 1.0,
    use_linear: bool = False,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The data, and the head of the backward pass: the gradient is that of a support vector
    machine with one class against the others, see `_svm_grad`. label: class numbers of any
    dtype, shaped like the data without the last axis. MXNet SVMOutput."""

def SequenceLast(
    data: NDArray | None = None,
    sequence_length: NDArray | None = None,
    use_sequence_length: bool = False,
    axis: Literal[0, 1] = 0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The last time step of each sample: (B, ...). A sequence_length outside 1..T raises
    IndexError. MXNet SequenceLast."""

def SequenceMask(
    data: NDArray | None = None,
    sequence_length: NDArray | None = None,
    use_sequence_length: bool = False,
    value: float = 0.0,
    axis: Literal[0, 1] = 0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The data with `value` in all time steps from a sample's sequence_length on. MXNet
    SequenceMask."""

def SequenceReverse(
    data: NDArray | None = None,
    sequence_length: NDArray | None = None,
    use_sequence_length: bool = False,
    axis: Literal[0, 1] = 0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The first sequence_length time steps of each sample in reverse order, the others
    unchanged. A sequence_length outside 0..T raises IndexError. MXNet SequenceReverse (whose
    axis is always 0)."""

def SliceChannel(
    data: NDArray | None = None,
    *,
    num_outputs: int,
    axis: int = 1,
    squeeze_axis: bool = False,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Data cut into num_outputs equal parts along an axis; squeeze_axis removes the axis if the
    parts have length 1. MXNet SliceChannel."""

def SoftmaxActivation(
    data: NDArray | None = None,
    mode: Literal['instance', 'channel'] | str = 'instance',
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Softmax along the last axis (mode='instance') or axis 1 (mode='channel'). MXNet
    SoftmaxActivation."""

def SoftmaxOutput(
    data: NDArray | None = None,
    label: NDArray | None = None,
    grad_scale: float = 1.0,
    ignore_label: float = -1.0,
    multi_output: bool = False,
    use_ignore: bool = False,
    preserve_shape: bool = False,
    normalization: Literal['null', 'batch', 'valid'] | str = 'null',
    out_grad: bool = False,
    smooth_alpha: float = 0.0,
    count: int = 0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Softmax over the last axis (axis 1 with multi_output), and a head of the backward pass:
    its gradient is that of cross entropy with the label, see `_softmax_output_grad`. label:
    class numbers of any dtype, shaped like the data without the class axis; or a probability
    for each class, shaped like the data: the gradient is (softmax - label) * grad_scale
    then. Data of more than 2 dimensions needs preserve_shape or multi_output. out_grad:
    multiply by the gradient that comes from operators behind it or from out_grads, which is
    ignored otherwise. A third, hidden input holds the count of valid labels (`valid_input`).
    MXNet SoftmaxOutput."""

def SpatialTransformer(
    data: NDArray | None = None,
    loc: NDArray | None = None,
    target_shape: int | Sequence[int] = (0, 0),
    transform_type: Any = 'affine',
    sampler_type: Any = 'bilinear',
    cudnn_off: Any = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""BilinearSampler of the data (N, C, H, W) along GridGenerator's affine grid of loc (N, 6):
    (N, C, *target_shape) (Jaderberg et al. 2015). MXNet SpatialTransformer."""

def SwapAxis(
    data: NDArray | None = None,
    dim1: int = 0,
    dim2: int = 0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The data with two axes exchanged. MXNet SwapAxis."""

def UpSampling(
    *args: NDArray | Sequence[NDArray],
    scale: int,
    num_filter: int = 0,
    sample_type: Literal['nearest', 'bilinear'] | str,
    multi_input_mode: Literal['concat', 'sum'] | str = 'concat',
    workspace: int = 512,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Images (batch, channel, height, width) made `scale` times as high and wide. nearest: each
    element repeated to a square; of several inputs the first one is scaled, the others grow
    to its new size, and all are joined along the channels (concat) or added (sum). bilinear:
    the Deconvolution of data with weight (channel, 1, k, k), k = 2 scale - scale % 2, one
    filter for each channel; init.Bilinear makes it interpolate. num_filter and workspace are
    accepted and ignored. MXNet UpSampling."""

def abs(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""abs(data), element by element. MXNet abs."""

def add(lhs: Any, rhs: Any) -> Any:
    r"""Compute `numpy.add` in the dtype of the arrays, or numbers."""

def add_n(
    *args: NDArray | Sequence[NDArray],
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""arg0 + arg1 + ..., added from left to right; all of one shape. MXNet add_n."""

def arange(
    start: float,
    stop: float | None = None,
    step: float = 1.0,
    repeat: int = 1,
    infer_range: bool = False,
    ctx: Context | None = None,
    dtype: Any = 'float32',
) -> NDArray:
    r"""Count from start to before stop, or from 0 to before start (`mx.nd.arange`).

    Each number comes `repeat` times; infer_range is accepted without effect."""

def arccos(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""arccos(data), element by element. MXNet arccos."""

def arccosh(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""arccosh(data), element by element. MXNet arccosh."""

def arcsin(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""arcsin(data), element by element. MXNet arcsin."""

def arcsinh(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""arcsinh(data), element by element. MXNet arcsinh."""

def arctan(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""arctan(data), element by element. MXNet arctan."""

def arctanh(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""arctanh(data), element by element. MXNet arctanh."""

def argmax(
    data: NDArray | None = None,
    axis: int | None = None,
    keepdims: bool = False,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Index of the first largest element along an axis, or in the flattened data if axis is
    None, in the data's dtype. MXNet argmax."""

def argmax_channel(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Index of the first largest element along axis 1, in the data's dtype. MXNet
    argmax_channel."""

def argmin(
    data: NDArray | None = None,
    axis: int | None = None,
    keepdims: bool = False,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Index of the first smallest element along an axis, or in the flattened data if axis is
    None, in the data's dtype. MXNet argmin."""

def argsort(
    data: NDArray | None = None,
    axis: int | None = -1,
    is_ascend: bool = True,
    dtype: str | type[Any] | dtype[Any] = 'float32',
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The indices of the data's elements in ascending or descending order along an axis, or in
    the flattened data if axis is None; equal elements keep their order. MXNet argsort."""

def batch_dot(
    lhs: NDArray | None = None,
    rhs: NDArray | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    forward_stype: Any = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Products of the matrices in the last two axes: (..., n, k) times (..., k, m) is (..., n,
    m). transpose_a and transpose_b exchange those axes of an input first. MXNet batch_dot."""

def batch_take(
    a: NDArray | None = None,
    indices: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""One element of each row of `a` (N, M), at indices (N,); an index out of range is clipped.
    MXNet batch_take."""

def broadcast_add(
    lhs: NDArray | None = None,
    rhs: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""lhs + rhs element by element, in the inputs' dtype; shapes broadcast. MXNet
    broadcast_add."""

def broadcast_axis(
    data: NDArray | None = None,
    axis: int | Sequence[int] = (),
    size: int | Sequence[int] = (),
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Data repeated `size` times along each axis of `axis`; these axes have length 1. MXNet
    broadcast_axis."""

def broadcast_div(
    lhs: NDArray | None = None,
    rhs: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""lhs / rhs element by element, in the inputs' dtype; shapes broadcast. MXNet
    broadcast_div."""

def broadcast_equal(
    lhs: NDArray | None = None,
    rhs: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""lhs == rhs element by element, in the inputs' dtype; shapes broadcast. MXNet
    broadcast_equal."""

def broadcast_greater(
    lhs: NDArray | None = None,
    rhs: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""lhs > rhs element by element, in the inputs' dtype; shapes broadcast. MXNet
    broadcast_greater."""

def broadcast_greater_equal(
    lhs: NDArray | None = None,
    rhs: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""lhs >= rhs element by element, in the inputs' dtype; shapes broadcast. MXNet
    broadcast_greater_equal."""

def broadcast_hypot(
    lhs: NDArray | None = None,
    rhs: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""hypot(lhs, rhs) element by element, in the inputs' dtype; shapes broadcast. MXNet
    broadcast_hypot."""

def broadcast_lesser(
    lhs: NDArray | None = None,
    rhs: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""lhs < rhs element by element, in the inputs' dtype; shapes broadcast. MXNet
    broadcast_lesser."""

def broadcast_lesser_equal(
    lhs: NDArray | None = None,
    rhs: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""lhs <= rhs element by element, in the inputs' dtype; shapes broadcast. MXNet
    broadcast_lesser_equal."""

def broadcast_like(
    lhs: NDArray | None = None,
    rhs: NDArray | None = None,
    lhs_axes: Any = None,
    rhs_axes: Any = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""lhs repeated along its axes of length 1 to the shape of rhs. MXNet broadcast_like."""

def broadcast_logical_and(
    lhs: NDArray | None = None,
    rhs: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""where(lhs == 0, 0, where(rhs == 0, 0, 1)) element by element, in the inputs' dtype;
    shapes broadcast. MXNet broadcast_logical_and."""

def broadcast_logical_or(
    lhs: NDArray | None = None,
    rhs: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""where(lhs == 0, where(rhs == 0, 0, 1), 1) element by element, in the inputs' dtype;
    shapes broadcast. MXNet broadcast_logical_or."""

def broadcast_logical_xor(
    lhs: NDArray | None = None,
    rhs: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""where(lhs == 0, where(rhs == 0, 0, 1), where(rhs == 0, 1, 0)) element by element, in the
    inputs' dtype; shapes broadcast. MXNet broadcast_logical_xor."""

def broadcast_maximum(
    lhs: NDArray | None = None,
    rhs: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""maximum(lhs, rhs) element by element, in the inputs' dtype; shapes broadcast. MXNet
    broadcast_maximum."""

def broadcast_minimum(
    lhs: NDArray | None = None,
    rhs: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""minimum(lhs, rhs) element by element, in the inputs' dtype; shapes broadcast. MXNet
    broadcast_minimum."""

def broadcast_mod(
    lhs: NDArray | None = None,
    rhs: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""lhs % rhs element by element, in the inputs' dtype; shapes broadcast. MXNet
    broadcast_mod."""

def broadcast_mul(
    lhs: NDArray | None = None,
    rhs: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""lhs * rhs element by element, in the inputs' dtype; shapes broadcast. MXNet
    broadcast_mul."""

def broadcast_not_equal(
    lhs: NDArray | None = None,
    rhs: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""lhs != rhs element by element, in the inputs' dtype; shapes broadcast. MXNet
    broadcast_not_equal."""

def broadcast_power(
    lhs: NDArray | None = None,
    rhs: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""lhs ** rhs element by element, in the inputs' dtype; shapes broadcast. MXNet
    broadcast_power."""

def broadcast_sub(
    lhs: NDArray | None = None,
    rhs: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""lhs - rhs element by element, in the inputs' dtype; shapes broadcast. MXNet
    broadcast_sub."""

def broadcast_to(
    data: NDArray | None = None,
    *,
    shape: int | Sequence[int],
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Data repeated along axes of length 1 to `shape`. A 0 in `shape` keeps that dimension;
    missing leading axes count as 1. MXNet broadcast_to."""

def cbrt(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""cbrt(data), element by element. MXNet cbrt."""

def ceil(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""the smallest whole number that is not below data, element by element. MXNet ceil."""

def clip(
    data: NDArray | None = None,
    *,
    a_min: float,
    a_max: float,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Data limited to [a_min, a_max]; the gradient passes where it lies inside, borders
    included. MXNet clip."""

def concatenate(arrays: Sequence[NDArray], axis: int = 0, always_copy: bool = True) -> NDArray:
    r"""Join arrays along an axis (`mx.nd.concatenate`)."""

def cos(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""cos(data), element by element. MXNet cos."""

def cosh(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""cosh(data), element by element. MXNet cosh."""

def cumsum(
    a: NDArray | None = None,
    axis: int | None = None,
    dtype: str | type[Any] | dtype[Any] | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The sums of all elements up to each, along an axis or in the flattened data if axis is
    None, in the data's dtype or `dtype`. MXNet cumsum."""

def degrees(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""data * 180 / pi, element by element. MXNet degrees."""

def depth_to_space(
    data: NDArray | None = None,
    *,
    block_size: int,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Images (n, b * b * c, h, w) as (n, c, h * b, w * b): every b * b channels become a block
    of height and width; b = block_size. MXNet depth_to_space."""

def divide(lhs: Any, rhs: Any) -> Any:
    r"""Compute `numpy.divide` in the dtype of the arrays, or numbers."""

def dot(
    lhs: NDArray | None = None,
    rhs: NDArray | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    forward_stype: Any = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The sum over the last axis of lhs (the first with transpose_a) and the first of rhs (the
    last with transpose_b). MXNet dot."""

def elemwise_add(
    lhs: NDArray | None = None,
    rhs: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""lhs + rhs element by element, in the inputs' dtype; both of one shape. MXNet
    elemwise_add."""

def elemwise_div(
    lhs: NDArray | None = None,
    rhs: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""lhs / rhs element by element, in the inputs' dtype; both of one shape. MXNet
    elemwise_div."""

def elemwise_mul(
    lhs: NDArray | None = None,
    rhs: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""lhs * rhs element by element, in the inputs' dtype; both of one shape. MXNet
    elemwise_mul."""

def elemwise_sub(
    lhs: NDArray | None = None,
    rhs: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""lhs - rhs element by element, in the inputs' dtype; both of one shape. MXNet
    elemwise_sub."""

def empty(shape: int | Shape, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    r"""Make an array for values to come (`mx.nd.empty`), which are 0 until then."""

def equal(lhs: Any, rhs: Any) -> Any:
    r"""Compute `numpy.equal` in the dtype of the arrays, or numbers."""

def erf(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""the error function, element by element. MXNet erf."""

def erfinv(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""the inverse of erf, element by element. MXNet erfinv."""

def exp(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""exp(data), element by element. MXNet exp."""

def expand_dims(
    data: NDArray | None = None,
    *,
    axis: int,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""A new axis of length 1 at `axis`, counted in the output. MXNet expand_dims."""

def expm1(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""exp(data) - 1, element by element. MXNet expm1."""

def eye(N: int, M: int = 0, k: int = 0, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    r"""Make an N by M array (N by N for 0) with ones on diagonal k (`mx.nd.eye`)."""

def fix(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""the whole number next to data on zero's side, element by element. MXNet fix."""

def floor(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""the largest whole number that is not above data, element by element. MXNet floor."""

def from_numpy(ndarray: Array, zero_copy: bool = True) -> NDArray:
    r"""Return an array on a numpy array's memory, or on a copy (`mx.nd.from_numpy`)."""

def full(
    shape: int | Shape,
    val: float,
    ctx: Context | None = None,
    dtype: Any = None,
    out: Any = None,
) -> NDArray:
    r"""Fill a new array, or `out`, with a number (`mx.nd.full`)."""

def gamma(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""the gamma function, element by element. MXNet gamma."""

def gammaln(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""the logarithm of the absolute value of the gamma function, element by element. MXNet
    gammaln."""

def gather_nd(
    data: NDArray | None = None,
    indices: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Elements or parts of data: indices (M, ...) name places by its first M axes, and the
    output has the shape of one row of indices, then data's other axes. Negative indices
    count from the end; one out of range raises IndexError. MXNet gather_nd."""

def greater(lhs: Any, rhs: Any) -> Any:
    r"""Compute `numpy.greater` in the dtype of the arrays, or numbers."""

def greater_equal(lhs: Any, rhs: Any) -> Any:
    r"""Compute `numpy.greater_equal` in the dtype of the arrays, or numbers."""

def hard_sigmoid(
    data: NDArray | None = None,
    alpha: float = 0.2,
    beta: float = 0.5,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""alpha * data + beta limited to [0, 1], element by element. MXNet hard_sigmoid."""

def hypot(left: Any, right: Any, *, out: Any = None, ctx: Context | None = None) -> Any:
    r"""Return sqrt(left ** 2 + right ** 2), element by element (`mx.sym.hypot`)."""

def identity(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The same value. MXNet identity."""

def lesser(lhs: Any, rhs: Any) -> Any:
    r"""Compute `numpy.less` in the dtype of the arrays, or numbers."""

def lesser_equal(lhs: Any, rhs: Any) -> Any:
    r"""Compute `numpy.less_equal` in the dtype of the arrays, or numbers."""

def linalg_extractdiag(
    A: NDArray | None = None,
    offset: int = 0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Diagonals of square matrices: the main one, or the one `offset` places above (below if
    negative). MXNet _linalg_extractdiag."""

def linalg_gemm(
    A: NDArray | None = None,
    B: NDArray | None = None,
    C: NDArray | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    alpha: float = 1.0,
    beta: float = 1.0,
    axis: Any = -2,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""alpha A B + beta C for matrices A (..., n, k) and B (..., k, m), each transposed first if
    its flag says so. MXNet _linalg_gemm."""

def linalg_gemm2(
    A: NDArray | None = None,
    B: NDArray | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    alpha: float = 1.0,
    axis: Any = -2,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""alpha A B for matrices A (..., n, k) and B (..., k, m), each transposed first if its flag
    says so. MXNet _linalg_gemm2."""

def linalg_makediag(
    A: NDArray | None = None,
    offset: int = 0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Square matrices with the last axis on the diagonal `offset` places above the main one,
    and zeros elsewhere. MXNet _linalg_makediag."""

def linalg_potrf(
    A: NDArray | None = None,
    lower: bool = True,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The lower triangular L with L L' = A, for symmetric positive definite matrices A, of
    which the lower triangle is read; with lower=False the upper U with U' U = A, and the
    upper triangle is read. The gradient is symmetric. MXNet _linalg_potrf."""

def linalg_potri(
    A: NDArray | None = None,
    lower: bool = True,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The inverse of A A' for lower triangular matrices A, which potrf returns, or of A' A for
    upper ones with lower=False. MXNet _linalg_potri."""

def linalg_sumlogdiag(
    A: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Sums of the logarithms of the main diagonals of square matrices. MXNet
    _linalg_sumlogdiag."""

def linalg_syrk(
    A: NDArray | None = None,
    transpose: bool = False,
    alpha: float = 1.0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""alpha A A' for matrices A, where A' is the transpose; alpha A' A with transpose=True.
    MXNet _linalg_syrk."""

def linalg_trmm(
    A: NDArray | None = None,
    B: NDArray | None = None,
    transpose: bool = False,
    rightside: bool = False,
    lower: bool = True,
    alpha: float = 1.0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""alpha A B, or alpha B A with rightside=True, for triangular matrices A (..., n, n),
    transposed first with transpose=True. MXNet _linalg_trmm."""

def linalg_trsm(
    A: NDArray | None = None,
    B: NDArray | None = None,
    transpose: bool = False,
    rightside: bool = False,
    lower: bool = True,
    alpha: float = 1.0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The X of A X = alpha B, or of X A = alpha B with rightside=True, for triangular matrices
    A (..., n, n), transposed first with transpose=True. MXNet _linalg_trsm."""

def linspace(
    start: float,
    stop: float,
    num: int,
    endpoint: bool = True,
    ctx: Context | None = None,
    dtype: Any = 'float32',
) -> NDArray:
    r"""Space `num` numbers evenly from start to stop (`mx.nd.linspace`)."""

def load(fname: str | PathLike[str]) -> list[NDArray] | dict[str, NDArray]:
    r"""Read what `save` or MXNet wrote: arrays by name, or a list if they have none.

    Raises ConfigError for a file that is missing, cut short or something else."""

def log(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""the natural logarithm, element by element. MXNet log."""

def log10(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""log10(data), element by element. MXNet log10."""

def log1p(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""log(1 + data), element by element. MXNet log1p."""

def log2(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""log2(data), element by element. MXNet log2."""

def log_softmax(
    data: NDArray | None = None,
    axis: int = -1,
    temperature: float | None = None,
    dtype: Any = None,
    use_length: Any = False,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The logarithm of softmax(data / temperature) along the axis. MXNet log_softmax."""

def logical_and(lhs: Any, rhs: Any) -> Any:
    r"""Compute `broadcast_logical_and` of two arrays, or of numbers."""

def logical_not(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""1 where data is 0, else 0, element by element. MXNet logical_not."""

def logical_or(lhs: Any, rhs: Any) -> Any:
    r"""Compute `broadcast_logical_or` of two arrays, or of numbers."""

def logical_xor(lhs: Any, rhs: Any) -> Any:
    r"""Compute `broadcast_logical_xor` of two arrays, or of numbers."""

def max(
    data: NDArray | None = None,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    exclude: bool = False,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Largest element over axes; axis None or () means all axes, and a full reduction gives
    shape (1,); exclude=True reduces the axes that are not named. MXNet max."""

def maximum(lhs: Any, rhs: Any) -> Any:
    r"""Compute `broadcast_maximum` of two arrays, or of numbers."""

def mean(
    data: NDArray | None = None,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    exclude: bool = False,
    count: int = 0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Mean over axes; axis None or () means all axes, and a full reduction gives shape (1,);
    exclude=True reduces the axes that are not named. count: what the sum is divided by, if
    not the number of its own elements. MXNet mean."""

def min(
    data: NDArray | None = None,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    exclude: bool = False,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Smallest element over axes; axis None or () means all axes, and a full reduction gives
    shape (1,); exclude=True reduces the axes that are not named. MXNet min."""

def minimum(lhs: Any, rhs: Any) -> Any:
    r"""Compute `broadcast_minimum` of two arrays, or of numbers."""

def modulo(lhs: Any, rhs: Any) -> Any:
    r"""Compute `broadcast_mod` of two arrays, or of numbers."""

def moveaxis(tensor: NDArray, source: Any, destination: Any) -> NDArray:
    r"""Move axes to other positions (`mx.nd.moveaxis`)."""

def multiply(lhs: Any, rhs: Any) -> Any:
    r"""Compute `numpy.multiply` in the dtype of the arrays, or numbers."""

def nanprod(
    data: NDArray | None = None,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    exclude: bool = False,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Product over axes of what is not NaN; axis None or () means all axes, and a full
    reduction gives shape (1,); exclude=True reduces the axes that are not named. MXNet
    nanprod."""

def nansum(
    data: NDArray | None = None,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    exclude: bool = False,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Sum over axes of what is not NaN; axis None or () means all axes, and a full reduction
    gives shape (1,); exclude=True reduces the axes that are not named. MXNet nansum."""

def negative(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""-data, element by element. MXNet negative."""

def nll_stats(
    prob: NDArray | None = None,
    label: NDArray | None = None,
    ignore_label: float = -1.0,
    use_ignore: bool = False,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Two float64 sums of shape (1,) over the labels that are not ignored: -log of the
    probability (last axis) of the label, and their number. exp of their quotient is the
    perplexity. A probability below the smallest normal number counts as that number. No
    gradient flows, so it may stand beside a loss."""

def norm(
    data: NDArray | None = None,
    ord: Literal[1, 2] = 2,
    axis: int | Sequence[int] | None = None,
    out_dtype: Any = None,
    keepdims: bool = False,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Sum of magnitudes (ord=1) or square root of the sum of squares (ord=2) over axes; axis
    None or () means all axes, and a full reduction gives shape (1,). MXNet norm."""

def normal(
    *,
    loc: float = 0.0,
    scale: float = 1.0,
    shape: int | Sequence[int],
    dtype: str | type[Any] | dtype[Any] = 'float32',
    stream: str = '',
    axis: int = -1,
    outer: int = 1,
    inner: int = 1,
    first: int = 0,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Numbers of the normal distribution with mean loc and standard deviation scale, of the
    given shape, in which one 0 may stand for the batch. The numbers are a function of seed,
    step, `stream` (the node's name) and the sample; axis, outer, inner and first as in
    Dropout. MXNet _random_normal."""

def not_equal(lhs: Any, rhs: Any) -> Any:
    r"""Compute `numpy.not_equal` in the dtype of the arrays, or numbers."""

def one_hot(
    indices: NDArray | None = None,
    *,
    depth: int,
    on_value: float = 1.0,
    off_value: float = 0.0,
    dtype: str | type[Any] | dtype[Any] = 'float32',
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""A new last axis of length depth with on_value at the index and off_value elsewhere; an
    index out of range is off everywhere. MXNet one_hot."""

def onehot_encode(indices: NDArray, out: NDArray) -> NDArray:
    r"""Write rows that are 1 at an index and 0 elsewhere (`mx.nd.onehot_encode`)."""

def ones(
    shape: int | Shape,
    ctx: Context | None = None,
    dtype: Any = None,
    out: Any = None,
) -> NDArray:
    r"""Make an array of ones (`mx.nd.ones`)."""

def ones_like(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Ones of the data's shape and dtype. MXNet ones_like."""

def pick(
    data: NDArray | None = None,
    index: NDArray | None = None,
    axis: int = -1,
    keepdims: bool = False,
    mode: Literal['clip', 'wrap'] | str = 'clip',
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""One element along an axis for each index; index has the shape of data without that axis,
    or with length 1 there. mode: an index out of range is clipped or wrapped around. MXNet
    pick."""

def pow(base: Any, exp: Any, *, out: Any = None, ctx: Context | None = None) -> Any:
    r"""Return base ** exp, element by element (`mx.sym.power`, `mx.sym.pow`)."""

def power(lhs: Any, rhs: Any) -> Any:
    r"""Compute `broadcast_power` of two arrays, or of numbers."""

def prod(
    data: NDArray | None = None,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    exclude: bool = False,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Product over axes; axis None or () means all axes, and a full reduction gives shape (1,);
    exclude=True reduces the axes that are not named. MXNet prod."""

def radians(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""data * pi / 180, element by element. MXNet radians."""

def random_exponential(
    *,
    lam: float = 1.0,
    shape: int | Sequence[int],
    dtype: str | type[Any] | dtype[Any] = 'float32',
    stream: str = '',
    axis: int = -1,
    outer: int = 1,
    inner: int = 1,
    first: int = 0,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Numbers of the exponential distribution with rate lam, of the given shape, in which one 0
    may stand for the batch. The numbers are a function of seed, step, `stream` (the node's
    name) and the sample; axis, outer, inner and first as in Dropout. MXNet
    _random_exponential."""

def random_gamma(
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    shape: int | Sequence[int],
    dtype: str | type[Any] | dtype[Any] = 'float32',
    stream: str = '',
    axis: int = -1,
    outer: int = 1,
    inner: int = 1,
    first: int = 0,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Numbers of the gamma distribution with shape alpha and scale beta, of the given shape, in
    which one 0 may stand for the batch. The numbers are a function of seed, step, `stream`
    (the node's name) and the sample; axis, outer, inner and first as in Dropout. MXNet
    _random_gamma."""

def random_generalized_negative_binomial(
    *,
    mu: float = 1.0,
    alpha: float = 1.0,
    shape: int | Sequence[int],
    dtype: str | type[Any] | dtype[Any] = 'float32',
    stream: str = '',
    axis: int = -1,
    outer: int = 1,
    inner: int = 1,
    first: int = 0,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Counts of the negative binomial distribution with mean mu and dispersion alpha (variance
    mu + alpha * mu * mu), of the given shape, in which one 0 may stand for the batch. The
    numbers are a function of seed, step, `stream` (the node's name) and the sample; axis,
    outer, inner and first as in Dropout. MXNet _random_generalized_negative_binomial."""

def random_negative_binomial(
    *,
    k: float = 1.0,
    p: float = 1.0,
    shape: int | Sequence[int],
    dtype: str | type[Any] | dtype[Any] = 'float32',
    stream: str = '',
    axis: int = -1,
    outer: int = 1,
    inner: int = 1,
    first: int = 0,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Counts of the negative binomial distribution: failures before k successes of probability
    p, of the given shape, in which one 0 may stand for the batch. The numbers are a function
    of seed, step, `stream` (the node's name) and the sample; axis, outer, inner and first as
    in Dropout. MXNet _random_negative_binomial."""

def random_normal(
    *,
    loc: float = 0.0,
    scale: float = 1.0,
    shape: int | Sequence[int],
    dtype: str | type[Any] | dtype[Any] = 'float32',
    stream: str = '',
    axis: int = -1,
    outer: int = 1,
    inner: int = 1,
    first: int = 0,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Numbers of the normal distribution with mean loc and standard deviation scale, of the
    given shape, in which one 0 may stand for the batch. The numbers are a function of seed,
    step, `stream` (the node's name) and the sample; axis, outer, inner and first as in
    Dropout. MXNet _random_normal."""

def random_poisson(
    *,
    lam: float = 1.0,
    shape: int | Sequence[int],
    dtype: str | type[Any] | dtype[Any] = 'float32',
    stream: str = '',
    axis: int = -1,
    outer: int = 1,
    inner: int = 1,
    first: int = 0,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Counts of the Poisson distribution with mean lam, of the given shape, in which one 0 may
    stand for the batch. The numbers are a function of seed, step, `stream` (the node's name)
    and the sample; axis, outer, inner and first as in Dropout. MXNet _random_poisson."""

def random_randint(
    low: int,
    high: int,
    shape: int | Sequence[int],
    dtype: str | type[Any] | dtype[Any] = 'int32',
    stream: str = '',
    axis: int = -1,
    outer: int = 1,
    inner: int = 1,
    first: int = 0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Whole numbers from low to high - 1, of the given shape, in which one 0 may stand for the
    batch. The numbers are a function of seed, step, `stream` (the node's name) and the
    sample; axis, outer, inner and first as in Dropout. MXNet _random_randint."""

def random_uniform(
    *,
    low: float = 0.0,
    high: float = 1.0,
    shape: int | Sequence[int],
    dtype: str | type[Any] | dtype[Any] = 'float32',
    stream: str = '',
    axis: int = -1,
    outer: int = 1,
    inner: int = 1,
    first: int = 0,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Numbers evenly spread over [low, high), of the given shape, in which one 0 may stand for
    the batch. The numbers are a function of seed, step, `stream` (the node's name) and the
    sample; axis, outer, inner and first as in Dropout. MXNet _random_uniform."""

def rcbrt(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""1 / cbrt(data), element by element. MXNet rcbrt."""

def reciprocal(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""1 / data, element by element. MXNet reciprocal."""

def relu(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""max(data, 0), element by element. MXNet relu."""

def repeat(
    data: NDArray | None = None,
    *,
    repeats: int,
    axis: int | None = None,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Each element repeated `repeats` times along an axis; axis=None flattens the data first.
    MXNet repeat."""

def reshape_like(
    lhs: NDArray | None = None,
    rhs: NDArray | None = None,
    lhs_begin: int | None = None,
    lhs_end: int | None = None,
    rhs_begin: int | None = None,
    rhs_end: int | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The elements of lhs in the shape of rhs; or its axes [lhs_begin, lhs_end) in the lengths
    of rhs's axes [rhs_begin, rhs_end). MXNet reshape_like."""

def reverse(
    data: NDArray | None = None,
    *,
    axis: int | Sequence[int],
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The elements in reverse order along the axes. MXNet reverse, flip."""

def rint(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""the nearest whole number, halves down, element by element. MXNet rint."""

def round(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""the nearest whole number, halves away from zero, element by element. MXNet round."""

def rsqrt(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""1 / sqrt(data), element by element. MXNet rsqrt."""

def sample_exponential(
    lam: NDArray | None = None,
    shape: int | Sequence[int] = (),
    dtype: str | type[Any] | dtype[Any] | None = None,
    stream: str = '',
    axis: int = -1,
    outer: int = 1,
    inner: int = 1,
    first: int = 0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Numbers of the exponential distribution with rate lam: `shape` numbers for each element
    of the parameters, which are inputs of one shape. The numbers are a function of seed,
    step, `stream` (the node's name) and the sample; axis, outer, inner and first as in
    Dropout. MXNet _sample_exponential."""

def sample_gamma(
    alpha: NDArray | None = None,
    beta: NDArray | None = None,
    shape: int | Sequence[int] = (),
    dtype: str | type[Any] | dtype[Any] | None = None,
    stream: str = '',
    axis: int = -1,
    outer: int = 1,
    inner: int = 1,
    first: int = 0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Numbers of the gamma distribution with shape alpha and scale beta: `shape` numbers for
    each element of the parameters, which are inputs of one shape. The numbers are a function
    of seed, step, `stream` (the node's name) and the sample; axis, outer, inner and first as
    in Dropout. MXNet _sample_gamma."""

def sample_generalized_negative_binomial(
    mu: NDArray | None = None,
    alpha: NDArray | None = None,
    shape: int | Sequence[int] = (),
    dtype: str | type[Any] | dtype[Any] | None = None,
    stream: str = '',
    axis: int = -1,
    outer: int = 1,
    inner: int = 1,
    first: int = 0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Counts of the negative binomial distribution with mean mu and dispersion alpha (variance
    mu + alpha * mu * mu): `shape` numbers for each element of the parameters, which are
    inputs of one shape. The numbers are a function of seed, step, `stream` (the node's name)
    and the sample; axis, outer, inner and first as in Dropout. MXNet
    _sample_generalized_negative_binomial."""

def sample_multinomial(
    data: NDArray | None = None,
    shape: int | Sequence[int] = (),
    get_prob: bool = False,
    dtype: str | type[Any] | dtype[Any] = 'int32',
    stream: str = '',
    axis: int = -1,
    outer: int = 1,
    inner: int = 1,
    first: int = 0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Classes drawn by their probabilities, which are the last axis of the data: `shape` for
    each row. Probabilities need not add up to 1. get_prob: a second output, the logarithms
    of the probabilities of what was drawn, without a gradient. The numbers are a function of
    seed, step, `stream` (the node's name) and the sample; axis, outer, inner and first as in
    Dropout. MXNet _sample_multinomial."""

def sample_negative_binomial(
    k: NDArray | None = None,
    p: NDArray | None = None,
    shape: int | Sequence[int] = (),
    dtype: str | type[Any] | dtype[Any] | None = None,
    stream: str = '',
    axis: int = -1,
    outer: int = 1,
    inner: int = 1,
    first: int = 0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Counts of the negative binomial distribution: failures before k successes of probability
    p: `shape` numbers for each element of the parameters, which are inputs of one shape. The
    numbers are a function of seed, step, `stream` (the node's name) and the sample; axis,
    outer, inner and first as in Dropout. MXNet _sample_negative_binomial."""

def sample_normal(
    loc: NDArray | None = None,
    scale: NDArray | None = None,
    shape: int | Sequence[int] = (),
    dtype: str | type[Any] | dtype[Any] | None = None,
    stream: str = '',
    axis: int = -1,
    outer: int = 1,
    inner: int = 1,
    first: int = 0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Numbers of the normal distribution with mean loc and standard deviation scale: `shape`
    numbers for each element of the parameters, which are inputs of one shape. The numbers
    are a function of seed, step, `stream` (the node's name) and the sample; axis, outer,
    inner and first as in Dropout. MXNet _sample_normal."""

def sample_poisson(
    lam: NDArray | None = None,
    shape: int | Sequence[int] = (),
    dtype: str | type[Any] | dtype[Any] | None = None,
    stream: str = '',
    axis: int = -1,
    outer: int = 1,
    inner: int = 1,
    first: int = 0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Counts of the Poisson distribution with mean lam: `shape` numbers for each element of the
    parameters, which are inputs of one shape. The numbers are a function of seed, step,
    `stream` (the node's name) and the sample; axis, outer, inner and first as in Dropout.
    MXNet _sample_poisson."""

def sample_uniform(
    low: NDArray | None = None,
    high: NDArray | None = None,
    shape: int | Sequence[int] = (),
    dtype: str | type[Any] | dtype[Any] | None = None,
    stream: str = '',
    axis: int = -1,
    outer: int = 1,
    inner: int = 1,
    first: int = 0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Numbers evenly spread over [low, high): `shape` numbers for each element of the
    parameters, which are inputs of one shape. The numbers are a function of seed, step,
    `stream` (the node's name) and the sample; axis, outer, inner and first as in Dropout.
    MXNet _sample_uniform."""

def save(fname: str | PathLike[str], data: Any) -> None:
    r"""Write an array, a list of arrays, or arrays by name (`mx.nd.save`); MXNet reads the file.

    Raises ConfigError if it cannot be written or a dtype has no number in such files."""

def scaled_dot_product_attention(
    query: NDArray | None = None,
    key: NDArray | None = None,
    value: NDArray | None = None,
    mask: NDArray | None = None,
    use_mask: bool = False,
    causal: bool = False,
    scale: float | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""softmax(query key^T scale + mask) value, along the keys: (..., queries, d), (..., keys,
    d) and (..., keys, units) make (..., queries, units); the axes in front, such as (batch *
    heads) or (batch, heads), are the same in all. The weights (queries, keys) are never all
    in memory, and not kept for the gradient. scale: d ** -0.5 by default. causal: whether
    query i sees keys 0 to i only. use_mask: one more input, added to the scores, to whose
    shape it broadcasts with as many axes; use -inf or a large negative number to hide a key.
    A second derivative is not there. PyTorch scaled_dot_product_attention, ONNX Attention."""

def scatter_nd(
    data: NDArray | None = None,
    indices: NDArray | None = None,
    *,
    shape: int | Sequence[int],
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Zeros of `shape`, with data at the places that indices (M, ...) name by the first M axes;
    what goes to one place is added up in a fixed order (in MXNet any of it may stay).
    Gradient of gather_nd. MXNet scatter_nd."""

def shuffle(
    data: NDArray | None = None,
    stream: str = '',
    axis: int = -1,
    outer: int = 1,
    inner: int = 1,
    first: int = 0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The rows of the data, along axis 0, in random order: a function of seed, step and
    `stream` (the node's name). MXNet _shuffle."""

def sigmoid(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""1 / (1 + exp(-data)), element by element. MXNet sigmoid."""

def sign(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""-1, 0 or 1, element by element. MXNet sign."""

def sin(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""sin(data), element by element. MXNet sin."""

def sinh(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""sinh(data), element by element. MXNet sinh."""

def slice(
    data: NDArray | None = None,
    *,
    begin: int | Sequence[int | None],
    end: int | Sequence[int | None],
    step: int | Sequence[int | None] = (),
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The parts [begin, end) by step of the leading axes; None stands for the axis's own end,
    and negative positions count from there. MXNet slice."""

def slice_axis(
    data: NDArray | None = None,
    *,
    axis: int,
    begin: int,
    end: int | None = None,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The part [begin, end) of one axis; end=None means up to the axis's end, and negative
    positions count from there. MXNet slice_axis."""

def slice_like(
    data: NDArray | None = None,
    shape_like: NDArray | None = None,
    axes: int | Sequence[int] = (),
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The first elements of data along `axes`, as many as shape_like has; () means all axes.
    MXNet slice_like."""

def smooth_l1(
    data: NDArray | None = None,
    scalar: float = 1.0,
    is_int: Any = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""(scalar * data) ** 2 / 2 where |data| < 1 / scalar ** 2, and |data| - 0.5 / scalar ** 2
    beyond. MXNet smooth_l1."""

def softmax(
    data: NDArray | None = None,
    axis: int = -1,
    temperature: float | None = None,
    dtype: Any = None,
    use_length: Any = False,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""exp(data / temperature) divided by its sum along the axis. MXNet softmax."""

def softmax_cross_entropy(
    data: NDArray | None = None,
    label: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The sum over samples of -log softmax(data)[label]: data (B, V), label (B,), output (1,).
    It does not start the backward pass by itself. MXNet softmax_cross_entropy."""

def softmin(
    data: NDArray | None = None,
    axis: int = -1,
    temperature: float | None = None,
    dtype: Any = None,
    use_length: Any = False,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""softmax(-data), along the axis: exp(-data / temperature) divided by its sum. MXNet
    softmin."""

def softsign(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""data / (1 + abs(data)), element by element. MXNet softsign."""

def sort(
    data: NDArray | None = None,
    axis: int | None = -1,
    is_ascend: bool = True,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The data's elements in ascending or descending order along an axis; of the flattened data
    if axis is None. MXNet sort."""

def space_to_depth(
    data: NDArray | None = None,
    *,
    block_size: int,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Images (n, c, h * b, w * b) as (n, b * b * c, h, w): the places in a block become
    channels; b = block_size. MXNet space_to_depth."""

def sqrt(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""sqrt(data), element by element. MXNet sqrt."""

def square(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""square(data), element by element. MXNet square."""

def squeeze(
    data: NDArray | None = None,
    axis: int | Sequence[int] | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The data without axes of length 1: those in `axis`, or all; a scalar becomes (1,). MXNet
    squeeze."""

def stack(
    *args: NDArray | Sequence[NDArray],
    axis: int = 0,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Values of one shape joined along a new axis. MXNet stack."""

def subtract(lhs: Any, rhs: Any) -> Any:
    r"""Compute `numpy.subtract` in the dtype of the arrays, or numbers."""

def sum(
    data: NDArray | None = None,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    exclude: bool = False,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Sum over axes; axis None or () means all axes, and a full reduction gives shape (1,);
    exclude=True reduces the axes that are not named. MXNet sum."""

def take(
    a: NDArray | None = None,
    indices: NDArray | None = None,
    axis: int = 0,
    mode: Literal['clip', 'wrap', 'raise'] | str = 'clip',
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Slices of `a` along an axis by index; the shape of indices replaces that axis. mode: an
    index out of range is clipped, wrapped around, or raises IndexError. MXNet take."""

def tan(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""tan(data), element by element. MXNet tan."""

def tanh(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""tanh(data), element by element. MXNet tanh."""

def tile(
    data: NDArray | None = None,
    *,
    reps: int | Sequence[int],
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Data repeated as a whole, reps[i] times along axis i; reps and axes align from the right.
    MXNet tile."""

def topk(
    data: NDArray | None = None,
    axis: int | None = -1,
    k: int = 1,
    ret_typ: Literal['indices', 'value', 'mask', 'both'] | str = 'indices',
    is_ascend: bool = False,
    dtype: str | type[Any] | dtype[Any] = 'float32',
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The k largest elements along an axis, in descending order, or the k smallest in ascending
    order (is_ascend); all for k=0; of the flattened data if axis is None. ret_typ: their
    indices in `dtype`, their values, both, or a mask: 1 at their places in the data. Of
    equal elements the first count. MXNet topk."""

def transpose(
    data: NDArray | None = None,
    axes: int | Sequence[int] = (),
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""The axes in the order `axes`; reversed for (). MXNet transpose."""

def true_divide(lhs: Any, rhs: Any) -> Any:
    r"""Compute `numpy.divide` in the dtype of the arrays, or numbers."""

def trunc(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""the whole number next to data on zero's side, element by element. MXNet trunc."""

def uniform(
    *,
    low: float = 0.0,
    high: float = 1.0,
    shape: int | Sequence[int],
    dtype: str | type[Any] | dtype[Any] = 'float32',
    stream: str = '',
    axis: int = -1,
    outer: int = 1,
    inner: int = 1,
    first: int = 0,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Numbers evenly spread over [low, high), of the given shape, in which one 0 may stand for
    the batch. The numbers are a function of seed, step, `stream` (the node's name) and the
    sample; axis, outer, inner and first as in Dropout. MXNet _random_uniform."""

def waitall() -> None:
    r"""Return at once: arrays are complete when a call returns them (`mx.nd.waitall`)."""

def where(
    condition: NDArray | None = None,
    x: NDArray | None = None,
    y: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""x where condition is not 0, else y; condition has their shape, or is a vector with one
    entry per row of axis 0, or one entry for all. MXNet where."""

def zeros(
    shape: int | Shape,
    ctx: Context | None = None,
    dtype: Any = None,
    stype: str | None = None,
    out: Any = None,
) -> NDArray:
    r"""Make an array of zeros (`mx.nd.zeros`); its storage type is "default", dense."""

def zeros_like(
    data: NDArray | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    out: Any = None,
    ctx: Context | None = None,
) -> Any:
    r"""Zeros of the data's shape and dtype. MXNet zeros_like."""

ElementWiseSum = add_n
Softmax = SoftmaxOutput
broadcast_axes = broadcast_axis
broadcast_minus = broadcast_sub
broadcast_plus = broadcast_add
cast = Cast
choose_element_0index = pick
concat = Concat
crop = slice
ctc_loss = CTCLoss
flatten = Flatten
flip = reverse
make_loss = MakeLoss
max_axis = max
min_axis = min
pad = Pad
reshape = Reshape
split = SliceChannel
stop_gradient = BlockGrad
sum_axis = sum
swapaxes = SwapAxis
class _contrib:
    @staticmethod
    def CTCLoss(
        data: NDArray | None = None,
        label: NDArray | None = None,
        data_lengths: NDArray | None = None,
        label_lengths: NDArray | None = None,
        use_data_lengths: bool = False,
        use_label_lengths: bool = False,
        blank_label: Literal['first', 'last'] | str = 'first',
        *,
        name: str | None = None,
        attr: Mapping[str, str] | None = None,
        lr_mult: float | None = None,
        wd_mult: float | None = None,
        out: Any = None,
        ctx: Context | None = None,
    ) -> Any:
        r"""-log of the probability of the labels under connectionist temporal classification: (N,).
        data (T, N, C): activations, of which softmax is taken; label (N, L): classes, with L at
        most T. The blank is class 0 (blank_label first; labels end at a 0) or C - 1 (last; they
        end at a -1). use_data_lengths, use_label_lengths: two more inputs (N,), the numbers of
        time steps and of labels that count. A sample with too few steps for its labels has loss
        and gradient 0, as in MXNet; a label or length out of range raises IndexError. MXNet
        CTCLoss."""
    @staticmethod
    def MultiBoxDetection(
        cls_prob: NDArray | None = None,
        loc_pred: NDArray | None = None,
        anchor: NDArray | None = None,
        clip: bool = True,
        threshold: float = 0.01,
        background_id: Any = 0,
        nms_threshold: float = 0.5,
        force_suppress: bool = False,
        variances: float | Sequence[float] = (0.1, 0.1, 0.2, 0.2),
        nms_topk: int = -1,
        *,
        name: str | None = None,
        attr: Mapping[str, str] | None = None,
        lr_mult: float | None = None,
        wd_mult: float | None = None,
        out: Any = None,
        ctx: Context | None = None,
    ) -> Any:
        r"""Boxes found, best first: (B, A, 6) of class, score and corners. The class is -1 for those
        that overlap a better one of their class (with force_suppress: any better one) by
        nms_threshold, for all but the nms_topk best, and behind the last one. cls_prob (B, C, A)
        with the background as class 0, loc_pred (B, 4 A), anchor (1, A, 4). There is no
        gradient. MXNet _contrib_MultiBoxDetection."""
    @staticmethod
    def MultiBoxPrior(
        data: NDArray | None = None,
        sizes: float | Sequence[float] = (1.0,),
        ratios: float | Sequence[float] = (1.0,),
        clip: bool = False,
        steps: float | Sequence[float] = (-1.0, -1.0),
        offsets: float | Sequence[float] = (0.5, 0.5),
        *,
        name: str | None = None,
        attr: Mapping[str, str] | None = None,
        out: Any = None,
        ctx: Context | None = None,
    ) -> Any:
        r"""Anchor boxes around each pixel of data (N, C, H, W): (1, H * W * (sizes + ratios - 1),
        4). At each pixel, boxes of all sizes with the first ratio of width to height, then of
        the first size with the other ratios. steps: distances of pixels down and across (-1: 1 /
        H and 1 / W); offsets: of the middles in a pixel; clip: cut at the image's border. MXNet
        _contrib_MultiBoxPrior."""
    @staticmethod
    def MultiBoxTarget(
        anchor: NDArray | None = None,
        label: NDArray | None = None,
        cls_pred: NDArray | None = None,
        overlap_threshold: float = 0.5,
        ignore_label: float = -1.0,
        negative_mining_ratio: float = -1.0,
        negative_mining_thresh: float = 0.5,
        minimum_negative_samples: Any = None,
        variances: float | Sequence[float] = (0.1, 0.1, 0.2, 0.2),
        *,
        name: str | None = None,
        attr: Mapping[str, str] | None = None,
        lr_mult: float | None = None,
        wd_mult: float | None = None,
        out: Any = None,
        ctx: Context | None = None,
    ) -> Any:
        r"""What to train for, by anchor (1, A, 4): places of boxes (B, 4 A), a mask that is 1 for
        anchors with a box (B, 4 A), and classes, 0 for the background (B, A). label (B, L, 5 or
        more): class and corners of boxes, -1 behind the last one; cls_pred (B, C, A). Each box
        gets its best anchor, and every anchor that overlaps more than overlap_threshold its best
        box. With negative_mining_ratio, so many anchors for each positive one are background, of
        those below negative_mining_thresh the hardest; the others, and all of a sample without
        boxes, have the class ignore_label. There is no gradient. MXNet _contrib_MultiBoxTarget,
        which does not use minimum_negative_samples on CPUs."""
    @staticmethod
    def cond(
        pred: NDArray,
        then_func: Callable[[], Nested],
        else_func: Callable[[], Nested],
        name: str = 'cond',
        *,
        out: Any = None,
        ctx: Context | None = None,
    ) -> Any:
        r"""Choose between two networks (`mx.sym.contrib.cond`).

        Both run; the gradient of what is not chosen is 0, unless it is infinite there.

        Args:
            pred: a symbol of one element.
            then_func: a function without arguments that returns what holds if pred is not 0: a
                symbol, or nested lists.
            else_func: one that returns what holds if it is 0, nested alike and of the same shapes.
            name: ignored.

        Raises:
            GraphError: if both are not nested alike."""
    @staticmethod
    def ctc_loss(
        data: NDArray | None = None,
        label: NDArray | None = None,
        data_lengths: NDArray | None = None,
        label_lengths: NDArray | None = None,
        use_data_lengths: bool = False,
        use_label_lengths: bool = False,
        blank_label: Literal['first', 'last'] | str = 'first',
        *,
        name: str | None = None,
        attr: Mapping[str, str] | None = None,
        lr_mult: float | None = None,
        wd_mult: float | None = None,
        out: Any = None,
        ctx: Context | None = None,
    ) -> Any:
        r"""-log of the probability of the labels under connectionist temporal classification: (N,).
        data (T, N, C): activations, of which softmax is taken; label (N, L): classes, with L at
        most T. The blank is class 0 (blank_label first; labels end at a 0) or C - 1 (last; they
        end at a -1). use_data_lengths, use_label_lengths: two more inputs (N,), the numbers of
        time steps and of labels that count. A sample with too few steps for its labels has loss
        and gradient 0, as in MXNet; a label or length out of range raises IndexError. MXNet
        CTCLoss."""
    @staticmethod
    def foreach(
        body: Callable[[Nested, Nested], tuple[Nested, Nested]],
        data: Nested,
        init_states: Nested,
        name: str = 'foreach',
        *,
        out: Any = None,
        ctx: Context | None = None,
    ) -> Any:
        r"""Repeat a network for each part of data along axis 0 (`mx.sym.contrib.foreach`).

        Args:
            body: a function of (one time step of data, states) that returns (outputs, new states); it
                is called once. It may use symbols from outside. Random numbers that it draws are other
                ones in every step.
            data: a symbol of shape (T, ...), or nested lists of them. A step's part of shape () is
                given as (1,).
            init_states: the states before the first step: a symbol, or nested lists.
            name: ignored, as by MXNet, for the node's name.

        Returns:
            The outputs of all steps, stacked along a first axis of length T, and the last states.

        Raises:
            GraphError: if the new states are not nested as the old ones.
            TypeError: for anything but symbols."""
    @staticmethod
    def while_loop(
        cond: Callable[..., NDArray],
        func: Callable[..., tuple[Nested, Nested]],
        loop_vars: Nested,
        max_iterations: int | None = None,
        name: str = 'while_loop',
        *,
        out: Any = None,
        ctx: Context | None = None,
    ) -> Any:
        r"""Repeat a network while a condition holds, at most so often (`mx.sym.contrib.while_loop`).

        The graph has max_iterations copies of the network, which all run. In those behind the last
        iteration, the variables keep their values, and outputs and gradients are 0, unless a gradient
        is infinite at these values.

        Args:
            cond: a function of the loop's variables that returns a symbol of one element; it is called
                once.
            func: a function of the loop's variables that returns (outputs, new variables); it is
                called once.
            loop_vars: the variables before the first iteration: a symbol, or nested lists.
            max_iterations: the number of copies.
            name: ignored, as by MXNet, for the node's name.

        Returns:
            The outputs of all iterations, stacked along a first axis of length max_iterations (0 where
            there was none, MXNet: anything), and the last variables.

        Raises:
            GraphError: without max_iterations, or if new variables are not nested as the old ones."""

contrib: _contrib

class _linalg:
    @staticmethod
    def extractdiag(
        A: NDArray | None = None,
        offset: int = 0,
        *,
        name: str | None = None,
        attr: Mapping[str, str] | None = None,
        out: Any = None,
        ctx: Context | None = None,
    ) -> Any:
        r"""Diagonals of square matrices: the main one, or the one `offset` places above (below if
        negative). MXNet _linalg_extractdiag."""
    @staticmethod
    def gemm(
        A: NDArray | None = None,
        B: NDArray | None = None,
        C: NDArray | None = None,
        transpose_a: bool = False,
        transpose_b: bool = False,
        alpha: float = 1.0,
        beta: float = 1.0,
        axis: Any = -2,
        *,
        name: str | None = None,
        attr: Mapping[str, str] | None = None,
        lr_mult: float | None = None,
        wd_mult: float | None = None,
        out: Any = None,
        ctx: Context | None = None,
    ) -> Any:
        r"""alpha A B + beta C for matrices A (..., n, k) and B (..., k, m), each transposed first if
        its flag says so. MXNet _linalg_gemm."""
    @staticmethod
    def gemm2(
        A: NDArray | None = None,
        B: NDArray | None = None,
        transpose_a: bool = False,
        transpose_b: bool = False,
        alpha: float = 1.0,
        axis: Any = -2,
        *,
        name: str | None = None,
        attr: Mapping[str, str] | None = None,
        lr_mult: float | None = None,
        wd_mult: float | None = None,
        out: Any = None,
        ctx: Context | None = None,
    ) -> Any:
        r"""alpha A B for matrices A (..., n, k) and B (..., k, m), each transposed first if its flag
        says so. MXNet _linalg_gemm2."""
    @staticmethod
    def makediag(
        A: NDArray | None = None,
        offset: int = 0,
        *,
        name: str | None = None,
        attr: Mapping[str, str] | None = None,
        out: Any = None,
        ctx: Context | None = None,
    ) -> Any:
        r"""Square matrices with the last axis on the diagonal `offset` places above the main one,
        and zeros elsewhere. MXNet _linalg_makediag."""
    @staticmethod
    def potrf(
        A: NDArray | None = None,
        lower: bool = True,
        *,
        name: str | None = None,
        attr: Mapping[str, str] | None = None,
        out: Any = None,
        ctx: Context | None = None,
    ) -> Any:
        r"""The lower triangular L with L L' = A, for symmetric positive definite matrices A, of
        which the lower triangle is read; with lower=False the upper U with U' U = A, and the
        upper triangle is read. The gradient is symmetric. MXNet _linalg_potrf."""
    @staticmethod
    def potri(
        A: NDArray | None = None,
        lower: bool = True,
        *,
        name: str | None = None,
        attr: Mapping[str, str] | None = None,
        out: Any = None,
        ctx: Context | None = None,
    ) -> Any:
        r"""The inverse of A A' for lower triangular matrices A, which potrf returns, or of A' A for
        upper ones with lower=False. MXNet _linalg_potri."""
    @staticmethod
    def sumlogdiag(
        A: NDArray | None = None,
        *,
        name: str | None = None,
        attr: Mapping[str, str] | None = None,
        out: Any = None,
        ctx: Context | None = None,
    ) -> Any:
        r"""Sums of the logarithms of the main diagonals of square matrices. MXNet
        _linalg_sumlogdiag."""
    @staticmethod
    def syrk(
        A: NDArray | None = None,
        transpose: bool = False,
        alpha: float = 1.0,
        *,
        name: str | None = None,
        attr: Mapping[str, str] | None = None,
        out: Any = None,
        ctx: Context | None = None,
    ) -> Any:
        r"""alpha A A' for matrices A, where A' is the transpose; alpha A' A with transpose=True.
        MXNet _linalg_syrk."""
    @staticmethod
    def trmm(
        A: NDArray | None = None,
        B: NDArray | None = None,
        transpose: bool = False,
        rightside: bool = False,
        lower: bool = True,
        alpha: float = 1.0,
        *,
        name: str | None = None,
        attr: Mapping[str, str] | None = None,
        lr_mult: float | None = None,
        wd_mult: float | None = None,
        out: Any = None,
        ctx: Context | None = None,
    ) -> Any:
        r"""alpha A B, or alpha B A with rightside=True, for triangular matrices A (..., n, n),
        transposed first with transpose=True. MXNet _linalg_trmm."""
    @staticmethod
    def trsm(
        A: NDArray | None = None,
        B: NDArray | None = None,
        transpose: bool = False,
        rightside: bool = False,
        lower: bool = True,
        alpha: float = 1.0,
        *,
        name: str | None = None,
        attr: Mapping[str, str] | None = None,
        lr_mult: float | None = None,
        wd_mult: float | None = None,
        out: Any = None,
        ctx: Context | None = None,
    ) -> Any:
        r"""The X of A X = alpha B, or of X A = alpha B with rightside=True, for triangular matrices
        A (..., n, n), transposed first with transpose=True. MXNet _linalg_trsm."""

linalg: _linalg

_CrossDeviceCopy: Callable[..., Any]
_Div: Callable[..., Any]
_DivScalar: Callable[..., Any]
_Equal: Callable[..., Any]
_EqualScalar: Callable[..., Any]
_Greater: Callable[..., Any]
_GreaterEqualScalar: Callable[..., Any]
_GreaterScalar: Callable[..., Any]
_Greater_Equal: Callable[..., Any]
_Hypot: Callable[..., Any]
_HypotScalar: Callable[..., Any]
_Lesser: Callable[..., Any]
_LesserEqualScalar: Callable[..., Any]
_LesserScalar: Callable[..., Any]
_Lesser_Equal: Callable[..., Any]
_LogicalAndScalar: Callable[..., Any]
_LogicalOrScalar: Callable[..., Any]
_LogicalXorScalar: Callable[..., Any]
_Logical_And: Callable[..., Any]
_Logical_Or: Callable[..., Any]
_Logical_Xor: Callable[..., Any]
_Maximum: Callable[..., Any]
_MaximumScalar: Callable[..., Any]
_Minimum: Callable[..., Any]
_MinimumScalar: Callable[..., Any]
_Minus: Callable[..., Any]
_MinusScalar: Callable[..., Any]
_Mod: Callable[..., Any]
_ModScalar: Callable[..., Any]
_Mul: Callable[..., Any]
_MulScalar: Callable[..., Any]
_NotEqualScalar: Callable[..., Any]
_Not_Equal: Callable[..., Any]
_Plus: Callable[..., Any]
_PlusScalar: Callable[..., Any]
_Power: Callable[..., Any]
_PowerScalar: Callable[..., Any]
_RDivScalar: Callable[..., Any]
_RMinusScalar: Callable[..., Any]
_RModScalar: Callable[..., Any]
_RPowerScalar: Callable[..., Any]
_add: Callable[..., Any]
_arange: Callable[..., Any]
_at_maxima: Callable[..., Any]
_attention_grad: Callable[..., Any]
_attention_grad_mask: Callable[..., Any]
_batch_norm_grad: Callable[..., Any]
_batch_or_moving: Callable[..., Any]
_begin_state: Callable[..., Any]
_bilinear_sampler_grad: Callable[..., Any]
_broadcast_axes: Callable[..., Any]
_broadcast_rows: Callable[..., Any]
_contrib_CTCLoss: Callable[..., Any]
_contrib_MultiBoxDetection: Callable[..., Any]
_contrib_MultiBoxPrior: Callable[..., Any]
_contrib_MultiBoxTarget: Callable[..., Any]
_contrib_ctc_loss: Callable[..., Any]
_conv_grad_data: Callable[..., Any]
_conv_grad_weight: Callable[..., Any]
_copy: Callable[..., Any]
_correlation_grad: Callable[..., Any]
_ctc_loss_grad: Callable[..., Any]
_custom_backward: Callable[..., Any]
_cut: Callable[..., Any]
_digamma: Callable[..., Any]
_div: Callable[..., Any]
_div_scalar: Callable[..., Any]
_embedding_grad: Callable[..., Any]
_equal: Callable[..., Any]
_equal_scalar: Callable[..., Any]
_fc_grad_data: Callable[..., Any]
_fc_grad_weight: Callable[..., Any]
_foreach: Callable[..., Any]
_full: Callable[..., Any]
_gelu_grad: Callable[..., Any]
_greater: Callable[..., Any]
_greater_equal: Callable[..., Any]
_greater_equal_scalar: Callable[..., Any]
_greater_scalar: Callable[..., Any]
_grid_generator_grad: Callable[..., Any]
_group_norm_grad: Callable[..., Any]
_gru_gates: Callable[..., Any]
_gru_gates_grad: Callable[..., Any]
_hypot: Callable[..., Any]
_hypot_scalar: Callable[..., Any]
_identity_with_attr_like_rhs: Callable[..., Any]
_join_shares: Callable[..., Any]
_layer_norm_grad: Callable[..., Any]
_leaky_relu_grad: Callable[..., Any]
_lesser: Callable[..., Any]
_lesser_equal: Callable[..., Any]
_lesser_equal_scalar: Callable[..., Any]
_lesser_scalar: Callable[..., Any]
_linalg_extractdiag: Callable[..., Any]
_linalg_gemm: Callable[..., Any]
_linalg_gemm2: Callable[..., Any]
_linalg_makediag: Callable[..., Any]
_linalg_potrf: Callable[..., Any]
_linalg_potri: Callable[..., Any]
_linalg_sumlogdiag: Callable[..., Any]
_linalg_syrk: Callable[..., Any]
_linalg_trmm: Callable[..., Any]
_linalg_trsm: Callable[..., Any]
_log_softmax_grad: Callable[..., Any]
_logical_and: Callable[..., Any]
_logical_and_scalar: Callable[..., Any]
_logical_or: Callable[..., Any]
_logical_or_scalar: Callable[..., Any]
_logical_xor: Callable[..., Any]
_logical_xor_scalar: Callable[..., Any]
_lstm_gates: Callable[..., Any]
_lstm_gates_grad: Callable[..., Any]
_make_loss_grad: Callable[..., Any]
_max_pool_grad: Callable[..., Any]
_maximum: Callable[..., Any]
_maximum_scalar: Callable[..., Any]
_minimum: Callable[..., Any]
_minimum_scalar: Callable[..., Any]
_minus: Callable[..., Any]
_minus_scalar: Callable[..., Any]
_mirror: Callable[..., Any]
_mod: Callable[..., Any]
_mod_scalar: Callable[..., Any]
_moments: Callable[..., Any]
_moments_grad: Callable[..., Any]
_moving_average: Callable[..., Any]
_mul: Callable[..., Any]
_mul_scalar: Callable[..., Any]
_nll: Callable[..., Any]
_normalize: Callable[..., Any]
_normalize_grad: Callable[..., Any]
_not_equal: Callable[..., Any]
_not_equal_scalar: Callable[..., Any]
_ones: Callable[..., Any]
_pad_axis: Callable[..., Any]
_pad_grad: Callable[..., Any]
_pick_grad: Callable[..., Any]
_picked_nll: Callable[..., Any]
_plus: Callable[..., Any]
_plus_scalar: Callable[..., Any]
_pool_grad: Callable[..., Any]
_power: Callable[..., Any]
_power_scalar: Callable[..., Any]
_pseudo_connect: Callable[..., Any]
_put_along: Callable[..., Any]
_random_exponential: Callable[..., Any]
_random_exponential_like: Callable[..., Any]
_random_gamma: Callable[..., Any]
_random_gamma_like: Callable[..., Any]
_random_generalized_negative_binomial: Callable[..., Any]
_random_generalized_negative_binomial_like: Callable[..., Any]
_random_negative_binomial: Callable[..., Any]
_random_negative_binomial_like: Callable[..., Any]
_random_normal: Callable[..., Any]
_random_normal_like: Callable[..., Any]
_random_poisson: Callable[..., Any]
_random_poisson_like: Callable[..., Any]
_random_randint: Callable[..., Any]
_random_uniform: Callable[..., Any]
_random_uniform_like: Callable[..., Any]
_rdiv_scalar: Callable[..., Any]
_receive: Callable[..., Any]
_recurrent: Callable[..., Any]
_regression_grad: Callable[..., Any]
_relu_grad: Callable[..., Any]
_rminus_scalar: Callable[..., Any]
_rmod_scalar: Callable[..., Any]
_roi_pooling_grad: Callable[..., Any]
_rpower_scalar: Callable[..., Any]
_sample_exponential: Callable[..., Any]
_sample_gamma: Callable[..., Any]
_sample_generalized_negative_binomial: Callable[..., Any]
_sample_multinomial: Callable[..., Any]
_sample_negative_binomial: Callable[..., Any]
_sample_normal: Callable[..., Any]
_sample_poisson: Callable[..., Any]
_sample_uniform: Callable[..., Any]
_sequence_last_grad: Callable[..., Any]
_shard_cross_entropy: Callable[..., Any]
_shard_join: Callable[..., Any]
_shard_join_figures: Callable[..., Any]
_shard_pick: Callable[..., Any]
_shard_residual: Callable[..., Any]
_shard_row_figures: Callable[..., Any]
_shard_softmax_output: Callable[..., Any]
_shuffle: Callable[..., Any]
_sigmoid_grad: Callable[..., Any]
_slice_grad: Callable[..., Any]
_softmax_grad: Callable[..., Any]
_softmax_output_grad: Callable[..., Any]
_sub: Callable[..., Any]
_sum_neighbours: Callable[..., Any]
_sum_rows: Callable[..., Any]
_sum_to: Callable[..., Any]
_svm_grad: Callable[..., Any]
_take_along: Callable[..., Any]
_take_grad: Callable[..., Any]
_tanh_grad: Callable[..., Any]
_triangle: Callable[..., Any]
_valid_count: Callable[..., Any]
_zeros: Callable[..., Any]
