"""The documents' Python is run, and the commands they name exist."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import proximo
from proximo import PPOTrainer
from proximo.cli.common import app
from proximo.plots.pictures import PICTURES
from proximo.settings import SETTINGS, from_assignments

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LONG = "max_episodes=1000"
"""In a block that is run as it stands in `make test-learning` only, and for fewer episodes in `make test`."""
BLOCKS = [
    pytest.param(
        re.sub(r"^ {0,3}", "", block, flags=re.MULTILINE) if page.name == "README.md" else block,
        id=f"{page.name}-{number}",
        marks=[pytest.mark.learning] if LONG in block else [],
    )
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
]


@pytest.mark.slow
def test_long_blocks_run_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for block in BLOCKS:
        code = str(block.values[0])
        if LONG in code:
            test_python_blocks_run(code.replace(LONG, "max_episodes=40, total_timesteps=2048"), tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("code", BLOCKS)
def test_python_blocks_run(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that promise no result, for fewer steps, epochs and episodes than they say or leave to be chosen."""
    monkeypatch.chdir(tmp_path)
    if "final_eval" not in code and ".resume(" not in code:
        code = re.sub(r"(?<=total_timesteps=)[\d_]{4,}", "2_048", code)
        as_given = PPOTrainer.__init__

        def quick(one: PPOTrainer, *given: Any, **named: Any) -> None:
            as_given(one, *given, **{"eval_episodes": 2, "epochs_per_update": 2} | named)

        monkeypatch.setattr(PPOTrainer, "__init__", quick)
    exec(compile(code, "documentation", "exec"), {"__name__": "documentation"})
    assert os.listdir("runs")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_links_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for command in set(re.findall(r"`proximo ([a-z]+)", text)):
        assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0, command
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / target).exists(), target
    for target in re.findall(r"make ([a-z-]+)", text):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target


@pytest.mark.slow
def test_the_reference_lists_what_can_be_imported() -> None:
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert sorted(listed) == sorted(name for name in proximo.__all__ if name != "__version__")
    assert all(getattr(proximo, name).__doc__ for name in listed)


SECTIONS = sorted({path.partition(".")[0] for path in SETTINGS if "." in path})
TROUBLESHOOTING = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


def test_troubleshooting_names_settings_and_plots_that_there_are() -> None:
    words = set(re.findall(r"`([^`\n]+)`", TROUBLESHOOTING))
    settings = {word.partition("=")[0] for word in words if re.match(rf"({'|'.join(SECTIONS)})\.[a-z_]+(=|$)", word)}
    assert len(settings) > 30
    assert settings <= set(SETTINGS)
    plots = {word for word in words if word.startswith("plots/")}
    assert len(plots) == 3
    assert plots <= {f"plots/{name}.png" for name in PICTURES}
    for word in (one for one in words if "=" in one and one.partition("=")[0] in SETTINGS):
        from_assignments([word])


def test_troubleshooting_leads_to_its_own_sections() -> None:
    titles = {title.lower().replace(" ", "-") for title in re.findall(r"^## (.+)$", TROUBLESHOOTING, re.MULTILINE)}
    assert set(re.findall(r"\]\(#([^)]+)\)", TROUBLESHOOTING)) == titles
