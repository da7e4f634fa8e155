"""Finds pickles in files: whole ones, in zip archives, and in the middle of anything else."""

import io
import pickletools
import re
import zipfile
from pathlib import Path

# Protocol 2 and later begin like this; older ones are text and are looked for at the start alone.
PROTOCOL_MARK = re.compile(rb"\x80[\x02-\x05]")
FEWEST_OPCODES = 4  # that chance does not put into a tensor's bytes in an order that makes sense
LONGEST_BYTES = 64 * 1024


def pickles_in(data: bytes) -> int:
    """How many pickles there are in `data`."""
    if data[:4] == b"PK\3\4":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return sum(pickles_in(archive.read(name)) for name in archive.namelist())
    begins = {match.start() for match in PROTOCOL_MARK.finditer(data)} | {0}
    return sum(_is_pickle(data[begin : begin + LONGEST_BYTES]) for begin in begins)


def _is_pickle(data: bytes) -> bool:
    """Whether a pickle machine would read this from its first byte to a STOP."""
    try:
        names = [opcode.name for opcode, _, _ in pickletools.genops(data)]
        pickletools.dis(data, out=io.StringIO())
    except Exception:  # whatever random bytes do to the parser
        return False
    return names[-1] == "STOP" and len(names) >= FEWEST_OPCODES


def files_with_pickles(directory: Path) -> list[Path]:
    """The files under `directory` that are a pickle or have one in them."""
    found = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    return [path for path in found if pickles_in(path.read_bytes())]
