"""A bucket on the Hub: hf_xet's own upload, into a folder; the rest is played by a server."""

import errno
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest

from infrastructure.backup.backends import bucket as bucket_module
from infrastructure.backup.backends import open_place
from infrastructure.backup.backends.base import Content, Evidence
from infrastructure.backup.backends.bucket import BucketPlace
from infrastructure.backup.format.store import Store
from infrastructure.core.errors import StorageError
from infrastructure.core.messages import phrase
from tests.backup.backends.hub_server import TOKEN, Hub, running_hub
from tests.faults.store_history import tensors_at

FILE = Path("run-1/objects/ab/abcd")
DATA = bytes(range(256)) * 4
BUCKET = "me/backups"
BUCKETS = f"buckets/{BUCKET}"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with running_hub() as running:
        yield running
    huggingface_hub.close_session()


def opened(hub: Hub) -> BucketPlace:
    return BucketPlace("hf://buckets/me/backups/temper", hub.url)


def reads(hub: Hub) -> int:
    return sum("/resolve/" in line for line in hub.requests)


def test_what_is_written_is_confirmed_by_the_hash_that_the_hub_lists(hub: Hub) -> None:
    place = opened(hub)
    place.write(FILE, [DATA[:1], DATA[1:]])
    assert place.confirm(FILE, Content.of([DATA])) is Evidence.CHECKSUM
    assert reads(hub) == 0
    other = opened(hub)  # knows no hash of what it has not written
    assert other.confirm(FILE, Content.of([DATA])) is Evidence.READ_BACK
    assert reads(hub) == 1
    assert hub.tokens_at_storage == {None}
    with pytest.raises(StorageError, match=r"backup\.read_back_mismatch"):
        other.confirm(FILE, Content.of([DATA[::-1]]))


@pytest.mark.parametrize("is_size_kept", [True, False])
def test_what_the_hub_lists_otherwise_is_not_confirmed(hub: Hub, is_size_kept: bool) -> None:
    place = opened(hub)
    place.write(FILE, [DATA])
    place.write(Path("other"), [b"x"])
    files = hub.buckets[BUCKET]
    name, size = files[f"temper/{FILE}"]
    files[f"temper/{FILE}"] = (files["temper/other"][0], size) if is_size_kept else (name, size - 1)
    at = rf"\(path=hf://{BUCKETS}/temper/{FILE}\)$"
    with pytest.raises(StorageError, match=rf"^backup\.uploaded_file_mismatch{at}"):
        place.confirm(FILE, Content.of([DATA]))
    del files[f"temper/{FILE}"]
    with pytest.raises(StorageError, match=rf"^backup\.uploaded_file_missing{at}"):
        place.confirm(FILE, Content.of([DATA]))
    place.write(FILE, [DATA])
    assert place.confirm(FILE, Content.of([DATA]))


def test_a_store_in_a_bucket_is_a_store(hub: Hub) -> None:
    store = Store(Path("run-1"), opened(hub))
    assert store.versions() == []
    for step in (1, 2):
        store.commit(tensors_at(step), {}, step=step)
    Store(Path("run-10"), opened(hub)).commit(tensors_at(3), {}, step=3)
    assert opened(hub).names(Path()) == ["run-1", "run-10"]
    assert opened(hub).names(Path("run-1")) == ["objects", "versions"]
    again = Store(Path("run-1"), opened(hub))
    assert again.newest() == (store.versions()[0], [])
    again.remove_all_but(store.versions()[:1])
    again.operations.close()
    assert Store(Path("run-1"), opened(hub)).versions() == store.versions()[:1]


def test_removals_go_together_and_what_is_written_again_stays(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = opened(hub)
    for name in "abcd":
        place.write(Path(name), [name.encode()])
    hub.requests.clear()
    for name in "abc":
        place.remove(Path(name))
    with pytest.raises(FileNotFoundError, match=r"path_missing\(path=hf://.*/temper/a\)"):
        place.remove(Path("a"))
    with pytest.raises(FileNotFoundError, match=r"path_missing\(path=hf://.*/temper/x\)"):
        place.names(Path("x"))
    place.write(Path("c"), [b"new"])
    assert place.names(Path()) == ["c", "d"]
    assert sum("/batch" in line for line in hub.requests) == 2  # c written; a, b removed
    monkeypatch.setattr(bucket_module, "MOST_REMOVALS", 1)
    place.remove(Path("d"))
    assert sorted(hub.buckets[BUCKET]) == ["temper/c"]


def test_it_is_made_private_and_one_of_somebody_elses_is_cautioned_about(
    hub: Hub, tmp_path: Path
) -> None:
    place = opened(hub)
    place.probe()
    assert place.identify() == "bucket me/backups"
    assert place.caution(tmp_path) is None
    hub.public.add(f"buckets/{BUCKET}")
    assert place.caution(tmp_path) == f"backup.hub_repository_is_public(url={place.url})"
    hub.failing = {"/batch": 403}
    with pytest.raises(
        PermissionError, match=r"backup\.hub_token_lacks_permission.*repo_id=me/backups"
    ) as caught:
        place.write(FILE, [DATA])
    assert place.advice(caught.value) == phrase("backup.advice_hub_log_in")


def test_a_bucket_that_is_not_there_is_named(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        opened(hub).names(Path())
    assert caught.value.strerror == (
        "backup.hub_repository_not_found(repo_type=bucket, repo_id=me/backups)"
    )
    assert opened(hub).advice(caught.value) == phrase("backup.advice_hub_check_name")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    with pytest.raises(OSError, match=r"backup\.hub_token_missing") as caught_too:
        opened(hub).size(FILE)
    assert caught_too.value.errno == errno.EACCES


def test_the_address_chooses() -> None:
    place = open_place("hf://buckets/me/backups/temper")
    assert (type(place), place.url) == (BucketPlace, "hf://buckets/me/backups/temper")
    for url in ("hf://buckets/me", "hf://buckets/", "hf://buckets/me/x/../y"):
        with pytest.raises(ValueError, match=r"backup\.invalid_hub_url.*url=hf://buckets"):
            open_place(url)
