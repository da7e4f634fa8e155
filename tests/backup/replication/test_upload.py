"""A version arrives at a place as a whole, verified, or not at all; and comes back as it was."""

import contextlib
import errno
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import pytest

from infrastructure.backup.backends.folder import FolderPlace
from infrastructure.backup.format.file_operations import Buffer, FileOperations
from infrastructure.backup.format.objects import SLACK_BYTES
from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.store import Store
from infrastructure.backup.replication import upload as replication
from infrastructure.backup.replication.object_reader import OpenObject
from infrastructure.backup.replication.remote_session import RemoteSession
from infrastructure.backup.replication.upload import (
    DOUBTFUL_SECONDS,
    LONGEST_WAIT_SECONDS,
    NUM_LOOKS,
    PATIENCE_SECONDS,
    Upload,
    fetch_version,
)
from infrastructure.core.errors import CheckpointError, StorageError
from infrastructure.core.files import paths_below
from tests.backup.memory_place import RUN, MemoryPlace, disconnected, save
from tests.faults.drive_model import Clock
from tests.faults.memory_files import MemoryFiles


def nothing() -> None:
    return


def link_to(place: MemoryPlace, **options: object) -> RemoteSession:
    return RemoteSession(place, RUN, clock=Clock(), **options)  # type: ignore[arg-type]


OPEN: list[Upload] = []


@pytest.fixture(autouse=True)
def close_uploads() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


def upload(store: Store, name: str, link: RemoteSession) -> Upload:
    OPEN.append(Upload(store, name, link, before_manifest=nothing, on_piece=nothing))
    return OPEN[-1]


def run(one: Upload, limit: int = 500) -> None:
    """All steps, in simulated time."""
    for _, wait in zip(range(limit), one.steps(), strict=False):
        one.link.clock.now += wait  # type: ignore[attr-defined]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "checkpoints")


def test_a_version_arrives_whole_and_its_manifest_last(store: Store) -> None:
    place = MemoryPlace()
    name = save(store, 1)
    run(upload(store, name, link_to(place)))
    remote = Store(Path(RUN), place)
    assert remote.newest() == (name, [])
    assert place.written[-1] == remote.manifest_path(name)
    assert len(place.written) == 4


def test_what_was_done_is_counted(store: Store) -> None:
    link = link_to(MemoryPlace())
    one = upload(store, save(store, 1), link)
    run(one)
    assert (link.num_done, link.num_confirmed) == (4 + 4, 4)  # written, and confirmed
    sizes = [pack.size_bytes for pack in one.manifest.packs]
    assert one.done_bytes == one.total_bytes == sum(sizes)


def test_what_the_place_has_is_not_written_again(store: Store) -> None:
    place = MemoryPlace()
    link = link_to(place)
    run(upload(store, save(store, 1), link))
    run(upload(store, save(store, 2), link))
    assert len(place.written) == 4 + 3  # all but the part that never changes
    before = len(place.written)
    run(upload(store, store.versions()[0], link_to(place)))  # another session
    assert len(place.written) == before


def test_rotation_may_remove_what_is_on_its_way(store: Store) -> None:
    place = MemoryPlace()
    one = upload(store, name := save(store, 1), link_to(place))
    save(store, 2)
    store.remove_all_but([store.versions()[0]])
    run(one)
    assert Store(Path(RUN), place).newest()[0] == name


def test_the_manifest_waits_until_every_object_is_confirmed(store: Store) -> None:
    place = MemoryPlace()
    place.is_safe = lambda path: path.parent.name != "versions" and len(place.written) > 99
    one = upload(store, save(store, 1), link_to(place))
    run(one, limit=100)
    assert not [path for path in place.written if path.parent.name == "versions"]


def test_no_manifest_is_written_to_another_place_than_its_objects(store: Store) -> None:
    place = MemoryPlace()
    place.identify()

    def another_disk() -> None:
        place.files = MemoryFiles()

    one = Upload(
        store, save(store, 1), link_to(place), before_manifest=another_disk, on_piece=nothing
    )
    OPEN.append(one)
    with pytest.raises(OSError, match=r"backup\.folder_without_marker") as caught:
        run(one)
    assert caught.value.errno == errno.ENOTCONN
    assert len(place.written) == 3
    assert not [path for path in place.written if path.parent.name == "versions"]


