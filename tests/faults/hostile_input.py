"""G15, first part: manifests, packs and run files of somebody who means harm.

Whole versions are mutated and given the names that their bytes then have, so that only the checks
of their contents stand in the way. Nothing but CheckpointError may come of it (and what a disk says
to a name): no other error, no code, no file outside, no memory beyond what lies on the disk.
"""

import json
import random
import sys
import tempfile
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from infrastructure.backup.format import objects, store
from infrastructure.backup.format.codec import SUFFIX, compress, decompress
from infrastructure.backup.format.hashing import hash_of
from infrastructure.backup.format.manifest import Manifest, VersionName, parse_manifest
from infrastructure.backup.format.packs import TensorBytes, decode
from infrastructure.backup.format.store import Store
from infrastructure.backup.format.tensor_bytes import from_bytes
from infrastructure.backup.state import run_files
from infrastructure.core.errors import CheckpointError
from tests.faults.memory_files import Files, MemoryFiles
from tests.faults.store_history import ROOT, tensors_at

RUN_CODE = "__import__('os').getpid()"
NASTY: list[Any] = [
    *(-1, 0, 1, 2**31, 2**40, 2**63, 2**64, 10**30, 1e308, -0.5, True, None, "", [], {}, [[]]),
    *("../../../../tmp/out", "/etc/passwd", "a\0b", "..", "files/../../out@000000000", RUN_CODE),
    *("F64", "\ud800", "x" * 5000, [2**31, 2**31], [0, 2**62], {"__class__": "os"}, 9**99),
]
CRC_END = 20  # of a compressed object: where its checksum ends, and what it covers begins
SLACK_BYTES = 1024**2  # what the interpreter itself needs for a small file


@dataclass
class Outcome:
    """Counts over all mutations; what must be zero comes after `refused`."""

    mutations: int = 0
    refused: int = 0
    other_errors: int = 0
    code_run: int = 0
    written_outside: int = 0
    hungry: int = 0

    @property
    def is_bad(self) -> bool:
        return any((self.other_errors, self.code_run, self.written_outside, self.hungry))


class Watch:
    """Hears of everything that the interpreter runs, opens for writing or starts.

    Attributes:
        directory: where files may be written.
    """

    FORBIDDEN = ("exec", "compile", "import", "os.system", "os.exec", "os.fork", "os.posix_spawn")
    FORBIDDEN += ("subprocess.Popen", "pickle.find_class", "marshal.loads", "ctypes.dlopen")
    FORBIDDEN += ("socket.connect", "os.symlink", "os.link", "shutil.rmtree")

    def __init__(self) -> None:
        self.is_on = False
        self.directory = Path("/nonexistent")
        self.code_run = self.written_outside = 0
        self.heard: set[str] = set()
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        if event in self.FORBIDDEN:
            self.code_run += 1
            self.heard.add(f"{event} {arguments!r:.200}")
        if event == "open" and isinstance(arguments[0], str) and _writes(arguments):
            inside = Path(arguments[0]).resolve().is_relative_to(self.directory)
            self.written_outside += not inside


def _writes(arguments: tuple[Any, ...]) -> bool:
    _, mode, flags = arguments
    return any(sign in (mode or "") for sign in "wxa+") or bool((flags or 0) & 3)


def good_version() -> tuple[Files, Manifest]:
    """A small store whose newest version holds tensors and the files of a run."""
    files = MemoryFiles()
    made = Store(ROOT, files)
    extra = {
        "files/run.json@000000000": TensorBytes("U8", (2,), b"{}"),
        "files/logs/errors/errors.jsonl@000000000": TensorBytes("U8", (3,), b"abc"),
        "large/zeros": TensorBytes("F32", (1000,), bytes(4000)),
    }
    name = made.commit({**tensors_at(1), **extra}, {"step": 1, "position": [1, 2]}, step=1)
    return files.files, made.read(name)


def mutated_text(data: bytes, draw: random.Random) -> bytes:
    """JSON in which a value was replaced, or any bytes in which some were."""
    if draw.random() < 0.6:
        with suppress(ValueError):
            tree = json.loads(data)
            for _ in range(draw.randint(1, 2)):
                tree = _replaced(tree, draw)
            return json.dumps(tree, allow_nan=True).encode("utf-8", "surrogatepass")
    changed = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(changed) + 1)
        end = min(len(changed), at + draw.randint(0, 4))
        changed[at:end] = draw.choice(
            [b"", b"[", b"{", b"9" * 40, b"\0", b"\xff", b'"', b"e9", b"-"]
        )
    return bytes(changed)


