"""Small data files that stand for gigabytes, and what reading them takes.

    python -m tests.faults.hostile_data FOLDER [NUM_MUTATIONS]

Writes each into FOLDER, and reads all its rows as a preparation does, in a process that may take
MEMORY_BYTES. Then damages sound files, page headers with the rest, and reads them there. Prints one
JSON line: what came of each file, the most memory that the process took, and how many of the
damaged ones ended in anything but rows and a ValueError.
"""

import gzip
import io
import json
import random
import resource
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from infrastructure.core.process_memory import peak_resident_bytes
from infrastructure.data.preparation.row_encoder import CHUNK_ROWS
from infrastructure.data.readers import table_formats
from infrastructure.data.readers.row_limits import in_chunks
from infrastructure.data.readers.sources import discover
from tests.data.file_shapes import MAIN, SHEETS, sheet

ROOT = Path(__file__).resolve().parents[2]
LONG = 12 << 20  # a text that a row may hold
HUGE = 200 << 20
NUM_ROWS = 200
MEMORY_BYTES = 3 << 29  # far less than what the files stand for
ZSTD: dict[str, Any] = {"compression": "zstd", "dictionary_pagesize_limit": 1 << 30}


def repeated(path: Path, length: int, num_rows: int, **arguments: Any) -> None:
    """One long text in a dictionary, which every row names."""
    numbers = pa.array([0] * num_rows, pa.int32())
    column = pa.DictionaryArray.from_arrays(numbers, pa.array(["a" * length]))
    pq.write_table(pa.table({"text": column}), path, **ZSTD, **arguments)


def in_one_list(path: Path, length: int, num_values: int) -> None:
    """The same, and one row that names it again and again."""
    numbers = pa.array(np.zeros(num_values, np.int32))
    inner = pa.DictionaryArray.from_arrays(numbers, pa.array(["a" * length]))
    column = pa.ListArray.from_arrays(pa.array([0, num_values], pa.int32()), inner)
    pq.write_table(pa.table({"text": column}), path, **ZSTD)


def in_structs(path: Path) -> None:
    """Messages as chats have them, all of which say the same long text."""
    roles, texts = (
        pa.DictionaryArray.from_arrays(pa.array([0] * NUM_ROWS, pa.int32()), pa.array([text]))
        for text in ("user", "a" * LONG)
    )
    inner = pa.StructArray.from_arrays([roles, texts], ["role", "content"])
    column = pa.ListArray.from_arrays(pa.array(range(NUM_ROWS + 1), pa.int32()), inner)
    pq.write_table(pa.table({"messages": column}), path, **ZSTD)


def pages_of_zeros(path: Path) -> None:
    """Plain texts of one letter, which compress to nothing."""
    table = pa.table({"text": ["a" * LONG] * 30})
    pq.write_table(table, path, compression="zstd", use_dictionary=False, data_page_size=1 << 30)


def plain_columns(path: Path) -> None:
    """The same in many columns."""
    column = pa.array(["a" * LONG] * 8)
    table = pa.table({f"c{n}": column for n in range(40)})
    pq.write_table(table, path, compression="zstd", use_dictionary=False)


