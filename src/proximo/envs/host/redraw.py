"""Puts a drawing of `graph` into objects of the same classes. What does not fit raises ValueError before anything is
changed; nothing is imported or called that a drawing names, and new objects are only made of classes that belong to
the modules of those that are there."""

from __future__ import annotations

import enum
import random
import sys
import types
from collections import defaultdict, deque
from typing import Any

import numpy as np
from gymnasium import Space

from proximo.envs.host.graph import (
    BIT_GENERATORS,
    DICTS,
    LEFT_ALONE,
    PLAIN,
    Drawing,
    attributes,
    constant,
    generator_state,
    is_plain,
    named,
    slots,
    subspaces,
)

ABSENT = object()


def redraw(nodes: list[Any], roots: list[Any], sealed: list[Any]) -> None:
    """Give `roots` and all they hold the values that `nodes` say."""
    _Redrawing(nodes, roots, sealed).run()


class _Redrawing:
    def __init__(self, nodes: list[Any], roots: list[Any], sealed: list[Any]):
        self.nodes = nodes
        self.levels = [*roots, *sealed]
        self.classes = Drawing(roots, sealed).classes
        self.old: dict[int, Any] = dict(enumerate(self.levels))  # what stands now where a node was met first
        self.made: list[Any] = []
        self._taken: set[int] = set()

    def run(self) -> None:
        # Three walks: what there is, or new things where nothing fits; then their values; only then are they changed.
        for number, node in enumerate(self.nodes):
            self.made.append(self._found_or_made(node, self.old.get(number, ABSENT), number))
            self._look_inside(node, self.old.get(number, ABSENT))
        values = [self._values(node, self.old.get(n, ABSENT), self.made[n]) for n, node in enumerate(self.nodes)]
        for number, (node, value) in enumerate(zip(self.nodes, values, strict=True)):
            self._change(node[0], self.made[number], value, number)

    # What each node becomes.

    def _found_or_made(self, node: list[Any], old: Any, number: int) -> Any:
        kind = node[0]
        if number < len(self.levels):
            if kind not in ("object", "sealed") or node[1] != named(type(old)):
                raise ValueError(f"the state is of {str(node[1])[:60]}, not of {named(type(old))}")
            self._taken.add(id(old))
            return old
        free = old is not ABSENT and id(old) not in self._taken
        if kind == "list":
            return []
        if kind == "deque":
            return deque(maxlen=node[1])
        if kind == "dict":
            return DICTS[node[1]]()
        if kind == "set":
            return set()
        if kind == "array" and type(node[1]) is np.ndarray:
            return node[1]
        if kind == "generator":
            same = free and type(old) is np.random.Generator and (generator_state(old) or [])[::2] == node[1::2]
            return self._take(old) if same else _new_generator(node[1], node[3])
        if kind == "random_state":
            return self._take(old) if free and type(old) is np.random.RandomState else np.random.RandomState(0)
        if kind == "random":
            return self._take(old) if free and type(old) is random.Random else random.Random(0)
        if kind == "space":
            if not free or not isinstance(old, Space) or named(type(old)) != node[1]:
                raise ValueError("the state has a space that is not there")
            return self._take(old)
        if kind == "object":
            if free and named(type(old)) == node[1] and is_plain(type(old)):
                return self._take(old)
            made = self._class(node[1])
            if not is_plain(made) or hasattr(made, "__del__"):
                raise ValueError(f"no {node[1]} can be made")
            return made() if made is types.SimpleNamespace else object.__new__(made)
        raise ValueError(f"the state has a part that cannot be read: {str(kind)[:60]}")

    def _take(self, old: Any) -> Any:
        self._taken.add(id(old))
        return old

    def _class(self, name: str) -> type:
        """A class by its name, of a module that a class is from that is there."""
        if name in self.classes:
            return self.classes[name]
        module, _, path = name.partition(":")
        if module not in {kind.__module__ for kind in self.classes.values()}:
            raise ValueError(f"the state has a {name[:60]}, which is not to be found")
        found: Any = sys.modules.get(module)
        for part in path.split("."):
            found = vars(found).get(part) if isinstance(found, type | types.ModuleType) else None
        if not isinstance(found, type) or named(found) != name:
            raise ValueError(f"the state has a {name[:60]}, which is not to be found")
        return found

    # What stands where.

    def _look_inside(self, node: list[Any], old: Any) -> None:
        for value, there in self._parts(node, old):
            self._offer(value, there)

    def _parts(self, node: list[Any], old: Any) -> list[tuple[Any, Any]]:
        """The values of a node, each with what stands there now."""
        kind = node[0]
        if kind in ("list", "deque"):
            there = list(old) if isinstance(old, list | deque) else []
            return _beside(node[-1], there)
        if kind == "dict":
            factory = getattr(old, "default_factory", ABSENT)
            held = old if isinstance(old, dict) else {}
            pairs = [(self._key(key), value) for key, value in node[2]]
            return [*((value, held.get(key, ABSENT)) for key, value in pairs), (node[3], factory)]
        if kind == "space":
            streams = [getattr(space, "_np_random", None) for space in subspaces(old)]
            if len(streams) != len(node[2]):
                raise ValueError("the state has a space that is not there")
            return _beside(node[2], streams)
        if kind == "object":
            held = attributes(old) if old is not ABSENT and named(type(old)) == node[1] else {}
            return [(value, held.get(name, ABSENT)) for name, value in node[2].items()]
        return []

    def _offer(self, value: Any, there: Any) -> None:
        if type(value) is not list:
            return
        if value[0] == "node":
            self.old.setdefault(_index(value[1], self.nodes), there)
        elif value[0] in ("tuple", "named"):
            for part, inner in _beside(value[-1], list(there) if isinstance(there, tuple) else []):
                self._offer(part, inner)

    # The values.

    def _values(self, node: list[Any], old: Any, made: Any) -> Any:
        kind = node[0]
        if kind in ("list", "deque", "space"):
            return [self._value(value, there) for value, there in self._parts(node, old)]
        if kind == "dict":
            *values, factory = (self._value(value, there) for value, there in self._parts(node, old))
            return {self._key(pair[0]): value for pair, value in zip(node[2], values, strict=True)}, factory
        if kind == "set":
            members = [self._key(value) for value in node[1]]
            if node[2] and list(set(members)) != members:
                raise ValueError("a set would come back in another order")
            return members
        if kind == "object":
            names = list(node[2])
            values = [self._value(value, there) for value, there in self._parts(node, old)]
            known = slots(type(made))
            if not all(type(name) is str and (name in known or hasattr(made, "__dict__")) for name in names):
                raise ValueError(f"the state has attributes that a {node[1]} cannot have")
            return dict(zip(names, values, strict=True))
        return node[1:]

    def _key(self, value: Any) -> Any:
        key = self._value(value, ABSENT)
        hash(key)
        return key

    def _value(self, value: Any, there: Any) -> Any:
        if type(value) in PLAIN or isinstance(value, np.generic | tuple):
            return value
        match value:
            case ["node", number]:
                return self.made[_index(number, self.nodes)]
            case ["tuple" | "frozenset" as kind, list(parts)]:
                inner = _beside(parts, list(there) if isinstance(there, tuple) else [])
                return {"tuple": tuple, "frozenset": frozenset}[kind](self._value(*pair) for pair in inner)
            case ["named", str(name), list(parts)]:
                made: Any = self._class(name)
                inner = _beside(parts, list(there) if isinstance(there, tuple) else [])
                if not issubclass(made, tuple) or len(made._fields) != len(parts):
                    raise ValueError(f"{name} is no tuple with names")
                return tuple.__new__(made, [self._value(*pair) for pair in inner])
            case ["enum", str(name), str(member)]:
                made = self._class(name)
                if not issubclass(made, enum.Enum):
                    raise ValueError(f"{name} is no enumeration")
                return made.__members__[member]
            case ["constant", str(known)]:
                method = isinstance(there, types.MethodType) and any(there.__self__ is level for level in self.levels)
                if known != (f"method {there.__func__.__qualname__}" if method else constant(there)):
                    raise ValueError(f"the state has {known[:60]} where there is something else now")
                return there
        raise ValueError(f"the state has a value that cannot be read: {str(value)[:60]}")

    # The change.

    def _change(self, kind: str, made: Any, value: Any, number: int) -> None:
        if kind in ("list", "deque"):
            made.extend(value)
        elif kind == "set":
            made.update(value)
        elif kind == "dict":
            for key, part in value[0].items():
                made[key] = part
            if isinstance(made, defaultdict):
                made.default_factory = value[1]
        elif kind == "generator":
            made.bit_generator.state = value[1]
        elif kind == "random_state":
            made.set_state(value[0])
        elif kind == "random":
            made.setstate(value[0])
        elif kind == "space":
            for space, stream in zip(subspaces(made), value, strict=True):
                space._np_random = stream
        elif kind == "object":
            _set_attributes(made, value, LEFT_ALONE if number < len(self.levels) else frozenset())