def _replaced(tree: Any, draw: random.Random) -> Any:
    """`tree` with one value, or one key, somewhere in it replaced by a nasty one."""
    if isinstance(tree, dict) and tree and draw.random() < 0.9:
        key = draw.choice(list(tree))
        if draw.random() < 0.15:
            return {**tree, str(draw.choice(NASTY)): tree[key]}
        return {**tree, key: _replaced(tree[key], draw)}
    if isinstance(tree, list) and tree and draw.random() < 0.9:
        at = draw.randrange(len(tree))
        return [*tree[:at], _replaced(tree[at], draw), *tree[at + 1 :]]
    return draw.choice(NASTY)


def mutated_pack(data: bytes, draw: random.Random) -> bytes:
    """A pack with another header, another length of it, or other bytes anywhere."""
    length = int.from_bytes(data[:8], "little")
    header = mutated_text(data[8 : 8 + length], draw)
    claimed = draw.choice([len(header)] * 4 + [0, 2**63, 2**64 - 1, len(header) + 8, 2**40])
    return claimed.to_bytes(8, "little") + header + data[8 + length :]


def mutated_version(good: Files, manifest: Manifest, draw: random.Random) -> tuple[Files, str]:
    """A version that is wrong inside, and right wherever only hashes are compared."""
    files = dict(good)
    text = manifest.to_bytes()
    kind = draw.random()
    if kind < 0.1:
        return renamed_file(draw)
    if kind < 0.25:
        return compressed_wrongly(files, manifest, draw)
    if kind < 0.6:
        pack = draw.choice(manifest.packs)
        path = next(path for path in good if path.name == pack.hash)
        data = mutated_pack(files.pop(path), draw)
        digest = hash_of("blake3", [data])
        files[ROOT / "objects" / digest[:2] / digest] = data
        old, new = json.dumps([pack.hash, pack.size_bytes]), json.dumps([digest, len(data)])
        text = text.replace(old.replace(" ", "").encode(), new.replace(" ", "").encode())
    else:
        text = mutated_text(text, draw)
    name = str(VersionName(manifest.sequence, "blake3", hash_of("blake3", [text])))
    files = {p: data for p, data in files.items() if p.parent.name != "versions"}
    return {**files, ROOT / "versions" / f"{name}.json": text}, name


def compressed_wrongly(files: Files, manifest: Manifest, draw: random.Random) -> tuple[Files, str]:
    """A version with an object whose compressed form is mutated, but for its own checksum."""
    pack = manifest.packs[manifest.tensors["large/zeros"].pack]
    path = next(path for path in files if path.name == pack.hash)
    packed = bytearray(compress(files.pop(path)))
    for _ in range(draw.randint(0, 3)):
        at = draw.randrange(CRC_END, len(packed))
        packed[at] = draw.choice([0, 1, 127, 128, 255, packed[at] ^ 1])
    if draw.random() < 0.2:
        del packed[draw.randrange(CRC_END, len(packed)) :]
    packed[CRC_END - 4 : CRC_END] = zlib.crc32(packed[CRC_END:]).to_bytes(4, "little")
    files[path.with_name(path.name + SUFFIX)] = bytes(packed)
    name = next(path.stem for path in files if path.parent.name == "versions")
    return files, name


def renamed_file(draw: random.Random) -> tuple[Files, str]:
    """A whole version with a run file that has a name that it should not have."""
    parts = ["..", "out", "/", "", ".", "a", "\\", "~", "a\0b", "\n", "con", "x" * 300]
    path = "/".join(draw.choice(parts) for _ in range(draw.randint(1, 5)))
    offset = draw.choice(["000000000", "000000000", "-00000001", "٠٠٠٠٠٠٠٠٠", "999999999", ""])
    files = MemoryFiles()
    tensor = TensorBytes("U8", (3,), b"abc")
    name = Store(ROOT, files).commit({f"files/{path}@{offset}": tensor}, {}, step=1)
    return files.files, name


def open_everything(files: Files, name: str, directory: Path) -> None:
    """What a resume and a restore do with a version."""
    opened = Store(ROOT, MemoryFiles(files))
    found = opened.read(name)
    opened.verify(found)
    for _, tensor in opened.load(found):
        from_bytes(tensor)
    run_files.restore_run_files(opened, found, directory)


