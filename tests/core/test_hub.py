"""The hub is asked for a small file once, and not at all where the cache has it."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from infrastructure.core import hub

ROOT = Path(__file__).parents[2]
SHORT = json.dumps({"max_position_embeddings": 64}).encode()
LOOK = """
import sys
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.deployment.given_paths import check_given
from infrastructure.training.data.defaults import make_ready, problems_of
from infrastructure.training.models.tower_folder import check_tower
for name in sys.argv[1:]:
    if name.startswith("tower "):
        try:
            print(check_tower(name.removeprefix("tower ")))
        except ValueError as error:
            print(error)
        continue
    config = DeploymentConfig(model={"name": name}, data={"path": "rows.csv"})
    problems_of(config)
    make_ready(config)
    try:
        check_given(config)
        print(config.data.max_length, *config.notes())
    except ValueError as error:
        print(error)
assert "torch" not in sys.modules
"""


@pytest.fixture
def loopback_hub() -> Iterator[tuple[str, list[str]]]:
    """The address of a hub with one model, someone/short, and what it was asked."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            requests.append(f"{self.command} {self.path}")
            is_there = self.path == "/someone/short/resolve/main/config.json"
            self.send_response(200 if is_there else 404)
            for name, value in (
                [("ETag", '"1"'), ("X-Repo-Commit", "a" * 40), ("Content-Length", str(len(SHORT)))]
                if is_there
                else [("X-Error-Code", "RepoNotFound"), ("Content-Length", "0")]
            ):
                self.send_header(name, value)
            self.end_headers()
            if is_there and self.command == "GET":
                self.wfile.write(SHORT)

        do_GET = do_HEAD  # noqa: N815

        def log_message(self, *_: Any) -> None:
            """Nothing: a test's output is its own."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", requests
    server.shutdown()
    thread.join()
    server.server_close()


def look(folder: Path, endpoint: str, *names: str) -> list[str]:
    """What is said of each model before PyTorch is loaded."""
    (folder / "rows.csv").write_text(
        "prompt,completion\n" + "".join(f"What is {n} + 1?,{n + 1}\n" for n in range(40))
    )
    hidden = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN")
    given = {
        name: value
        for name, value in os.environ.items()
        if name not in hidden and not name.lower().endswith("_proxy")
    }
    done = subprocess.run(
        [sys.executable, "-c", LOOK, *names],
        cwd=folder,
        env={**given, "PYTHONPATH": str(ROOT), "HF_HOME": str(folder), "HF_ENDPOINT": endpoint},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_length_and_wrong_name_of_a_hub_model_are_known_without_torch(
    tmp_path: Path, loopback_hub: tuple[str, list[str]]
) -> None:
    endpoint, requests = loopback_hub
    short, wrong, tower, no_tower = look(
        tmp_path,
        endpoint,
        *(t + n for t in ("", "tower ") for n in ("someone/short", "someone/no")),
    )
    assert short.startswith("64 data.max_length is 64 instead of 512")
    assert "the Hugging Face hub does not have it" in wrong
    assert len([line for line in requests if "/short/" in line]) == 2  # its head, and the file
    assert tower == "None"
    assert no_tower.startswith("training.multimodal.vision_tower: model 'someone/no'")
    assert "hub does not have it (give a folder with config.json, preprocessor_config" in no_tower
    requests.clear()
    (tmp_path / "shrot").mkdir()
    again, tower, gone = look(
        tmp_path, "http://127.0.0.1:9", "someone/short", "tower someone/short", "shrto"
    )
    assert again == short  # from the cache
    assert tower == "None"
    assert requests == []
    assert "the Hugging Face hub cannot be reached; did you mean 'shrot'" in gone


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The hub is where nothing answers, and the environment says nothing else of it."""
    for name in [*os.environ]:
        if name.lower().endswith("_proxy") or name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_ENDPOINT", "https://127.0.0.1:9")
    return monkeypatch


@pytest.mark.parametrize("proxy", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"])
def test_a_proxy_stands_for_the_hub(unreachable: pytest.MonkeyPatch, proxy: str) -> None:
    assert not hub.hub_is_reachable()
    unreachable.setenv(proxy, "http://proxy:8080")
    assert hub.hub_is_reachable()
    unreachable.setenv("NO_PROXY", "127.0.0.1")
    assert not hub.hub_is_reachable()


def test_a_proxy_of_another_scheme_is_none(unreachable: pytest.MonkeyPatch) -> None:
    unreachable.setenv("HTTP_PROXY", "http://proxy:8080")
    assert not hub.hub_is_reachable()


@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_who_is_offline_reaches_no_hub(unreachable: pytest.MonkeyPatch, name: str) -> None:
    unreachable.setenv("HTTPS_PROXY", "http://proxy:8080")
    unreachable.setenv(name, "1")
    assert not hub.hub_is_reachable()
