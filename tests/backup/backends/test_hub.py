"""A repository on the Hugging Face Hub, played by a server on this machine."""

import errno
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest

from infrastructure.backup.backends import hub as hub_module
from infrastructure.backup.backends import open_place
from infrastructure.backup.backends.base import Content, Evidence
from infrastructure.backup.backends.hub import HubPlace
from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.store import Store
from infrastructure.core.errors import StorageError
from infrastructure.core.messages import phrase
from tests.backup.backends.hub_server import LARGE_BYTES, TOKEN, Hub, running_hub
from tests.faults.store_history import tensors_at

# of huggingface_hub's own upload
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

SMALL, LARGE = Path("run-1/versions/1.json"), Path("run-1/objects/ab/abcd")
DATA = {SMALL: b"{}", LARGE: bytes(range(256)) * 4}
REPO = "models/me/backups"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    # Xet speaks to a service of its own; without it the same files go by the large-file protocol.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    with running_hub() as running:
        yield running
    huggingface_hub.close_session()


@pytest.fixture
def place(hub: Hub) -> HubPlace:
    return HubPlace("hf://me/backups/temper", hub.url)


@pytest.mark.parametrize("path", [SMALL, LARGE], ids=["in git", "in the large-file storage"])
def test_what_is_written_is_read_and_confirmed(hub: Hub, place: HubPlace, path: Path) -> None:
    data = DATA[path]
    place.write(path, [data[:1], data[1:]])
    expected = Evidence.READ_BACK if path == SMALL else Evidence.CHECKSUM
    assert place.confirm(path, Content.of([data])) is expected
    assert b"".join(place.read(path)) == data
    assert place.size(path) == len(data)
    assert place.names(path.parent) == [path.name]
    assert place.names(Path()) == ["run-1"]
    assert (REPO, f"temper/{path}") in hub.large_paths or path == SMALL
    place.remove(path)
    with pytest.raises(FileNotFoundError):
        place.size(path)
    with pytest.raises(FileNotFoundError):
        list(place.read(path))
    with pytest.raises(FileNotFoundError):
        place.remove(path)


@pytest.mark.parametrize("kind", ["", "datasets/", "models/"])
def test_a_store_in_a_repository_is_a_store(hub: Hub, kind: str) -> None:
    store = Store(Path("run-1"), HubPlace(f"hf://{kind}me/backups", hub.url))
    assert store.versions() == []
    for step in (1, 2):
        large = TensorBytes("U8", (LARGE_BYTES,), bytes(LARGE_BYTES))
        store.commit({**tensors_at(step), "model/large": large}, {}, step=step)
    again = Store(Path("run-1"), HubPlace(f"hf://{kind}me/backups/", hub.url))
    assert again.newest() == (store.versions()[0], [])
    again.remove_all_but(store.versions()[:1])
    again.operations.size(again.manifest_path(store.versions()[0]))
    assert Store(Path("run-1"), HubPlace(f"hf://{kind}me/backups", hub.url)).newest() == (
        store.versions()[0],
        [],
    )


def test_the_repository_is_private(hub: Hub, place: HubPlace, tmp_path: Path) -> None:
    assert place.caution(tmp_path) is None
    place.write(SMALL, [b"{}"])
    assert place.caution(tmp_path) is None
    hub.public.add(REPO)
    assert place.caution(tmp_path) == f"backup.hub_repository_is_public(url={place.url})"


def test_many_files_are_one_commit(hub: Hub, place: HubPlace) -> None:
    contents = {Path(f"objects/{number}"): bytes([number]) * 300 for number in range(9)}
    for path, data in contents.items():
        place.write(path, [data])
    assert hub.commits() == 0
    for path, data in contents.items():
        assert place.confirm(path, Content.of([data]))
    assert hub.commits() == 1
    for path in contents:
        place.remove(path)
    place.close()
    assert hub.repos[REPO] == {}


def test_a_commit_does_not_grow_for_ever(
    hub: Hub, place: HubPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "MOST_PENDING", 3)
    for number in range(7):
        place.write(Path(str(number)), [b"x"])
    assert hub.commits() == 2


def test_what_is_too_large_to_wait_in_memory_goes_from_the_disk(
    hub: Hub, place: HubPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "SMALL_BYTES", 500)
    place.write(LARGE, [DATA[LARGE]])
    assert place.confirm(LARGE, Content.of([DATA[LARGE]]))


@pytest.mark.parametrize("path", [SMALL, LARGE])
def test_other_bytes_are_not_confirmed_and_can_be_replaced(place: HubPlace, path: Path) -> None:
    place.write(path, [b"x" * len(DATA[path])])
    what = "read_back" if path == SMALL else "uploaded_file"
    at = rf"\(path={place.url}/{path}\)$"
    with pytest.raises(StorageError, match=rf"^backup\.{what}_mismatch{at}"):
        place.confirm(path, Content.of([DATA[path]]))
    place.write(path, [DATA[path]])
    assert place.confirm(path, Content.of([DATA[path]]))


