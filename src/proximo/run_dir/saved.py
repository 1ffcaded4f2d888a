"""Saved policies that a run may start from: where they are, and the settings that come with them. Free of JAX."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import safetensors

from proximo import settings
from proximo.config import Config
from proximo.errors import UserError, quoted
from proximo.run_dir.directory import RUNS
from proximo.run_dir.read import find_run, read_config
from proximo.settings import Values

HELD = (
    *(name for name in settings.SETTINGS if name.startswith("network.") and name != "network.initial_std"),
    "normalize.observations",
    "normalize.rewards",
    "agents.policy",
    "agents.members",
    "agents.identity",
    "agents.critic",
)
"""The settings that say what a policy is."""
SUFFIX = ".safetensors"


def held_layer(named: Values) -> Values:
    """Of a run that starts from a saved policy, if `named` says that it does, the settings that come with the policy:
    a layer above presets, below whatever the user names."""
    start = named.get("train.start_from")
    return {} if start is None else held_values(saved_config(locate(start)))


def located(config: Config) -> Config:
    """`config` with the whole path of the policy that it starts from, if there is one: the working directory may
    change."""
    if config.train.start_from is None:
        return config
    place = str(locate(config.train.start_from))
    return dataclasses.replace(config, train=dataclasses.replace(config.train, start_from=place))


def held_values(config: Config) -> Values:
    """The settings of a policy that a run which starts from it takes over."""
    return {name: setting_of(config, name) for name in (*HELD, "env.frame_stack")}


def setting_of(config: Config, name: str) -> Any:
    section, _, field = name.partition(".")
    return getattr(getattr(config, section), field)


def locate(start: str) -> Path:
    """The whole path of a policy: a file, the common name of the files of several groups, a run, or a run's name."""
    for place in (Path(start), RUNS / start):
        if place.is_dir() or policy_group_files(place):
            return Path(os.path.abspath(place))
    raise UserError(
        f"There is no policy {quoted(start)} to start from: it is neither a run (also under {RUNS}/) nor a file that "
        f"Proximo saved."
    )


def policy_group_files(path: Path) -> list[Path]:
    """The files that `path` names, with or without suffix: one, or where there are several groups of agents one for
    each."""
    if path.is_file():
        return [path]
    stem = path.name.removesuffix(SUFFIX)
    whole = path.with_name(f"{stem}{SUFFIX}")
    if whole.is_file():
        return [whole]
    return sorted(file for file in path.parent.glob("*") if file.is_file() and _is_group_file(file.name, stem))


def _is_group_file(name: str, stem: str) -> bool:
    inner = name.removeprefix(f"{stem}.").removesuffix(SUFFIX)
    return name == f"{stem}.{inner}{SUFFIX}" and "." not in inner


def saved_config(place: Path) -> Config:
    """The settings that the policy at `place` was trained with."""
    if place.is_dir():
        return read_config(find_run(place))
    file = policy_group_files(place)[0]
    try:
        return settings.build(settings.from_mapping(read_header(file)[1]["config"], "its settings"))
    except (LookupError, TypeError):
        raise UserError(f"{file} cannot be used: it does not say which settings it was trained with.") from None
    except UserError as error:
        raise UserError(f"{file} cannot be used: {error}") from None


def read_header(file: Path) -> tuple[str, dict[str, Any]]:
    """What a file that Proximo saved says it is, such as `proximo-policy-1`, and its description."""
    if file.suffix == ".pth":
        raise UserError(
            f"{file} is a PyTorch state dict: weights without the spaces and settings that they belong to. Start from "
            f"the .safetensors file that is saved beside it."
        )
    try:
        with safetensors.safe_open(file, framework="numpy") as opened:
            header = json.loads((opened.metadata() or {})["proximo"])
        kind, meta = header["format"], header["meta"]
        if not isinstance(kind, str) or not isinstance(meta, dict):
            raise ValueError
        return kind, meta
    except Exception:  # whatever nonsense can lead to
        raise UserError(f"{file} is not a file of Proximo's, or it is damaged.") from None
