"""What reads images: convolutions, and the networks made of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from proximo.errors import UserError
from proximo.policy.layers import dense

Activation = Callable[[jax.Array], jax.Array]
Image = Float[Array, "B _ _ _"]
"""[B, H, W, C]"""
NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Width, patch size and stride of each layer that reads Atari's screens (Mnih et al., Nature 2015)."""
SMALLEST_NATURE = 36
SECTIONS = (16, 32, 32)
"""Channels of the sections of IMPALA's ResNet (Espeholt et al., 2018)."""


def shifted(image: Image, size: int, stride: int) -> list[Image]:
    """[B, H', W', C] for each place in a patch of `size` x `size`: what stands there in every patch."""
    height, width = (side - size + 1 for side in image.shape[1:3])
    return [
        image[:, row : row + height : stride, column : column + width : stride]
        for row in range(size)
        for column in range(size)
    ]


def padded(image: Image, size: int, stride: int, value: float) -> Image:
    """`image` with a margin of `value`, so that patches cover ceil(side / stride) places of each side."""
    margins = [max((-(-side // stride) - 1) * stride + size - side, 0) for side in image.shape[1:3]]
    around = [(margin // 2, margin - margin // 2) for margin in margins]
    return jnp.pad(image, [(0, 0), *around, (0, 0)], constant_values=value)


class PatchConv(nn.Module):
    """A convolution as one matrix product over patches: on CPU, inside a compiled loop, XLA's own convolution
    and above all its gradient are slower by an order of magnitude (`python bench/convolution.py`)."""

    width: int
    size: int
    stride: int
    pad: bool = False
    """With zeros around the image, so that every place is the middle of a patch."""

    @nn.compact
    def __call__(self, image: Image) -> Image:
        if self.pad:
            image = padded(image, self.size, self.stride, 0.0)
        patches = jnp.concatenate(shifted(image, self.size, self.stride), axis=-1)
        return dense(self.width, math.sqrt(2))(patches)


def max_pool(image: Image) -> Image:
    """The greatest number of each patch of 3 x 3, at every second place; the gradient of XLA's own is slow on CPU."""
    pieces = shifted(padded(image, 3, 2, -jnp.inf), 3, 2)
    best = pieces[0]
    for piece in pieces[1:]:
        best = jnp.maximum(best, piece)
    return best


def layers_for(smaller_side: int) -> tuple[tuple[int, int, int], ...]:
    """Of a CNN for images up to 35 pixels: width, patch size and stride of each layer."""
    if smaller_side >= 17:
        return ((16, 5, 2), (32, 3, 2))
    return ((16, 3, 1),) if smaller_side >= 3 else ()


class CNN(nn.Module):
    """`small`, by the smaller side: one 3x3 layer for grids up to 16, two strided layers from 17 on; none below 3,
    where no patch would fit. `nature`: three layers, which fit from 36 on. `auto`: the one of these that fits."""

    kind: str
    activation: Activation

    @nn.compact
    def __call__(self, image: Image) -> Float[Array, "B _"]:
        height, width = image.shape[1:3]
        large = min(height, width) >= SMALLEST_NATURE
        if self.kind == "nature" and not large:
            raise UserError(
                f"network.cnn=nature needs images of at least {SMALLEST_NATURE} x {SMALLEST_NATURE}, and one here is "
                f"{height} x {width}; use auto, small or impala."
            )
        layers = NATURE if large and self.kind != "small" else layers_for(min(height, width))
        for channels, size, stride in layers:
            image = self.activation(PatchConv(channels, size, stride)(image))
        return image.reshape(image.shape[0], -1)


class Impala(nn.Module):
    """IMPALA's ResNet: three sections, each a convolution, a max-pool that halves the image, and two residual blocks
    x + conv(act(conv(act(x))))."""

    activation: Activation

    @nn.compact
    def __call__(self, image: Image) -> Float[Array, "B _"]:
        for channels in SECTIONS:
            image = max_pool(PatchConv(channels, 3, 1, pad=True)(image))
            for _ in range(2):
                change = PatchConv(channels, 3, 1, pad=True)(self.activation(image))
                image = image + PatchConv(channels, 3, 1, pad=True)(self.activation(change))
        image = self.activation(image)
        return image.reshape(image.shape[0], -1)


class Embedding(nn.Module):
    """`size` learnt numbers for each of `num` codes, those of one lane side by side."""

    num: int
    size: int

    @nn.compact
    def __call__(self, codes: Int[Array, "B K"]) -> Float[Array, "B _"]:
        table = self.param("embedding", nn.initializers.normal(1.0), (self.num, self.size))
        return table[codes].reshape(codes.shape[0], -1)


def image_encoder(kind: str, activation: Activation) -> CNN | Impala:
    """The module that reads an image as `network.cnn` says."""
    return Impala(activation) if kind == "impala" else CNN(kind, activation)
