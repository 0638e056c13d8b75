"""Functions of PyTorch that torch_cases.py records, each of a matrix of 4 rows and 4 columns."""

from __future__ import annotations

import torch
from torch.nn import functional as F


def activations(x: torch.Tensor) -> torch.Tensor:
    kinds = (F.gelu, F.silu, F.elu, F.softplus, F.mish, F.hardswish, F.selu, F.logsigmoid)
    more = (F.softsign, F.hardsigmoid, F.hardtanh, torch.sigmoid, torch.tanh, F.relu)
    total = F.leaky_relu(x, 0.1) + F.relu6(x * 4) + F.gelu(x, approximate="tanh")
    return sum((kind(x) for kind in (*kinds, *more)), total)


def arithmetic(x: torch.Tensor) -> torch.Tensor:
    y = torch.exp(x) + torch.log(x * x + 1) + torch.sqrt(x.abs() + 1) + torch.rsqrt(x**2 + 1)
    y = y + x.pow(3) + torch.sin(x) * torch.cos(x) + torch.erf(x) + 2**x + 1 / (x * x + 2)
    y = y + torch.log1p(x * x) + torch.atan(x) + (x - 3) * 2 + 3 - x + x.clamp(-0.5, 0.5)
    return y + x.clamp(min=0) + torch.maximum(x, -x) + x.square() + torch.reciprocal(x + 9)


def reductions(x: torch.Tensor) -> torch.Tensor:
    y = x.sum(1) + x.mean(1) + x.amax(1) + x.var(1) + x.std(1, unbiased=False) + x.norm(dim=1)
    y = y + torch.logsumexp(x, 1) + x.max(1)[0] + x.min(dim=1).values + x.mean() + x.sum()
    return y + F.softmax(x, -1)[0] + F.log_softmax(x, 0)[1] + x.cumsum(1)[2]


def shapes(x: torch.Tensor) -> torch.Tensor:
    turned = x.view(-1).reshape(x.shape).permute(1, 0)
    y = torch.cat([x.t(), x.transpose(0, 1).flip(0), turned, x.unsqueeze(0).squeeze(0).mT], 1)
    return y + torch.stack([x[:, 0], x[:, 1], x[:, -1], x[:, 2]], 0)[:, :1].sum()


def parts(x: torch.Tensor) -> torch.Tensor:
    y = x[1:3].sum(0) + x[:, ::2].sum() + x[..., 1:].mean() + x.narrow(0, 0, 2).sum(0)
    y = y + torch.chunk(x, 2, 1)[1].sum() + torch.split(x, [1, 3], 1)[1].sum() + x.unbind(0)[1]
    y = y + x.select(0, 1) + x.roll(1, 1)[0] + F.pad(x, (1, 2))[:, :4].sum(0)
    return y + F.pad(x, (-1, 1, 0, 0)).sum(0)


def masks(x: torch.Tensor) -> torch.Tensor:
    y = x.masked_fill(torch.ones(4, 4).triu(1).bool(), 0.0) + torch.where(x > 0, x, x * 0.1)
    y = y + torch.where(x > 0.5, 1.0, x) + (x > 0).float() * x + x * (x <= 0.3) + torch.tril(x)
    y = y + x.masked_fill((x > 0) & (x < 1), 2.0) + x.masked_fill(~(x > 0) | x.eq(0), 3.0)
    y = y + torch.where(torch.arange(4) > 1, x, torch.zeros_like(x))
    return y + F.softmax(x + torch.full((4, 4), -torch.inf).triu(1), -1)


def products(x: torch.Tensor) -> torch.Tensor:
    y = x @ x.t() @ x + torch.matmul(x, torch.ones(4))[:, None] + F.linear(x, x) + F.linear(x[0], x)
    y = y + torch.bmm(x[None], x.t()[None])[0] @ x + torch.addmm(x, x, torch.eye(4))
    y = y + (x.view(2, 2, 4) @ x.t().expand(2, 4, 4)).reshape(4, 4)
    return y + torch.einsum("ij,kj->ik", x, x) @ x


