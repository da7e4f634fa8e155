"""The conformance suite of backup destinations.

A local file may be deleted as soon as the destination confirms its copy, so a destination that
confirms too early loses work.
"""

import contextlib
import errno
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from infrastructure.backup.backends.base import Content, Place
from infrastructure.backup.backends.contract import held_to_contract
from infrastructure.backup.backends.place_identity import FOLDER, mark
from infrastructure.backup.format.file_operations import Buffer
from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.store import Store
from infrastructure.core.errors import StorageError
from infrastructure.core.messages import phrase
from infrastructure.features.conformance.other_process import call_elsewhere

FILE = Path("run-1/objects/ab/abcd")
HELLO: list[Buffer] = [b"hello ", bytearray(b"there"), memoryview(b"!")]
WRITTEN_BACK = b"from another process"
LARGE_BYTES = 5 * 1024**2 + 7  # more than one piece of any reader


class StorageBackendSuite:
    """A suite for backup destinations: subclass it at the top of a module, and define `open`.

    Other processes must see a written file at the latest when the destination is closed. The tests
    start another process that imports the subclass and calls `open`, so anything that `open` needs
    besides the folder must come from the environment.

    Attributes:
        confirm_seconds: how long the destination may report "not yet" for a written file.
        writes_in_place: True if the destination cannot rename files and writes each under its final
            name, so that an incomplete file may be visible (FORMAT.md, "A store at another place",
            rule 1). Such a destination must never confirm an incomplete file. All others must never
            show an incomplete file.
    """

    confirm_seconds = 10.0
    writes_in_place = False

    def open(self, folder: Path) -> Place:
        """Open the destination that belongs to `folder`.

        Each call must behave like a new process: nothing may be shared with earlier calls except
        the files.
        """
        raise NotImplementedError

    def look(self, folder: Path) -> Place:
        """Open the destination; fail with an explanation if this raises a forbidden error."""
        return held_to_contract(self.open(folder), AssertionError)

    def test_what_is_written_is_read(self, tmp_path: Path) -> None:
        place = self.look(tmp_path)
        large = os.urandom(LARGE_BYTES)
        place.write(FILE, HELLO)
        place.write(FILE.with_name("large"), [large[:100], large[100:]])
        place.write(FILE.with_name("empty"), [])
        for seen in (place, self.look(tmp_path)):
            for name, expected in (("abcd", b"hello there!"), ("large", large), ("empty", b"")):
                path = FILE.with_name(name)
                content = b"".join(seen.read(path))
                assert content == expected, (
                    f"{name}: {len(content)} of {len(expected)} bytes are read"
                )
                assert seen.size(path) == len(expected), f"{name} has another size"

    def test_memory_is_filled_to_the_end(self, tmp_path: Path) -> None:
        large = os.urandom(LARGE_BYTES)
        place = self.look(tmp_path)
        place.write(FILE, [large])
        memory = memoryview(bytearray(LARGE_BYTES))
        *_, end = place.read_into(FILE, memory)
        assert end == LARGE_BYTES, f"read_into stops at {end} of {LARGE_BYTES} bytes"
        assert bytes(memory) == large, "read_into fills the memory with other bytes"

    def test_a_file_is_listed_as_soon_as_it_was_written(self, tmp_path: Path) -> None:
        place, other = self.look(tmp_path), self.look(tmp_path)
        for count in range(1, 6):
            place.write(FILE.with_name(f"{count}"), [b"x"])
            expected = [f"{n}" for n in range(1, count + 1)]
            for seen in (place, other, self.look(tmp_path)):
                names = sorted(seen.names(FILE.parent))
                assert names == expected, f"{expected} were written, {names} are listed"
        assert "run-1" in place.names(Path()), "a folder is not listed in the one above it"
        assert place.names(Path("run-1")) == ["objects"], "names are those of one folder, and plain"

    def test_what_was_never_written_is_not_there(self, tmp_path: Path) -> None:
        place = self.look(tmp_path)
        place.write(FILE, HELLO)
        missing = FILE.with_name("missing")
        calls: dict[str, Callable[[], object]] = {
            "read": lambda: list(place.read(missing)),
            "size": lambda: place.size(missing),
            "names": lambda: place.names(Path("run-2")),
            "remove": lambda: place.remove(missing),
        }
        for name, call in calls.items():
            try:
                content = call()
            except FileNotFoundError:
                continue
            raise AssertionError(
                phrase("conformance.missing_path_answered", call=name, answer=content)
            )

    def test_a_second_write_replaces_the_whole_file(self, tmp_path: Path) -> None:
        place = self.look(tmp_path)
        place.write(FILE, [b"a damaged copy that is longer"])
        place.write(FILE, HELLO)
        place.close()
        content = b"".join(self.look(tmp_path).read(FILE))
        assert content == b"hello there!", f"after a second write the file holds {content!r}"
        assert place.size(FILE) == len(content), "after a second write it has the size of the first"

    def test_what_is_there_is_not_created_again(self, tmp_path: Path) -> None:
        """Check that a second `create` of the same file returns False and keeps the first
        content."""
        path = FILE.with_name("claim")
        if self.look(tmp_path).create(path, b"one") is None:
            return  # it does not support that
        assert self.look(tmp_path).create(path, b"another") is False, "a file is created twice"
        content = b"".join(self.look(tmp_path).read(path))
        assert content == b"one", f"a file that was created as b'one' holds {content!r}"

    def test_neighbours_stay_as_they_are(self, tmp_path: Path) -> None:
        """Check that writing and removing a file leaves files with similar names unchanged."""
        place = self.look(tmp_path)
        near = [FILE, FILE.with_name("abcde"), Path("run-1/objects/abc/abcd"), Path("run-10/x")]
        for path in near:
            place.write(path, [str(path).encode()])
        place.write(FILE, [b"another"])
        place.remove(FILE)
        for path in near[1:]:
            content = b"".join(place.read(path))
            assert content == str(path).encode(), f"writing {FILE} has changed {path}"
        assert place.names(FILE.parent) == ["abcde"], "a folder lists what lies in another"

    def test_what_is_removed_is_gone(self, tmp_path: Path) -> None:
        place = self.look(tmp_path)
        place.write(FILE, HELLO)
        place.write(FILE.with_name("other"), HELLO)
        place.remove(FILE)
        for seen in (place, self.look(tmp_path)):
            assert seen.names(FILE.parent) == ["other"], "a removed file is still listed"
            try:
                list(seen.read(FILE))
            except FileNotFoundError:
                continue
            raise AssertionError(phrase("conformance.removed_file_readable"))

    def test_what_was_written_is_confirmed(self, tmp_path: Path) -> None:
        place = self.look(tmp_path)
        content = Content.of(HELLO, place.hashes)
        place.identify()
        place.write(FILE, HELLO)
        end = time.monotonic() + self.confirm_seconds
        while not place.confirm(FILE, content):
            assert time.monotonic() < end, f"not confirmed after {self.confirm_seconds} s"
            time.sleep(0.05)

    def test_another_process_sees_what_was_written(self, tmp_path: Path) -> None:
        """Check that another process can read the written files, as on another machine."""
        place = self.look(tmp_path)
        identity = place.identify()
        place.write(FILE, HELLO)
        place.close()
        process, output = call_elsewhere(type(self), "_read_and_write_back", str(tmp_path))
        assert process.returncode == 0, phrase(
            "conformance.other_process_failed", error=process.last_words
        )
        answer = json.loads(output.decode().splitlines()[-1])
        content = bytes.fromhex(answer["read"])
        assert content == b"hello there!", f"another process reads {content!r}"
        assert answer["names"] == ["abcd"], f"another process lists {answer['names']}"
        assert answer["identity"] == identity, "for another process it is another place"
        back = b"".join(self.look(tmp_path).read(FILE.with_name("back")))
        assert back == WRITTEN_BACK, f"of what another process has written {back!r} is read"

    def _read_and_write_back(self, folder: str) -> None:
        """Print what another process has written, and write another file next to it."""
        place = self.open(Path(folder))
        read, names = b"".join(place.read(FILE)), place.names(FILE.parent)
        answer = {"read": read.hex(), "names": names, "identity": place.identify()}
        place.write(FILE.with_name("back"), [WRITTEN_BACK])
        place.close()
        print(f"\n{json.dumps(answer)}", flush=True)

    def test_another_place_confirms_nothing(self, tmp_path: Path) -> None:
        """Check that a destination without its marker file confirms nothing.

        The marker is missing if a drive is no longer mounted.
        """
        place = self.look(tmp_path)
        content = Content.of(HELLO, place.hashes)
        identity = place.identify()
        place.write(FILE, HELLO)
        place.close()
        end = time.monotonic() + self.confirm_seconds
        while not place.confirm(FILE, content) and time.monotonic() < end:
            time.sleep(0.05)
        other = self.look(tmp_path)
        if identity not in _names(other, FOLDER):
            return  # it is identified without a marker, such as by a repository's name
        other.remove(FOLDER / identity)
        other.close()
        _require_refusal(place, content, "conformance.marker_missing")
        mark(other)
        other.close()
        _require_refusal(place, content, "conformance.marker_of_another")

    def test_half_a_file_is_never_seen(self, tmp_path: Path) -> None:
        """Check that a write that is interrupted, as by a kill, never shows an incomplete file."""
        for old in (None, b"a damaged copy"):
            place, folder = self.look(tmp_path), FILE.with_name(f"half-{old is None}")
            if old is not None:
                place.write(folder, [old])
                place.close()
            self._write_in_pieces(place, folder, tmp_path, old)

    def _write_in_pieces(self, place: Place, path: Path, tmp_path: Path, old: bytes | None) -> None:
        seen: list[bytes | None] = []
        pieces = [b"x" * 100_000] * 3

        def look() -> None:
            seen.append(_read(self.look(tmp_path), path))

        def fail_in_the_middle() -> None:
            if len(seen) == 2:
                raise OSError(errno.EIO, "planted: the writer fails in the middle")
            look()

        try:
            place.write(path, _Pieces(pieces, fail_in_the_middle))
        except OSError:
            place.close()
        else:
            raise AssertionError(phrase("conformance.failed_write_returns"))
        look()
        if not self.writes_in_place:
            _require_whole(seen, old, "conformance.partial_file_of_failed_write")
        elif seen[-1] not in (None, old):
            confirmed = False
            with contextlib.suppress(StorageError):
                confirmed = bool(place.confirm(path, Content.of(pieces, place.hashes)))
            assert not confirmed, "half a file is confirmed"
        seen.clear()
        place.write(path, _Pieces(pieces, look))
        place.close()
        if not self.writes_in_place:
            whole = b"".join(pieces)  # one of two disks may have it before the other
            _require_whole([s for s in seen if s != whole], old, "conformance.partial_file")
        content = _read(self.look(tmp_path), path)
        assert content == b"".join(pieces), "after a write that failed another one is not whole"

    def test_other_bytes_are_never_confirmed(self, tmp_path: Path) -> None:
        place = self.look(tmp_path)
        content = Content.of(HELLO, place.hashes)
        place.identify()
        for damage in (b"hello there", b"hello there?", b"", None):
            if damage is not None:
                place.write(FILE, [damage])
            else:
                place.remove(FILE)
            place.close()
            try:
                confirmed = bool(self.look(tmp_path).confirm(FILE, content))
            except StorageError:
                continue
            assert not confirmed, f"a file that holds {damage!r} is confirmed as {content}"
            assert damage is None, f"{damage!r} is told as not yet there: raise StorageError"

    def test_a_place_is_known_again(self, tmp_path: Path) -> None:
        first = self.look(tmp_path).identify()
        assert first, "a place has no identity"
        assert self.look(tmp_path).identify() == first, "the same place has another identity"
        assert self.look(tmp_path).identify(first) == first, "the place is not taken for itself"
        other = Path(tempfile.mkdtemp(dir=tmp_path))
        assert self.look(other).identify() != first, "another place has the same identity"

    def test_looking_leaves_nothing_behind(self, tmp_path: Path) -> None:
        place = self.look(tmp_path)
        place.identify()
        place.probe()
        place.sweep(Path("run-1"))
        left = [name for name in _names(place, FOLDER) if name.startswith("probe-")]
        assert not left, f"probing leaves {left}"
        place.write(FILE, HELLO)
        place.sweep(Path("run-1"))
        assert b"".join(place.read(FILE)) == b"hello there!", "sweeping takes a whole file away"

    def test_no_path_leads_out(self, tmp_path: Path) -> None:
        place = self.open(tmp_path)
        for path in (Path("../x"), Path("run-1/../../x"), Path("/etc/passwd")):
            try:
                place.write(path, [b"x"])
            except ValueError:
                continue
            raise AssertionError(phrase("conformance.path_leads_out", path=path))

    def test_an_error_has_advice(self, tmp_path: Path) -> None:
        advice = self.look(tmp_path).advice(OSError(errno.EIO, "planted"))
        assert len(advice) > 20, f"advice of {advice!r}: tell what a person can do"

    def test_a_store_of_versions_lies_in_it(self, tmp_path: Path) -> None:
        place = self.look(tmp_path)
        store = Store(Path("run-1"), place, compress=True)
        for step in (1, 2, 3):
            store.commit(_tensors(step), {}, step=step)
        place.close()
        again = Store(Path("run-1"), self.look(tmp_path))
        name, rejected = again.newest()
        assert not rejected, f"versions are damaged: {rejected}"
        assert name == store.versions()[0], "the newest version is not found"
        content = dict(again.load(again.read(str(name))))
        expected = _tensors(3)
        assert content.keys() == expected.keys(), f"tensors {sorted(content)} come back"
        for key, tensor in expected.items():
            assert bytes(content[key].data) == bytes(tensor.data), f"{key} has other bytes"
        store.remove_all_but([str(name)])
        place.close()
        left = Store(Path("run-1"), self.look(tmp_path)).versions()
        assert left == [name], f"{len(left)} versions are there after all but one were removed"