def _set_attributes(made: Any, values: dict[str, Any], left_alone: set[str] | frozenset[str]) -> None:
    known = slots(type(made))
    for name in attributes(made).keys() - values.keys() - left_alone:
        if name in known:
            known[name].__delete__(made)
        else:
            del made.__dict__[name]
    for name, value in values.items():
        if name in known:
            known[name].__set__(made, value)
        else:
            made.__dict__[name] = value


def _beside(values: list[Any], there: list[Any]) -> list[tuple[Any, Any]]:
    return [(value, there[i] if i < len(there) else ABSENT) for i, value in enumerate(values)]


def _index(number: Any, nodes: list[Any]) -> int:
    if type(number) is not int or not 0 <= number < len(nodes):
        raise ValueError("the state names a part that it does not have")
    return number


def _new_generator(name: str, seeds: Any) -> np.random.Generator:
    if seeds is None:
        return np.random.Generator(BIT_GENERATORS[name](0))
    entropy, spawn_key, pool_size, spawned = seeds
    if not 4 <= pool_size <= 64:
        raise ValueError("the state has a generator that cannot be made")
    sequence = np.random.SeedSequence(
        entropy, spawn_key=tuple(spawn_key), pool_size=pool_size, n_children_spawned=spawned
    )
    return np.random.Generator(BIT_GENERATORS[name](sequence))
