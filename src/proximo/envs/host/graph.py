"""The attributes of Python objects, written down as plain data: which are read, how, and what must be refused.

A drawing has a node for each thing that can change, numbered as they are met, the objects that were handed in first:
what is held twice is drawn once. Values inside nodes stand for themselves where they cannot change; anything else is
a list that starts with its kind, such as ["node", 7]. `redraw` puts a drawing into objects of the same classes.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import itertools
import logging
import operator
import pathlib
import random
import sys
import types
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.envs.registration import EnvSpec

from proximo.envs.host.codec import Path, Unsupported

PLAIN = (type(None), bool, int, float, str, bytes)
CONSTANT = (types.ModuleType, type, types.FunctionType, np.ufunc, np.dtype, EnvSpec, logging.Logger)
SHOWN = (range, slice, pathlib.PurePath, operator.itemgetter, operator.attrgetter)
"""Constants that are known by what they show."""
BIT_GENERATORS = {name: getattr(np.random, name) for name in ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")}
DICTS: dict[str, Any] = {kind.__name__: kind for kind in (dict, OrderedDict, Counter, defaultdict)}
# Set once when an environment is made, or of no matter to what it does.
LEFT_ALONE = {"spec", "_cached_spec", "metadata", "_metadata", "render_mode", "_saved_kwargs"}
LEFT_ALONE |= {"_ezpickle_args", "_ezpickle_kwargs"}
GLOBAL_STREAMS: list[Any] = [np.random.mtrand._rand, vars(random)["_inst"]]


def named(kind: type) -> str:
    return f"{getattr(kind, '__module__', '')}:{kind.__qualname__}"


def is_plain(kind: type) -> bool:
    """Whether objects of this class consist of attributes alone, as those of classes written in Python do. What the
    standard library has stands for something outside: files, locks, processes."""
    if kind is types.SimpleNamespace:
        return True
    pointers = len(slots(kind)) + (kind.__weakrefoffset__ > 0) + (kind.__dictoffset__ > 0)
    package = named(kind).partition(":")[0].partition(".")[0]
    ours = package and package not in sys.stdlib_module_names
    return bool(ours) and not kind.__itemsize__ and kind.__basicsize__ <= object.__basicsize__ + 8 * pointers


def slots(kind: Any) -> dict[str, Any]:
    """The descriptors of a class's `__slots__`."""
    if kind not in _slots:
        _slots[kind] = _find_slots(kind)
    return _slots[kind]


_slots: weakref.WeakKeyDictionary[type, dict[str, Any]] = weakref.WeakKeyDictionary()


def _find_slots(kind: type) -> dict[str, Any]:
    return {
        name: entry
        for base in kind.__mro__
        if "__slots__" in vars(base)
        for name, entry in vars(base).items()
        if isinstance(entry, types.MemberDescriptorType)
    }


def attributes(value: Any) -> dict[str, Any]:
    """All attributes that the object itself has."""
    filled = {}
    for name, slot in slots(type(value)).items():
        try:
            filled[name] = slot.__get__(value)
        except AttributeError:
            continue
    return {**filled, **getattr(value, "__dict__", {})}


def subspaces(space: Space) -> Iterator[Space]:
    """The space and all inside it."""
    yield space
    for value in vars(space).values():
        held = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
        for inner in held:
            if isinstance(inner, Space):
                yield from subspaces(inner)


def constant(value: Any) -> str | None:
    """How a value that never changes is known again; None for what may change."""
    if isinstance(value, CONSTANT):
        known = getattr(value, "__qualname__", None) or getattr(value, "__name__", None) or getattr(value, "id", "")
        return f"{type(value).__name__} {getattr(value, '__module__', '')} {known}"
    if isinstance(value, types.BuiltinFunctionType):
        bound = value.__self__
        return f"builtin {value.__qualname__}" if bound is None or isinstance(bound, types.ModuleType | type) else None
    if isinstance(value, SHOWN) or value is ...:
        return repr(value)
    if type(value) is functools.partial:
        parts = [value.func, *value.args, *value.keywords.values()]
        known_parts = [repr(part) if type(part) in PLAIN else constant(part) for part in parts]
        return None if None in known_parts else f"partial {' '.join(map(str, known_parts))} {list(value.keywords)}"
    return canvas(value)


def canvas(value: Any) -> str | None:
    """How a surface or a font of pygame is known again: many environments have them from the start, and never draw.
    What was drawn on a surface is part of it, so that it is only taken for one that looks the same."""
    kind = named(type(value))
    if kind == "pygame.surface:Surface":
        return f"Surface {value.get_size()} {value.get_masks()} {hashlib.sha256(value.get_buffer().raw).hexdigest()}"
    return kind if kind in ("pygame.freetype:Font", "pygame.font:Font") else None


def generator_state(value: np.random.Generator) -> list[Any] | None:
    """[class, state, seeds] of a generator; None if it is of a kind of its own."""
    bits: Any = value.bit_generator
    name, seeds = type(bits).__name__, bits.seed_seq
    if BIT_GENERATORS.get(name) is not type(bits):
        return None
    # What `spawn` starts from.
    seeded = type(seeds) is np.random.SeedSequence
    described = [seeds.entropy, list(seeds.spawn_key), seeds.pool_size, seeds.n_children_spawned] if seeded else None
    return [name, bits.state, described]


