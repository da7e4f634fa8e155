"""The sources of data that a user can give: a path, an address, a Drive link or id, a Hub name."""

import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from colab.remote_files import DriveFile, MountedFile, RemoteFile, WebFile
from infrastructure.backup.backends.drive import drive_folder
from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.core.redact import public_address
from infrastructure.data.readers.sources import ADDRESS

HUB_FILE = "hf://"
DRIVE_HOSTS = ("drive.google.com", "drive.usercontent.google.com", "docs.google.com")
DRIVE_ID = re.compile(r"[\w-]{25,60}")
FILE_LINK = re.compile(r"/file/(?:u/\d+/)?d/([\w-]+)")
DOCUMENT_LINK = re.compile(r"/(spreadsheets|document)/(?:u/\d+/)?d/([\w-]+)")
EXPORTS = {"spreadsheets": "csv", "document": "txt"}

KNOWN = "notebook.known_sources"  # the code of what can be fetched


def find_remote(source: str, silence_seconds: float) -> RemoteFile | None:
    """Return the remote file that `source` names, or None if `source` may be a path or a Hub name.

    Raises:
        ValueError: if nothing can be fetched from this address.
    """
    if source.lower().startswith(("http://", "https://")):
        return _web_file(source, silence_seconds)
    if ADDRESS.match(source) and not source.startswith(HUB_FILE):
        raise InputError(
            "notebook.address_not_fetched", address=public_address(source), known=phrase(KNOWN)
        )
    if DRIVE_ID.fullmatch(source) and not Path(source).exists():
        return DriveFile(source, silence_seconds)
    path = Path(source).expanduser().absolute()
    if drive_folder(path) is None:
        return None
    mounted = MountedFile(path, silence_seconds)
    return None if mounted.is_folder() else mounted


def _web_file(address: str, silence_seconds: float) -> WebFile:
    try:
        parts = urlsplit(address)
        host = parts.hostname
    except ValueError:  # brackets that are not an IPv6 address
        host = None
    if not host:
        raise InputError("notebook.not_a_web_address", address=public_address(address))
    if host not in DRIVE_HOSTS:
        return WebFile(address, silence_seconds)
    query = parse_qs(parts.query)
    if document := DOCUMENT_LINK.match(parts.path):
        return WebFile(_export(document[1], document[2], parts.fragment, query), silence_seconds)
    file = FILE_LINK.match(parts.path)
    file_id = file[1] if file else next(iter(query.get("id", [])), "")
    if not DRIVE_ID.fullmatch(file_id):
        raise InputError("notebook.drive_link_of_no_file")
    return DriveFile(file_id, silence_seconds, next(iter(query.get("resourcekey", [])), ""))


def _export(kind: str, document_id: str, fragment: str, query: dict[str, list[str]]) -> str:
    """Return the export address of a Google Sheet (as CSV) or of a Google document (as text)."""
    sheet = parse_qs(fragment).get("gid") or query.get("gid") or []
    shown = f"&gid={sheet[0]}" if sheet and sheet[0].isdecimal() else ""
    return (
        f"https://docs.google.com/{kind}/d/{document_id}/export?format={EXPORTS[kind]}"
        f"{shown if kind == 'spreadsheets' else ''}"
    )