def test_what_is_gone_is_to_be_written_again(place: HubPlace) -> None:
    place.write(SMALL, [b"{}"])
    at = rf"\(path={place.url}/{LARGE}\)$"
    with pytest.raises(StorageError, match=rf"^backup\.uploaded_file_missing{at}"):
        place.confirm(LARGE, Content.of([b"x"]))


def test_a_commit_that_fails_leaves_nothing_and_is_made_again(hub: Hub, place: HubPlace) -> None:
    place.write(LARGE, [DATA[LARGE]])
    hub.failing = {"/commit/": 403}
    with pytest.raises(PermissionError) as caught:
        place.confirm(LARGE, Content.of([DATA[LARGE]]))
    assert place.advice(caught.value) == phrase("backup.advice_hub_log_in")
    hub.failing = {}
    with pytest.raises(StorageError, match=r"backup\.uploaded_file_missing"):
        place.confirm(LARGE, Content.of([DATA[LARGE]]))
    place.write(LARGE, [DATA[LARGE]])
    assert place.confirm(LARGE, Content.of([DATA[LARGE]]))


def test_the_token_goes_to_the_hub_alone_and_into_no_message(
    hub: Hub, place: HubPlace, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    place.write(LARGE, [DATA[LARGE]])
    assert b"".join(place.read(LARGE)) == DATA[LARGE]
    hub.failing = {"/api/": 403}
    with pytest.raises(PermissionError) as caught:
        place.names(Path())
    assert hub.tokens_at_storage == {None}
    assert TOKEN not in str(caught.value) + caplog.text


def test_without_a_token_a_private_repository_is_no_empty_place(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError):
        HubPlace("hf://me/backups", hub.url).names(Path("run-1/versions"))
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    place = HubPlace("hf://me/backups", hub.url)
    for operation in (
        lambda: Store(Path("run-1"), place).versions(),
        lambda: place.size(SMALL),
        lambda: place.write(SMALL, [b"{}"]),
    ):
        with pytest.raises(PermissionError) as caught:
            operation()
        assert place.advice(caught.value) == phrase("backup.advice_hub_log_in")


@pytest.mark.parametrize(
    ("status", "number"), [(413, errno.EFBIG), (402, errno.EDQUOT), (400, errno.EIO)]
)
def test_what_the_hub_refuses_is_an_error_of_the_system(
    hub: Hub, place: HubPlace, status: int, number: int
) -> None:
    hub.failing = {"/": status}
    for operation in (
        lambda: place.write(SMALL, [b"{}"]),
        lambda: list(place.read(SMALL)),
        lambda: place.size(SMALL),
        lambda: place.names(Path("run-1")),
        lambda: place.confirm(SMALL, Content.of([b"{}"])),
    ):
        with pytest.raises(OSError) as caught:
            operation()
        assert caught.value.errno == number


def test_a_hub_that_does_not_answer_is_not_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    place = HubPlace("hf://me/backups", "http://127.0.0.1:9")
    with pytest.raises(OSError) as caught:
        place.size(SMALL)
    assert caught.value.errno == errno.ENOTCONN
    answer = "backup.hub_not_responding(endpoint=http://127.0.0.1:9, needed={})"
    assert caught.value.strerror == answer.format("")
    assert place.advice(caught.value) == phrase("backup.advice_hub_check_network")
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(OSError) as caught:
        place.size(SMALL)
    assert caught.value.strerror == answer.format(phrase("backup.hub_token_also_missing"))


@pytest.mark.parametrize(
    ("token", "failing", "number", "words"),
    [
        (None, {}, errno.EACCES, "token_missing()"),
        ("hf_other", {}, errno.EACCES, "token_rejected()"),
        (TOKEN, {}, errno.ENOENT, "repository_not_found(repo_type=dataset, repo_id=me/backups)"),
        (TOKEN, {"/api/": 403}, errno.EACCES, "token_lacks_permission(repo_id=me/backups)"),
        (
            TOKEN,
            {"/api/": 503},
            errno.ENOTCONN,
            "returned_server_error(endpoint=URL, status=503, needed=)",
        ),
        (
            None,
            {"/api/": 503},
            errno.ENOTCONN,
            "returned_server_error(endpoint=URL, status=503,"
            " needed=backup.hub_token_also_missing())",
        ),
    ],
)
def test_a_refusal_is_one_understandable_line(
    hub: Hub,
    monkeypatch: pytest.MonkeyPatch,
    token: str | None,
    failing: dict[str, int],
    number: int,
    words: str,
) -> None:
    """One line, without class names; and a wrong token is no empty place."""
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: token)
    monkeypatch.setattr("huggingface_hub.utils._headers.get_token", lambda: token)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    hub.failing = failing
    with pytest.raises(OSError) as caught:
        HubPlace("hf://datasets/me/backups", hub.url).names(Path())
    assert caught.value.errno == number
    assert caught.value.strerror == f"backup.hub_{words}".replace("URL", hub.url)