def _memory_folder() -> str | None:
    """A folder in memory, where there is one: each restored file is synced."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def fuzz(num_mutations: int, seed: int, watch: Watch) -> Outcome:
    """Mutate and open, again and again."""
    draw, outcome = random.Random(seed), Outcome()
    good, manifest = good_version()
    with tempfile.TemporaryDirectory(dir=_memory_folder()) as directory:
        watch.directory = Path(directory).resolve()
        inside = watch.directory / "restored"
        open_everything(
            good, str(next(p for p in good if p.parent.name == "versions").stem), inside
        )
        watch.code_run = watch.written_outside = 0
        tracemalloc.start()
        for _ in range(num_mutations):
            files, name = mutated_version(good, manifest, draw)
            outcome.mutations += 1
            _attempt(lambda: open_everything(files, name, inside), files, outcome, watch)  # noqa: B023
        tracemalloc.stop()
        strangers = [path for path in Path(directory).iterdir() if path.name != "restored"]
    outcome.code_run, outcome.written_outside = watch.code_run, watch.written_outside
    outcome.written_outside += len(strangers)
    return outcome


def _attempt(action: Callable[[], None], files: Files, outcome: Outcome, watch: Watch) -> None:
    limit_bytes = 2 * sum(map(len, files.values())) + SLACK_BYTES
    watch.is_on = True
    try:
        was_refused, taken_bytes = _observed(action)
        if taken_bytes > limit_bytes:  # a table of the interpreter's own may have grown: once more
            was_refused, taken_bytes = _observed(action)
        outcome.refused += was_refused
        outcome.hungry += taken_bytes > limit_bytes
    except Exception:
        outcome.other_errors += 1
    finally:
        watch.is_on = False


def _observed(action: Callable[[], None]) -> tuple[bool, int]:
    """Whether it was refused, and the most memory that it took."""
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    was_refused = False
    try:
        action()
    except (CheckpointError, OSError):  # a name may be too long for the disk, or a folder's
        was_refused = True
    return was_refused, tracemalloc.get_traced_memory()[1] - before


@contextmanager
def replaced(place: Any, name: str, value: Any) -> Iterator[None]:
    """A defect, as long as it lasts."""
    intact = getattr(place, name)
    setattr(place, name, value)
    try:
        yield
    finally:
        setattr(place, name, intact)


def _believes_sizes(pack: Any) -> dict[str, TensorBytes]:
    """A mutant that makes room for as much as a header claims."""
    view = memoryview(pack)
    bytearray(min(int.from_bytes(view[:8], "little"), 8 * 1024**2))
    return decode(pack)


def _believes_segments(packed: Any, size_bytes: int) -> bytearray:
    """A mutant that makes room for as much as a compressed object claims of its first segment."""
    bytearray(min(int.from_bytes(packed[25:29], "little"), 8 * 1024**2))
    return decompress(packed, size_bytes)


def _evaluates(data: bytes, name: VersionName) -> Manifest:
    """A mutant that reads a manifest as Python."""
    with suppress(Exception):
        eval(data)
    return parse_manifest(data, name)


class _AnyName:
    """A mutant of the names of run files: every one will do."""

    @staticmethod
    def fullmatch(name: str) -> Any:
        return ("", name.partition("/")[2].partition("@")[0] or "x", "0")


def _raises_key_errors(pack: Any) -> dict[str, TensorBytes]:
    """A mutant that reads a header without a thought."""
    view = memoryview(pack)
    header = json.loads(bytes(view[8 : 8 + int.from_bytes(view[:8], "little")]))
    for entry in header.values():
        entry["data_offsets"][1] - entry["data_offsets"][0]
    return decode(pack)


MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "believes sizes": (store, "decode", _believes_sizes),
    "believes segments": (objects, "decompress", _believes_segments),
    "reads Python": (store, "parse_manifest", _evaluates),
    "any file name": (run_files, "_name_pattern", lambda: _AnyName),
    "any header": (store, "decode", _raises_key_errors),
}


def figures(num_mutations: int, num_of_mutants: int = 1500) -> dict[str, int]:
    """The outcome, and how many of the deliberate defects show."""
    watch = Watch()
    outcome = fuzz(num_mutations, 0, watch)
    caught = 0
    for place, name, defect in MUTANTS.values():
        with replaced(place, name, defect):
            caught += fuzz(num_of_mutants, 1, watch).is_bad
    return {**asdict(outcome), "mutants": len(MUTANTS), "mutants_caught": caught}
