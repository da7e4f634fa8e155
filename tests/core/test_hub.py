"""The hub is requested for a small file once, and not at all where the cache has it."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infrastructure.core import hub

ROOT = Path(__file__).parents[2]
SHORT = json.dumps({"max_position_embeddings": 64}).encode()
LOOK = """
import sys
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.deployment.given_paths import check_given
from infrastructure.data.defaults import make_ready, problems_of
from infrastructure.features.vision_tower.checks import check_tower
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
    """The address of a hub with one model, someone/short, and what it was requested."""
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
    assert short == "64 data.max_length_lowered(positions=64, max_length=512)"
    assert wrong.startswith("models.model_not_found(name=someone/no, reason=models.not_on_hub()")
    assert len([line for line in requests if "/short/" in line]) == 2  # its head, and the file
    assert tower == "None"
    assert no_tower.startswith(
        "vision_tower.unusable(error="
        "models.model_not_found(name=someone/no, reason=models.not_on_hub(), "
    )
    assert "files=vision_tower.files_of_encoder()" in no_tower
    requests.clear()
    (tmp_path / "shrot").mkdir()
    again, tower, gone = look(
        tmp_path, "http://127.0.0.1:9", "someone/short", "tower someone/short", "shrto"
    )
    assert again == short  # from the cache
    assert tower == "None"
    assert requests == []
    assert "reason=models.hub_unreachable(), hint=core.did_you_mean(meant=shrot)" in gone


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
    for value in ("1", "ON", "yes", "True", "0", "no", ""):
        unreachable.setenv(name, value)
        assert hub.hub_is_reachable() is (value in ("0", "no", ""))


@pytest.mark.parametrize(
    ("endpoint", "port"),
    [("https://hub", 443), ("http://hub", 80), ("http://hub:8080/there", 8080)],
)
def test_the_hub_is_looked_for_at_its_address(
    unreachable: pytest.MonkeyPatch, endpoint: str, port: int
) -> None:
    requested: list[object] = []

    def connect(address: tuple[str, int], timeout: float) -> Any:
        requested.append(address)
        return SimpleNamespace(close=lambda: None)

    unreachable.setattr("socket.create_connection", connect)
    unreachable.setenv("HF_ENDPOINT", endpoint)
    assert hub.hub_is_reachable()
    assert requested == [("hub", port)]


@pytest.mark.parametrize(("was", "reachable"), [(False, True), (False, False), (True, True)])
def test_where_the_hub_cannot_be_reached_the_cache_alone_is_used(
    monkeypatch: pytest.MonkeyPatch, was: bool, reachable: bool
) -> None:
    from huggingface_hub import constants

    other = SimpleNamespace(HF_HUB_OFFLINE=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", was)
    monkeypatch.setattr(hub, "hub_is_reachable", lambda: reachable)

    def look() -> None:
        with hub.offline_where_unreachable(other):
            is_offline = was or not reachable
            assert (is_offline, is_offline) == (constants.HF_HUB_OFFLINE, other.HF_HUB_OFFLINE)
            raise OSError

    with pytest.raises(OSError):
        look()
    assert (was, False) == (constants.HF_HUB_OFFLINE, other.HF_HUB_OFFLINE)


def test_a_file_is_of_the_revision_that_is_requested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    requested: list[tuple[object, ...]] = []
    cached: Any = None
    answer: Any = str(tmp_path / "fetched")

    def load(name: str, file: str, revision: str | None = None) -> Any:
        requested.append(("cache", name, file, revision))
        return cached

    def download(name: str, file: str, revision: str | None = None) -> str:
        requested.append(("hub", name, file, revision))
        if isinstance(answer, BaseException):
            raise answer
        return str(answer)

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", load)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(hub, "hub_is_reachable", lambda: True)
    assert hub.hub_file("a/b", "c.json", "v2") == tmp_path / "fetched"
    assert requested == [("cache", "a/b", "c.json", "v2"), ("hub", "a/b", "c.json", "v2")]
    cached = object()  # how the cache says that the model has no such file
    assert hub.cached_file("a/b", "c.json") is None
    cached = str(tmp_path / "kept")
    requested.clear()
    assert hub.hub_file("a/b", "c.json", "v2") == tmp_path / "kept"
    assert requested == [("cache", "a/b", "c.json", "v2")]
    cached, response = None, SimpleNamespace(headers={}, request=None, status_code=403)
    gone = [kind("no", response=response) for kind in (GatedRepoError, HfHubHTTPError)]  # type: ignore[arg-type]
    for answer in (*gone, LocalEntryNotFoundError("no"), OSError("no")):  # noqa: B007 - the download reads it
        assert hub.hub_file("a/b", "c.json") is None
    not_there = RepositoryNotFoundError("no", response=response)  # type: ignore[arg-type]
    for answer in (not_there, HFValidationError("no")):  # noqa: B007
        with pytest.raises(hub.NotOnHubError, match=r"^a/b$") as raised:
            hub.hub_file("a/b", "c.json")
        assert raised.value.hub_reachable
    monkeypatch.setattr(hub, "hub_is_reachable", lambda: False)
    with pytest.raises(hub.NotOnHubError) as raised:
        hub.hub_file("a/b", "c.json")
    assert not raised.value.hub_reachable


def test_data_sets_lie_where_their_library_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.delenv("HF_DATASETS_CACHE", raising=False)
    assert hub.data_sets_folder() == Path(constants.HF_HOME) / "datasets"
    monkeypatch.setenv("HF_DATASETS_CACHE", "~/mine")
    assert hub.data_sets_folder() == Path.home() / "mine"


def test_a_name_on_the_hub_is_no_path() -> None:
    names = ("a/b", "gpt2", "a.b/c", "./a", "/a", "~/a", "a/b/c", "", " ")
    assert [*map(hub.reads_like_path, names)] == [*[False] * 3, *[True] * 6]
    assert hub.cached_file("a name that the hub refuses!", "config.json") is None
