"""Linear layers: how they start, and how their gradient is laid out."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np


def orthogonal(gain: float) -> Callable[..., jax.Array]:
    """Orthonormal rows or columns, whichever fit, times `gain`; made on the host, because compiling JAX's own
    takes four seconds of every start."""

    def on_host(key: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        rows, columns = math.prod(shape[:-1]), shape[-1]
        normal = np.random.Generator(np.random.Philox(key=np.asarray(key).astype(np.uint64)))
        q, r = np.linalg.qr(normal.standard_normal((max(rows, columns), min(rows, columns))))
        q *= np.sign(np.diag(r))  # makes the distribution uniform over orthogonal matrices
        return (gain * (q if rows >= columns else q.T)).reshape(shape).astype(np.float32)

    def init(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        result = jax.ShapeDtypeStruct(shape, dtype)
        return jax.pure_callback(
            partial(on_host, shape=shape), result, jax.random.key_data(key), vmap_method="sequential"
        )

    return init


@jax.custom_vjp
def product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """x @ kernel, with a gradient that is laid out for CPU: XLA folds the transposition in x^T dy into a product that
    is slower, by far for narrow heads; the barriers make it transpose first (`python bench/dense.py`)."""
    return x @ kernel


def _product_forward(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return x @ kernel, (x, kernel)


def _product_backward(saved: tuple[jax.Array, jax.Array], slope: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel = saved
    rows, slopes = x.reshape(-1, x.shape[-1]), slope.reshape(-1, slope.shape[-1])
    laid_out = jax.lax.optimization_barrier
    narrow = slopes.shape[1] < 16
    change = laid_out(laid_out(slopes.T) @ rows).T if narrow else laid_out(rows.T) @ slopes
    return slope @ kernel.T, change


product.defvjp(_product_forward, _product_backward)


def dense(width: int, gain: float) -> nn.Dense:
    """A linear layer with orthogonal kernel and zero bias."""

    def dot(x: jax.Array, kernel: jax.Array, dimensions: Any, precision: Any = None, **_: Any) -> jax.Array:
        return product(x, kernel)

    return nn.Dense(width, kernel_init=orthogonal(gain), dot_general=dot)
