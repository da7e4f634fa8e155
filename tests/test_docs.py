"""The pages of docs/ build without a warning, and their reference has what the program has."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import temper
from infrastructure.commands.main import HIDDEN, create_parser
from infrastructure.commands.parser import CommandParser, subcommands
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.schema import schema_of
from notebooks.build import REPOSITORY
from tests.forks import run_forked

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = run_forked(command, cwd=ROOT, env=quiet, text=True)
    assert "WARNING" not in built.stderr
    return folder


def text_of(site: Path, page: str) -> str:
    return (site / page / "index.html").read_text()


def test_every_page_is_in_the_navigation(site: Path) -> None:
    home = (site / "index.html").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        address = "." if page.stem == "index" else f"{page.stem}/"
        assert f'href="{address}"' in home, page.name


def test_the_reference_has_every_setting_command_and_name(site: Path) -> None:
    settings = text_of(site, "reference/settings")
    missing = [k for k in schema_of(DeploymentConfig).fields if f"<code>{k}</code>" not in settings]
    assert missing == []
    commands = text_of(site, "reference/commands")
    shown = set(re.findall(r"<code>(--[\w-]+|-\w)", commands))
    for words, command in all_commands():
        assert (f'id="{"-".join(words)}"' in commands) == (words[1] != HIDDEN), words
        flags = {flag for action in command._actions for flag in action.option_strings}
        assert flags - shown <= {"-h", "--help"}, words
    python = text_of(site, "reference/python")
    assert [n for n in temper.__all__ if f'id="{n.lower()}"' not in python] == []


def all_commands() -> Iterator[tuple[tuple[str, ...], CommandParser]]:
    """Every command and action, by its words."""
    waiting = [(("temper",), create_parser())]
    while waiting:
        words, parser = waiting.pop()
        for name, command in subcommands(parser).items():
            waiting.append(((*words, name), command.complete()))
            yield waiting[-1]


def test_links_out_of_the_pages_lead_to_the_repository(site: Path) -> None:
    page = text_of(site, "when-the-machine-goes-away")
    (address,) = re.findall(r'href="([^"]+/benchmarks/results/durability.md)"', page)
    assert address == f"{REPOSITORY}/blob/main/benchmarks/results/durability.md"


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    """Scripts, styles and fonts are files of the site."""
    fetching = re.compile(
        r'<(?:script|img)[^>]+src="(https?:[^"]+)"|rel="stylesheet" href="(https?:)'
    )
    assert [page for page in site.rglob("*.html") if fetching.search(page.read_text())] == []
