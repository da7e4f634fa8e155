"""The pages of docs/ build without a warning, and their reference has what the program has."""

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

import temper
from infrastructure.commands.main import HIDDEN, create_parser
from infrastructure.commands.parser import CommandParser, subcommands
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.schema import schema_of
from notebooks.build import REPOSITORY
from tests.forks import run_forked
from tests.monitoring.browser import open_browser

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


# What people type, and the page that has to be among the first three.
SEARCHES = {
    "--lora": "settings",
    "t4": "models",
    "learning_rate": "settings",
    "how do I resume": "when-the-machine-goes-away",
    "qlora": "your-data|models|ways-to-train",
    "dpo": "methods",
    "grpo": "methods",
    "gguf": "measure-and-export",
    "ollama": "measure-and-export",
    "resume from checkpoint": "when-the-machine-goes-away",
    "spot vm": "when-the-machine-goes-away",
    "google drive": "when-the-machine-goes-away",
    "s3": "when-the-machine-goes-away",
    "backup": "when-the-machine-goes-away",
    "chat template": "your-data",
    "out of memory": "troubleshooting",
    "csv": "your-data",
    "parquet": "your-data",
    "jsonl": "your-data",
    "early stopping": "settings|measure-and-export",
    "--batch-size": "settings|commands",
    "gradient checkpointing": "watching|settings",  # its own section, and the flag
    "kaggle": "colab",
    "colab": "colab",
    "exit code": "when-the-machine-goes-away",
    "slurm": "when-the-machine-goes-away",
    "kubernetes": "when-the-machine-goes-away",
    "wandb": "watching",
    "tensorboard": "watching",
    "multi gpu": "several-gpus",
    "fsdp": "several-gpus",
    "curriculum": "ways-to-train",
    "dora": "ways-to-train",
    "vision": "models|ways-to-train",
    "images": "your-data",
    "push to hub": "share-your-model",
    "TemperCallback": "your-own-trainer",
    "distillation": "methods",
    "reward model": "methods",
    "hyperparameter search": "when-the-machine-goes-away",
    "price": "first-run",
    "dashboard": "watching",
    "quantization aware": "ways-to-train",
    "temper doctor": "troubleshooting|commands",
}
TYPE = """(() => {{
  document.querySelector('#__search').checked = true;
  const input = document.querySelector('input.md-search__input');
  input.focus(); input.value = {query}; input.dispatchEvent(new Event('keyup'));
  input.dispatchEvent(new Event('input'));
}})()"""
LINKS = "document.querySelectorAll('.md-search-result__link')"
FOUND = f"[...{LINKS}].map(link => new URL(link.href).pathname)"


def test_the_search_finds_what_people_type(site: Path) -> None:
    missed = {}
    with served(site) as address, open_browser() as browser:
        browser.open(address)
        for query, wanted in SEARCHES.items():
            browser.evaluate(TYPE.format(query=json.dumps(query)))
            deadline = time.monotonic() + 2
            pages: list[str] = []
            while not re.search(wanted, " ".join(pages)) and time.monotonic() < deadline:
                time.sleep(0.1)
                pages = [*dict.fromkeys(browser.evaluate(FOUND))][:3]
            if not re.search(wanted, " ".join(pages)):
                missed[query] = pages
    assert missed == {}


@contextmanager
def served(folder: Path) -> Iterator[str]:
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