def same_beginnings(path: Path, in_list: bool) -> None:
    """Each text stored as how much of the one before it has."""
    texts = pa.array(["a" * (1 << 20)] * 2000)
    column = pa.ListArray.from_arrays(pa.array([0, 2000], pa.int32()), texts) if in_list else texts
    arguments = {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"}
    if in_list:
        arguments["column_encoding"] = {"text.list.element": "DELTA_BYTE_ARRAY"}
    pq.write_table(pa.table({"text": column}), path, compression="zstd", **arguments)


def fixed_width(path: Path) -> None:
    """A number as wide as a text."""
    kind = pa.binary(LONG)
    column = pa.array([b"a" * LONG] * 30, kind)
    pq.write_table(pa.table({"text": column}), path, **ZSTD)


def zeros_in_one_list(path: Path) -> None:
    """A list of numbers that are all the same."""
    values = pa.array(np.zeros(60_000_000, np.int64))
    column = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    pq.write_table(pa.table({"text": column}), path, compression="zstd")


def claimed_page(path: Path) -> None:
    """A page whose header claims two gigabytes."""
    pq.write_table(pa.table({"text": ["a" * 100] * 9}), path, compression="zstd")
    data = bytearray(path.read_bytes())
    at = pq.read_metadata(path).row_group(0).column(0).dictionary_page_offset
    assert data[at : at + 3] == bytes([0x15, 0x04, 0x15])  # a dictionary; then its size comes
    length = 1
    while data[at + 2 + length] & 128:
        length += 1
    claimed, value = bytearray(), 2 * (2**31 - 1)
    while value > 127:
        claimed.append(value & 127 | 128)
        value >>= 7
    claimed.append(value)
    data[at + 3 : at + 3 + length] = claimed
    path.write_bytes(data)  # what comes after is moved, and never reached


def never_written(path: Path) -> None:
    """Fields that read as zeros, and take no place."""
    with h5py.File(path, "w") as file:
        file.create_dataset("text", (NUM_ROWS,), f"S{LONG}")
        file.create_dataset("other", (NUM_ROWS,), f"S{HUGE}")


def compressed_fields(path: Path, num_rows: int, together: int) -> None:
    """Fields of one letter, compressed in pieces of `together`."""
    piece = zlib.compress(b"a" * LONG * together, 9)
    with h5py.File(path, "w") as file:
        shape = {"shape": (num_rows,), "chunks": (together,)}
        data = file.create_dataset("text", dtype=f"S{LONG}", compression="gzip", **shape)
        for first in range(0, num_rows, together):
            data.id.write_direct_chunk((first,), piece)


def zipped(path: Path, line: bytes, times: int) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(times):
            file.write(line)


def in_archive(path: Path, names: Sequence[str], piece: bytes, times: int) -> None:
    """Files in a zip archive, each of which says the same again and again."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            with archive.open(name, "w", force_zip64=False) as member:
                for _ in range(times):
                    member.write(piece)


def many_names(path: Path) -> None:
    """An archive of files with nothing inside."""
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(78_000):
            archive.writestr(zipfile.ZipInfo(f"{number}.csv"), b"")


def workbook(path: Path, texts: str, cells: str) -> None:
    """An Excel file with these texts and lines."""
    held = sheet([["prompt", "completion"]])
    with zipfile.ZipFile(io.BytesIO(held)) as old, zipfile.ZipFile(path, "w", 8) as new:
        for name in old.namelist():
            data = old.read(name)
            if name.endswith("sheet1.xml"):
                data = data.replace(b"</sheetData>", cells.encode() + b"</sheetData>")
            if name.startswith("[Content"):
                part = f"<Override PartName='/xl/s.xml' ContentType='{SHEETS}.sharedStrings+xml'/>"
                data = data.replace(b"</Types>", part.encode() + b"</Types>")
            new.writestr(name, data)
        new.writestr("xl/s.xml", f"<sst xmlns='{MAIN}'>{texts}</sst>")


def cell(number: int) -> str:
    return f"<row r='{number}'><c t='s'><v>0</v></c><c t='s'><v>0</v></c></row>"


ROW = b'{"prompt": "' + b"a" * LONG + b'", "completion": "b"}\n'
LINES = (b"a" * 9999 + b"\n") * (LONG // 10_000)
LISTS = b'{"a": [' + b"[]," * 5_000_000 + b"[]]}\n"

BOMBS: dict[str, Callable[[Path], None]] = {
    "dictionary.parquet": lambda path: repeated(path, LONG, NUM_ROWS),
    "huge_dictionary.parquet": lambda path: repeated(path, HUGE, 300),
    "uncompressed.parquet": lambda path: repeated(path, 1 << 20, 3000),
    "list.parquet": lambda path: in_one_list(path, LONG, NUM_ROWS),
    "structs.parquet": in_structs,
    "pages.parquet": pages_of_zeros,
    "columns.parquet": plain_columns,
    "beginnings.parquet": lambda path: same_beginnings(path, in_list=False),
    "list_of_beginnings.parquet": lambda path: same_beginnings(path, in_list=True),
    "fixed.parquet": fixed_width,
    "zeros.parquet": zeros_in_one_list,
    "claim.parquet": claimed_page,
    "never_written.h5": never_written,
    "compressed.h5": lambda path: compressed_fields(path, 48, 24),
    "field_by_field.h5": lambda path: compressed_fields(path, 300, 1),
    "rows.jsonl.gz": lambda path: zipped(path, ROW, 60),
    "one_line.jsonl.gz": lambda path: zipped(path, b"a" * LONG, 60),
    "lists.jsonl.gz": lambda path: zipped(path, LISTS, 3),
    "lists.json.gz": lambda path: zipped(path, b"[" + LISTS + b"]", 1),
    "one_element.json.gz": lambda path: zipped(path, b'[{"a": "' + b"a" * LONG, 60),
    "quote.csv.gz": lambda path: zipped(path, b'a,b\n1,"' + LINES, 60),
    "record.csv.gz": lambda path: zipped(path, b'a,b\n"' + LINES * 2 + b'",b\n', 20),
    "rows.zip": lambda path: in_archive(path, ["rows.jsonl"], ROW, 60),
    "one_line.zip": lambda path: in_archive(path, ["rows.jsonl"], b"a" * LONG, 60),
    "names.zip": many_names,
    "one_line.jsonl.zst": lambda path: path.write_bytes(zstandard.compress(b"a" * LONG * 60)),
    "columns.json.gz": lambda path: zipped(path, b'{"a":["' + b"a" * LONG + b'"],"b":1,"', 60),
    "columns_of_lists.json.gz": lambda path: zipped(path, LISTS, 1),
    "texts.xlsx": lambda path: workbook(path, "<si><t>a</t></si>" * 20_000_000, ""),
    "one_text.xlsx": lambda path: workbook(
        path, f"<si><t>{'a' * LONG}</t></si>", "".join(cell(n) for n in range(2, 120))
    ),
    "empty_lines.xlsx": lambda path: workbook(path, "", "<row/>" * 10_000_000),
    "far_line.xlsx": lambda path: workbook(path, "", "<row r='2000000000'/>"),
    "passage.txt.gz": lambda path: zipped(path, b"a\n\n" + LINES * 20, 1),
}
QUICK = [
    *("dictionary.parquet", "list.parquet", "structs.parquet", "claim.parquet"),
    *("one_line.jsonl.zst", "one_text.xlsx"),
    *("never_written.h5", "lists.jsonl.gz", "passage.txt.gz"),
]


def outcome(path: Path) -> str:
    """What reading all rows in chunks comes to."""
    counts: Counter[str] = Counter()
    try:
        for chunk in in_chunks(discover(str(path))[0].rows(), CHUNK_ROWS):
            counts.update(type(row).__name__ for row in chunk)
    except ValueError as error:
        return f"refused: {error}"
    return ", ".join(f"{number} {kind}" for kind, number in sorted(counts.items()))


def good_files(folder: Path) -> list[Path]:
    """One sound file of each kind."""
    rows = {"prompt": [f"Say {n % 7}." for n in range(300)], "completion": ["a"] * 300}
    chats = [[{"role": "user", "content": f"{n}"}] for n in range(300)]
    table = pa.table({**rows, "messages": chats})
    paths = [folder / f"good.{ending}" for ending in ("zstd.parquet", "plain.parquet", "h5", "csv")]
    pq.write_table(table, paths[0], compression="zstd", row_group_size=100)
    pq.write_table(table, paths[1], compression="none", use_dictionary=False)
    with h5py.File(paths[2], "w") as file:
        for key, values in rows.items():
            file[key] = values
    paths[3].write_text("a,b\n" + '"x\ny",z\n' * 50)
    lines = [json.dumps({"prompt": "a", "completion": [n]}) for n in range(50)]
    for name, text in (("good.jsonl", "\n".join(lines)), ("good.json", f"[{','.join(lines)}]")):
        (folder / name).write_text(text)
        paths.append(folder / name)
    lines = (folder / "good.jsonl").read_bytes()
    paths += [folder / f"good.{ending}" for ending in ("zip", "jsonl.zst", "xlsx")]
    in_archive(paths[-3], ["rows.jsonl"], lines, 1)
    paths[-2].write_bytes(zstandard.compress(lines))
    paths[-1].write_bytes(sheet([["prompt", "completion"], *[["a", "b"]] * 50]))
    return paths


def mutated(data: bytes, draw: random.Random) -> bytes:
    """Some bytes replaced, removed or repeated."""
    changed = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(changed))
        pieces = [bytes([draw.randrange(256)]), b"\xff\xff\xff\xff\x0f", b"[" * 3000, b'"', b""]
        changed[at : at + draw.randint(0, 4)] = draw.choice(pieces)
    return bytes(changed)


def figures(
    folder: Path, names: Sequence[str], num_mutations: int, without: str = "nothing"
) -> dict[str, Any]:
    """Write the files here and read them in a process whose memory is limited.

    Args:
        without: which limit is taken away there, to see that it shows.
    """
    for name in names:
        if not (folder / name).exists():
            BOMBS[name](folder / name)
    good_files(folder)
    arguments = [str(folder), str(num_mutations), without, *names]
    command = [sys.executable, "-m", "tests.faults.hostile_data", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"died": done.returncode, "last": (done.stdout + done.stderr)[-2000:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def read_all(folder: Path, names: Sequence[str], num_mutations: int) -> dict[str, Any]:
    """What the process with the limit does."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, hard))
    found: dict[str, Any] = {}
    for name in names:
        found[name] = outcome(folder / name)
    draw, other_errors = random.Random(0), Counter[str]()
    paths = sorted(folder.glob("good.*"))
    for number in range(num_mutations):
        source = paths[number % len(paths)]
        path = folder / source.name.replace("good", "bad")
        path.write_bytes(mutated(source.read_bytes(), draw))
        try:
            outcome(path)
        except Exception as error:
            other_errors[f"{source.name}: {type(error).__name__}"] += 1
            shutil.copy(path, folder / f"{number}.{path.name}")
    peak_mib = peak_resident_bytes() >> 20
    return {"files": found, "other_errors": other_errors, "peak_mib": peak_mib}


def main(folder: Path, num_mutations: int = 0, without: str = "", *names: str) -> None:
    """With names, what the process with the limit does."""
    for name in {"row limit": ("fits_a_row",), "page limit": ("rows_at_once",)}.get(without, ()):
        setattr(table_formats, name, lambda *_: table_formats.READ_ROWS)
    act = read_all if names else figures
    print(json.dumps(act(folder, names or [*BOMBS], num_mutations)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:3]), *sys.argv[3:])