def test_the_upload_ends_only_when_the_manifest_is_confirmed(store: Store) -> None:
    place = MemoryPlace()
    place.is_safe = lambda path: path.parent.name != "versions"
    steps = upload(store, save(store, 1), link_to(place)).steps()
    assert len([wait for _, wait in zip(range(100), steps, strict=False)]) == 100


def test_bytes_that_are_not_those_of_their_name_never_arrive_whole(store: Store) -> None:
    place = MemoryPlace()
    name = save(store, 1)
    for pack in store.read(name).packs:
        path = store.objects.path_of(pack.hash)
        path.write_bytes(bytes(len(path.read_bytes())))
    with pytest.raises(CheckpointError, match=r"backup\.local_file_bytes_changed"):
        run(upload(store, name, link_to(place)))
    assert place.written == []


def folder_link(tmp_path: Path) -> RemoteSession:
    place = FolderPlace(tmp_path / "disk")
    place.identify()
    return RemoteSession(place, RUN, clock=Clock())


def test_for_a_folder_an_object_is_read_once_and_comes_back_compared_by_its_name(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, num_readings = folder_link(tmp_path), Counter[Path]()
    pieces_of = OpenObject.__iter__

    def counted(self: OpenObject) -> Iterator[Buffer]:
        num_readings[self.path] += 1
        return pieces_of(self)

    monkeypatch.setattr(OpenObject, "__iter__", counted)
    name = save(store, 1)
    run(upload(store, name, link))
    packs = store.read(name).packs
    assert num_readings == {store.objects.path_of(pack.hash): 1 for pack in packs}
    hashes = {pack.hash: link.sent[pack.hash].content.hashes for pack in packs}
    assert hashes == {digest: ((store.hash_name, digest),) for digest in hashes}
    link.store.verify(link.store.read(name))


def test_bytes_that_changed_here_leave_nothing_in_a_folder(store: Store, tmp_path: Path) -> None:
    link, name = folder_link(tmp_path), save(store, 1)
    packs = store.read(name).packs
    for pack in packs:
        store.objects.path_of(pack.hash).write_bytes(bytes(pack.size_bytes))
    with pytest.raises(CheckpointError, match=r"backup\.local_file_bytes_changed"):
        run(upload(store, name, link))
    left = [path.name for path in paths_below(tmp_path / "disk") if path.is_file()]
    assert not [file for file in left if any(file.startswith(pack.hash) for pack in packs)]


def test_an_upload_that_was_broken_off_goes_on_where_it_was(store: Store) -> None:
    place = MemoryPlace()
    link = link_to(place)
    one = upload(store, name := save(store, 1), link)

    def breaks(operation: str, path: Path) -> None:
        if operation == "write" and len(place.written) == 2:
            raise OSError(errno.EIO, "Input/output error")

    place.fault = breaks
    with pytest.raises(OSError, match="Input/output"):
        run(one)
    place.fault = lambda operation, path: None
    run(one)
    assert len(place.written) == 4
    assert Store(Path(RUN), place).newest()[0] == name


def test_what_a_place_holds_wrong_is_reported_and_then_written_again(store: Store) -> None:
    place = MemoryPlace()
    link = link_to(place)
    name = save(store, 1)
    run(upload(store, name, link))
    damaged = place.written[0]
    place.files.files[damaged] = b"x" + place.files.files[damaged][1:]
    link.clock.now += link.fresh_seconds + 1  # type: ignore[attr-defined]
    one = upload(store, name, link)
    with pytest.raises(StorageError, match="other bytes"):
        run(one)
    run(one)
    assert Store(Path(RUN), place).newest()[0] == name


def test_half_an_object_is_written_anew_where_the_place_cannot_judge_it_yet(store: Store) -> None:
    place, name = MemoryPlace(), save(store, 1)
    place.confirm = lambda path, content: False  # type: ignore[method-assign]
    whole, half = (store.objects.path_of(pack.hash) for pack in store.read(name).packs[:2])
    for path, size_bytes in ((whole, None), (half, 16)):
        there = Path(RUN) / path.relative_to(store.root)
        place.files.files[there] = path.read_bytes()[:size_bytes]
    run(upload(store, name, link_to(place)), limit=30)
    written = [path.name for path in place.written]
    assert half.name in written
    assert whole.name not in written


def test_an_upload_that_got_lost_is_sent_again(store: Store) -> None:
    place = MemoryPlace()
    place.is_safe = lambda path: path != place.written[0] or place.written.count(path) == 2
    link = link_to(place)
    link.clock.now = began = 1000.0  # type: ignore[attr-defined]
    one = upload(store, name := save(store, 1), link)
    run(one)
    assert one.is_confirmed
    assert link.clock() - began > PATIENCE_SECONDS
    assert Store(Path(RUN), place).newest() == (name, [])


def test_a_manifest_that_got_lost_is_sent_again(store: Store) -> None:
    place = MemoryPlace()
    place.is_safe = lambda path: path.parent.name != "versions" or place.written.count(path) == 2
    link = link_to(place)
    one = upload(store, name := save(store, 1), link)
    run(one)
    assert one.is_confirmed
    assert place.written.count(link.store.manifest_path(name)) == 2
    assert link.clock() > PATIENCE_SECONDS


def test_a_manifest_that_is_cut_on_its_way_is_written_anew_at_once(store: Store) -> None:
    place = MemoryPlace()
    link = link_to(place)
    one = upload(store, name := save(store, 1), link)
    path = link.store.manifest_path(name)

    def cut(operation: str, at: Path) -> None:
        if operation == "confirm" and at == path and place.written.count(path) == 1:
            place.files.files[path] = place.files.files[path][:20]

    place.fault = cut
    with pytest.raises(StorageError):
        run(one)
    run(one)
    assert one.is_confirmed
    assert Store(Path(RUN), place).newest() == (name, [])
    assert link.clock() < DOUBTFUL_SECONDS


@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_a_version_needs_its_objects_now_and_not_a_while_ago(store: Store, damage: str) -> None:
    """They were confirmed for an earlier version, and what was confirmed may go."""
    place = MemoryPlace()
    link = link_to(place)
    run(upload(store, save(store, 1), link))
    frozen = place.written[0]
    place.files.files[frozen] = place.files.files[frozen][:5]
    if damage == "gone":
        del place.files.files[frozen]
    one = upload(store, name := save(store, 2), link)
    run(one)
    assert one.is_confirmed
    assert Store(Path(RUN), place).newest() == (name, [])
    assert place.written.count(frozen) == 2


def test_what_was_confirmed_long_ago_and_is_not_now_has_time_to_come_back(store: Store) -> None:
    place = MemoryPlace()
    link = link_to(place)
    run(upload(store, save(store, 1), link))
    frozen = place.written[0]
    link.clock.now += 10 * PATIENCE_SECONDS  # type: ignore[attr-defined]
    back_at = link.clock() + PATIENCE_SECONDS / 4
    place.is_safe = lambda path: path != frozen or link.clock() > back_at
    one = upload(store, save(store, 2), link)
    run(one)
    assert one.is_confirmed
    assert place.written.count(frozen) == 1


class SlowPlace(MemoryPlace):
    """Takes its time for each file, and loses the connection at some."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        super().__init__()
        self.clock, self.seconds = clock, seconds
        self.breaks_at = -1

    def write(self, path: Path, buffers: Sequence[Buffer]) -> None:
        pieces = list(buffers)
        self.clock.now += self.seconds
        if len(self.written) == self.breaks_at:
            raise OSError(errno.EIO, "Input/output error")
        super().write(path, pieces)


def test_the_time_that_a_slow_line_takes_is_none_that_a_file_is_missing(store: Store) -> None:
    clock = Clock()
    place = SlowPlace(clock, 0.0)
    link = RemoteSession(place, RUN, clock=clock)
    weights = [{"model/w": TensorBytes("U8", (1,), byte)} for byte in (b"1", b"2")]
    names = [store.commit(tensors, {}, step=1) for tensors in weights]
    run(upload(store, names[0], link))
    place.seconds, seen = 1.2 * PATIENCE_SECONDS, Counter[Path]()

    def is_safe(path: Path) -> bool:
        seen[path] += 1
        return seen[path] > 3

    place.is_safe = is_safe
    one = upload(store, names[1], link)
    run(one)
    assert one.is_confirmed
    assert len(place.written) == 2 + 2


def test_what_was_broken_off_counts_no_more_as_done(store: Store) -> None:
    clock = Clock()
    place = SlowPlace(clock, 1.0)
    link, done = RemoteSession(place, RUN, clock=clock), list[int]()
    name = save(store, 1)
    one = Upload(
        store, name, link, before_manifest=nothing, on_piece=lambda: done.append(one.done_bytes)
    )
    OPEN.append(one)
    place.breaks_at, place.is_safe = 1, lambda path: False
    first, second, third = (pack.size_bytes for pack in one.manifest.packs)
    with pytest.raises(OSError, match="Input/output"):
        run(one)
    assert done == [first, second]
    assert one.done_bytes == 0  # nothing is confirmed
    place.breaks_at, place.is_safe = -1, lambda path: True
    run(one)
    assert one.done_bytes == one.total_bytes == first + second + third


def test_a_file_is_missing_when_no_look_of_several_shows_it(store: Store) -> None:
    place = MemoryPlace()
    link = link_to(place)
    one = upload(store, name := save(store, 1), link)
    run(one)
    path, looks, hidden = link.store.manifest_path(name), list[str](), list[str]()

    def hides(operation: str, at: Path) -> None:
        looks.append(operation)
        if hidden:
            raise FileNotFoundError(errno.ENOENT, hidden.pop(), str(at))

    place.fault = hides
    for num_hidden, is_missing in ((NUM_LOOKS - 1, False), (NUM_LOOKS, True)):
        looks.clear()
        hidden += ["No such file"] * num_hidden
        assert one.objects.stays_missing(path) is is_missing
        assert looks == ["size"] * NUM_LOOKS


def test_a_version_is_not_begun_that_the_disk_has_no_room_for(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, name = save(store, 1), save(store, 2)
    local = Store(tmp_path / "elsewhere")
    fetch_version(store, first, local, lambda done, total: None)
    held = {pack.hash for pack in store.read(first).packs}
    missing = sum(pack.size_bytes for pack in store.read(name).packs if pack.hash not in held)
    for free_bytes in (SLACK_BYTES + missing - 1, SLACK_BYTES + missing):
        monkeypatch.setattr(local.operations, "free_bytes", lambda path, free=free_bytes: free)
        if free_bytes < SLACK_BYTES + missing:
            with pytest.raises(StorageError):
                fetch_version(store, name, local, lambda done, total: None)
            assert {path.name for path in local.root.glob("objects/*/*")} == held
        else:
            fetch_version(store, name, local, lambda done, total: None)
    assert local.newest() == (name, [])


def test_what_is_in_use_and_seems_wrong_is_written_beside(store: Store) -> None:
    place = MemoryPlace()
    link = link_to(place)
    data = TensorBytes("U8", (10_000,), bytes(10_000))
    first = store.commit({"model/w": data}, {}, step=1)
    run(upload(store, first, link))
    link.named |= {first, *(pack.hash for pack in store.read(first).packs)}
    plain = place.written[0]
    place.files.files[plain] = b"x" + place.files.files[plain][1:]
    link.clock.now += link.fresh_seconds + 1  # type: ignore[attr-defined]
    one = upload(store, name := store.commit({"model/w": data}, {}, step=2), link)
    with pytest.raises(StorageError):
        run(one)
    run(one)
    assert one.is_confirmed
    assert place.written.count(plain) == 1
    assert Store(Path(RUN), place).newest() == (name, [])


def test_a_place_that_confirms_nothing_gets_the_version_all_the_same(store: Store) -> None:
    place = MemoryPlace()
    place.is_safe = lambda path: False
    link = link_to(place)
    for step in (1, 2):
        begin = link.clock()
        one = upload(store, name := save(store, step), link)
        run(one, limit=2000)
        assert not one.is_confirmed
        assert Store(Path(RUN), place).newest()[0] == name
        assert not {pack.hash for pack in one.manifest.packs} & link.sent.keys()  # asked anew
    assert link.is_doubtful
    assert link.clock() - begin < 3 * DOUBTFUL_SECONDS


def test_what_may_be_in_use_is_not_written_over_by_a_session_that_cannot_see_it(
    store: Store,
) -> None:
    place = MemoryPlace()
    name = save(store, 1)
    run(upload(store, name, link_to(place)))
    used = list(place.written)
    link = link_to(place)  # another session, on a mount that shows nothing of it for a while
    link.named |= {name, *(pack.hash for pack in store.read(name).packs)}

    def hides(operation: str, path: Path) -> None:
        if link.clock() < PATIENCE_SECONDS / 2:
            raise FileNotFoundError(errno.ENOENT, "No such file", str(path))

    place.fault = hides
    one = upload(store, name, link)
    run(one)
    assert one.is_confirmed
    assert place.written == used


def test_objects_are_requested_again_before_a_manifest_names_them_much_later(store: Store) -> None:
    place = MemoryPlace()
    link = link_to(place)
    run(upload(store, save(store, 1), link))
    link.clock.now += link.fresh_seconds + 1  # type: ignore[attr-defined]
    frozen = place.written[0]
    del place.files.files[frozen]  # somebody removed it
    one = upload(store, name := save(store, 2), link)
    for _ in range(200):
        try:
            run(one)
            break
        except StorageError:
            continue
        except OSError:
            continue
    assert Store(Path(RUN), place).newest()[0] == name


def test_a_compressible_object_is_written_compressed_and_another_is_not(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = MemoryPlace()
    tensors = {
        "model/same": TensorBytes("U8", (10_000,), bytes(10_000)),
        "optimizer/noise": TensorBytes("U8", (10_000,), random.Random(0).randbytes(10_000)),
    }
    name = store.commit(tensors, {}, step=1)
    manifest = store.read(name)
    same = manifest.packs[manifest.tensors["model/same"].pack]
    monkeypatch.setattr(replication, "LARGEST_BYTES", same.size_bytes)  # not too large yet
    run(upload(store, name, link_to(place, compresses=True)))
    objects = [path for path in place.written if "objects" in path.parts]
    assert sorted(path.suffix for path in objects) == ["", ".zst"]


def test_a_version_comes_back_under_its_name_and_goes_on_where_it_was_broken_off(
    store: Store, tmp_path: Path
) -> None:
    place = MemoryPlace()
    name = save(store, 7)
    run(upload(store, name, link_to(place)))
    remote, here = Store(Path(RUN), place), Store(tmp_path / "elsewhere")
    reported: list[tuple[int, int]] = []

    def breaks(done_bytes: int, total_bytes: int) -> None:
        reported.append((done_bytes, total_bytes))
        if len(reported) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_version(remote, name, here, breaks)
    assert here.versions() == []
    reads: list[Path] = []
    place.fault = lambda operation, path: reads.append(path) if operation == "read" else None
    fetch_version(remote, name, here, breaks)
    assert len([path for path in reads if "objects" in path.parts]) == 2  # one was here
    assert reported[-1][0] == reported[-1][1] > 0
    assert here.newest() == (name, [])
    assert here.manifest_path(name).read_bytes() == store.manifest_path(name).read_bytes()


def test_a_version_that_is_damaged_there_is_not_committed_here(
    store: Store, tmp_path: Path
) -> None:
    place = MemoryPlace()
    name = save(store, 7)
    run(upload(store, name, link_to(place)))
    place.files.files[place.written[1]] = bytes(len(place.files.files[place.written[1]]))
    here = Store(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=r"backup\.object_bytes_changed"):
        fetch_version(Store(Path(RUN), place), name, here, lambda done, total: None)
    assert here.versions() == []


def test_a_place_that_is_away_raises_its_error(store: Store) -> None:
    place = MemoryPlace()
    place.fault = disconnected
    with pytest.raises(OSError, match="not connected"):
        run(upload(store, save(store, 1), link_to(place)))


def test_a_version_is_not_confirmed_without_its_objects(store: Store) -> None:
    """The place has the manifest for certain, and of the objects says: not yet."""
    place = MemoryPlace()
    place.is_safe = lambda path: path.parent.name == "versions"
    one = upload(store, save(store, 1), link_to(place))
    run(one, limit=3000)
    assert place.written[-1].parent.name == "versions"
    assert not one.is_confirmed


def test_a_version_is_not_confirmed_by_an_object_that_is_gone_again(store: Store) -> None:
    """Each object was confirmed once, and one of them so long ago that it no longer counts."""
    place = MemoryPlace()
    link = link_to(place)
    one = upload(store, save(store, 1), link)
    steps = one.steps()
    while not place.written or place.written[-1].parent.name != "versions":
        link.clock.now += next(steps)  # type: ignore[attr-defined]
        if len(place.written) == 3:
            place.is_safe = lambda path: path.parent.name != "versions"
    link.clock.now += link.fresh_seconds  # type: ignore[attr-defined]
    place.is_safe = lambda path: True
    for wait in steps:
        link.clock.now += wait  # type: ignore[attr-defined]
    assert not one.is_confirmed


def test_what_is_too_large_to_compress_is_not_written_beside(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, of an object for which nobody would hold both forms in memory: it is waited for."""
    monkeypatch.setattr(replication, "LARGEST_BYTES", 9_999)
    place = MemoryPlace()
    link = link_to(place)
    data = TensorBytes("U8", (10_000,), bytes(10_000))
    first = store.commit({"model/w": data}, {}, step=1)
    run(upload(store, first, link))
    link.named |= {first, *(pack.hash for pack in store.read(first).packs)}
    plain = place.written[0]
    place.files.files[plain] = b"x" + place.files.files[plain][1:]
    link.clock.now += link.fresh_seconds + 1  # type: ignore[attr-defined]
    one = upload(store, store.commit({"model/w": data}, {}, step=2), link)
    for _ in range(3):
        with contextlib.suppress(StorageError):
            run(one)
    assert not one.is_confirmed
    assert not [path for path in place.written if path.suffix == ".zst"]


class Opening(FileOperations):
    """Keeps what was opened."""

    def __init__(self) -> None:
        self.opened: list[BinaryIO] = []

    def open(self, path: Path) -> BinaryIO:
        self.opened.append(super().open(path))
        return self.opened[-1]


def test_an_upload_that_cannot_begin_holds_no_file_open(tmp_path: Path) -> None:
    opening = Opening()
    store = Store(tmp_path / "checkpoints", opening)
    manifest = store.read(name := save(store, 1))
    store.objects.path_of(manifest.packs[-1].hash).unlink()
    opening.opened.clear()
    with pytest.raises(CheckpointError, match=r"backup\.local_object_missing"):
        upload(store, name, link_to(MemoryPlace()))
    assert len(opening.opened) == len(manifest.packs) - 1
    assert all(file.closed for file in opening.opened)


@pytest.mark.parametrize("damaged", ["model/w", "files/log"])
def test_a_damaged_copy_of_run_files_may_be_left_out_and_nothing_else(
    damaged: str, store: Store, tmp_path: Path
) -> None:
    place = MemoryPlace()
    tensors = {name: TensorBytes("U8", (9,), name.ljust(9).encode()) for name in ("model/w",)}
    tensors["files/log"] = TensorBytes("U8", (3,), b"log")
    name = store.commit(tensors, {}, step=1)
    run(upload(store, name, link_to(place)))
    manifest = store.read(name)
    pack = manifest.packs[manifest.tensors[damaged].pack]
    (path,) = [path for path in place.files.files if pack.hash in path.name]
    place.files.files[path] = bytes(len(place.files.files[path]))
    remote, here = Store(Path(RUN), place), Store(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=r"backup\.object_bytes_changed"):
        fetch_version(remote, name, here, lambda done, total: None)
    assert here.versions() == []
    if damaged == "model/w":
        with pytest.raises(CheckpointError, match=r"backup\.object_bytes_changed"):
            fetch_version(remote, name, here, lambda done, total: None, run_files=False)
    else:
        fetch_version(remote, name, here, lambda done, total: None, run_files=False)
    assert here.versions() == ([] if damaged == "model/w" else [name])


def test_of_the_two_forms_of_an_object_the_one_that_would_be_written_is_requested_first(
    store: Store,
) -> None:
    """Each question is a way to the place and back, and the other form is seldom there."""
    place = MemoryPlace()
    tensors = {"model/same": TensorBytes("U8", (10_000,), bytes(10_000))}
    name = store.commit(tensors, {}, step=1)
    run(upload(store, name, link_to(place, compresses=True)))
    sized: list[Path] = []
    place.fault = lambda operation, path: sized.append(path) if operation == "confirm" else None
    run(upload(store, name, link_to(place, compresses=True)))  # another session
    assert {path.suffix for path in sized if "objects" in path.parts} == {".zst"}


def test_a_place_that_confirms_objects_and_no_manifest_is_doubtful(store: Store) -> None:
    place = MemoryPlace()
    place.is_safe = lambda path: "objects" in path.parts
    link = link_to(place)
    run(one := upload(store, save(store, 1), link), limit=2000)
    assert not one.is_confirmed
    assert link.is_doubtful


def test_between_two_steps_no_more_than_one_object_is_requested_or_written(store: Store) -> None:
    """So that whoever calls is never kept for long: each question may take seconds."""
    place = MemoryPlace()
    sized: set[str] = set()

    def note(operation: str, path: Path) -> None:
        if "objects" in path.parts and len(path.stem) == 64:
            sized.add(path.stem)

    place.fault = note
    for _ in upload(store, save(store, 1), link_to(place)).steps():
        assert len(sized) <= 1
        sized.clear()


def test_every_object_is_looked_for_before_the_first_is_written(store: Store) -> None:
    """Some places gather what is written, until somebody requests anything."""
    place, operations = MemoryPlace(), []

    def note(operation: str, path: Path) -> None:
        if "objects" in path.parts:
            operations.append(operation)

    place.fault = note
    run(upload(store, save(store, 1), link_to(place)))
    first = operations.index("write")
    assert operations[:first] == ["size"] * 6  # plain and compressed
    assert operations[first : first + 3] == ["write"] * 3


@pytest.mark.parametrize(("num_bytes", "patience"), [(0, 600.0), (25_000_000, 700.0)])
@pytest.mark.parametrize(("has_confirmed", "factor"), [(False, 0.9), (True, 2.0)])
def test_how_long_news_of_an_upload_is_waited_for(
    store: Store, num_bytes: int, patience: float, has_confirmed: bool, factor: float
) -> None:
    """Ten minutes, and what its bytes take at 250 kB a second; where others were confirmed, until
    it could have come a second time."""
    place = MemoryPlace()
    link = link_to(place)
    if has_confirmed:
        run(upload(store, save(store, 1), link))
    place.confirm = lambda path, content: False  # type: ignore[method-assign]
    tensors = {"model/w": TensorBytes("U8", (num_bytes,), bytes(num_bytes))}
    began = link.clock()
    run(upload(store, store.commit(tensors, {}, step=2), link), limit=2000)
    assert link.is_doubtful
    waited = link.clock() - began
    assert patience * factor < waited <= patience * factor + 2 * LONGEST_WAIT_SECONDS


def test_no_more_is_written_ahead_of_its_confirmation_than_the_window_holds(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mounted Drive keeps it on this machine's disk until then."""
    place = MemoryPlace()
    one = upload(store, save(store, 1), link_to(place))
    sizes = [pack.size_bytes for pack in one.manifest.packs]
    monkeypatch.setattr(replication, "WINDOW_BYTES", sum(sizes[:2]))
    place.is_safe = lambda path: False
    run(one, limit=40)
    assert len(place.written) == 2
    place.is_safe = lambda path: True
    run(one)
    assert one.is_confirmed
