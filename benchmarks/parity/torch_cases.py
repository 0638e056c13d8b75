"""Record what PyTorch computes: exported networks, their loss and every gradient.

    python -m benchmarks.parity.torch_cases tests/symgraph/interchange/torch/data

Needs PyTorch and numpy and nothing else; the files in the tests are of version 2.13. Each case is
`<name>.pt2`, written by `torch.export.save`, and `<name>.npz` with `input:<name>`, `output`,
`grad:<parameter>` and `after:<buffer>`, the buffers that the forward pass has changed. Networks
that `from_torch` refuses are in the folder `refused`, without numbers.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.parity.torch_formulas import FORMULAS


class LanguageModel(nn.Module):
    """Two LSTM layers between an embedding and a dense layer, whose loss skips padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 12)
        self.lstm = nn.LSTM(12, 16, 2)
        self.head = nn.Linear(16, 30)

    def forward(self, words: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.lstm(self.embed(words))
        return F.cross_entropy(self.head(hidden).flatten(0, 1), labels.flatten())


class Tagger(nn.Module):
    """A GRU in both directions over samples, then steps, with a class per step."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(6, 8, 2, batch_first=True, bidirectional=True)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 5)

    def forward(self, data: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        hidden, last = self.gru(data)
        scores = self.head(self.norm(hidden))
        return F.cross_entropy(scores.transpose(1, 2), labels) + last.square().mean()


class Encoder(nn.Module):
    """A transformer encoder of one layer, whose outputs are averaged over the steps."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, data: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.layer(data).mean(1)), labels)


class Block(nn.Module):
    """A block of GPT-2: attention to earlier steps by a mask in a buffer, then a wide layer."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc = nn.Linear(width, 4 * width)
        self.m_proj = nn.Linear(4 * width, width)
        mask = torch.tril(torch.ones(length, length, dtype=torch.bool))
        self.register_buffer("bias", mask.view(1, 1, length, length))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, steps, width = x.shape
        parts = self.c_attn(self.ln_1(x)).split(width, dim=2)
        q, k, v = (p.view(rows, steps, self.heads, -1).transpose(1, 2) for p in parts)
        scores = q @ k.transpose(-2, -1) / (width / self.heads) ** 0.5
        scores = scores.masked_fill(~self.bias[:, :, :steps, :steps], float("-inf"))
        seen = F.softmax(scores, dim=-1) @ v
        x = x + self.c_proj(seen.transpose(1, 2).contiguous().view(rows, steps, width))
        return x + self.m_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Decoder(nn.Module):
    """GPT-2 with one block; the last dense layer shares its weight with the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(40, 16)
        self.wpe = nn.Embedding(8, 16)
        self.block = Block(16, 4, 8)
        self.ln_f = nn.LayerNorm(16)
        self.lm_head = nn.Linear(16, 40, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, words: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.wte(words) + self.wpe(torch.arange(words.shape[1]))
        scores = self.lm_head(self.ln_f(self.block(x)))
        return F.cross_entropy(scores.view(-1, 40), labels.view(-1))


class Residual(nn.Module):
    """A block of ResNet with a projection, between a stem and a head, in train mode."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.conv2 = nn.Conv2d(8, 12, 3, 2, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(12)
        self.conv3 = nn.Conv2d(12, 12, 3, 1, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(12)
        self.down = nn.Sequential(nn.Conv2d(8, 12, 1, 2, bias=False), nn.BatchNorm2d(12))
        self.relu = nn.ReLU(inplace=True)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(12, 4)

    def forward(self, data: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.relu(self.bn1(self.conv1(data))))
        y = self.bn3(self.conv3(self.relu(self.bn2(self.conv2(x)))))
        y += self.down(x)
        return F.cross_entropy(self.fc(torch.flatten(self.avgpool(self.relu(y)), 1)), labels)


class Vgg(nn.Module):
    """Two stages of VGG and its classifier."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in ((3, 8), (8, 12)):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True)]
            layers.append(nn.MaxPool2d(2, 2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((2, 2))
        self.classifier = nn.Sequential(
            nn.Linear(12 * 4, 20), nn.ReLU(True), nn.Dropout(0.0), nn.Linear(20, 5)
        )

    def forward(self, data: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = torch.flatten(self.avgpool(self.features(data)), 1)
        return F.cross_entropy(self.classifier(x), labels)


class Formula(nn.Module):
    """A function of the input times a weight, weighted and added up."""

    def __init__(self, name: str, width: int = 4) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) * 0.7)
        self.name = name

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        made = FORMULAS[self.name](data * self.weight)
        return (made * torch.linspace(-1, 1, made.numel()).view(made.shape)).sum()


class Weighted(nn.Module):
    """Layers, whose outputs are weighted and added up."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        made = self.layers(data)
        return (made * torch.linspace(-1, 1, made[0].numel()).view(made[0].shape)).sum()


class Cells(nn.Module):
    """Three steps of three cells, from zeros of the batch's length."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru, self.rnn = nn.LSTMCell(4, 5), nn.GRUCell(5, 5), nn.RNNCell(5, 5)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        h = data.new_zeros(data.shape[0], 5)
        c, g, r = torch.zeros(data.shape[0], 5), h, h
        for t in range(3):
            h, c = self.lstm(data[:, t], (h, c))
            g = self.gru(h, g)
            r = self.rnn(g, r)
        return r.sum() + c.mean()


class States(nn.Module):
    """An LSTM from learned states, and a GRU in both directions without biases."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 5)
        self.h, self.c = (nn.Parameter(torch.randn(1, 1, 5)) for _ in range(2))
        self.gru = nn.GRU(5, 3, 2, bias=False, bidirectional=True)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        rows = data.shape[1]
        first = (self.h.expand(-1, rows, -1).contiguous(), self.c.expand(-1, rows, -1).contiguous())
        output, (_, last) = self.lstm(data, first)
        above, _ = self.gru(output)
        return above.square().mean() + last.sum()


class Losses(nn.Module):
    """The sum of many losses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(
        self, data: torch.Tensor, labels: torch.Tensor, other: torch.Tensor
    ) -> torch.Tensor:
        x, share = self.layer(data), torch.sigmoid(other)
        return (
            F.mse_loss(x, other)
            + F.l1_loss(x, other, reduction="sum")
            + F.smooth_l1_loss(x, other, beta=0.5)
            + F.huber_loss(x, other, delta=0.7)
            + F.binary_cross_entropy_with_logits(x, share)
            + F.binary_cross_entropy(torch.sigmoid(x), share)
            + F.nll_loss(F.log_softmax(x, 1), labels)
            + F.cross_entropy(x, labels, reduction="none").sum()
            + F.cross_entropy(x, torch.softmax(other, 1))
        )


class Weights(nn.Module):
    """Losses with weights of classes and elements, and smoothed labels."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("weight", torch.tensor([0.5, 1.0, 3.0]))

    def forward(
        self, data: torch.Tensor, labels: torch.Tensor, other: torch.Tensor
    ) -> torch.Tensor:
        x, share = self.layer(data), torch.sigmoid(other)
        return (
            F.cross_entropy(x, labels, weight=self.weight, reduction="sum")
            + F.cross_entropy(x, labels, weight=self.weight)
            + F.cross_entropy(x, labels, label_smoothing=0.1)
            + F.cross_entropy(x, torch.softmax(other, 1), label_smoothing=0.2)
            + F.binary_cross_entropy_with_logits(x, share, self.weight, pos_weight=self.weight + 1)
            + F.binary_cross_entropy(torch.sigmoid(x), share, self.weight)
        )


class InPlace(nn.Module):
    """A call in place on what dropout in evaluation mode returns, which is its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop, self.relu = nn.Linear(4, 3), nn.Dropout(0.5), nn.ReLU(inplace=True)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        x = self.layer(data)
        y = self.relu(self.drop(x)) + x
        return (torch.tanh_(y.to(torch.float32)) * y).sum()


class Counting(nn.Module):
    """A buffer that counts the steps, and that the output depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))
        self.register_buffer("steps", torch.zeros(4))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        self.steps.add_(1)
        return data * self.weight + self.steps


class Reading(nn.Module):
    """Batch norm whose mean the output depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return self.norm(data) + self.norm.running_mean


class Contrast(nn.Module):
    """Each sample against all of its batch: products of samples with samples."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(4, 5)
        self.right = nn.Linear(4, 5)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        left, right = self.left(data), self.right(data)
        near = (left * right).sum(1) + F.linear(right, left).tanh().mean(1)
        return (torch.logsumexp(left @ right.T, 1) - near).mean()


class Spread(nn.Module):
    """The unbiased variance of the samples of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return self.layer(data).var(0).sum()


class Views(nn.Module):
    """Two parameters that are parts of one storage, and are not tied."""

    def __init__(self) -> None:
        super().__init__()
        both = torch.randn(2, 4, 4)
        self.first, self.second = nn.Parameter(both[0]), nn.Parameter(both[1])

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return (data @ self.first @ self.second).tanh().sum()


class Expanded(nn.Module):
    """A buffer as often as the batch has samples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("ends", torch.tensor([[0.5, 1.0, 3.0]]))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        ends = self.ends.expand(data.shape[0], -1)
        return (torch.cat([self.layer(data), ends], 1).softmax(1) * 3).sin().sum()


class Noise(nn.Module):
    """Noise that shows in no number: 0 times what is random."""

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return data + torch.randn_like(data) * torch.rand_like(data) * 0


class Detached(nn.Module):
    """A factor without a gradient, and one that an index of all elements leaves as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        made = self.layer(data)
        return (made[...] * made.detach()).sum()


class Grouped(nn.Module):
    """Attention of groups of heads to one key, and to keys that all samples share."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.shared = nn.Linear(4, 48), nn.Parameter(torch.randn(1, 4, 5, 4))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        q, k, v, _ = self.layer(data).view(-1, 3, 12, 4).transpose(1, 2).split([4, 2, 2, 4], 1)
        y = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        y = y + F.scaled_dot_product_attention(q, self.shared, self.shared)
        y = y + F.scaled_dot_product_attention(q, k[:, :1], v[:, :1])
        return (y.sin() + F.scaled_dot_product_attention(data, data, data)[0]).sum()


class Experts(nn.Module):
    """The two best of four experts, weighted by a softmax of their scores."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(4, 4), nn.Linear(4, 12)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        scores, best = torch.topk(self.gate(data), 2)
        share = torch.zeros_like(data).scatter(1, best, F.softmax(scores, 1))
        made = (self.experts(data).view(-1, 4, 3) * share[..., None]).sum(1)
        return made.sin().sum() + self.gate(data).gather(1, best.flip(1)).cos().sum()


class Ranked(nn.Module):
    """The sum over the scores of a batch in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return self.layer(data).sort(0)[0].sin().sum()


class Bags(nn.Module):
    """Sums and means of rows, and products of pairs of them."""

    def __init__(self) -> None:
        super().__init__()
        self.sums, self.means = nn.EmbeddingBag(7, 4, mode="sum"), nn.EmbeddingBag(7, 4)

    def forward(self, data: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        x = self.sums(data)[:, :, None] * self.means(data)[:, None]
        i, j = torch.tril_indices(4, 4, -1)
        y = x[:, i, j].sin().sum() + x[other[:2], 1 - 2 * (other[2:] // 2)].sum()
        return y + x.sort(1, descending=True)[0].flatten()[::3].cos().sum()


class Alone(nn.Module):
    """Layers without the batch's axis, each sample's channels averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.up = nn.Conv2d(3, 4, 3), nn.ConvTranspose1d(4, 2, 3)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        x = self.conv(data)
        y = F.max_pool2d(x, 2).sum() + F.avg_pool2d(x, 2).sin().sum() + self.up(x[:, 0]).sin().sum()
        return y + F.adaptive_avg_pool2d(x, 2).sin().sum() + F.adaptive_avg_pool2d(x, 3).cos().sum()


def ids(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape)


def padded(labels: torch.Tensor) -> torch.Tensor:
    """Return labels of which the last step of the second sample does not count."""
    labels[-1, 1] = -100
    return labels


def labels() -> torch.Tensor:
    return torch.tensor([0, 2, -100, 1, 2])


def convolutions() -> nn.Module:
    return Weighted(
        nn.Conv2d(3, 6, 3, padding="same", groups=3),
        nn.SiLU(),
        nn.Conv2d(6, 4, 3, dilation=2),
        nn.GroupNorm(2, 4),
        nn.AvgPool2d(2),
        nn.ConvTranspose2d(4, 8, 3, stride=2, output_padding=1),
        nn.Upsample(scale_factor=2),
        nn.PixelShuffle(2),
        nn.ReflectionPad2d(1),
    )


def resizing() -> nn.Module:
    return Weighted(
        nn.Conv2d(3, 4, 1),
        nn.InstanceNorm2d(4, affine=True, track_running_stats=True).eval(),
        nn.ChannelShuffle(2),
        nn.PixelUnshuffle(2),
        nn.Upsample(size=(4, 7)),
        nn.Upsample(scale_factor=1.7, mode="bilinear"),
        nn.Upsample(size=(5, 4), mode="bilinear", align_corners=True),
        nn.Upsample(size=(7, 6), mode="bicubic"),
        nn.Upsample(size=(5, 8), mode="nearest-exact"),
        nn.Flatten(2),
        nn.Upsample(size=7, mode="linear"),
        nn.Upsample(scale_factor=1.5),
    )


def weight_norms() -> nn.Module:
    """Weights of given norms, and the noise of a random number times 0."""
    norm = nn.utils.parametrizations.weight_norm
    return Weighted(norm(nn.Linear(4, 5)), Noise(), norm(nn.Linear(5, 3), dim=1))


def norms() -> nn.Module:
    return Weighted(
        nn.Conv2d(3, 4, 1),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.InstanceNorm2d(4, affine=True),
        nn.BatchNorm2d(4, affine=False),
        nn.PReLU(4),
        nn.AdaptiveAvgPool2d((5, 3)),
        nn.Flatten(),
        nn.RMSNorm(60),
        nn.LayerNorm(60, elementwise_affine=False),
        nn.Linear(60, 8),
        nn.GLU(),
    )


def frozen() -> nn.Module:
    """A dense layer whose weight is not trained, before one that is."""
    net = Weighted(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    net.layers[0].weight.requires_grad_(False)
    return net


# Each case: the network, its inputs, and the axis of the batch.
CASES = {
    "lstm_lm": lambda: (LanguageModel(), (ids(30, 7, 6), padded(ids(30, 7, 6))), 1),
    "bidirectional_gru": lambda: (Tagger(), (torch.randn(6, 5, 6), ids(5, 6, 5)), 0),
    "encoder_layer": lambda: (Encoder(), (torch.randn(6, 5, 16), ids(3, 6)), 0),
    "gpt2_block": lambda: (Decoder(), (ids(40, 6, 7), ids(40, 6, 7)), 0),
    "resnet_block": lambda: (Residual(), (torch.randn(6, 3, 12, 12), ids(4, 6)), 0),
    "vgg_block": lambda: (Vgg(), (torch.randn(6, 3, 12, 12), ids(5, 6)), 0),
}
# Networks that try one operator after another.
OPERATORS = {
    **{name: (lambda name=name: (Formula(name), (torch.randn(4, 4),), None)) for name in FORMULAS},
    "convolutions": lambda: (convolutions(), (torch.randn(2, 3, 12, 12),), 0),
    "norms": lambda: (norms(), (torch.randn(3, 3, 9, 9),), 0),
    "resizing": lambda: (resizing(), (torch.randn(2, 3, 6, 8),), 0),
    "grouped": lambda: (Grouped(), (torch.randn(3, 3, 4),), 0),
    "alone": lambda: (Alone(), (torch.randn(3, 8, 8),), None),
    "cells": lambda: (Cells(), (torch.randn(2, 3, 4),), 0),
    "states": lambda: (States(), (torch.randn(3, 2, 4),), 1),
    "in_place": lambda: (InPlace().eval(), (torch.randn(3, 4),), 0),
    "frozen": lambda: (frozen(), (torch.randn(3, 4),), 0),
    "contrast": lambda: (Contrast(), (torch.randn(3, 4),), 0),
    "spread": lambda: (Spread(), (torch.randn(3, 4),), 0),
    "weight_norms": lambda: (weight_norms(), (torch.randn(3, 4),), 0),
    "expanded": lambda: (Expanded(), (torch.randn(3, 4),), 0),
    "views": lambda: (Views(), (torch.randn(3, 4),), 0),
    "detached_decomposed": lambda: (Detached(), (torch.randn(3, 4),), 0),
    "weights": lambda: (Weights(), (torch.randn(5, 4), labels(), torch.randn(5, 3)), 0),
    "ranked": lambda: (Ranked(), (torch.randn(3, 4),), 0),
    "bags": lambda: (Bags(), (ids(7, 3, 4), ids(3, 4)), None),
    "experts": lambda: (Experts(), (torch.randn(5, 4),), 0),
    "losses": lambda: (Losses(), (torch.randn(5, 4), ids(3, 5), torch.randn(5, 3)), 0),
}
# Networks that are refused, each with one input.
REFUSED = {
    "counting": lambda: (Counting(), torch.randn(3, 4)),
    "reading": lambda: (Reading(), torch.randn(3, 4)),
    "indices": lambda: (nn.MaxPool2d(2, return_indices=True), torch.randn(2, 3, 4, 4)),
}


def record(
    folder: Path, name: str, net: nn.Module, inputs: tuple[torch.Tensor, ...], axis: int | None
) -> None:
    """Write one case; the batch's axis, if there is one, may have any length."""
    dynamic = None
    if axis is not None:
        dynamic = [{axis: torch.export.Dim("batch", min=2, max=512)} for _ in inputs]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(net, inputs, dynamic_shapes=dynamic)
    if name.endswith("_decomposed"):
        program = program.run_decompositions()
    torch.export.save(program, folder / f"{name}.pt2")
    before = {k: v.clone() for k, v in net.named_buffers()}
    output = net(*inputs)
    output.sum().backward()
    names = net.forward.__code__.co_varnames[1 : 1 + len(inputs)]
    arrays = {f"input:{n}": v.numpy() for n, v in zip(names, inputs, strict=True)}
    arrays |= {"output": output.detach().numpy()}
    grads = {n: p.grad for n, p in net.named_parameters() if p.requires_grad}
    arrays |= {f"grad:{n}": grad.numpy() for n, grad in grads.items()}
    changed = {n: b for n, b in net.named_buffers() if not torch.equal(b, before[n])}
    arrays |= {f"after:{n}": b.numpy() for n, b in changed.items()}
    np.savez_compressed(folder / f"{name}.npz", **arrays)


def record_refused(folder: Path) -> None:
    """Write the networks that are refused, as they are and after run_decompositions."""
    for name, make in REFUSED.items():
        torch.manual_seed(len(name))
        net, data = make()
        program = torch.export.export(net, (data,))
        torch.export.save(program, folder / f"{name}.pt2")
        torch.export.save(program.run_decompositions(), folder / f"{name}_decomposed.pt2")


def main(folder: Path) -> None:
    (folder / "refused").mkdir(parents=True, exist_ok=True)
    record_refused(folder / "refused")
    for name, make in (CASES | OPERATORS).items():
        torch.manual_seed(len(name))
        net, inputs, axis = make()
        record(folder, name, net, inputs, axis)
        sizes = [(folder / f"{name}.{end}").stat().st_size for end in ("pt2", "npz")]
        print(name, *sizes)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