def is_steady(member: Any) -> bool:
    """Whether its hash is the same in every process, and with it the order of a set of such."""
    if type(member) in (tuple, frozenset):
        return all(is_steady(part) for part in member)
    return isinstance(member, bool | int | float | np.number | np.bool_)


class Drawing:
    """Draws `roots` and everything they hold; the `sealed` may be held, but are not looked into."""

    def __init__(self, roots: list[Any], sealed: list[Any]):
        self.nodes: list[Any] = []
        self.classes: dict[str, type] = {}
        """By name, those of the objects and constants that were met."""
        self._numbers: dict[int, int] = {}
        self._levels = [*roots, *sealed]
        self._queue: deque[tuple[Any, Path]] = deque()
        self._bits: set[int] = set()
        self._arrays: list[tuple[int, int, Path, Any]] = []
        for level in self._levels:
            self._node(level, ((), type(level).__name__))
        for number in itertools.count():
            if not self._queue:
                break
            value, path = self._queue.popleft()
            closed = len(roots) <= number < len(self._levels)
            self.nodes.append(["sealed", self._class(value)] if closed else self._drawn(value, path, number))
        self._refuse_overlaps()

    def _node(self, value: Any, path: Path) -> list[Any]:
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._numbers)
            self._queue.append((value, path))
        return ["node", self._numbers[id(value)]]

    def _class(self, value: Any) -> str:
        kind = type(value)
        name = named(kind)
        if self.classes.setdefault(name, kind) is not kind:
            raise Unsupported((), value, "of which there are two classes with one name")
        return name

    def _value(self, value: Any, path: Path) -> Any:
        kind = type(value)
        if kind in PLAIN or (isinstance(value, np.generic) and kind is not np.void):
            return value
        if kind is tuple and all(type(part) in PLAIN for part in value):
            return value
        if kind is tuple or kind is frozenset:
            return [kind.__name__, [self._value(part, (path, [i])) for i, part in enumerate(value)]]
        if isinstance(value, enum.Enum):
            if value.name not in kind.__members__:
                raise Unsupported(path, value)
            return ["enum", self._class(value), value.name]
        if isinstance(value, tuple) and hasattr(kind, "_fields") and kind.__module__ not in sys.stdlib_module_names:
            return ["named", self._class(value), [self._value(part, (path, [i])) for i, part in enumerate(value)]]
        if isinstance(value, types.MethodType) and any(value.__self__ is level for level in self._levels):
            return ["constant", f"method {value.__func__.__qualname__}"]
        known = constant(value)
        if known is not None:
            if isinstance(value, type):
                self.classes.setdefault(named(value), value)
            return ["constant", known]
        return self._node(value, path)

    def _member(self, value: Any, path: Path) -> Any:
        """A key, or a member of a set: equal to what it was when it is put back."""
        drawn = self._value(value, path)
        if type(drawn) is list and drawn[0] in ("node", "constant"):
            raise Unsupported(path, value, "as a key or in a set")
        return drawn

    def _drawn(self, value: Any, path: Path, number: int) -> list[Any]:
        kind = type(value)
        if kind is list:
            return ["list", [self._value(part, (path, [i])) for i, part in enumerate(value)]]
        if kind is deque:
            return ["deque", value.maxlen, [self._value(part, (path, [i])) for i, part in enumerate(value)]]
        if kind in DICTS.values():
            inner = [(key, part, (path, [key])) for key, part in value.items()]
            pairs = [[self._member(key, where), self._value(part, where)] for key, part, where in inner]
            return ["dict", kind.__name__, pairs, self._value(getattr(value, "default_factory", None), path)]
        if kind is set:
            return ["set", [self._member(part, path) for part in value], all(is_steady(part) for part in value)]
        if kind is np.ndarray:
            if value.dtype.hasobject:
                raise Unsupported(path, value, f"of {value.dtype}")
            self._arrays.append((*np.lib.array_utils.byte_bounds(value), path, value))
            return ["array", value]
        if any(value is stream for stream in GLOBAL_STREAMS):
            raise Unsupported(path, value, "which the whole process shares")
        if kind in (np.random.Generator, np.random.RandomState):
            bits = id(value._bit_generator)
            if bits in self._bits:
                raise Unsupported(path, value, "which shares its numbers with another")
            self._bits.add(bits)
        if kind is np.random.Generator and (state := generator_state(value)):
            return ["generator", *state]
        if kind is np.random.RandomState:
            return ["random_state", value.get_state(legacy=False)]
        if kind is random.Random:
            return ["random", value.getstate()]
        if isinstance(value, Space):
            streams = [getattr(space, "_np_random", None) for space in subspaces(value)]
            return ["space", self._class(value), [self._value(stream, (path, "._np_random")) for stream in streams]]
        if not is_plain(kind):
            raise Unsupported(path, value)
        skipped = LEFT_ALONE if number < len(self._levels) else ()
        held = {
            name: self._value(part, (path, f".{name}"))
            for name, part in attributes(value).items()
            if name not in skipped
        }
        return ["object", self._class(value), held]

    def _refuse_overlaps(self) -> None:
        """Arrays that share memory would not, once they are put back."""
        arrays = sorted(self._arrays, key=lambda one: one[:2])
        end = 0
        for low, high, path, array in arrays:
            if low < end and high > low:
                raise Unsupported(path, array, "which shares memory with another")
            end = max(end, high)
