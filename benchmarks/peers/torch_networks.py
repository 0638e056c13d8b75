"""PyTorch: the networks of the benchmark, as its users write them.

PYTHON -m benchmarks.peers.torch_networks CONFIG [--compile] [--cuda] [--forward] [--bfloat16]

With --compile an LSTM is unrolled in time.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from benchmarks.peers.protocol import (
    ADAM_RATE,
    BLOCKS,
    CLASSES,
    CLIP,
    CONFIGS,
    DECAY,
    MOMENTUM,
    PAD,
    RATE,
    VGG_RATE,
    VOCAB,
    AnyConfig,
    Config,
    Images,
    Translation,
    batches,
    images,
    serve,
    translations,
)

THREADS = 2


class FusedModel(nn.Module):
    """The language model with nn.LSTM, which is oneDNN's on a CPU."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden = config.hidden
        self.embed = nn.Embedding(VOCAB, hidden)
        self.lstm = nn.LSTM(hidden, hidden, config.layers)
        self.decode = nn.Linear(hidden, VOCAB)

    def forward(self, data: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        outputs, _ = self.lstm(self.embed(data))
        return F.cross_entropy(self.decode(outputs).view(-1, VOCAB), label.view(-1))


class UnrolledModel(nn.Module):
    """The language model with cells; each layer's input projection is one product."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden = config.hidden
        self.embed = nn.Embedding(VOCAB, hidden)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "project": nn.Linear(hidden, 4 * hidden),
                    "recur": nn.Linear(hidden, 4 * hidden, bias=False),
                }
            )
            for _ in range(config.layers)
        )
        self.decode = nn.Linear(hidden, VOCAB)

    def forward(self, data: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        x = self.embed(data)
        for layer in self.layers:
            projected = layer["project"](x)
            h = c = torch.zeros_like(x[0])
            outputs = []
            for projection in projected:
                i, f, g, o = (projection + layer["recur"](h)).chunk(4, 1)
                c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
                h = torch.sigmoid(o) * torch.tanh(c)
                outputs.append(h)
            x = torch.stack(outputs)
        return F.cross_entropy(self.decode(x).view(-1, VOCAB), label.view(-1))


class TransformerModel(nn.Module):
    """The language model of examples.transformer_lm, with PyTorch's attention."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden = config.hidden
        self.heads = config.heads
        self.embed = nn.Embedding(VOCAB, hidden)
        self.place = nn.Parameter(torch.randn(1, config.steps, hidden))
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "attend_norm": nn.LayerNorm(hidden),
                    "qkv": nn.Linear(hidden, 3 * hidden),
                    "out": nn.Linear(hidden, hidden),
                    "think_norm": nn.LayerNorm(hidden),
                    "wide": nn.Linear(hidden, 4 * hidden),
                    "narrow": nn.Linear(4 * hidden, hidden),
                }
            )
            for _ in range(config.layers)
        )
        self.top_norm = nn.LayerNorm(hidden)
        self.decode = nn.Linear(hidden, VOCAB)

    def forward(self, data: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        x = self.embed(data.t()) + self.place
        for layer in self.layers:
            qkv = layer["qkv"](layer["attend_norm"](x)).unflatten(2, (3, self.heads, -1))
            query, key, value = qkv.permute(2, 0, 3, 1, 4)  # (batch, heads, steps, units)
            found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + layer["out"](found.transpose(1, 2).flatten(2))
            x = x + layer["narrow"](F.gelu(layer["wide"](layer["think_norm"](x))))
        scores = self.decode(self.top_norm(x))
        return F.cross_entropy(scores.view(-1, VOCAB), label.t().flatten())


class Translator(nn.Module):
    """The network of examples.seq2seq_attention, with packed sequences."""

    def __init__(self, config: Translation) -> None:
        super().__init__()
        hidden = config.hidden
        self.source_embed = nn.Embedding(VOCAB, hidden)
        self.encoder = nn.GRU(hidden, hidden, batch_first=True, bidirectional=True)
        self.first = nn.Linear(2 * hidden, hidden)
        self.target_embed = nn.Embedding(VOCAB, hidden)
        self.decoder = nn.GRU(hidden, hidden, batch_first=True)
        self.keys = nn.Linear(2 * hidden, hidden, bias=False)
        self.top = nn.Linear(3 * hidden, hidden)
        self.words = nn.Linear(hidden, VOCAB)

    def forward(
        self,
        source: torch.Tensor,
        source_length: torch.Tensor,
        target: torch.Tensor,
        label: torch.Tensor,
    ) -> torch.Tensor:
        steps = source.shape[1]
        packed = pack_padded_sequence(
            self.source_embed(source), source_length.cpu(), batch_first=True, enforce_sorted=False
        )
        found, last = self.encoder(packed)
        memory, _ = pad_packed_sequence(found, batch_first=True, total_length=steps)
        first = torch.tanh(self.first(last.transpose(0, 1).flatten(1)))
        states, _ = self.decoder(self.target_embed(target), first[None])
        scores = torch.bmm(self.keys(memory), states.transpose(1, 2))  # (batch, source, target)
        padding = torch.arange(steps, device=source.device) >= source_length[:, None]
        weights = torch.softmax(scores.masked_fill(padding[:, :, None], -torch.inf), 1)
        context = torch.bmm(weights.transpose(1, 2), memory)
        top = torch.tanh(self.top(torch.cat([states, context], 2)))
        scores = self.words(top).view(-1, VOCAB)
        return F.cross_entropy(scores, label.flatten(), ignore_index=PAD)


class Classifier(nn.Module):
    """VGG-16 of examples.vgg_channel_parallel, without dropout."""

    def __init__(self) -> None:
        super().__init__()
        layers, channels = [], 3
        for filters, depth in BLOCKS:
            for _ in range(depth):
                layers += [
                    nn.Conv2d(channels, filters, 3, padding=1, bias=False),
                    nn.BatchNorm2d(filters),
                    nn.ReLU(inplace=True),
                ]
                channels = filters
            layers.append(nn.MaxPool2d(2))
        self.layers = nn.Sequential(
            *layers,
            nn.Flatten(),
            nn.Linear(channels, channels, bias=False),
            nn.BatchNorm1d(channels),
            nn.ReLU(inplace=True),
            nn.Linear(channels, CLASSES, bias=False),
        )

    def forward(self, data: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.layers(data), label)


def model_of(config: AnyConfig, *, unrolled: bool = False) -> nn.Module:
    """Return the model of a configuration."""
    if isinstance(config, Translation):
        return Translator(config)
    if isinstance(config, Images):
        return Classifier()
    if config.heads:
        return TransformerModel(config)
    return UnrolledModel(config) if unrolled else FusedModel(config)


def optimizer_of(config: AnyConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of a configuration."""
    parameters = model.parameters()
    if isinstance(config, Translation):
        return torch.optim.Adam(parameters, lr=ADAM_RATE, fused=True)
    if isinstance(config, Images):
        more = {"momentum": MOMENTUM, "weight_decay": DECAY}
        return torch.optim.SGD(parameters, lr=VGG_RATE, fused=True, **more)
    return torch.optim.SGD(parameters, lr=RATE, fused=True)


def data_of(config: AnyConfig, place: torch.device) -> list[list[list[torch.Tensor]]]:
    """Return what the model is given for each update of each step."""

    def tensors(arrays: list[np.ndarray] | tuple[np.ndarray, ...]) -> list[torch.Tensor]:
        return [torch.from_numpy(array).to(place) for array in arrays]

    if isinstance(config, Translation):
        return [[tensors([*one.values()]) for one in step] for step in translations(config)]
    return [[tensors(one)] for one in (images if isinstance(config, Images) else batches)(config)]


def updates(
    config: AnyConfig, model: nn.Module, loss_of: Callable[..., torch.Tensor]
) -> Callable[..., torch.Tensor]:
    """Return a function that makes one update and returns the loss."""
    parameters = list(model.parameters())
    optimizer = optimizer_of(config, model)

    def update(*given: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(*given)
        loss.backward()
        if not isinstance(config, Images):
            nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        return loss

    return update


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", choices=CONFIGS)
    for name in ("compile", "cuda", "forward", "bfloat16"):
        parser.add_argument(f"--{name}", action="store_true")
    options = parser.parse_args()
    config, place = CONFIGS[options.config], torch.device("cuda" if options.cuda else "cpu")
    torch.manual_seed(0)
    torch.set_num_threads(THREADS)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False  # as by default in symgraph
    model = model_of(config, unrolled=options.compile).to(place)
    compiled = torch.compile(model) if options.compile else model

    def loss_of(*given: torch.Tensor) -> torch.Tensor:
        with torch.autocast(place.type, torch.bfloat16) if options.bfloat16 else nullcontext():
            return compiled(*given)

    if options.forward:
        model.eval()
        update = torch.inference_mode()(loss_of)
    else:
        update = updates(config, model, loss_of)
    data = data_of(config, place)

    def step(number: int) -> float:
        losses = [update(*given) for given in data[number]]
        return losses[-1].item()  # waits for the GPU

    memory = torch.cuda.max_memory_allocated if options.cuda else None
    capability = torch.backends.cpu.get_cpu_capability()
    serve(step, f"torch {torch.__version__}, {capability} kernels", memory=memory)


if __name__ == "__main__":
    main()
