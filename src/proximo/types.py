"""The types that annotations share: arrays, trees of them, and the dataclasses that JAX takes apart.

Shapes stand in annotations as jaxtyping has them. T are steps, E environments, L lanes, K the members of a group, N
samples, B any batch; what has a name that begins with * may be any number of axes. They are checked where the tests
run: tests/conftest.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, TypeVar, dataclass_transform

import jax
from jaxtyping import PyTree as PyTree
from numpy.typing import NDArray

S = TypeVar("S", bound="Struct")
AnyArray = jax.Array | NDArray[Any]
"""An array of JAX, inside the compiled program and where it ends, or of NumPy, outside of it."""


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class Struct:
    """A frozen dataclass that is a tree to JAX: its fields are the branches, those with `metadata={"static": True}` a
    part of its structure.

    As Flax's `struct.PyTreeNode`, but JAX puts one together without calling `__init__`. So that is called by our own
    code alone, and its annotations hold, while JAX fills the branches with whatever it needs there: shapes, shardings,
    marks of its own.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        made = dataclasses.dataclass(frozen=True)(cls)
        fields = dataclasses.fields(made)  # type: ignore[arg-type]
        branches = [field.name for field in fields if not field.metadata.get("static")]
        static = [field.name for field in fields if field.metadata.get("static")]
        keys = [jax.tree_util.GetAttrKey(name) for name in branches]

        def flatten(node: Any) -> tuple[list[Any], tuple[Any, ...]]:
            return [getattr(node, name) for name in branches], tuple([getattr(node, name) for name in static])

        def flatten_with_keys(node: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
            values, rest = flatten(node)
            return list(zip(keys, values, strict=True)), rest

        def unflatten(rest: tuple[Any, ...], values: Iterable[Any]) -> Any:
            node = object.__new__(cls)
            node.__dict__.update(zip(branches, values, strict=True))
            node.__dict__.update(zip(static, rest, strict=True))
            return node

        jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)

    def replace(self: S, **changes: Any) -> S:
        """The same with some fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]
