"""JAX: the language model on lax.scan, the whole step under jit.

PYTHON -m benchmarks.peers.jax_lstm CONFIG
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.peers.protocol import CLIP, CONFIGS, RATE, VOCAB, Config, batches, serve


def first_values(config: Config) -> dict[str, Any]:
    hidden = config.hidden
    keys = iter(jax.random.split(jax.random.PRNGKey(0), 2 * config.layers + 2))

    def uniform(*shape: int) -> jax.Array:
        bound = hidden**-0.5
        return jax.random.uniform(next(keys), shape, jnp.float32, -bound, bound)

    return {
        "embed": uniform(VOCAB, hidden),
        "decode": uniform(hidden, VOCAB),
        "decode_bias": jnp.zeros(VOCAB),
        "layers": [
            {
                "project": uniform(hidden, 4 * hidden),
                "recur": uniform(hidden, 4 * hidden),
                "bias": jnp.zeros(4 * hidden),
            }
            for _ in range(config.layers)
        ],
    }


def loss_of(parameters: dict[str, Any], data: jax.Array, label: jax.Array) -> jax.Array:
    x = parameters["embed"][data]
    for layer in parameters["layers"]:

        def cell(state: Any, projection: jax.Array, recur: jax.Array = layer["recur"]) -> Any:
            h, c = state
            i, f, g, o = jnp.split(projection + h @ recur, 4, 1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros_like(x[0])
        _, x = jax.lax.scan(cell, (zero, zero), x @ layer["project"] + layer["bias"])
    rows = x.reshape(-1, x.shape[-1])
    scores = rows @ parameters["decode"] + parameters["decode_bias"]
    right = jnp.take_along_axis(scores, label.reshape(-1, 1), 1)[:, 0]
    return (jax.nn.logsumexp(scores, 1) - right).mean()


@partial(jax.jit, donate_argnums=0)
def train(parameters: dict[str, Any], data: jax.Array, label: jax.Array) -> Any:
    loss, grads = jax.value_and_grad(loss_of)(parameters, data, label)
    norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in jax.tree.leaves(grads)))
    rate = RATE * jnp.minimum(1.0, CLIP / (norm + 1e-6))
    return jax.tree.map(lambda p, g: p - rate * g, parameters, grads), loss


def main() -> None:
    config = CONFIGS[sys.argv[1]]
    data = [tuple(jnp.asarray(a, jnp.int32) for a in pair) for pair in batches(config)]
    parameters = first_values(config)

    def step(number: int) -> float:
        nonlocal parameters
        parameters, loss = train(parameters, *data[number])
        jax.block_until_ready(parameters)
        return float(loss)

    serve(step, f"jax {jax.__version__}")


if __name__ == "__main__":
    main()
