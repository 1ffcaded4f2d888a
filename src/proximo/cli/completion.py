"""What a shell offers when Tab is pressed. Nothing that takes longer than the patience for it is imported."""

from __future__ import annotations

from proximo import settings


def env_ids(incomplete: str) -> list[str]:
    """Ids with a preset, the families, and without a slash every id that Gymnasium knows."""
    from proximo.envs import families
    from proximo.presets import preset_ids

    found = [env_id for env_id in preset_ids() if not env_id.endswith(("...", ">-v5"))]
    if "/" not in incomplete:
        import gymnasium

        found += [env_id for env_id in gymnasium.registry if "/" not in env_id]
        found += [f"{prefix}/" for prefix, family in families().items() if prefix and family.installed]
    return beginning_with(incomplete, found)


def assigned_settings(incomplete: str) -> list[str]:
    """Settings, and after the equals sign the values that one chooses from."""
    path, equals, _ = incomplete.partition("=")
    if equals and path in settings.SETTINGS:
        values = settings.choices(settings.SETTINGS[path])
        return beginning_with(incomplete, [f"{path}={value}" for value in values])
    return beginning_with(incomplete, [f"{path}=" for path in (*settings.SETTINGS, settings.FRAMES.path)])


def run_names(incomplete: str) -> list[str]:
    """Runs, as paths where one is begun."""
    from proximo.run_dir.directory import CONFIG, RUNS

    runs = [file.parent for file in sorted(RUNS.glob(f"*/{CONFIG}"))]
    return beginning_with(incomplete, [str(run) if incomplete.startswith(f"{RUNS}/") else run.name for run in runs])


def preset_names(incomplete: str) -> list[str]:
    from proximo.presets import preset_names

    return beginning_with(incomplete, preset_names())


def beginning_with(incomplete: str, words: list[str]) -> list[str]:
    return sorted({word for word in words if word.startswith(incomplete)})