@pytest.mark.parametrize(
    "url",
    ["hf://", "hf://me", "hf://spaces/me/x/y z", "hf://me/..", "hf://me/x/../y", "hf://a:b@c/d"],
)
def test_what_is_no_repository_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"backup\.invalid_hub_url.*url=hf:") as caught:
        open_place(url)
    assert "a:b" not in str(caught.value)


def test_no_path_leads_out(place: HubPlace) -> None:
    with pytest.raises(ValueError, match=r"backup\.path_outside_destination"):
        place.write(Path("../x"), [b"x"])


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EACCES, "advice_hub_log_in()"),
        (errno.ENOENT, "advice_hub_check_name()"),
        (errno.ENOTCONN, "advice_hub_check_network()"),
        (errno.ETIMEDOUT, "advice_hub_check_network()"),
        (errno.EDQUOT, "advice_hub_storage_full()"),
        (errno.EAGAIN, "advice_hub_busy()"),
        (errno.EIO, "check_destination_reachable(url=hf://me/backups/temper)"),
    ],
)
def test_every_error_has_a_remedy(place: HubPlace, number: int, remedy: str) -> None:
    assert place.advice(OSError(number, "x")) == f"backup.{remedy}"
    assert place.free_bytes(Path()) is None


@pytest.mark.parametrize("kind", ["model", "dataset"])
def test_each_commit_names_what_it_does_in_its_repository(
    hub: Hub, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = HubPlace("hf://datasets/me/x" if kind == "dataset" else "hf://models/me/x", hub.url)
    assert place.identify() == f"{kind} me/x"
    commit, made = place.api.create_commit, []

    def noted(repo: str, operations: list[object], **keywords: object) -> object:
        made.append((repo, len(operations), keywords["repo_type"], keywords["commit_message"]))
        return commit(repo, operations, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(place.api, "create_commit", noted)
    for name in "abc":
        place.write(Path(name), [name.encode()])
    place.remove(Path("b"))
    place.commit()
    place.commit()
    assert place.create(Path("d"), b"d") is True
    assert made == [
        ("me/x", 3, kind, "backup.hub_commit_backs_up_files(count=3)"),
        ("me/x", 1, kind, "backup.hub_commit_backs_up_files(count=1)"),
        ("me/x", 1, kind, "backup.hub_commit_claims_checkpoint()"),
    ]
    assert hub.repos[f"{kind}s/me/x"] == {"a": b"a", "c": b"c", "d": b"d"}
    monkeypatch.setattr(place.api, "repo_info", lambda *_, **__: SimpleNamespace(sha=None))
    assert place.create(Path("e"), b"e") is None, "nothing to compare with"


def test_a_process_that_has_imported_nothing_else_can_use_it() -> None:
    """As a copier is: parts of huggingface_hub are there only when they are imported."""
    program = (
        "from infrastructure.backup.backends.hub import HubPlace\n"
        "print(type(HubPlace('hf://owner/name').api).__name__)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("HfApi\n", "")


def test_of_two_that_create_a_file_on_the_same_commit_one_does(
    hub: Hub, place: HubPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = SMALL.with_name("claim"), HubPlace(place.url, hub.url)
    assert place.create(SMALL, b"x") is True
    commit, left = place.api.create_commit, [b"theirs"]

    def after_the_other(*arguments: object, **keywords: object) -> object:
        assert other.create(path, left.pop()) is True
        return commit(*arguments, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(place.api, "create_commit", after_the_other)
    assert place.create(path, b"ours") is False
    assert b"".join(place.read(path)) == b"theirs"


def test_another_commit_takes_no_claim_and_without_end_it_is_an_error(
    hub: Hub, place: HubPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, commit, left = HubPlace(place.url, hub.url), place.api.create_commit, [1]

    def after_another(*arguments: object, **keywords: object) -> object:
        if left:
            left.pop()
            other.write(LARGE, [b"another run"])
            other.commit()
        return commit(*arguments, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(place.api, "create_commit", after_another)
    assert place.create(SMALL, b"x") is True
    left += [1] * 100
    with pytest.raises(OSError, match=r"backup\.hub_commits_collide") as raised:
        place.create(SMALL.with_name("2"), b"x")
    assert raised.value.errno == errno.EAGAIN
    assert place.names(SMALL.parent) == [SMALL.name]
