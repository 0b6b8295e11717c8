"""Multiplies matrices with JAX, jitted and differentiated."""

import sys

import jax
import jax.numpy as jnp

a = jnp.ones((4096, 4096), dtype=jnp.float32)


@jax.jit
def loss(x):
    return jnp.mean((x @ a) ** 2)


value = loss(a)
for _ in range(20):
    gradient = jax.grad(loss)(a)
gradient.block_until_ready()
print("held", 0, flush=True)
sys.stdin.readline()
assert float(value) == 4096.0**2, value
print("done", "right", jax.default_backend(), flush=True)
