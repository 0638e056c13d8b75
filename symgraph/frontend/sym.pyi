"""Written by python -m symgraph.frontend.stubs."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from numpy import dtype

from symgraph.core.types import Shape
from symgraph.frontend import comm as comm
from symgraph.frontend import sym_random
from symgraph.frontend.control_flow import Nested
from symgraph.frontend.symbol import Symbol

def Activation(
    data: Symbol | None = None,
    *,
    act_type: Literal['relu', 'sigmoid', 'tanh', 'softsign', 'softrelu'] | str,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""One of relu, sigmoid, tanh, softrelu, softsign, element by element. MXNet Activation."""

def BatchNorm(
    data: Symbol | None = None,
    gamma: Symbol | None = None,
    beta: Symbol | None = None,
    moving_mean: Symbol | None = None,
    moving_var: Symbol | None = None,
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
) -> Symbol:
    r"""(data - mean) / sqrt(var + eps) * gamma + beta over all axes but `axis`; gamma, beta and
    the moving mean and variance are vectors along `axis`. Training uses the mean and
    (biased) variance of the batch and updates moving to momentum * moving + (1 - momentum) *
    batch; evaluation and use_global_stats use the moving ones. fix_gamma: gamma is 1 and its
    gradient 0. cudnn_off is accepted and ignored. MXNet BatchNorm."""

