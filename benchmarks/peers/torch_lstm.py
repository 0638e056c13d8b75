"""PyTorch: nn.LSTM, or cells unrolled in time under torch.compile; or a transformer, in both ways.

PYTHON -m benchmarks.peers.torch_lstm CONFIG lstm|compile [cuda]
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.peers.protocol import CLIP, CONFIGS, RATE, VOCAB, Config, batches, serve

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


def model_of(config: Config, kind: str = "lstm") -> nn.Module:
    """Return the model of a configuration that is run so."""
    if config.heads:
        return TransformerModel(config)
    return FusedModel(config) if kind == "lstm" else UnrolledModel(config)


def main() -> None:
    name, kind, *rest = sys.argv[1:]
    place = torch.device(*rest or ["cpu"])
    config = CONFIGS[name]
    torch.manual_seed(0)
    torch.set_num_threads(THREADS)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False  # as by default in symgraph
    model = model_of(config, kind).to(place)
    loss_of = torch.compile(model) if kind == "compile" else model
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=RATE, fused=True)
    data = [tuple(torch.from_numpy(ids).to(place) for ids in pair) for pair in batches(config)]

    def step(number: int) -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(*data[number])
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        return loss.item()  # waits for the GPU

    memory = torch.cuda.max_memory_allocated if place.type == "cuda" else None
    serve(
        step,
        f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()} kernels",
        memory=memory,
    )


if __name__ == "__main__":
    main()
