"""Steps of a small model in JAX, as a program that knows nothing of us: XLA makes command buffers of them.

Prints one line of JSON: the device and a digest of each result. Each call gets other buffers, so that XLA updates the
graphs that it has made.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

WIDTH, LAYERS, CALLS = 256, 6, 12


def step(layers, x):
    for up, down in layers:
        normed = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)
        x = x + jnp.tanh(normed @ up) @ down
    return x


def loss(layers, x):
    return jnp.mean(step(layers, x) ** 2)


@jax.jit
def train(layers, x):
    slopes = jax.grad(loss)(layers, x)
    return jax.tree.map(lambda weight, slope: weight - 0.01 * slope, layers, slopes)


def digest(tree):
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        found.update(np.asarray(leaf).tobytes())
    return found.hexdigest()[:16]


def main():
    random = np.random.default_rng(0)
    layers = [
        (jnp.asarray(random.normal(size=(WIDTH, 4 * WIDTH)) / 16, jnp.float32),
         jnp.asarray(random.normal(size=(4 * WIDTH, WIDTH)) / 32, jnp.float32))
        for _ in range(LAYERS)
    ]  # fmt: skip
    x, digests, decode = jnp.asarray(random.normal(size=(1, WIDTH)), jnp.float32), [], jax.jit(step)
    for _ in range(CALLS):
        x = decode(layers, x) / 2
        digests.append(digest(x))
    batch = jnp.asarray(random.normal(size=(8, WIDTH)), jnp.float32)
    for _ in range(CALLS):
        layers = train(layers, batch)
        digests.append(digest(layers))
    began = time.perf_counter()
    for _ in range(200):
        x = decode(layers, x)
    x.block_until_ready()
    device = jax.devices()[0]
    print(json.dumps({
        "jax": jax.__version__, "device": device.device_kind, "platform": device.platform, "digests": digests,
        "us_per_call": 1e6 * (time.perf_counter() - began) / 200,
    }))  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
