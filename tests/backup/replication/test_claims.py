"""Two trainings of one run at one place: where it can create a file only if there is none, one of
them goes on and the other writes nothing, whenever they meet and however often they start again."""

import contextlib
import errno
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import huggingface_hub
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

from infrastructure.backup.backends.base import Content, Place
from infrastructure.backup.backends.folder import FolderPlace
from infrastructure.backup.backends.fsspec_place import FsspecPlace
from infrastructure.backup.backends.hub import HubPlace
from infrastructure.backup.format.file_operations import Buffer
from infrastructure.backup.format.store import Store
from infrastructure.backup.inventory import runs_at, verify_all
from infrastructure.backup.replication.claims import MOST_TRIES, NUM_KEPT, Claims
from infrastructure.backup.replication.copier import LOOK_SECONDS
from infrastructure.backup.replication.remote_session import RemoteSession
from infrastructure.backup.run_backup import RunBackup
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.features.conformance.storage_backend import _names
from tests.backup.backends.hub_server import TOKEN, running_hub
from tests.backup.memory_place import RUN, MemoryPlace, save
from tests.backup.replication.test_copier import HOUR, Rig

CLAIMS = Path(RUN, "claims")
SERVER = threading.Lock()  # it does one thing after the other


class PreconditionError(Exception):
    """As botocore raises it, and s3fs hands it on for a server that does not name the condition."""

    response: ClassVar[dict[str, Any]] = {
        "Error": {"Code": "412"},
        "ResponseMetadata": {"HTTPStatusCode": 412},
    }


class LikeS3(MemoryFileSystem):
    """Creates on a condition, as S3 does."""

    protocol = "s3"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        if mode == "create" and self._strip_protocol(path) in self.store:
            raise OSError(errno.EINVAL, "a condition did not hold") from PreconditionError()
        super().pipe_file(path, value, **kwargs)


@pytest.fixture(autouse=True)
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(_registry, "s3", LikeS3)
    yield
    for kind in (MemoryFileSystem, LikeS3):
        kind.store.clear()
        kind.pseudo_dirs[:] = [""]


class Seen:
    """The way of one training to the place: what it has written, and who it meets there."""

    def __init__(self, place: Place, meet: Callable[[str], None] = lambda where: None) -> None:
        self.place, self.meet, self.written = place, meet, list[Path]()
        self.create, self.write, self.confirm = place.create, place.write, place.confirm
        place.create = self._create  # type: ignore[method-assign]
        place.write = self._write  # type: ignore[method-assign]
        place.confirm = self._confirm  # type: ignore[method-assign]

    def _create(self, path: Path, data: bytes) -> bool | None:
        self.meet("claim")
        with SERVER:
            answer = self.create(path, data)
        self.written += [path] if answer else []
        return answer

    def _write(self, path: Path, buffers: Sequence[Buffer]) -> None:
        self.write(path, buffers)
        self.written += [path] if path.is_relative_to(RUN) else []

    def _confirm(self, path: Path, content: Content) -> Any:
        if path.parent.name == "versions":
            self.meet("manifest")
        return self.confirm(path, content)


def folder(tmp_path: Path) -> Place:
    (tmp_path / "disk").mkdir(exist_ok=True)
    return FolderPlace(tmp_path / "disk" / "place")


def memory(tmp_path: Path) -> Place:
    return FsspecPlace(f"memory://{tmp_path.name}")


def like_s3(tmp_path: Path) -> Place:
    return FsspecPlace(f"s3://bucket/{tmp_path.name}")


KINDS = [folder, memory, like_s3]
Open = Callable[[Path], Place]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Open:
    opened: Open = request.param
    return opened


def training(tmp_path: Path, name: str, place: Place) -> Rig:
    rig = Rig(tmp_path / name)
    rig.place, rig.remote = place, Store(Path(RUN), place)  # type: ignore[assignment]
    rig.copier = rig.new_copier()
    return rig


def restarted(rig: Rig) -> Rig:
    rig.copier.close()
    rig.copier = rig.new_copier()
    return rig


def copied(tmp_path: Path, one: Rig, place: Place) -> Rig:
    """The folder of the run was copied, and is trained on."""
    one.copier.close()
    shutil.copytree(one.local.root, tmp_path / "two" / "checkpoints")
    return training(tmp_path, "two", place)


