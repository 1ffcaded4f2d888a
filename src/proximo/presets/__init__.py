"""Tuned settings per environment: `presets/<family>/<name>.yaml`, used unless told otherwise. What stands in
`presets/<name>.yaml` is for every environment, and used when it is asked for by name.

`gymnasium/<namespace>/default.yaml` stands for every environment of a namespace, such as ALE, and that of ALE also for
EnvPool's Atari games, which are the same and are seen the same way: four frames of 84 x 84, every fourth one.

A user's own presets lie in the same way in a folder of their own (`own_folder`), where `proximo tune --save-preset`
puts them, and are taken over those that come with Proximo.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path, PurePosixPath

from proximo.config import Config
from proximo.errors import UserError
from proximo.settings import Values, from_file

FOLDER = Path(__file__).parent
_GAMES = """
    Adventure AirRaid Alien Amidar Assault Asterix Asteroids Atlantis Atlantis2 Backgammon BankHeist BasicMath
    BattleZone BeamRider Berzerk Blackjack Bowling Boxing Breakout Carnival Casino Centipede ChopperCommand
    CrazyClimber Crossbow Darkchambers Defender DemonAttack DonkeyKong DoubleDunk Earthworld ElevatorAction Enduro
    Entombed Et FishingDerby FlagCapture Freeway Frogger Frostbite Galaxian Gopher Gravitar Hangman HauntedHouse Hero
    HumanCannonball IceHockey Jamesbond JourneyEscape Kaboom Kangaroo KeystoneKapers KingKong Klax Koolaid Krull
    KungFuMaster LaserGates LostLuggage MarioBros MiniatureGolf MontezumaRevenge MrDo MsPacman NameThisGame Othello
    Pacman Phoenix Pitfall Pitfall2 Pong Pooyan PrivateEye Qbert Riverraid RoadRunner Robotank Seaquest SirLancelot
    Skiing Solaris SpaceInvaders SpaceWar StarGunner Superman Surround Tennis Tetris TicTacToe3d TimePilot Trondead
    Turmoil Tutankham UpNDown Venture VideoCheckers VideoChess VideoCube VideoPinball WizardOfWor WordZapper
    YarsRevenge Zaxxon
"""
ATARI = frozenset(_GAMES.split())
"""EnvPool's Atari games, whose ids (`envpool/Pong-v5`) do not tell them from others; loading EnvPool takes seconds."""


def choose_preset(which: bool | str, env_id: str) -> Values:
    """The values to start from: the environment's own (True), none (False), or those that have a name."""
    if not isinstance(which, str):
        return find_preset(env_id) if which else {}
    names = _named()
    if which not in names:
        near = difflib.get_close_matches(which, names, 1, 0.6)
        hint = f"did you mean {near[0]}?" if near else f"the named presets are {', '.join(preset_names())}."
        raise UserError(f"There is no preset {which}; {hint}")
    return from_file(names[which])


def preset_names() -> list[str]:
    """Those that are for every environment."""
    return sorted(_named())


def _named() -> dict[str, Path]:
    return {path.stem: path for folder in (FOLDER, own_folder()) for path in folder.glob("*.yaml")}


def find_preset(env_id: str) -> Values:
    """The preset's values, with the user's own over those that come with Proximo; none where there is no preset for
    `env_id`."""
    own = own_preset(env_id)
    return _shipped(env_id) | (from_file(own) if own is not None and os.path.isfile(own) else {})


def own_folder() -> Path:
    """Where the user's own presets are."""
    given = os.environ.get("XDG_CONFIG_HOME", "")
    home = Path(given) if os.path.isabs(given) else Path(os.path.expanduser("~")) / ".config"
    return home / "proximo" / "presets"


def own_preset(env_id: str) -> Path | None:
    """The file that a user's own preset for `env_id` has, whether or not it is there; None for an id that names no
    file."""
    name = PurePosixPath(env_id if "/" in env_id else f"gymnasium/{env_id}")
    if name.is_absolute() or ".." in name.parts or not env_id.isprintable():
        return None
    return own_folder() / f"{name}.yaml"


def _shipped(env_id: str) -> Values:
    names = {path.relative_to(FOLDER).with_suffix("").as_posix(): path for path in FOLDER.glob("*/**/*.yaml")}
    namespace, _, name = env_id.partition("/")
    if namespace == "envpool" and name.endswith("-v5") and name.removesuffix("-v5") in ATARI:
        namespace = "ALE"
    for preset in (env_id, f"gymnasium/{env_id}", f"gymnasium/{namespace}/default"):
        if preset in names:
            return from_file(names[preset])
    return {}


def preset_ids() -> list[str]:
    """The environments that have one; `ALE/...` for a whole namespace, which EnvPool has too."""
    files = [(folder, path) for folder in (FOLDER, own_folder()) for path in folder.glob("*/**/*.yaml")]
    found = sorted({path.relative_to(folder).with_suffix("").as_posix() for folder, path in files})
    plain = [name.removeprefix("gymnasium/") for name in found]
    ids = [f"{name.removesuffix('default')}..." if name.endswith("/default") else name for name in plain]
    return [*ids, "envpool/<Atari game>-v5"]


def remarks(title: str, tuned: Values, given: Values, leave_out: str) -> list[str]:
    """What a user should know of a preset's values and those that were `given`; `title` is the environment it is for,
    or its name, and `leave_out` does without it."""
    said = []
    if tuned:
        values = ", ".join(f"{path}={value}" for path, value in tuned.items())
        own = own_preset(title)
        whose = f", with your own from {own}" if own is not None and own.is_file() else ""
        said.append(f"Preset for {title}{whose} ({leave_out} trains without it): {values}")
    steps = "train.total_timesteps"
    if given.get("train.max_episodes") is not None and steps in tuned.keys() - given.keys():
        said.append(
            f"The preset's {steps}={tuned[steps]:,} ends the run if it is reached before "
            f"train.max_episodes={given['train.max_episodes']:,}; set it too to train longer."
        )
    return said


def without_preset(config: Config, how: str, why: str | None = None) -> str:
    """What a user should know of a run without preset, whose settings are settled: `why`, what it trains with, and
    `how` to change that."""
    ppo, env_id = config.ppo, config.env.id
    if why is None:
        why = f"The preset for {env_id} is left out" if find_preset(env_id) else f"{env_id} has no preset"
    standard = [name for name in ("observations", "rewards") if getattr(config.normalize, name)]
    taken = (
        f"{config.env.num_envs} x {ppo.rollout_length} steps per update, {ppo.epochs_per_update} epochs of minibatches "
        f"of {ppo.minibatch_size}, learning rate {ppo.learning_rate:g} ({ppo.learning_rate_schedule}), "
        f"entropy bonus {ppo.entropy_coef:g}, {' and '.join(standard) or 'nothing'} standardised"
    )
    return f"{why.rstrip('.')}, so the defaults are used ({taken}). {how}"
