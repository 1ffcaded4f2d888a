"""YAML from people, or from strangers: read without waiting, without end, and without a traceback."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from typing import Any

import yaml

from proximo.errors import UserError, quoted
from proximo.run_dir.files import CAREFULLY, read_inside, read_up_to

LARGEST = 2**18
"""Bytes: the file of a run is a hundred times smaller, and reading as many takes seconds."""
MOST_REFERENCES, MOST_KEYS = 1000, 20_000
DEEPEST = 50
LONGEST_DETAIL = 300
FLOAT = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$")
"""Numbers such as 3e-4, which YAML 1.2 knows, and PyYAML takes for texts."""
QUOTES = "'\""


def read_yaml(path: Path, inside: bool = False) -> Any:
    """What a YAML file holds. One that the user named may be a link to a file, or a pipe; one `inside` a run's folder
    may not."""
    try:
        content = read_inside(path, LARGEST) if inside else _read(path)
    except OSError as error:
        raise UserError(f"Cannot read the configuration {path}: {error.strerror or error}.") from None
    try:
        return parse(content.decode("utf-8"))
    except RecursionError:
        raise UserError(f"Cannot read the configuration {path}: it is nested too deeply.") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8, or a date such as 2020-13-01
        detail = " ".join(str(error).replace('in "<file>", ', "").split())
        short = detail if len(detail) <= LONGEST_DETAIL else f"{detail[:LONGEST_DETAIL]}…"
        raise UserError(f"{path} is not a YAML file: {short}.") from None


def parse(text: str) -> Any:
    """What YAML says: YAMLError, ValueError or RecursionError where that cannot be known."""
    return yaml.load(io.StringIO(text), _Loader)


def dump(value: Any) -> str:
    """YAML that `parse` reads back to an equal value."""
    # Escaped, not as it is: YAML takes some characters beyond ASCII for line breaks, and folds them.
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False))


def _read(path: Path) -> bytes:
    with open(path, "rb", opener=_without_waiting) as file:
        return read_up_to(file, LARGEST)


def _without_waiting(path: str, flags: int) -> int:
    """Open a file, also a FIFO to which nobody writes: that is empty."""
    file = os.open(path, flags | CAREFULLY & ~os.O_NOFOLLOW)
    os.set_blocking(file, True)
    return file


class _Loader(yaml.SafeLoader):
    """Refuses a key that is given twice, of which PyYAML would silently keep the last; and a file that is small and
    means something without end, since it refers to itself again and again."""

    references = 0

    def fetch_flow_collection_start(self, token: type[yaml.Token]) -> None:
        if self.flow_level >= DEEPEST:  # PyYAML would look at them all for each of them
            raise yaml.scanner.ScannerError(None, None, "it is nested too deeply", self.get_mark())
        super().fetch_flow_collection_start(token)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.references += self.check_event(yaml.AliasEvent)
        if self.references > MOST_REFERENCES:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, f"there are more than {MOST_REFERENCES} references", mark)
        return super().compose_node(parent, index)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        if len(node.value) > MOST_KEYS:
            problem = f"there are more than {MOST_KEYS:,} keys"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                problem = f"{quoted(key.value).strip(QUOTES)} is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes a text that `_Loader` would take for a number."""


for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+0123456789"))