def numbers_at(place: Place) -> list[int]:
    return [int(name) for name in _names(place, CLAIMS)]


def state(rig: Rig) -> str:
    return rig.copier.status().state


def at_the_same_instant(rigs: list[Rig], manifest_seconds: float = 1.0) -> None:
    """Let trainings copy until each has looked and found nobody, and then all claim at once; let
    manifests that are written be there before any is asked for."""
    barriers = {where: threading.Barrier(len(rigs)) for where in ("claim", "manifest")}
    errors: list[BaseException] = []

    def meeting() -> Callable[[str], None]:
        left = {"claim": 20.0, "manifest": manifest_seconds}

        def meet(where: str) -> None:
            with contextlib.suppress(threading.BrokenBarrierError):
                if seconds := left.pop(where, 0.0):
                    barriers[where].wait(seconds)

        return meet

    def work(rig: Rig) -> None:
        try:
            rig.settle()
        except BaseException as error:
            errors.append(error)
            raise

    for rig in rigs:
        Seen(rig.place, meeting())
    threads = [threading.Thread(target=work, args=(rig,)) for rig in rigs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


@pytest.mark.parametrize("num_versions", [1, 3], ids=["same sequence", "another sequence"])
@pytest.mark.parametrize("is_fresh", [True, False])
def test_of_two_that_write_at_the_same_instant_one_is_confirmed_and_one_stays_fenced(
    tmp_path: Path, kind: Open, is_fresh: bool, num_versions: int
) -> None:
    one = training(tmp_path, "one", kind(tmp_path))
    if is_fresh:
        two = training(tmp_path, "two", kind(tmp_path))
    else:
        one.copy(1)
        two = copied(tmp_path, one, kind(tmp_path))
        restarted(one)
        for rig in (one, two):
            rig.settle()
    past = {*one.remote.versions()}
    save(one.local, 2)
    for step in range(num_versions):
        save(two.local, 10 + step)
    at_the_same_instant([one, two])
    fenced = [rig for rig in (one, two) if state(rig) == "fenced"]
    assert len(fenced) == 1, [state(one), state(two)]
    [loser], [winner] = fenced, [rig for rig in (one, two) if rig not in fenced]
    newest = winner.local.versions()[0]
    assert winner.copier.status().confirmed_name == newest
    assert winner.copier.status().is_safe
    assert loser.copier.status().confirmed_name in {None, *past}
    assert newest[:12] in str(loser.copier.status().error)
    assert {*one.remote.versions()} == {*past, newest}

    save(loser.local, 30)
    loser.place = kind(tmp_path)  # type: ignore[assignment]
    seen = Seen(loser.place)
    restarted(loser).settle()
    loser.clock.now += 2 * LOOK_SECONDS
    loser.settle()
    assert state(loser) == "fenced"
    assert seen.written == []
    following = save(winner.local, 31)
    winner.clock.now += LOOK_SECONDS
    winner.settle()
    assert winner.copier.status().confirmed_name == following
    assert winner.remote.newest() == (following, [])


class Sharing(MemoryPlace):
    """Two ways to one place that cannot create on a condition."""

    def __init__(self, other: MemoryPlace | None = None) -> None:
        super().__init__()
        self.files = self.files if other is None else other.files


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
def test_on_the_hub_too_one_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    with running_hub() as hub:
        one, two = (
            training(tmp_path, name, HubPlace("hf://me/backups", hub.url))
            for name in ("one", "two")
        )
        save(one.local, 2)
        save(two.local, 3)
        at_the_same_instant([one, two], manifest_seconds=3.0)
        assert sorted([state(one), state(two)]) == ["fenced", "idle"]
        confirmed = [rig.copier.status().confirmed_name for rig in (one, two)]
        assert confirmed.count(None) == 1
        assert {*confirmed} == {None, *one.remote.versions()}
    huggingface_hub.close_session()


def test_where_a_place_cannot_create_both_see_each_other_afterwards(tmp_path: Path) -> None:
    place = Sharing()
    one, two = training(tmp_path, "one", place), training(tmp_path, "two", Sharing(place))
    save(one.local, 2)
    save(two.local, 3)
    at_the_same_instant([one, two], manifest_seconds=20.0)
    assert [state(one), state(two)] == ["fenced", "fenced"]
    assert [r.copier.status().confirmed_name for r in (one, two)] == [None, None]
    assert numbers_at(place) == []


class Killed(BaseException):
    pass


def killed_before_its_manifest(rig: Rig) -> str:
    """The version that it has claimed."""
    write = rig.place.write

    def dies(path: Path, buffers: Sequence[Buffer]) -> None:
        if path.parent.name == "versions":
            raise Killed
        write(path, buffers)

    rig.place.write = dies  # type: ignore[method-assign]
    name = save(rig.local, 2)
    with pytest.raises(Killed):
        rig.settle()
    rig.place.write = write  # type: ignore[method-assign]
    assert numbers_at(rig.place)
    assert name not in rig.remote.versions()
    return name


@pytest.mark.parametrize("is_newer_there", [True, False])
def test_a_copier_that_was_killed_after_its_claim_goes_on(
    tmp_path: Path, kind: Open, is_newer_there: bool
) -> None:
    rig = training(tmp_path, "one", kind(tmp_path))
    rig.copy(1)
    newest = killed_before_its_manifest(rig)
    if is_newer_there:  # and the one that was claimed is gone here
        newest = save(rig.local, 3)
        rig.local.remove_all_but([newest])
    restarted(rig).settle()
    assert rig.copier.status().confirmed_name == newest
    assert numbers_at(rig.place) == [0, 1, 2][: 2 + is_newer_there]


def test_a_claim_fences_before_and_without_its_manifest(tmp_path: Path, kind: Open) -> None:
    rig = training(tmp_path, "one", kind(tmp_path))
    name = killed_before_its_manifest(rig)
    other = training(tmp_path, "two", kind(tmp_path))
    seen = Seen(other.place)
    save(other.local, 9)
    for _ in range(2):
        other.settle()
        assert state(other) == "fenced"
        assert name[:12] in str(other.copier.status().error)
        restarted(other)
    assert seen.written == []
    restarted(rig).settle()
    assert rig.copier.status().confirmed_name == name


def test_who_restores_goes_on_after_a_claim_whose_writer_died(tmp_path: Path) -> None:
    rig = training(tmp_path, "one", folder(tmp_path))
    first = rig.copy(1)
    claimed = killed_before_its_manifest(rig)
    url = rig.place.url
    with RunBackup(tmp_path / "two/checkpoints", BackupConfig(place=url), run_id=RUN) as backup:
        assert backup.restore_run().stem == first
    back = training(tmp_path, "two", folder(tmp_path))
    newest = back.copy(5)
    assert newest[:12] > claimed[:12]
    assert state(back) == "idle"
    restarted(rig).settle()
    assert state(rig) == "fenced", "it was taken for dead"
    assert back.remote.newest() == (newest, [])


@pytest.mark.parametrize(
    "data", [b"", b'{"version": "000', b"null", b'{"version": 3}', b'{"version": "x"}', b"\xff"]
)
def test_a_claim_that_cannot_be_read_blocks_nobody(tmp_path: Path, kind: Open, data: bytes) -> None:
    rig = training(tmp_path, "one", kind(tmp_path))
    rig.place.write(CLAIMS / f"{0:012d}", [data])
    name = rig.copy(1)
    assert state(rig) == "idle"
    assert numbers_at(rig.place) == [0, 1]
    assert Claims(rig.copier.link).holder() == name


def test_a_damaged_claim_is_no_stranger_s(tmp_path: Path) -> None:
    rig = training(tmp_path, "one", folder(tmp_path))
    rig.copy(1)
    [path] = (rig.place.root / CLAIMS).iterdir()  # type: ignore[attr-defined]
    path.write_bytes(path.read_bytes().replace(b"000001", b"000007"))
    newest = restarted(rig).copy(2)
    assert rig.copier.status().confirmed_name == newest


def test_claims_that_a_place_has_lost_are_made_again(tmp_path: Path, kind: Open) -> None:
    rig = training(tmp_path, "one", kind(tmp_path))
    rig.copy(1)
    rig.copy(2)
    for name in _names(rig.place, CLAIMS):
        rig.place.remove(CLAIMS / name)
    rig.copy(3)
    assert numbers_at(rig.place) == [0]


def names(count: int) -> list[str]:
    return [f"{number:012d}-sha256-{'a' * 64}" for number in range(count)]


class StrangerError(Exception):
    pass


def stranger(holder: str) -> None:
    raise StrangerError(holder)


def known(holder: str) -> None:
    return


def claims_at(place: Place) -> Claims:
    return Claims(RemoteSession(place, RUN))


def test_old_claims_go_and_nobody_who_saw_them_last_gets_through(
    tmp_path: Path, kind: Open
) -> None:
    claims, older = claims_at(kind(tmp_path)), claims_at(kind(tmp_path))
    *given, last, theirs = names(NUM_KEPT + 12)
    claims.take(given[0], stranger)

    def meanwhile(where: str) -> None:
        if where == "claim" and len(numbers_at(claims.link.place)) == 1:
            for name in [*given[1:], last]:
                claims.take(name, known)
            assert [*claims.prune()] == [0.0] * (len(given) + 1 - NUM_KEPT)

    seen = Seen(older.link.place, meanwhile)
    with pytest.raises(StrangerError, match=last):
        older.take(theirs, lambda holder: None if holder == given[0] else stranger(holder))
    assert len(seen.written) == 1, "its number was free again"
    assert claims.holder() == last
    claims.take(theirs[:-1] + "b", known)
    assert len(numbers_at(claims.link.place)) >= NUM_KEPT


def test_a_copier_removes_old_claims(tmp_path: Path) -> None:
    rig = training(tmp_path, "one", folder(tmp_path))
    for step in range(NUM_KEPT + 4):
        rig.copy(step)
    rig.clock.now += HOUR + 1
    rig.copy(90)
    rig.settle()
    assert numbers_at(rig.place) == [*range(4, NUM_KEPT + 5)]
    found = list(verify_all(rig.place.url, rig.remote))
    assert [version.problem for version in found] == [None] * 2
    assert runs_at(rig.place) == [RUN]


def test_a_listing_that_is_late_costs_questions_only(tmp_path: Path) -> None:
    place = memory(tmp_path)
    claims = claims_at(place)
    for name in names(5):
        claims.take(name, known)
    late = _names(place, CLAIMS)[:2]
    place.names = lambda directory: late  # type: ignore[method-assign]
    claims.take(names(6)[5], known)
    del place.names  # type: ignore[method-assign]
    assert numbers_at(place) == [*range(6)]
    assert claims.holder() == names(6)[5]


def test_a_place_where_nothing_that_is_made_can_be_seen_is_an_error(tmp_path: Path) -> None:
    place = memory(tmp_path)
    calls: list[Path] = []
    place.create = lambda path, data: not calls.append(path)  # type: ignore[func-returns-value, method-assign]
    with pytest.raises(OSError, match=r"backup\.claim_not_listed"):
        claims_at(place).take(names(1)[0], known)
    assert len(calls) == MOST_TRIES


def test_what_does_not_answer_passes_for_no_free_number(tmp_path: Path) -> None:
    """A stranger's claim that cannot be read at the moment is not one that nobody can read."""
    place = memory(tmp_path)
    claims_at(place).take(names(1)[0], known)
    read = place.read

    def refuses(path: Path) -> Iterator[bytes]:
        raise OSError(errno.EIO, "503", str(path))

    place.read = refuses  # type: ignore[method-assign]
    with pytest.raises(OSError, match="503"):
        claims_at(place).take(names(2)[1], stranger)
    place.read = read  # type: ignore[method-assign]
    assert numbers_at(place) == [0]


def test_a_place_of_before_has_no_claims_and_gets_them(tmp_path: Path, kind: Open) -> None:
    rig = training(tmp_path, "one", kind(tmp_path))
    create = rig.place.create
    rig.place.create = lambda path, data: None  # type: ignore[method-assign]
    rig.copy(1)
    rig.place.create = create  # type: ignore[method-assign]
    newest = restarted(rig).copy(2)
    assert (state(rig), rig.remote.newest()) == ("idle", (newest, []))
    assert numbers_at(rig.place) == [0]