def BilinearSampler(
    data: Symbol | None = None,
    grid: Symbol | None = None,
    cudnn_off: Any = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""The data (N, C, H, W) at the places of a grid (N, 2, h, w), from -1 to 1, by bilinear
    interpolation, with zeros outside: (N, C, h, w). MXNet BilinearSampler."""

def BlockGrad(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""The same value, through which no gradient flows. MXNet BlockGrad."""

def CTCLoss(
    data: Symbol | None = None,
    label: Symbol | None = None,
    data_lengths: Symbol | None = None,
    label_lengths: Symbol | None = None,
    use_data_lengths: bool = False,
    use_label_lengths: bool = False,
    blank_label: Literal['first', 'last'] | str = 'first',
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""-log of the probability of the labels under connectionist temporal classification: (N,).
    data (T, N, C): activations, of which softmax is taken; label (N, L): classes, with L at
    most T. The blank is class 0 (blank_label first; labels end at a 0) or C - 1 (last; they
    end at a -1). use_data_lengths, use_label_lengths: two more inputs (N,), the numbers of
    time steps and of labels that count. A sample with too few steps for its labels has loss
    and gradient 0, as in MXNet; a label or length out of range raises IndexError. MXNet
    CTCLoss."""

def Cast(
    data: Symbol | None = None,
    *,
    dtype: str | type[Any] | dtype[Any],
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""The same values in another dtype; gradients flow between floats only. MXNet Cast."""

def Concat(
    *args: Symbol | Sequence[Symbol],
    dim: int = 1,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Values joined along axis `dim`; all other axes have equal lengths. MXNet Concat."""

def Convolution(
    data: Symbol | None = None,
    weight: Symbol | None = None,
    bias: Symbol | None = None,
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
) -> Symbol:
    r"""Convolution of data (batch, channel, *spatial), with one to three spatial axes, with
    weight (num_filter, channel / num_group, *kernel), plus bias (num_filter,). An axis of
    length n becomes floor((n + 2 pad - dilate (kernel - 1) - 1) / stride) + 1. With groups,
    each group of filters reads its group of channels. workspace and cudnn_* are accepted and
    ignored. MXNet Convolution."""

def Correlation(
    data1: Symbol | None = None,
    data2: Symbol | None = None,
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
) -> Symbol:
    r"""The mean product (or, with is_multiply=False, distance) of patches of kernel_size squared
    pixels of data1 and of data2 (N, C, H, W), displaced by up to max_displacement in steps
    of stride2; a channel for each displacement, a place for every stride1 pixels
    (Dosovitskiy et al. 2015). pad_size: zeros around both. MXNet Correlation."""

def Crop(
    *args: Symbol | Sequence[Symbol],
    offset: int | Sequence[int] = (0, 0),
    h_w: int | Sequence[int] = (0, 0),
    center_crop: bool = False,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""A window of (batch, channel, height, width) data, as large as a second input or h_w, that
    begins at `offset` or lies in the middle (center_crop). MXNet Crop."""

def Custom(
    *args: Symbol | Sequence[Symbol],
    op_type: str,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    **kwargs: Any,
) -> Symbol:
    r"""The operator that a CustomOpProp registered as op_type describes; see
    symgraph.operator.CustomOp. Further arguments are passed to the CustomOpProp, as strings.
    MXNet Custom."""

def Deconvolution(
    data: Symbol | None = None,
    weight: Symbol | None = None,
    bias: Symbol | None = None,
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
) -> Symbol:
    r"""The transpose of Convolution: data (batch, channel, *spatial), weight (channel,
    num_filter / num_group, *kernel). An axis of length n becomes stride (n - 1) + dilate
    (kernel - 1) + 1 - 2 pad + adj, or target_shape, which sets pad and adj. MXNet
    Deconvolution."""

def Dropout(
    data: Symbol | None = None,
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
) -> Symbol:
    r"""In training (or always, with mode='always'), zero for a share p of the elements and 1 /
    (1 - p) times the data for the others. axes: one draw for all elements along them. The
    mask is a function of seed, step, `stream` (the node's name) and the sample; axis, outer
    and inner say where the batch lies (batch_layout.Split; axis -1: nowhere); first: samples
    of the micro-batch before these. cudnn_off is accepted and ignored. MXNet Dropout."""

def Embedding(
    data: Symbol | None = None,
    weight: Symbol | None = None,
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
) -> Symbol:
    r"""Rows of weight (input_dim, output_dim), selected by data of any shape that holds ids as
    integers or floats. An id outside 0..input_dim-1 raises IndexError (MXNet clips it).
    dtype: the weight's, if nothing else determines it. sparse_grad is accepted and ignored.
    begin, classes: for shards of the weight, which have the rows from `begin` on of
    `classes` and give zeros for other ids. MXNet Embedding."""

def Flatten(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""All axes but the first merged into one. MXNet Flatten."""

def FullyConnected(
    data: Symbol | None = None,
    weight: Symbol | None = None,
    bias: Symbol | None = None,
    *,
    num_hidden: int,
    no_bias: bool = False,
    flatten: bool = True,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""y = x W^T + b with data (B, ...), weight (num_hidden, inputs) and bias (num_hidden,).
    With flatten=False only the last axis is the input axis. MXNet FullyConnected."""

def GridGenerator(
    data: Symbol | None = None,
    *,
    transform_type: Literal['affine', 'warp'] | str,
    target_shape: int | Sequence[int] = (0, 0),
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""The grid of a spatial transformer: (N, 2, h, w). affine: of target_shape (h, w), by a
    matrix of 2 rows and 3 columns for each sample, data (N, 6). warp: the place of each
    pixel, moved by data (N, 2, h, w) pixels. MXNet GridGenerator."""

def Group(symbols: Iterable[Symbol]) -> Symbol:
    r"""Combine several symbols into one with all their outputs (`mx.sym.Group`)."""

def GroupNorm(
    data: Symbol | None = None,
    gamma: Symbol | None = None,
    beta: Symbol | None = None,
    num_groups: int = 1,
    eps: float = 1e-05,
    output_mean_var: bool = False,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""(data - mean) / sqrt(var + eps) * gamma + beta with mean and (biased) variance of each
    sample and group of channels; gamma and beta have one number for each group. data:
    (batch, channel, ...). MXNet GroupNorm."""

def IdentityAttachKLSparseReg(
    data: Symbol | None = None,
    moving_avg: Symbol | None = None,
    sparseness_target: float = 0.1,
    penalty: float = 0.001,
    momentum: float = 0.9,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""The data (batch, units), which are outputs of a sigmoid; the gradient has penalty * ((1 -
    target) / (1 - average) - target / average) added, so that each unit is as seldom active
    as sparseness_target says. Training moves the average of each unit, moving_avg, to
    momentum * moving_avg + (1 - momentum) * the batch's mean; the gradient sees it moved.
    MXNet IdentityAttachKLSparseReg."""

def InstanceNorm(
    data: Symbol | None = None,
    gamma: Symbol | None = None,
    beta: Symbol | None = None,
    eps: float = 0.001,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""(data - mean) / sqrt(var + eps) * gamma + beta with mean and (biased) variance of each
    sample and channel; gamma and beta have one number for each channel. data: (batch,
    channel, ...). MXNet InstanceNorm."""

def L2Normalization(
    data: Symbol | None = None,
    eps: float = 1e-10,
    mode: Literal['channel', 'instance', 'spatial'] | str = 'instance',
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""data / sqrt(sum(data ** 2) + eps). The sum is over all axes but the first (mode
    instance), over axis 1 (channel), or over all but the first two (spatial). MXNet
    L2Normalization."""

def LRN(
    data: Symbol | None = None,
    *,
    alpha: float = 0.0001,
    beta: float = 0.75,
    knorm: float = 2.0,
    nsize: int,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""data / (knorm + alpha / nsize * s) ** beta, where s is the sum of squares of the nsize
    channels (axis 1) around each. MXNet LRN."""

def LayerNorm(
    data: Symbol | None = None,
    gamma: Symbol | None = None,
    beta: Symbol | None = None,
    axis: int = -1,
    eps: float = 1e-05,
    output_mean_var: bool = False,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""(data - mean) / sqrt(var + eps) * gamma + beta with mean and (biased) variance along
    `axis`; gamma and beta are vectors along it. MXNet LayerNorm."""

def LeakyReLU(
    data: Symbol | None = None,
    gamma: Symbol | None = None,
    act_type: Literal['leaky', 'elu', 'selu', 'gelu', 'prelu'] | str = 'leaky',
    slope: float = 0.25,
    lower_bound: float = 0.125,
    upper_bound: float = 0.334,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""Data where it is positive; else slope * data (leaky), gamma * data with gamma of shape
    (1,) or one for each position of axis 1 (prelu), or slope * (e ** data - 1) (elu). selu:
    elu with constants that keep mean and variance. gelu: data times the normal
    distribution's cdf at data. The bounds are rrelu's, which is not offered. MXNet
    LeakyReLU."""

def LinearRegressionOutput(
    data: Symbol | None = None,
    label: Symbol | None = None,
    grad_scale: float = 1.0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""The data, and the head of the backward pass: the gradient of (data - label) ** 2 / 2,
    summed over samples and averaged over the elements of a sample, times grad_scale. label:
    any dtype, as many elements a row of axis 0 as the data. MXNet LinearRegressionOutput."""

def LogisticRegressionOutput(
    data: Symbol | None = None,
    label: Symbol | None = None,
    grad_scale: float = 1.0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""sigmoid(data), and the head of the backward pass: the gradient of the cross entropy with
    the label, summed over samples and averaged over the elements of a sample, times
    grad_scale. label: any dtype, as many elements a row of axis 0 as the data. MXNet
    LogisticRegressionOutput."""

def MAERegressionOutput(
    data: Symbol | None = None,
    label: Symbol | None = None,
    grad_scale: float = 1.0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""The data, and the head of the backward pass: the gradient of |data - label|, summed over
    samples and averaged over the elements of a sample, times grad_scale. label: any dtype,
    as many elements a row of axis 0 as the data. MXNet MAERegressionOutput."""

def MakeLoss(
    data: Symbol | None = None,
    grad_scale: float = 1.0,
    valid_thresh: float = 0.0,
    normalization: Literal['null', 'batch', 'valid'] | str = 'null',
    count: int = 0,
    share: float = 1.0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""The data as a loss: a head of the backward pass whose gradient is grad_scale, divided by
    the length of axis 0 (normalization 'batch') or by the number of elements above
    valid_thresh ('valid'). share: the part of a loss without samples that each micro-batch
    contributes. MXNet MakeLoss."""

def Pad(
    data: Symbol | None = None,
    *,
    mode: Literal['constant', 'edge', 'reflect'] | str,
    pad_width: int | Sequence[int],
    constant_value: float = 0.0,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Data with more elements at both ends of each axis, pad_width=(before, after, ...):
    constant_value, copies of the outermost element (edge), or the elements mirrored
    (reflect). MXNet Pad."""

def Pooling(
    data: Symbol | None = None,
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
) -> Symbol:
    r"""Windows of data (batch, channel, *spatial) reduced to their max, avg, sum or lp norm (the
    p_value-th root of the sum of powers). With x = n + 2 pad - kernel an axis becomes
    floor(x / stride) + 1 long (pooling_convention valid), ceil(x / stride) + 1 (full: the
    last windows may reach over the end), or ceil(n / stride) (same, without pad).
    global_pool: one window over everything. An average divides by the size of the window,
    including its padding unless count_include_pad=False. The gradient of a maximum goes to
    the first of equal elements. MXNet Pooling."""

def RNN(
    data: Symbol | None = None,
    parameters: Symbol | None = None,
    state: Symbol | None = None,
    state_cell: Symbol | None = None,
    sequence_length: Symbol | None = None,
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
) -> Symbol:
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
    data: Symbol | None = None,
    rois: Symbol | None = None,
    *,
    pooled_size: int | Sequence[int],
    spatial_scale: float,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""The maxima of pooled_size (rows, columns) parts of regions: (R, C, *pooled_size). data
    (N, C, H, W); rois (R, 5): the number of an image and the corners x1, y1, x2, y2, which
    are multiplied by spatial_scale and rounded, and belong to the region. A part outside the
    image is 0. An image's number out of range raises IndexError (Girshick 2015). MXNet
    ROIPooling."""

def Reshape(
    data: Symbol | None = None,
    shape: int | Sequence[int] | None = None,
    reverse: bool = False,
    target_shape: int | Sequence[int] = (),
    keep_highest: bool = False,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""The same elements in another shape. In `shape`, 0 keeps a dimension, -1 is inferred, -2
    keeps all remaining ones, -3 merges two, and (-4, a, b) splits one into a x b (one may be
    -1); reverse=True matches dimensions from the right, and has -4 behind a, b. target_shape
    is MXNet 0.x's form: 0 is inferred, and keep_highest keeps the first dimension. MXNet
    Reshape."""

def SVMOutput(
    data: Symbol | None = None,
    label: Symbol | None = None,
    margin: float = 1.0,
    regularization_coefficient: float = 1.0,
    use_linear: bool = False,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""The data, and the head of the backward pass: the gradient is that of a support vector
    machine with one class against the others, see `_svm_grad`. label: class numbers of any
    dtype, shaped like the data without the last axis. MXNet SVMOutput."""

def SequenceLast(
    data: Symbol | None = None,
    sequence_length: Symbol | None = None,
    use_sequence_length: bool = False,
    axis: Literal[0, 1] = 0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""The last time step of each sample: (B, ...). A sequence_length outside 1..T raises
    IndexError. MXNet SequenceLast."""

def SequenceMask(
    data: Symbol | None = None,
    sequence_length: Symbol | None = None,
    use_sequence_length: bool = False,
    value: float = 0.0,
    axis: Literal[0, 1] = 0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""The data with `value` in all time steps from a sample's sequence_length on. MXNet
    SequenceMask."""

def SequenceReverse(
    data: Symbol | None = None,
    sequence_length: Symbol | None = None,
    use_sequence_length: bool = False,
    axis: Literal[0, 1] = 0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""The first sequence_length time steps of each sample in reverse order, the others
    unchanged. A sequence_length outside 0..T raises IndexError. MXNet SequenceReverse (whose
    axis is always 0)."""

def SliceChannel(
    data: Symbol | None = None,
    *,
    num_outputs: int,
    axis: int = 1,
    squeeze_axis: bool = False,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Data cut into num_outputs equal parts along an axis; squeeze_axis removes the axis if the
    parts have length 1. MXNet SliceChannel."""

def SoftmaxActivation(
    data: Symbol | None = None,
    mode: Literal['instance', 'channel'] | str = 'instance',
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Softmax along the last axis (mode='instance') or axis 1 (mode='channel'). MXNet
    SoftmaxActivation."""

def SoftmaxOutput(
    data: Symbol | None = None,
    label: Symbol | None = None,
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
) -> Symbol:
    r"""Softmax over the last axis (axis 1 with multi_output), and a head of the backward pass:
    its gradient is that of cross entropy with the label, see `_softmax_output_grad`. label:
    class numbers of any dtype, shaped like the data without the class axis; or a probability
    for each class, shaped like the data: the gradient is (softmax - label) * grad_scale
    then. Data of more than 2 dimensions needs preserve_shape or multi_output. out_grad:
    multiply by the gradient that comes from operators behind it or from out_grads, which is
    ignored otherwise. A third, hidden input holds the count of valid labels (`valid_input`).
    MXNet SoftmaxOutput."""

def SpatialTransformer(
    data: Symbol | None = None,
    loc: Symbol | None = None,
    target_shape: int | Sequence[int] = (0, 0),
    transform_type: Any = 'affine',
    sampler_type: Any = 'bilinear',
    cudnn_off: Any = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""BilinearSampler of the data (N, C, H, W) along GridGenerator's affine grid of loc (N, 6):
    (N, C, *target_shape) (Jaderberg et al. 2015). MXNet SpatialTransformer."""

def SwapAxis(
    data: Symbol | None = None,
    dim1: int = 0,
    dim2: int = 0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""The data with two axes exchanged. MXNet SwapAxis."""

def UpSampling(
    *args: Symbol | Sequence[Symbol],
    scale: int,
    num_filter: int = 0,
    sample_type: Literal['nearest', 'bilinear'] | str,
    multi_input_mode: Literal['concat', 'sum'] | str = 'concat',
    workspace: int = 512,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Images (batch, channel, height, width) made `scale` times as high and wide. nearest: each
    element repeated to a square; of several inputs the first one is scaled, the others grow
    to its new size, and all are joined along the channels (concat) or added (sum). bilinear:
    the Deconvolution of data with weight (channel, 1, k, k), k = 2 scale - scale % 2, one
    filter for each channel; init.Bilinear makes it interpolate. num_filter and workspace are
    accepted and ignored. MXNet UpSampling."""

def Variable(
    name: str,
    attr: Mapping[str, str] | None = None,
    shape: int | Shape | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    dtype: Any = None,
    init: Any = None,
    stype: str = 'default',
    **kwargs: str,
) -> Symbol:
    r"""Make a named input or parameter (`mx.sym.Variable`).

    Args:
        name: the variable's name.
        attr: attributes by key.
        shape: its shape, with 0 for unknown dimensions; `infer_shape` arguments have priority.
        lr_mult: factor of the learning rate.
        wd_mult: factor of the weight decay.
        dtype: its dtype, as a name, numpy type or MXNet number.
        init: an initializer or its name.
        stype: only "default" (dense); anything else raises ValueError.
        **kwargs: further attributes, spelt `__key__`.

    Raises:
        GraphError, TypeError, ValueError: for a wrong argument; the message names it."""

def abs(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""abs(data), element by element. MXNet abs."""

def add_n(
    *args: Symbol | Sequence[Symbol],
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""arg0 + arg1 + ..., added from left to right; all of one shape. MXNet add_n."""

def arange(
    start: float = 0.0,
    stop: float | None = None,
    step: float = 1.0,
    repeat: int = 1,
    infer_range: Any = False,
    ctx: Any = None,
    dtype: str | type[Any] | dtype[Any] = 'float32',
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""start, start + step, ... up to but not including stop, each `repeat` times; from 0 up to
    start if stop is None. MXNet _arange."""

def arccos(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""arccos(data), element by element. MXNet arccos."""

def arccosh(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""arccosh(data), element by element. MXNet arccosh."""

def arcsin(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""arcsin(data), element by element. MXNet arcsin."""

def arcsinh(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""arcsinh(data), element by element. MXNet arcsinh."""

def arctan(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""arctan(data), element by element. MXNet arctan."""

def arctanh(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""arctanh(data), element by element. MXNet arctanh."""

def argmax(
    data: Symbol | None = None,
    axis: int | None = None,
    keepdims: bool = False,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Index of the first largest element along an axis, or in the flattened data if axis is
    None, in the data's dtype. MXNet argmax."""

def argmax_channel(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Index of the first largest element along axis 1, in the data's dtype. MXNet
    argmax_channel."""

def argmin(
    data: Symbol | None = None,
    axis: int | None = None,
    keepdims: bool = False,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Index of the first smallest element along an axis, or in the flattened data if axis is
    None, in the data's dtype. MXNet argmin."""

def argsort(
    data: Symbol | None = None,
    axis: int | None = -1,
    is_ascend: bool = True,
    dtype: str | type[Any] | dtype[Any] = 'float32',
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""The indices of the data's elements in ascending or descending order along an axis, or in
    the flattened data if axis is None; equal elements keep their order. MXNet argsort."""

def batch_dot(
    lhs: Symbol | None = None,
    rhs: Symbol | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    forward_stype: Any = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""Products of the matrices in the last two axes: (..., n, k) times (..., k, m) is (..., n,
    m). transpose_a and transpose_b exchange those axes of an input first. MXNet batch_dot."""

def batch_take(
    a: Symbol | None = None,
    indices: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""One element of each row of `a` (N, M), at indices (N,); an index out of range is clipped.
    MXNet batch_take."""

def broadcast_add(
    lhs: Symbol | None = None,
    rhs: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""lhs + rhs element by element, in the inputs' dtype; shapes broadcast. MXNet
    broadcast_add."""

def broadcast_axis(
    data: Symbol | None = None,
    axis: int | Sequence[int] = (),
    size: int | Sequence[int] = (),
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Data repeated `size` times along each axis of `axis`; these axes have length 1. MXNet
    broadcast_axis."""

def broadcast_div(
    lhs: Symbol | None = None,
    rhs: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""lhs / rhs element by element, in the inputs' dtype; shapes broadcast. MXNet
    broadcast_div."""

def broadcast_equal(
    lhs: Symbol | None = None,
    rhs: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""lhs == rhs element by element, in the inputs' dtype; shapes broadcast. MXNet
    broadcast_equal."""

def broadcast_greater(
    lhs: Symbol | None = None,
    rhs: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""lhs > rhs element by element, in the inputs' dtype; shapes broadcast. MXNet
    broadcast_greater."""

def broadcast_greater_equal(
    lhs: Symbol | None = None,
    rhs: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""lhs >= rhs element by element, in the inputs' dtype; shapes broadcast. MXNet
    broadcast_greater_equal."""

def broadcast_hypot(
    lhs: Symbol | None = None,
    rhs: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""hypot(lhs, rhs) element by element, in the inputs' dtype; shapes broadcast. MXNet
    broadcast_hypot."""

def broadcast_lesser(
    lhs: Symbol | None = None,
    rhs: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""lhs < rhs element by element, in the inputs' dtype; shapes broadcast. MXNet
    broadcast_lesser."""

def broadcast_lesser_equal(
    lhs: Symbol | None = None,
    rhs: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""lhs <= rhs element by element, in the inputs' dtype; shapes broadcast. MXNet
    broadcast_lesser_equal."""

def broadcast_like(
    lhs: Symbol | None = None,
    rhs: Symbol | None = None,
    lhs_axes: Any = None,
    rhs_axes: Any = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""lhs repeated along its axes of length 1 to the shape of rhs. MXNet broadcast_like."""

def broadcast_logical_and(
    lhs: Symbol | None = None,
    rhs: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""where(lhs == 0, 0, where(rhs == 0, 0, 1)) element by element, in the inputs' dtype;
    shapes broadcast. MXNet broadcast_logical_and."""

def broadcast_logical_or(
    lhs: Symbol | None = None,
    rhs: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""where(lhs == 0, where(rhs == 0, 0, 1), 1) element by element, in the inputs' dtype;
    shapes broadcast. MXNet broadcast_logical_or."""

def broadcast_logical_xor(
    lhs: Symbol | None = None,
    rhs: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""where(lhs == 0, where(rhs == 0, 0, 1), where(rhs == 0, 1, 0)) element by element, in the
    inputs' dtype; shapes broadcast. MXNet broadcast_logical_xor."""

def broadcast_maximum(
    lhs: Symbol | None = None,
    rhs: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""maximum(lhs, rhs) element by element, in the inputs' dtype; shapes broadcast. MXNet
    broadcast_maximum."""

def broadcast_minimum(
    lhs: Symbol | None = None,
    rhs: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""minimum(lhs, rhs) element by element, in the inputs' dtype; shapes broadcast. MXNet
    broadcast_minimum."""

def broadcast_mod(
    lhs: Symbol | None = None,
    rhs: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""lhs % rhs element by element, in the inputs' dtype; shapes broadcast. MXNet
    broadcast_mod."""

def broadcast_mul(
    lhs: Symbol | None = None,
    rhs: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""lhs * rhs element by element, in the inputs' dtype; shapes broadcast. MXNet
    broadcast_mul."""

def broadcast_not_equal(
    lhs: Symbol | None = None,
    rhs: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""lhs != rhs element by element, in the inputs' dtype; shapes broadcast. MXNet
    broadcast_not_equal."""

def broadcast_power(
    lhs: Symbol | None = None,
    rhs: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""lhs ** rhs element by element, in the inputs' dtype; shapes broadcast. MXNet
    broadcast_power."""

def broadcast_sub(
    lhs: Symbol | None = None,
    rhs: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""lhs - rhs element by element, in the inputs' dtype; shapes broadcast. MXNet
    broadcast_sub."""

def broadcast_to(
    data: Symbol | None = None,
    *,
    shape: int | Sequence[int],
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Data repeated along axes of length 1 to `shape`. A 0 in `shape` keeps that dimension;
    missing leading axes count as 1. MXNet broadcast_to."""

def cbrt(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""cbrt(data), element by element. MXNet cbrt."""

def ceil(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""the smallest whole number that is not below data, element by element. MXNet ceil."""

def clip(
    data: Symbol | None = None,
    *,
    a_min: float,
    a_max: float,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Data limited to [a_min, a_max]; the gradient passes where it lies inside, borders
    included. MXNet clip."""

def cos(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""cos(data), element by element. MXNet cos."""

def cosh(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""cosh(data), element by element. MXNet cosh."""

def cumsum(
    a: Symbol | None = None,
    axis: int | None = None,
    dtype: str | type[Any] | dtype[Any] | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""The sums of all elements up to each, along an axis or in the flattened data if axis is
    None, in the data's dtype or `dtype`. MXNet cumsum."""

def degrees(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""data * 180 / pi, element by element. MXNet degrees."""

def depth_to_space(
    data: Symbol | None = None,
    *,
    block_size: int,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Images (n, b * b * c, h, w) as (n, c, h * b, w * b): every b * b channels become a block
    of height and width; b = block_size. MXNet depth_to_space."""

def dot(
    lhs: Symbol | None = None,
    rhs: Symbol | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    forward_stype: Any = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""The sum over the last axis of lhs (the first with transpose_a) and the first of rhs (the
    last with transpose_b). MXNet dot."""

def elemwise_add(
    lhs: Symbol | None = None,
    rhs: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""lhs + rhs element by element, in the inputs' dtype; both of one shape. MXNet
    elemwise_add."""

def elemwise_div(
    lhs: Symbol | None = None,
    rhs: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""lhs / rhs element by element, in the inputs' dtype; both of one shape. MXNet
    elemwise_div."""

def elemwise_mul(
    lhs: Symbol | None = None,
    rhs: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""lhs * rhs element by element, in the inputs' dtype; both of one shape. MXNet
    elemwise_mul."""

def elemwise_sub(
    lhs: Symbol | None = None,
    rhs: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""lhs - rhs element by element, in the inputs' dtype; both of one shape. MXNet
    elemwise_sub."""

def erf(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""the error function, element by element. MXNet erf."""

def erfinv(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""the inverse of erf, element by element. MXNet erfinv."""

def exp(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""exp(data), element by element. MXNet exp."""

def expand_dims(
    data: Symbol | None = None,
    *,
    axis: int,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""A new axis of length 1 at `axis`, counted in the output. MXNet expand_dims."""

def expm1(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""exp(data) - 1, element by element. MXNet expm1."""

def fix(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""the whole number next to data on zero's side, element by element. MXNet fix."""

def floor(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""the largest whole number that is not above data, element by element. MXNet floor."""

def full(
    shape: int | Shape,
    val: float,
    dtype: Any = 'float32',
    *,
    name: str | None = None,
    **attrs: str,
) -> Symbol:
    r"""Fill a shape, with 0 for the batch axis, with the number val (`mx.sym.full`)."""

def gamma(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""the gamma function, element by element. MXNet gamma."""

def gammaln(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""the logarithm of the absolute value of the gamma function, element by element. MXNet
    gammaln."""

def gather_nd(
    data: Symbol | None = None,
    indices: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""Elements or parts of data: indices (M, ...) name places by its first M axes, and the
    output has the shape of one row of indices, then data's other axes. Negative indices
    count from the end; one out of range raises IndexError. MXNet gather_nd."""

def hard_sigmoid(
    data: Symbol | None = None,
    alpha: float = 0.2,
    beta: float = 0.5,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""alpha * data + beta limited to [0, 1], element by element. MXNet hard_sigmoid."""

def hypot(left: Any, right: Any) -> Symbol:
    r"""Return sqrt(left ** 2 + right ** 2), element by element (`mx.sym.hypot`)."""

def identity(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""The same value. MXNet identity."""

def linalg_extractdiag(
    A: Symbol | None = None,
    offset: int = 0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Diagonals of square matrices: the main one, or the one `offset` places above (below if
    negative). MXNet _linalg_extractdiag."""

def linalg_gemm(
    A: Symbol | None = None,
    B: Symbol | None = None,
    C: Symbol | None = None,
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
) -> Symbol:
    r"""alpha A B + beta C for matrices A (..., n, k) and B (..., k, m), each transposed first if
    its flag says so. MXNet _linalg_gemm."""

def linalg_gemm2(
    A: Symbol | None = None,
    B: Symbol | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    alpha: float = 1.0,
    axis: Any = -2,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""alpha A B for matrices A (..., n, k) and B (..., k, m), each transposed first if its flag
    says so. MXNet _linalg_gemm2."""

def linalg_makediag(
    A: Symbol | None = None,
    offset: int = 0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Square matrices with the last axis on the diagonal `offset` places above the main one,
    and zeros elsewhere. MXNet _linalg_makediag."""

def linalg_potrf(
    A: Symbol | None = None,
    lower: bool = True,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""The lower triangular L with L L' = A, for symmetric positive definite matrices A, of
    which the lower triangle is read; with lower=False the upper U with U' U = A, and the
    upper triangle is read. The gradient is symmetric. MXNet _linalg_potrf."""

def linalg_potri(
    A: Symbol | None = None,
    lower: bool = True,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""The inverse of A A' for lower triangular matrices A, which potrf returns, or of A' A for
    upper ones with lower=False. MXNet _linalg_potri."""

def linalg_sumlogdiag(
    A: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Sums of the logarithms of the main diagonals of square matrices. MXNet
    _linalg_sumlogdiag."""

def linalg_syrk(
    A: Symbol | None = None,
    transpose: bool = False,
    alpha: float = 1.0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""alpha A A' for matrices A, where A' is the transpose; alpha A' A with transpose=True.
    MXNet _linalg_syrk."""

def linalg_trmm(
    A: Symbol | None = None,
    B: Symbol | None = None,
    transpose: bool = False,
    rightside: bool = False,
    lower: bool = True,
    alpha: float = 1.0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""alpha A B, or alpha B A with rightside=True, for triangular matrices A (..., n, n),
    transposed first with transpose=True. MXNet _linalg_trmm."""

def linalg_trsm(
    A: Symbol | None = None,
    B: Symbol | None = None,
    transpose: bool = False,
    rightside: bool = False,
    lower: bool = True,
    alpha: float = 1.0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""The X of A X = alpha B, or of X A = alpha B with rightside=True, for triangular matrices
    A (..., n, n), transposed first with transpose=True. MXNet _linalg_trsm."""

def load(path: str) -> Symbol:
    r"""Read a symbol file, written by `Symbol.save` or MXNet 0.8 to 1.9 (`mx.sym.load`).

    Raises ConfigError for a file that cannot be read, and GraphError for one that is not a symbol."""

def load_json(text: str) -> Symbol:
    r"""Read a symbol from the text of `tojson` or of an MXNet symbol file (`mx.sym.load_json`).

    Raises GraphError for any other text."""

def log(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""the natural logarithm, element by element. MXNet log."""

def log10(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""log10(data), element by element. MXNet log10."""

def log1p(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""log(1 + data), element by element. MXNet log1p."""

def log2(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""log2(data), element by element. MXNet log2."""

def log_softmax(
    data: Symbol | None = None,
    axis: int = -1,
    temperature: float | None = None,
    dtype: Any = None,
    use_length: Any = False,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""The logarithm of softmax(data / temperature) along the axis. MXNet log_softmax."""

def logical_not(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""1 where data is 0, else 0, element by element. MXNet logical_not."""

def max(
    data: Symbol | None = None,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    exclude: bool = False,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Largest element over axes; axis None or () means all axes, and a full reduction gives
    shape (1,); exclude=True reduces the axes that are not named. MXNet max."""

def maximum(left: Any, right: Any) -> Symbol:
    r"""Return the larger of both, element by element (`mx.sym.maximum`)."""

def mean(
    data: Symbol | None = None,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    exclude: bool = False,
    count: int = 0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Mean over axes; axis None or () means all axes, and a full reduction gives shape (1,);
    exclude=True reduces the axes that are not named. count: what the sum is divided by, if
    not the number of its own elements. MXNet mean."""

def min(
    data: Symbol | None = None,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    exclude: bool = False,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Smallest element over axes; axis None or () means all axes, and a full reduction gives
    shape (1,); exclude=True reduces the axes that are not named. MXNet min."""

def minimum(left: Any, right: Any) -> Symbol:
    r"""Return the smaller of both, element by element (`mx.sym.minimum`)."""

def modulo(left: Any, right: Any) -> Symbol:
    r"""Return the remainder of left / right, with the sign of right (`mx.sym.modulo`)."""

def nanprod(
    data: Symbol | None = None,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    exclude: bool = False,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Product over axes of what is not NaN; axis None or () means all axes, and a full
    reduction gives shape (1,); exclude=True reduces the axes that are not named. MXNet
    nanprod."""

def nansum(
    data: Symbol | None = None,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    exclude: bool = False,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Sum over axes of what is not NaN; axis None or () means all axes, and a full reduction
    gives shape (1,); exclude=True reduces the axes that are not named. MXNet nansum."""

def negative(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""-data, element by element. MXNet negative."""

def nll_stats(
    prob: Symbol | None = None,
    label: Symbol | None = None,
    ignore_label: float = -1.0,
    use_ignore: bool = False,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""Two float64 sums of shape (1,) over the labels that are not ignored: -log of the
    probability (last axis) of the label, and their number. exp of their quotient is the
    perplexity. A probability below the smallest normal number counts as that number. No
    gradient flows, so it may stand beside a loss."""

def norm(
    data: Symbol | None = None,
    ord: Literal[1, 2] = 2,
    axis: int | Sequence[int] | None = None,
    out_dtype: Any = None,
    keepdims: bool = False,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Sum of magnitudes (ord=1) or square root of the sum of squares (ord=2) over axes; axis
    None or () means all axes, and a full reduction gives shape (1,). MXNet norm."""

def normal(
    *,
    loc: float = 0.0,
    scale: float = 1.0,
    shape: int | Sequence[int],
    ctx: Any = None,
    dtype: str | type[Any] | dtype[Any] = 'float32',
    stream: str = '',
    axis: int = -1,
    outer: int = 1,
    inner: int = 1,
    first: int = 0,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Numbers of the normal distribution with mean loc and standard deviation scale, of the
    given shape, in which one 0 may stand for the batch. The numbers are a function of seed,
    step, `stream` (the node's name) and the sample; axis, outer, inner and first as in
    Dropout. MXNet _random_normal."""

def one_hot(
    indices: Symbol | None = None,
    *,
    depth: int,
    on_value: float = 1.0,
    off_value: float = 0.0,
    dtype: str | type[Any] | dtype[Any] = 'float32',
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""A new last axis of length depth with on_value at the index and off_value elsewhere; an
    index out of range is off everywhere. MXNet one_hot."""

def ones(
    shape: int | Sequence[int],
    ctx: Any = None,
    dtype: str | type[Any] | dtype[Any] = 'float32',
    axis: int = -1,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Ones in every element; one 0 in `shape` may stand for the batch, which is along `axis`
    then. MXNet _ones."""

def ones_like(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Ones of the data's shape and dtype. MXNet ones_like."""

def pick(
    data: Symbol | None = None,
    index: Symbol | None = None,
    axis: int = -1,
    keepdims: bool = False,
    mode: Literal['clip', 'wrap'] | str = 'clip',
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""One element along an axis for each index; index has the shape of data without that axis,
    or with length 1 there. mode: an index out of range is clipped or wrapped around. MXNet
    pick."""

def pow(base: Any, exp: Any) -> Symbol:
    r"""Return base ** exp, element by element (`mx.sym.power`, `mx.sym.pow`)."""

def power(base: Any, exp: Any) -> Symbol:
    r"""Return base ** exp, element by element (`mx.sym.power`, `mx.sym.pow`)."""

def prod(
    data: Symbol | None = None,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    exclude: bool = False,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Product over axes; axis None or () means all axes, and a full reduction gives shape (1,);
    exclude=True reduces the axes that are not named. MXNet prod."""

def radians(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""data * pi / 180, element by element. MXNet radians."""

def random_exponential(
    *,
    lam: float = 1.0,
    shape: int | Sequence[int],
    ctx: Any = None,
    dtype: str | type[Any] | dtype[Any] = 'float32',
    stream: str = '',
    axis: int = -1,
    outer: int = 1,
    inner: int = 1,
    first: int = 0,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Numbers of the exponential distribution with rate lam, of the given shape, in which one 0
    may stand for the batch. The numbers are a function of seed, step, `stream` (the node's
    name) and the sample; axis, outer, inner and first as in Dropout. MXNet
    _random_exponential."""

def random_gamma(
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    shape: int | Sequence[int],
    ctx: Any = None,
    dtype: str | type[Any] | dtype[Any] = 'float32',
    stream: str = '',
    axis: int = -1,
    outer: int = 1,
    inner: int = 1,
    first: int = 0,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Numbers of the gamma distribution with shape alpha and scale beta, of the given shape, in
    which one 0 may stand for the batch. The numbers are a function of seed, step, `stream`
    (the node's name) and the sample; axis, outer, inner and first as in Dropout. MXNet
    _random_gamma."""

def random_generalized_negative_binomial(
    *,
    mu: float = 1.0,
    alpha: float = 1.0,
    shape: int | Sequence[int],
    ctx: Any = None,
    dtype: str | type[Any] | dtype[Any] = 'float32',
    stream: str = '',
    axis: int = -1,
    outer: int = 1,
    inner: int = 1,
    first: int = 0,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Counts of the negative binomial distribution with mean mu and dispersion alpha (variance
    mu + alpha * mu * mu), of the given shape, in which one 0 may stand for the batch. The
    numbers are a function of seed, step, `stream` (the node's name) and the sample; axis,
    outer, inner and first as in Dropout. MXNet _random_generalized_negative_binomial."""

def random_negative_binomial(
    *,
    k: float = 1.0,
    p: float = 1.0,
    shape: int | Sequence[int],
    ctx: Any = None,
    dtype: str | type[Any] | dtype[Any] = 'float32',
    stream: str = '',
    axis: int = -1,
    outer: int = 1,
    inner: int = 1,
    first: int = 0,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Counts of the negative binomial distribution: failures before k successes of probability
    p, of the given shape, in which one 0 may stand for the batch. The numbers are a function
    of seed, step, `stream` (the node's name) and the sample; axis, outer, inner and first as
    in Dropout. MXNet _random_negative_binomial."""

def random_normal(
    *,
    loc: float = 0.0,
    scale: float = 1.0,
    shape: int | Sequence[int],
    ctx: Any = None,
    dtype: str | type[Any] | dtype[Any] = 'float32',
    stream: str = '',
    axis: int = -1,
    outer: int = 1,
    inner: int = 1,
    first: int = 0,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Numbers of the normal distribution with mean loc and standard deviation scale, of the
    given shape, in which one 0 may stand for the batch. The numbers are a function of seed,
    step, `stream` (the node's name) and the sample; axis, outer, inner and first as in
    Dropout. MXNet _random_normal."""

def random_poisson(
    *,
    lam: float = 1.0,
    shape: int | Sequence[int],
    ctx: Any = None,
    dtype: str | type[Any] | dtype[Any] = 'float32',
    stream: str = '',
    axis: int = -1,
    outer: int = 1,
    inner: int = 1,
    first: int = 0,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Counts of the Poisson distribution with mean lam, of the given shape, in which one 0 may
    stand for the batch. The numbers are a function of seed, step, `stream` (the node's name)
    and the sample; axis, outer, inner and first as in Dropout. MXNet _random_poisson."""

def random_randint(
    low: int,
    high: int,
    shape: int | Sequence[int],
    ctx: Any = None,
    dtype: str | type[Any] | dtype[Any] = 'int32',
    stream: str = '',
    axis: int = -1,
    outer: int = 1,
    inner: int = 1,
    first: int = 0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Whole numbers from low to high - 1, of the given shape, in which one 0 may stand for the
    batch. The numbers are a function of seed, step, `stream` (the node's name) and the
    sample; axis, outer, inner and first as in Dropout. MXNet _random_randint."""

def random_uniform(
    *,
    low: float = 0.0,
    high: float = 1.0,
    shape: int | Sequence[int],
    ctx: Any = None,
    dtype: str | type[Any] | dtype[Any] = 'float32',
    stream: str = '',
    axis: int = -1,
    outer: int = 1,
    inner: int = 1,
    first: int = 0,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Numbers evenly spread over [low, high), of the given shape, in which one 0 may stand for
    the batch. The numbers are a function of seed, step, `stream` (the node's name) and the
    sample; axis, outer, inner and first as in Dropout. MXNet _random_uniform."""

def rcbrt(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""1 / cbrt(data), element by element. MXNet rcbrt."""

def reciprocal(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""1 / data, element by element. MXNet reciprocal."""

def relu(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""max(data, 0), element by element. MXNet relu."""

def repeat(
    data: Symbol | None = None,
    *,
    repeats: int,
    axis: int | None = None,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Each element repeated `repeats` times along an axis; axis=None flattens the data first.
    MXNet repeat."""

def reshape_like(
    lhs: Symbol | None = None,
    rhs: Symbol | None = None,
    lhs_begin: int | None = None,
    lhs_end: int | None = None,
    rhs_begin: int | None = None,
    rhs_end: int | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""The elements of lhs in the shape of rhs; or its axes [lhs_begin, lhs_end) in the lengths
    of rhs's axes [rhs_begin, rhs_end). MXNet reshape_like."""

def reverse(
    data: Symbol | None = None,
    *,
    axis: int | Sequence[int],
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""The elements in reverse order along the axes. MXNet reverse, flip."""

def rint(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""the nearest whole number, halves down, element by element. MXNet rint."""

def round(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""the nearest whole number, halves away from zero, element by element. MXNet round."""

def rsqrt(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""1 / sqrt(data), element by element. MXNet rsqrt."""

def sample_exponential(
    lam: Symbol | None = None,
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
) -> Symbol:
    r"""Numbers of the exponential distribution with rate lam: `shape` numbers for each element
    of the parameters, which are inputs of one shape. The numbers are a function of seed,
    step, `stream` (the node's name) and the sample; axis, outer, inner and first as in
    Dropout. MXNet _sample_exponential."""

def sample_gamma(
    alpha: Symbol | None = None,
    beta: Symbol | None = None,
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
) -> Symbol:
    r"""Numbers of the gamma distribution with shape alpha and scale beta: `shape` numbers for
    each element of the parameters, which are inputs of one shape. The numbers are a function
    of seed, step, `stream` (the node's name) and the sample; axis, outer, inner and first as
    in Dropout. MXNet _sample_gamma."""

def sample_generalized_negative_binomial(
    mu: Symbol | None = None,
    alpha: Symbol | None = None,
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
) -> Symbol:
    r"""Counts of the negative binomial distribution with mean mu and dispersion alpha (variance
    mu + alpha * mu * mu): `shape` numbers for each element of the parameters, which are
    inputs of one shape. The numbers are a function of seed, step, `stream` (the node's name)
    and the sample; axis, outer, inner and first as in Dropout. MXNet
    _sample_generalized_negative_binomial."""

def sample_multinomial(
    data: Symbol | None = None,
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
) -> Symbol:
    r"""Classes drawn by their probabilities, which are the last axis of the data: `shape` for
    each row. Probabilities need not add up to 1. get_prob: a second output, the logarithms
    of the probabilities of what was drawn, without a gradient. The numbers are a function of
    seed, step, `stream` (the node's name) and the sample; axis, outer, inner and first as in
    Dropout. MXNet _sample_multinomial."""

def sample_negative_binomial(
    k: Symbol | None = None,
    p: Symbol | None = None,
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
) -> Symbol:
    r"""Counts of the negative binomial distribution: failures before k successes of probability
    p: `shape` numbers for each element of the parameters, which are inputs of one shape. The
    numbers are a function of seed, step, `stream` (the node's name) and the sample; axis,
    outer, inner and first as in Dropout. MXNet _sample_negative_binomial."""

def sample_normal(
    loc: Symbol | None = None,
    scale: Symbol | None = None,
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
) -> Symbol:
    r"""Numbers of the normal distribution with mean loc and standard deviation scale: `shape`
    numbers for each element of the parameters, which are inputs of one shape. The numbers
    are a function of seed, step, `stream` (the node's name) and the sample; axis, outer,
    inner and first as in Dropout. MXNet _sample_normal."""

def sample_poisson(
    lam: Symbol | None = None,
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
) -> Symbol:
    r"""Counts of the Poisson distribution with mean lam: `shape` numbers for each element of the
    parameters, which are inputs of one shape. The numbers are a function of seed, step,
    `stream` (the node's name) and the sample; axis, outer, inner and first as in Dropout.
    MXNet _sample_poisson."""

def sample_uniform(
    low: Symbol | None = None,
    high: Symbol | None = None,
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
) -> Symbol:
    r"""Numbers evenly spread over [low, high): `shape` numbers for each element of the
    parameters, which are inputs of one shape. The numbers are a function of seed, step,
    `stream` (the node's name) and the sample; axis, outer, inner and first as in Dropout.
    MXNet _sample_uniform."""

def scaled_dot_product_attention(
    query: Symbol | None = None,
    key: Symbol | None = None,
    value: Symbol | None = None,
    mask: Symbol | None = None,
    use_mask: bool = False,
    causal: bool = False,
    scale: float | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""softmax(query key^T scale + mask) value, along the keys: (..., queries, d), (..., keys,
    d) and (..., keys, units) make (..., queries, units); the axes in front, such as (batch *
    heads) or (batch, heads), are the same in all. The weights (queries, keys) are never all
    in memory, and not kept for the gradient. scale: d ** -0.5 by default. causal: whether
    query i sees keys 0 to i only. use_mask: one more input, added to the scores, to whose
    shape it broadcasts with as many axes; use -inf or a large negative number to hide a key.
    A second derivative is not there. PyTorch scaled_dot_product_attention, ONNX Attention."""

def scatter_nd(
    data: Symbol | None = None,
    indices: Symbol | None = None,
    *,
    shape: int | Sequence[int],
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""Zeros of `shape`, with data at the places that indices (M, ...) name by the first M axes;
    what goes to one place is added up in a fixed order (in MXNet any of it may stay).
    Gradient of gather_nd. MXNet scatter_nd."""

def shuffle(
    data: Symbol | None = None,
    stream: str = '',
    axis: int = -1,
    outer: int = 1,
    inner: int = 1,
    first: int = 0,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""The rows of the data, along axis 0, in random order: a function of seed, step and
    `stream` (the node's name). MXNet _shuffle."""

def sigmoid(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""1 / (1 + exp(-data)), element by element. MXNet sigmoid."""

def sign(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""-1, 0 or 1, element by element. MXNet sign."""

def sin(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""sin(data), element by element. MXNet sin."""

def sinh(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""sinh(data), element by element. MXNet sinh."""

def slice(
    data: Symbol | None = None,
    *,
    begin: int | Sequence[int | None],
    end: int | Sequence[int | None],
    step: int | Sequence[int | None] = (),
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""The parts [begin, end) by step of the leading axes; None stands for the axis's own end,
    and negative positions count from there. MXNet slice."""

def slice_axis(
    data: Symbol | None = None,
    *,
    axis: int,
    begin: int,
    end: int | None = None,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""The part [begin, end) of one axis; end=None means up to the axis's end, and negative
    positions count from there. MXNet slice_axis."""

def slice_like(
    data: Symbol | None = None,
    shape_like: Symbol | None = None,
    axes: int | Sequence[int] = (),
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""The first elements of data along `axes`, as many as shape_like has; () means all axes.
    MXNet slice_like."""

def smooth_l1(
    data: Symbol | None = None,
    scalar: float = 1.0,
    is_int: Any = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""(scalar * data) ** 2 / 2 where |data| < 1 / scalar ** 2, and |data| - 0.5 / scalar ** 2
    beyond. MXNet smooth_l1."""

def softmax(
    data: Symbol | None = None,
    axis: int = -1,
    temperature: float | None = None,
    dtype: Any = None,
    use_length: Any = False,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""exp(data / temperature) divided by its sum along the axis. MXNet softmax."""

def softmax_cross_entropy(
    data: Symbol | None = None,
    label: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""The sum over samples of -log softmax(data)[label]: data (B, V), label (B,), output (1,).
    It does not start the backward pass by itself. MXNet softmax_cross_entropy."""

def softmin(
    data: Symbol | None = None,
    axis: int = -1,
    temperature: float | None = None,
    dtype: Any = None,
    use_length: Any = False,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""softmax(-data), along the axis: exp(-data / temperature) divided by its sum. MXNet
    softmin."""

def softsign(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""data / (1 + abs(data)), element by element. MXNet softsign."""

def sort(
    data: Symbol | None = None,
    axis: int | None = -1,
    is_ascend: bool = True,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""The data's elements in ascending or descending order along an axis; of the flattened data
    if axis is None. MXNet sort."""

def space_to_depth(
    data: Symbol | None = None,
    *,
    block_size: int,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Images (n, c, h * b, w * b) as (n, b * b * c, h, w): the places in a block become
    channels; b = block_size. MXNet space_to_depth."""

def sqrt(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""sqrt(data), element by element. MXNet sqrt."""

def square(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""square(data), element by element. MXNet square."""

def squeeze(
    data: Symbol | None = None,
    axis: int | Sequence[int] | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""The data without axes of length 1: those in `axis`, or all; a scalar becomes (1,). MXNet
    squeeze."""

def stack(
    *args: Symbol | Sequence[Symbol],
    axis: int = 0,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Values of one shape joined along a new axis. MXNet stack."""

def sum(
    data: Symbol | None = None,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    exclude: bool = False,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Sum over axes; axis None or () means all axes, and a full reduction gives shape (1,);
    exclude=True reduces the axes that are not named. MXNet sum."""

def take(
    a: Symbol | None = None,
    indices: Symbol | None = None,
    axis: int = 0,
    mode: Literal['clip', 'wrap', 'raise'] | str = 'clip',
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""Slices of `a` along an axis by index; the shape of indices replaces that axis. mode: an
    index out of range is clipped, wrapped around, or raises IndexError. MXNet take."""

def tan(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""tan(data), element by element. MXNet tan."""

def tanh(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""tanh(data), element by element. MXNet tanh."""

def tile(
    data: Symbol | None = None,
    *,
    reps: int | Sequence[int],
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Data repeated as a whole, reps[i] times along axis i; reps and axes align from the right.
    MXNet tile."""

def topk(
    data: Symbol | None = None,
    axis: int | None = -1,
    k: int = 1,
    ret_typ: Literal['indices', 'value', 'mask', 'both'] | str = 'indices',
    is_ascend: bool = False,
    dtype: str | type[Any] | dtype[Any] = 'float32',
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""The k largest elements along an axis, in descending order, or the k smallest in ascending
    order (is_ascend); all for k=0; of the flattened data if axis is None. ret_typ: their
    indices in `dtype`, their values, both, or a mask: 1 at their places in the data. Of
    equal elements the first count. MXNet topk."""

def transpose(
    data: Symbol | None = None,
    axes: int | Sequence[int] = (),
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""The axes in the order `axes`; reversed for (). MXNet transpose."""

def trunc(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""the whole number next to data on zero's side, element by element. MXNet trunc."""

def uniform(
    *,
    low: float = 0.0,
    high: float = 1.0,
    shape: int | Sequence[int],
    ctx: Any = None,
    dtype: str | type[Any] | dtype[Any] = 'float32',
    stream: str = '',
    axis: int = -1,
    outer: int = 1,
    inner: int = 1,
    first: int = 0,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Numbers evenly spread over [low, high), of the given shape, in which one 0 may stand for
    the batch. The numbers are a function of seed, step, `stream` (the node's name) and the
    sample; axis, outer, inner and first as in Dropout. MXNet _random_uniform."""

def var(
    name: str,
    attr: Mapping[str, str] | None = None,
    shape: int | Shape | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    dtype: Any = None,
    init: Any = None,
    stype: str = 'default',
    **kwargs: str,
) -> Symbol:
    r"""Make a named input or parameter (`mx.sym.Variable`).

    Args:
        name: the variable's name.
        attr: attributes by key.
        shape: its shape, with 0 for unknown dimensions; `infer_shape` arguments have priority.
        lr_mult: factor of the learning rate.
        wd_mult: factor of the weight decay.
        dtype: its dtype, as a name, numpy type or MXNet number.
        init: an initializer or its name.
        stype: only "default" (dense); anything else raises ValueError.
        **kwargs: further attributes, spelt `__key__`.

    Raises:
        GraphError, TypeError, ValueError: for a wrong argument; the message names it."""

def where(
    condition: Symbol | None = None,
    x: Symbol | None = None,
    y: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
) -> Symbol:
    r"""x where condition is not 0, else y; condition has their shape, or is a vector with one
    entry per row of axis 0, or one entry for all. MXNet where."""

def zeros(
    shape: int | Sequence[int],
    ctx: Any = None,
    dtype: str | type[Any] | dtype[Any] = 'float32',
    axis: int = -1,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    r"""Zeros in every element; one 0 in `shape` may stand for the batch, which is along `axis`
    then. MXNet _zeros."""

def zeros_like(
    data: Symbol | None = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
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
        data: Symbol | None = None,
        label: Symbol | None = None,
        data_lengths: Symbol | None = None,
        label_lengths: Symbol | None = None,
        use_data_lengths: bool = False,
        use_label_lengths: bool = False,
        blank_label: Literal['first', 'last'] | str = 'first',
        *,
        name: str | None = None,
        attr: Mapping[str, str] | None = None,
        lr_mult: float | None = None,
        wd_mult: float | None = None,
    ) -> Symbol:
        r"""-log of the probability of the labels under connectionist temporal classification: (N,).
        data (T, N, C): activations, of which softmax is taken; label (N, L): classes, with L at
        most T. The blank is class 0 (blank_label first; labels end at a 0) or C - 1 (last; they
        end at a -1). use_data_lengths, use_label_lengths: two more inputs (N,), the numbers of
        time steps and of labels that count. A sample with too few steps for its labels has loss
        and gradient 0, as in MXNet; a label or length out of range raises IndexError. MXNet
        CTCLoss."""
    @staticmethod
    def MultiBoxDetection(
        cls_prob: Symbol | None = None,
        loc_pred: Symbol | None = None,
        anchor: Symbol | None = None,
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
    ) -> Symbol:
        r"""Boxes found, best first: (B, A, 6) of class, score and corners. The class is -1 for those
        that overlap a better one of their class (with force_suppress: any better one) by
        nms_threshold, for all but the nms_topk best, and behind the last one. cls_prob (B, C, A)
        with the background as class 0, loc_pred (B, 4 A), anchor (1, A, 4). There is no
        gradient. MXNet _contrib_MultiBoxDetection."""
    @staticmethod
    def MultiBoxPrior(
        data: Symbol | None = None,
        sizes: float | Sequence[float] = (1.0,),
        ratios: float | Sequence[float] = (1.0,),
        clip: bool = False,
        steps: float | Sequence[float] = (-1.0, -1.0),
        offsets: float | Sequence[float] = (0.5, 0.5),
        *,
        name: str | None = None,
        attr: Mapping[str, str] | None = None,
    ) -> Symbol:
        r"""Anchor boxes around each pixel of data (N, C, H, W): (1, H * W * (sizes + ratios - 1),
        4). At each pixel, boxes of all sizes with the first ratio of width to height, then of
        the first size with the other ratios. steps: distances of pixels down and across (-1: 1 /
        H and 1 / W); offsets: of the middles in a pixel; clip: cut at the image's border. MXNet
        _contrib_MultiBoxPrior."""
    @staticmethod
    def MultiBoxTarget(
        anchor: Symbol | None = None,
        label: Symbol | None = None,
        cls_pred: Symbol | None = None,
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
    ) -> Symbol:
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
        pred: Symbol,
        then_func: Callable[[], Nested],
        else_func: Callable[[], Nested],
        name: str = 'cond',
    ) -> Nested:
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
        data: Symbol | None = None,
        label: Symbol | None = None,
        data_lengths: Symbol | None = None,
        label_lengths: Symbol | None = None,
        use_data_lengths: bool = False,
        use_label_lengths: bool = False,
        blank_label: Literal['first', 'last'] | str = 'first',
        *,
        name: str | None = None,
        attr: Mapping[str, str] | None = None,
        lr_mult: float | None = None,
        wd_mult: float | None = None,
    ) -> Symbol:
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
    ) -> tuple[Nested, Nested]:
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
        cond: Callable[..., Symbol],
        func: Callable[..., tuple[Nested, Nested]],
        loop_vars: Nested,
        max_iterations: int | None = None,
        name: str = 'while_loop',
    ) -> tuple[Nested, Nested]:
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
        A: Symbol | None = None,
        offset: int = 0,
        *,
        name: str | None = None,
        attr: Mapping[str, str] | None = None,
    ) -> Symbol:
        r"""Diagonals of square matrices: the main one, or the one `offset` places above (below if
        negative). MXNet _linalg_extractdiag."""
    @staticmethod
    def gemm(
        A: Symbol | None = None,
        B: Symbol | None = None,
        C: Symbol | None = None,
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
    ) -> Symbol:
        r"""alpha A B + beta C for matrices A (..., n, k) and B (..., k, m), each transposed first if
        its flag says so. MXNet _linalg_gemm."""
    @staticmethod
    def gemm2(
        A: Symbol | None = None,
        B: Symbol | None = None,
        transpose_a: bool = False,
        transpose_b: bool = False,
        alpha: float = 1.0,
        axis: Any = -2,
        *,
        name: str | None = None,
        attr: Mapping[str, str] | None = None,
        lr_mult: float | None = None,
        wd_mult: float | None = None,
    ) -> Symbol:
        r"""alpha A B for matrices A (..., n, k) and B (..., k, m), each transposed first if its flag
        says so. MXNet _linalg_gemm2."""
    @staticmethod
    def makediag(
        A: Symbol | None = None,
        offset: int = 0,
        *,
        name: str | None = None,
        attr: Mapping[str, str] | None = None,
    ) -> Symbol:
        r"""Square matrices with the last axis on the diagonal `offset` places above the main one,
        and zeros elsewhere. MXNet _linalg_makediag."""
    @staticmethod
    def potrf(
        A: Symbol | None = None,
        lower: bool = True,
        *,
        name: str | None = None,
        attr: Mapping[str, str] | None = None,
    ) -> Symbol:
        r"""The lower triangular L with L L' = A, for symmetric positive definite matrices A, of
        which the lower triangle is read; with lower=False the upper U with U' U = A, and the
        upper triangle is read. The gradient is symmetric. MXNet _linalg_potrf."""
    @staticmethod
    def potri(
        A: Symbol | None = None,
        lower: bool = True,
        *,
        name: str | None = None,
        attr: Mapping[str, str] | None = None,
    ) -> Symbol:
        r"""The inverse of A A' for lower triangular matrices A, which potrf returns, or of A' A for
        upper ones with lower=False. MXNet _linalg_potri."""
    @staticmethod
    def sumlogdiag(
        A: Symbol | None = None,
        *,
        name: str | None = None,
        attr: Mapping[str, str] | None = None,
    ) -> Symbol:
        r"""Sums of the logarithms of the main diagonals of square matrices. MXNet
        _linalg_sumlogdiag."""
    @staticmethod
    def syrk(
        A: Symbol | None = None,
        transpose: bool = False,
        alpha: float = 1.0,
        *,
        name: str | None = None,
        attr: Mapping[str, str] | None = None,
    ) -> Symbol:
        r"""alpha A A' for matrices A, where A' is the transpose; alpha A' A with transpose=True.
        MXNet _linalg_syrk."""
    @staticmethod
    def trmm(
        A: Symbol | None = None,
        B: Symbol | None = None,
        transpose: bool = False,
        rightside: bool = False,
        lower: bool = True,
        alpha: float = 1.0,
        *,
        name: str | None = None,
        attr: Mapping[str, str] | None = None,
        lr_mult: float | None = None,
        wd_mult: float | None = None,
    ) -> Symbol:
        r"""alpha A B, or alpha B A with rightside=True, for triangular matrices A (..., n, n),
        transposed first with transpose=True. MXNet _linalg_trmm."""
    @staticmethod
    def trsm(
        A: Symbol | None = None,
        B: Symbol | None = None,
        transpose: bool = False,
        rightside: bool = False,
        lower: bool = True,
        alpha: float = 1.0,
        *,
        name: str | None = None,
        attr: Mapping[str, str] | None = None,
        lr_mult: float | None = None,
        wd_mult: float | None = None,
    ) -> Symbol:
        r"""The X of A X = alpha B, or of X A = alpha B with rightside=True, for triangular matrices
        A (..., n, n), transposed first with transpose=True. MXNet _linalg_trsm."""

linalg: _linalg

_CrossDeviceCopy: Callable[..., Symbol]
_Div: Callable[..., Symbol]
_DivScalar: Callable[..., Symbol]
_Equal: Callable[..., Symbol]
_EqualScalar: Callable[..., Symbol]
_Greater: Callable[..., Symbol]
_GreaterEqualScalar: Callable[..., Symbol]
_GreaterScalar: Callable[..., Symbol]
_Greater_Equal: Callable[..., Symbol]
_Hypot: Callable[..., Symbol]
_HypotScalar: Callable[..., Symbol]
_Lesser: Callable[..., Symbol]
_LesserEqualScalar: Callable[..., Symbol]
_LesserScalar: Callable[..., Symbol]
_Lesser_Equal: Callable[..., Symbol]
_LogicalAndScalar: Callable[..., Symbol]
_LogicalOrScalar: Callable[..., Symbol]
_LogicalXorScalar: Callable[..., Symbol]
_Logical_And: Callable[..., Symbol]
_Logical_Or: Callable[..., Symbol]
_Logical_Xor: Callable[..., Symbol]
_Maximum: Callable[..., Symbol]
_MaximumScalar: Callable[..., Symbol]
_Minimum: Callable[..., Symbol]
_MinimumScalar: Callable[..., Symbol]
_Minus: Callable[..., Symbol]
_MinusScalar: Callable[..., Symbol]
_Mod: Callable[..., Symbol]
_ModScalar: Callable[..., Symbol]
_Mul: Callable[..., Symbol]
_MulScalar: Callable[..., Symbol]
_NotEqualScalar: Callable[..., Symbol]
_Not_Equal: Callable[..., Symbol]
_Plus: Callable[..., Symbol]
_PlusScalar: Callable[..., Symbol]
_Power: Callable[..., Symbol]
_PowerScalar: Callable[..., Symbol]
_RDivScalar: Callable[..., Symbol]
_RMinusScalar: Callable[..., Symbol]
_RModScalar: Callable[..., Symbol]
_RPowerScalar: Callable[..., Symbol]
_add: Callable[..., Symbol]
_arange: Callable[..., Symbol]
_at_maxima: Callable[..., Symbol]
_attention_grad: Callable[..., Symbol]
_attention_grad_mask: Callable[..., Symbol]
_batch_norm_grad: Callable[..., Symbol]
_batch_or_moving: Callable[..., Symbol]
_begin_state: Callable[..., Symbol]
_bilinear_sampler_grad: Callable[..., Symbol]
_broadcast_axes: Callable[..., Symbol]
_broadcast_rows: Callable[..., Symbol]
_contrib_CTCLoss: Callable[..., Symbol]
_contrib_MultiBoxDetection: Callable[..., Symbol]
_contrib_MultiBoxPrior: Callable[..., Symbol]
_contrib_MultiBoxTarget: Callable[..., Symbol]
_contrib_ctc_loss: Callable[..., Symbol]
_conv_grad_data: Callable[..., Symbol]
_conv_grad_weight: Callable[..., Symbol]
_copy: Callable[..., Symbol]
_correlation_grad: Callable[..., Symbol]
_ctc_loss_grad: Callable[..., Symbol]
_custom_backward: Callable[..., Symbol]
_cut: Callable[..., Symbol]
_digamma: Callable[..., Symbol]
_div: Callable[..., Symbol]
_div_scalar: Callable[..., Symbol]
_embedding_grad: Callable[..., Symbol]
_equal: Callable[..., Symbol]
_equal_scalar: Callable[..., Symbol]
_fc_grad_data: Callable[..., Symbol]
_fc_grad_weight: Callable[..., Symbol]
_foreach: Callable[..., Symbol]
_full: Callable[..., Symbol]
_gelu_grad: Callable[..., Symbol]
_greater: Callable[..., Symbol]
_greater_equal: Callable[..., Symbol]
_greater_equal_scalar: Callable[..., Symbol]
_greater_scalar: Callable[..., Symbol]
_grid_generator_grad: Callable[..., Symbol]
_group_norm_grad: Callable[..., Symbol]
_gru_gates: Callable[..., Symbol]
_gru_gates_grad: Callable[..., Symbol]
_hypot: Callable[..., Symbol]
_hypot_scalar: Callable[..., Symbol]
_identity_with_attr_like_rhs: Callable[..., Symbol]
_join_shares: Callable[..., Symbol]
_layer_norm_grad: Callable[..., Symbol]
_leaky_relu_grad: Callable[..., Symbol]
_lesser: Callable[..., Symbol]
_lesser_equal: Callable[..., Symbol]
_lesser_equal_scalar: Callable[..., Symbol]
_lesser_scalar: Callable[..., Symbol]
_linalg_extractdiag: Callable[..., Symbol]
_linalg_gemm: Callable[..., Symbol]
_linalg_gemm2: Callable[..., Symbol]
_linalg_makediag: Callable[..., Symbol]
_linalg_potrf: Callable[..., Symbol]
_linalg_potri: Callable[..., Symbol]
_linalg_sumlogdiag: Callable[..., Symbol]
_linalg_syrk: Callable[..., Symbol]
_linalg_trmm: Callable[..., Symbol]
_linalg_trsm: Callable[..., Symbol]
_log_softmax_grad: Callable[..., Symbol]
_logical_and: Callable[..., Symbol]
_logical_and_scalar: Callable[..., Symbol]
_logical_or: Callable[..., Symbol]
_logical_or_scalar: Callable[..., Symbol]
_logical_xor: Callable[..., Symbol]
_logical_xor_scalar: Callable[..., Symbol]
_lstm_gates: Callable[..., Symbol]
_lstm_gates_grad: Callable[..., Symbol]
_make_loss_grad: Callable[..., Symbol]
_max_pool_grad: Callable[..., Symbol]
_maximum: Callable[..., Symbol]
_maximum_scalar: Callable[..., Symbol]
_minimum: Callable[..., Symbol]
_minimum_scalar: Callable[..., Symbol]
_minus: Callable[..., Symbol]
_minus_scalar: Callable[..., Symbol]
_mirror: Callable[..., Symbol]
_mod: Callable[..., Symbol]
_mod_scalar: Callable[..., Symbol]
_moments: Callable[..., Symbol]
_moments_grad: Callable[..., Symbol]
_moving_average: Callable[..., Symbol]
_mul: Callable[..., Symbol]
_mul_scalar: Callable[..., Symbol]
_nll: Callable[..., Symbol]
_normalize: Callable[..., Symbol]
_normalize_grad: Callable[..., Symbol]
_not_equal: Callable[..., Symbol]
_not_equal_scalar: Callable[..., Symbol]
_ones: Callable[..., Symbol]
_pad_axis: Callable[..., Symbol]
_pad_grad: Callable[..., Symbol]
_pick_grad: Callable[..., Symbol]
_picked_nll: Callable[..., Symbol]
_plus: Callable[..., Symbol]
_plus_scalar: Callable[..., Symbol]
_pool_grad: Callable[..., Symbol]
_power: Callable[..., Symbol]
_power_scalar: Callable[..., Symbol]
_pseudo_connect: Callable[..., Symbol]
_put_along: Callable[..., Symbol]
_random_exponential: Callable[..., Symbol]
_random_exponential_like: Callable[..., Symbol]
_random_gamma: Callable[..., Symbol]
_random_gamma_like: Callable[..., Symbol]
_random_generalized_negative_binomial: Callable[..., Symbol]
_random_generalized_negative_binomial_like: Callable[..., Symbol]
_random_negative_binomial: Callable[..., Symbol]
_random_negative_binomial_like: Callable[..., Symbol]
_random_normal: Callable[..., Symbol]
_random_normal_like: Callable[..., Symbol]
_random_poisson: Callable[..., Symbol]
_random_poisson_like: Callable[..., Symbol]
_random_randint: Callable[..., Symbol]
_random_uniform: Callable[..., Symbol]
_random_uniform_like: Callable[..., Symbol]
_rdiv_scalar: Callable[..., Symbol]
_receive: Callable[..., Symbol]
_recurrent: Callable[..., Symbol]
_regression_grad: Callable[..., Symbol]
_relu_grad: Callable[..., Symbol]
_rminus_scalar: Callable[..., Symbol]
_rmod_scalar: Callable[..., Symbol]
_roi_pooling_grad: Callable[..., Symbol]
_rpower_scalar: Callable[..., Symbol]
_sample_exponential: Callable[..., Symbol]
_sample_gamma: Callable[..., Symbol]
_sample_generalized_negative_binomial: Callable[..., Symbol]
_sample_multinomial: Callable[..., Symbol]
_sample_negative_binomial: Callable[..., Symbol]
_sample_normal: Callable[..., Symbol]
_sample_poisson: Callable[..., Symbol]
_sample_uniform: Callable[..., Symbol]
_sequence_last_grad: Callable[..., Symbol]
_shard_cross_entropy: Callable[..., Symbol]
_shard_join: Callable[..., Symbol]
_shard_join_figures: Callable[..., Symbol]
_shard_pick: Callable[..., Symbol]
_shard_residual: Callable[..., Symbol]
_shard_row_figures: Callable[..., Symbol]
_shard_softmax_output: Callable[..., Symbol]
_shuffle: Callable[..., Symbol]
_sigmoid_grad: Callable[..., Symbol]
_slice_grad: Callable[..., Symbol]
_softmax_grad: Callable[..., Symbol]
_softmax_output_grad: Callable[..., Symbol]
_sub: Callable[..., Symbol]
_sum_neighbours: Callable[..., Symbol]
_sum_rows: Callable[..., Symbol]
_sum_to: Callable[..., Symbol]
_svm_grad: Callable[..., Symbol]
_take_along: Callable[..., Symbol]
_take_grad: Callable[..., Symbol]
_tanh_grad: Callable[..., Symbol]
_triangle: Callable[..., Symbol]
_valid_count: Callable[..., Symbol]
_zeros: Callable[..., Symbol]
random = sym_random
