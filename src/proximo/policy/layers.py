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
from jaxtyping import Array, Float, Float32, Key, UInt32
from numpy.typing import NDArray

from proximo.types import AnyArray


def orthogonal(gain: float) -> Callable[..., Float32[Array, "..."]]:
    """Orthonormal rows or columns, whichever fit, times `gain`; made on the host, because compiling JAX's own
    takes four seconds of every start."""

    def on_host(key: UInt32[AnyArray, " words"], shape: tuple[int, ...]) -> Float32[NDArray[Any], "..."]:
        rows, columns = math.prod(shape[:-1]), shape[-1]
        normal = np.random.Generator(np.random.Philox(key=np.asarray(key).astype(np.uint64)))
        q, r = np.linalg.qr(normal.standard_normal((max(rows, columns), min(rows, columns))))
        q *= np.sign(np.diag(r))  # makes the distribution uniform over orthogonal matrices
        return (gain * (q if rows >= columns else q.T)).reshape(shape).astype(np.float32)

    def init(key: Key[Array, ""], shape: tuple[int, ...], dtype: Any = jnp.float32) -> Float32[Array, "..."]:
        result = jax.eval_shape(lambda: jnp.zeros(shape, dtype))
        made: jax.Array = jax.pure_callback(
            partial(on_host, shape=shape), result, jax.random.key_data(key), vmap_method="sequential"
        )
        return made

    return init


@jax.custom_vjp
def product(x: Float[Array, "*B D"], kernel: Float[Array, "D H"]) -> Float[Array, "*B H"]:
    """x @ kernel, with a gradient that is laid out for CPU: XLA folds the transposition in x^T dy into a product that
    is slower, by far for narrow heads; the barriers make it transpose first (`python bench/dense.py`)."""
    return x @ kernel


def _product_forward(
    x: Float[Array, "*B D"], kernel: Float[Array, "D H"]
) -> tuple[Float[Array, "*B H"], tuple[Float[Array, "*B D"], Float[Array, "D H"]]]:
    return x @ kernel, (x, kernel)


def _product_backward(
    saved: tuple[Float[Array, "*B D"], Float[Array, "D H"]], slope: Float[Array, "*B H"]
) -> tuple[Float[Array, "*B D"], Float[Array, "D H"]]:
    x, kernel = saved
    rows, slopes = x.reshape(-1, x.shape[-1]), slope.reshape(-1, slope.shape[-1])

    def laid_out(array: Float[Array, "_ _"]) -> Float[Array, "_ _"]:
        return jax.lax.optimization_barrier(array)  # type: ignore[no-any-return]

    narrow = slopes.shape[1] < 16
    change = laid_out(laid_out(slopes.T) @ rows).T if narrow else laid_out(rows.T) @ slopes
    return slope @ kernel.T, change


product.defvjp(_product_forward, _product_backward)


def dense(width: int, gain: float) -> nn.Dense:
    """A linear layer with orthogonal kernel and zero bias."""

    def dot(
        x: Float[Array, "*B D"], kernel: Float[Array, "D H"], dimensions: Any, precision: Any = None, **_: Any
    ) -> Float[Array, "*B H"]:
        return product(x, kernel)

    return nn.Dense(width, kernel_init=orthogonal(gain), dot_general=dot)
