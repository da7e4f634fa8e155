"""G14: a store of a released format opens for ever; one of the future is refused clearly."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from infrastructure.backup.format.codec import SUFFIX
from infrastructure.backup.format.hashing import hash_of
from infrastructure.backup.format.manifest import FORMAT_VERSION, VersionName
from infrastructure.backup.format.store import Store
from infrastructure.backup.format.tensor_bytes import from_bytes
from infrastructure.backup.state.run_files import restore_run_files
from infrastructure.core.errors import CheckpointError
from infrastructure.run.checkpoint_paths import verify
from infrastructure.training.checkpoints.checkpoint_manager import load_checkpoint
from infrastructure.training.checkpoints.chunked_version import load_whole
from tests.backup.make_fixture import FILES, FIXTURES, VALUES, make, shared_state, tensors_of

STORES = sorted(FIXTURES.iterdir())


@pytest.fixture(params=STORES, ids=lambda path: path.name)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A copy of a golden store."""
    shutil.copytree(request.param, tmp_path / "store")
    return Store(tmp_path / "store")


def test_there_is_one_of_the_present_format() -> None:
    assert f"format-{FORMAT_VERSION}" in [path.name for path in STORES]


def test_every_version_is_whole(store: Store) -> None:
    found = [store.read(name) for name in reversed(store.versions())]
    assert [manifest.step for manifest in found] == [1, 2, 3, 4]
    for manifest in found:
        store.verify(manifest)
        verify(store.manifest_path(store.versions()[-manifest.step]))
    assert [manifest.healthy for manifest in found] == [True, True, False, True]
    assert [m.kind for m in found] == ["scheduled", "scheduled", "emergency", "scheduled"]
    assert found[0].score == 2.5
    assert list(store.root.rglob(f"*{SUFFIX}"))


@pytest.mark.parametrize("step", [1, 2])
def test_every_tensor_is_what_it_was(store: Store, step: int) -> None:
    name = store.versions()[-step]
    loaded = {key: from_bytes(stored) for key, stored in store.load(store.read(name))}
    for key, expected in tensors_of(step).items():
        assert loaded[key].dtype == expected.dtype
        assert loaded[key].shape == expected.shape
        assert loaded[key].reshape(-1).tolist() == expected.reshape(-1).tolist()
    snapshot = load_checkpoint(store.manifest_path(name))
    assert snapshot.values == {**VALUES, "step": step}
    assert torch.equal(snapshot.tensors["frozen"]["base"], tensors_of(step)["frozen/base"])


def test_its_files_come_back(store: Store, tmp_path: Path) -> None:
    manifest = store.read(store.versions()[-2])
    restore_run_files(store, manifest, tmp_path / "run")
    for name, data in FILES.items():
        assert (tmp_path / "run" / name).read_bytes() == data


def test_what_several_processes_saved_opens_in_one(store: Store) -> None:
    whole = load_whole(store, store.read(store.versions()[0]))
    expected = shared_state()
    assert torch.equal(whole["model.a"], expected["model"]["a"])  # type: ignore[index]
    assert whole["optimizer.betas"] == (0.9, 0.999)


def test_saving_goes_on_in_it(store: Store) -> None:
    tensors = dict(store.load(store.read(store.versions()[-2])))
    store.commit(tensors, {"step": 5}, step=5)
    name, rejected = store.newest()
    assert rejected == []
    assert store.read(str(name)).sequence == 5


def test_a_format_of_the_future_is_refused_and_an_older_version_serves(store: Store) -> None:
    newest = store.versions()[0]
    contents = json.loads(store.manifest_path(newest).read_bytes())
    data = json.dumps({**contents, "format": FORMAT_VERSION + 1, "sequence": 5}).encode()
    name = str(VersionName(5, "blake3", hash_of("blake3", [data])))
    store.manifest_path(name).write_bytes(data)
    with pytest.raises(
        CheckpointError, match=r"backup\.unknown_manifest_format.*version=2.*supported=1"
    ):
        store.read(name)
    served, (rejected,) = store.newest()
    assert served == newest
    assert rejected.name == name


def test_a_golden_store_is_never_written_again() -> None:
    with pytest.raises(FileExistsError):
        make(STORES[0])
