"""What run.json says of every run: what was asked for, by whom each setting was set, and where it
runs."""

import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict

from infrastructure.core.hardware import detect
from infrastructure.core.json_text import JsonValue
from infrastructure.core.redact import redact
from infrastructure.run.directory import RunDirectory
from infrastructure.run.record_types import BaseRunRecord


def base_record(
    run: RunDirectory,
    settings: Mapping[str, tuple[object, str]],
    versions: Mapping[str, str],
    device: str,
    num_processes: int,
) -> BaseRunRecord:
    """The part of run.json that does not depend on what trains.

    Args:
        settings: by key the value, and the place where it was set.
        versions: of Python and of packages.
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


def shown(value: object) -> JsonValue:
    """A setting as JSON; of a text without secrets."""
    if isinstance(value, str):
        return redact(value)
    return value if isinstance(value, int | float | bool | list | dict | None) else str(value)
