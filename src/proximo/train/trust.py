"""Settings can name Python modules. Those of a folder that somebody else made are imported only if the user says so."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from proximo.config import EnvConfig
from proximo.envs import named_modules
from proximo.envs.arguments import env_key
from proximo.errors import UserError
from proximo.run_dir.files import shown
from proximo.run_dir.origin import is_signed, sign


def vouch_for(folder: Path, envs: Iterable[EnvConfig]) -> None:
    """Remember that this user trains on these environments, as far as they name modules."""
    named = [env_key(env) for env in envs if named_modules(env, even_imported=True)]
    if named:
        sign(folder, named)


def check_trust(folder: Path, envs: Iterable[EnvConfig], trust: bool, handed_in: bool = False) -> None:
    """Refuse to import what the settings in a folder name, unless this user made it or says to `trust` it. Of an
    environment that was `handed_in`, only the wrappers are named."""
    for env in () if trust else envs:
        modules = named_modules(env, handed_in)
        if modules and not is_signed(folder, env_key(env)):
            raise UserError(
                f"{shown(folder)} was not made here, and its settings name Python code that would be run: "
                f"{', '.join(modules)}. If you trust it, say so: --trust, or trust=True in Python."
            )