def lookups(x: torch.Tensor) -> torch.Tensor:
    y = x[:, torch.tensor([0, -1, 2])].sum() + x[torch.tensor([1, 0])].sum(0)
    y = y + torch.index_select(x, 1, torch.tensor([1, 1]))[:, :1]
    y = y + x.gather(1, torch.zeros(4, 1, dtype=torch.long)) + x.repeat(2, 2)[:4, :4]
    return y + F.one_hot(torch.tensor([0, 3, 1, 2]), 4) * x + x.expand(2, 4, 4).sum(0)


def quotients(x: torch.Tensor) -> torch.Tensor:
    whole = (x * 10).long()
    y = x * (torch.arange(16) // 5).view(4, 4) + whole // 3 + whole.int() // (whole.int().abs() + 1)
    y = y + whole.div(4, rounding_mode="trunc") + 100 // (whole.abs() + 7) + torch.fmod(whole, 3)
    return y * x + torch.floor_divide(x.detach(), 0.3)


def borders(x: torch.Tensor) -> torch.Tensor:
    one = x - x.detach() + 1  # gradients at equal elements, at the ends of ranges, and at 0
    y = one.max(1)[0] + one.min(1).values + F.hardtanh(one) + F.relu6(one * 6) + F.relu6(one - 1)
    return y + (one - 1).norm(dim=1) + F.normalize(one - 1, dim=1)


def ties(x: torch.Tensor) -> torch.Tensor:
    one = x - x.detach() + 1  # equal elements share the gradient
    y = one.amax(1) + one.amin((0, 1)) * x + one.max() * x + one.min() + x.prod(1)
    return y + torch.maximum(one, one * 1) * x + torch.minimum(one, torch.ones(4)) * x


def saturated(x: torch.Tensor) -> torch.Tensor:
    zero = x - x.detach()
    share = torch.sigmoid(zero + 60)
    return F.binary_cross_entropy(share, torch.full((4, 4), 0.5)) + zero.std(1) * x


def running(x: torch.Tensor) -> torch.Tensor:
    whole = (x * 0).long() + 20_000_001
    return x * (whole.cumsum(1) - 20_000_001 * torch.arange(1, 5) + 1)


def composed(x: torch.Tensor) -> torch.Tensor:
    z, kinds = x.flip(1), (F.softshrink, F.hardshrink, torch.exp2, F.tanhshrink)
    y = F.threshold(x, 0.1, 20.0) + F.celu(x, 0.7) + torch.lerp(x, z, 0.3)
    y = y + sum(f(x) for f in kinds)
    y = y + F.cosine_similarity(x, z) + F.pairwise_distance(x, z) + F.pairwise_distance(x, z, p=1)
    y = y + torch.std_mean(x, 1)[0] + x.norm(p=1, dim=1) + torch.where(torch.isnan(x), 0.0, x)
    return y + F.kl_div(F.log_softmax(x, 1), F.relu(torch.eye(4)), reduction="none")


def vectors(x: torch.Tensor) -> torch.Tensor:
    return torch.outer(x[0], x[1]) + torch.mv(x, x[2]) * torch.dot(x[0], x[3])


def from_the_end(x: torch.Tensor) -> torch.Tensor:
    return x[(x[0] * 0).long() - torch.arange(4)] * torch.arange(16.0).view(4, 4)


def unseen(x: torch.Tensor) -> torch.Tensor:
    seen = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 1], [1, 1, 1, 1]]).bool()
    added = torch.zeros(4, 4).masked_fill(~seen, -torch.inf)
    given = x[None], x[None], x[None]
    made = [F.scaled_dot_product_attention(*given, attn_mask=mask) for mask in (seen, added)]
    return made[0][0] + made[1][0] * 2


def shuffled(x: torch.Tensor) -> torch.Tensor:
    return F.pixel_shuffle(x.view(4, 2, 2), 2)[0]


EACH = activations, arithmetic, reductions, shapes, parts, masks, products, lookups, quotients
EACH += borders, ties, saturated, running, vectors, composed, from_the_end, unseen, shuffled
FORMULAS = {f.__name__: f for f in EACH}
