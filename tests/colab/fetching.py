"""What the tests of fetching share: rows, a hurried patience, and a look at what is there."""

import hashlib
from dataclasses import replace
from pathlib import Path

from colab.fetching_data import fetch_file
from colab.remote_files import RemoteFile, WebFile
from colab.transfer import Patience
from tests.colab.file_server import FileServer

ROWS = b"".join(b'{"prompt": "%d?", "completion": "%d."}\n' % (i, i) for i in range(500))
HASH = hashlib.sha256(ROWS).hexdigest()
# Waits for a busy machine, but not between attempts; and the one for servers that must be given up.
HURRIED = Patience(
    silence_seconds=20, pace_seconds=20, least_bytes=2000, num_attempts=3, first_wait_seconds=0.01
)
IMPATIENT = Patience(
    silence_seconds=0.3, pace_seconds=0.4, least_bytes=2000, num_attempts=3, first_wait_seconds=0.01
)
TRICKLED = replace(IMPATIENT, silence_seconds=20)  # for one that says little


def web(
    file_server: FileServer, path: str = "/rows.jsonl", patience: Patience = HURRIED
) -> WebFile:
    return WebFile(file_server.url + path, patience.silence_seconds)


def fetch(
    remote: RemoteFile, folder: Path, sha256: str | None = None, patience: Patience = HURRIED
) -> Path:
    return fetch_file(remote, sha256, folder, 60, patience)


def visible(folder: Path) -> list[str]:
    """What a person, or a training on the folder, would see there."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def parts(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if "part" in path.parts and path.is_file()]