class _Pieces(Sequence[Buffer]):
    """An iterable of buffers that calls a function before it yields each of them."""

    def __init__(self, pieces: Sequence[bytes], before_each: Callable[[], None]) -> None:
        self._pieces, self._before_each = pieces, before_each

    def __len__(self) -> int:
        return len(self._pieces)

    @overload
    def __getitem__(self, index: int) -> Buffer: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Buffer]: ...
    def __getitem__(self, index: int | slice) -> Buffer | Sequence[Buffer]:
        if isinstance(index, slice):
            return [self[n] for n in range(*index.indices(len(self)))]
        piece = self._pieces[index]
        self._before_each()
        return piece


def _read(place: Place, path: Path) -> bytes | None:
    try:
        return b"".join(place.read(path))
    except FileNotFoundError:
        return None


def _require_whole(seen: Sequence[bytes | None], old: bytes | None, code: str) -> None:
    for content in seen:
        if content is not None and content != old:
            raise AssertionError(phrase(code, num_bytes=len(content), total=300_000))


def _require_refusal(place: Place, content: Content, doubt: str) -> None:
    try:
        answer = place.confirm(FILE, content)
    except OSError:
        return
    except StorageError as error:
        text = phrase("conformance.confirm_raises", doubt=phrase(doubt), error=error)
        raise AssertionError(text) from error
    raise AssertionError(phrase("conformance.confirm_answers", doubt=phrase(doubt), answer=answer))


def _names(place: Place, directory: Path) -> list[str]:
    try:
        return place.names(directory)
    except FileNotFoundError:
        return []


def _tensors(step: int) -> Mapping[str, TensorBytes]:
    """Return tensors of a checkpoint, some of which stay the same at every step."""
    return dict(_each(step))


def _each(step: int) -> Iterator[tuple[str, Any]]:
    for name, value in (("model/kept", 0), ("model/weight", step), ("optimizer/moment", step)):
        yield name, TensorBytes("F32", (256,), bytes([value]) * 1024)
