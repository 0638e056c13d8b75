"""PyTorch: VGG-16 on 32x32 images, the network of `symgraph_vgg`.

PYTHON -m benchmarks.peers.torch_vgg THREADS BATCH
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.peers.protocol import BATCHES, serve

BLOCKS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
RATE, CLASSES = 0.01, 10


def network() -> nn.Module:
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
    return nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Linear(512, 512, bias=False),
        nn.BatchNorm1d(512),
        nn.ReLU(inplace=True),
        nn.Linear(512, CLASSES, bias=False),
    )


def main() -> None:
    threads, batch = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = network()
    sgd = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, weight_decay=5e-4, fused=True)
    data = [
        (torch.randn(batch, 3, 32, 32), torch.randint(CLASSES, (batch,))) for _ in range(BATCHES)
    ]

    def step(number: int) -> float:
        images, labels = data[number]
        sgd.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        sgd.step()
        return loss.item()

    serve(step, f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()} kernels")


if __name__ == "__main__":
    main()
