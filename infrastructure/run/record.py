"""The part of run.json that all runs have: the command, the machine, settings and their sources."""

import shlex
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import cast

from infrastructure.core.checksums import read_record, write_record
from infrastructure.core.errors import DamagedFileError
from infrastructure.core.hardware import detect
from infrastructure.core.json_text import JsonValue
from infrastructure.core.redact import redact, redact_urls
from infrastructure.run.directory import RunDirectory
from infrastructure.run.record_types import BaseRunRecord, BroughtBack


def base_record(
    run: RunDirectory,
    settings: Mapping[str, tuple[object, str]],
    versions: Mapping[str, str],
    device: str,
    num_processes: int,
) -> BaseRunRecord:
    """Return the part of run.json that is the same for all training loops.

    Args:
        settings: key → the value of the setting, and where it was set.
        versions: the versions of Python and of packages.
    """
    return {
        "run_id": run.run_id,
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": redact(shlex.join(sys.argv)),
        "config": {
            key: {"value": shown(value), "source": source}
            for key, (value, source) in settings.items()
        },
        "versions": dict(versions),
        "hardware": {**asdict(detect(run.path)), "device": device, "processes": num_processes},
    }


def read_run_record(run: RunDirectory) -> BaseRunRecord:
    """Return the contents of run.json; empty if it is missing or damaged."""
    try:
        return cast(BaseRunRecord, read_record(run.run_file))
    except (OSError, DamagedFileError):
        return {}


def record_brought_back(run: RunDirectory, place: str, was_killed: bool) -> None:
    """Record in run.json that an unfinished run was restored from a destination."""
    record = read_run_record(run)
    if not record:
        return
    back: BroughtBack = {"place": redact_urls(place), "was_killed": was_killed}
    with suppress(OSError):  # it is only displayed
        write_record(run.run_file, {**record, "brought_back": back})


def shown(value: object) -> JsonValue:
    """Return the value of a setting as JSON, with secrets masked if it is a string."""
    if isinstance(value, str):
        return redact(value)
    return value if isinstance(value, int | float | bool | list | dict | None) else str(value)
