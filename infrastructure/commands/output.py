"""What a command prints: lines for a person, or with `--json` one object on standard output."""

import json
import sys
from collections.abc import Mapping


def show(as_json: bool, facts: Mapping[str, object], *lines: str) -> None:
    """Print the result of a command."""
    print(json.dumps(facts, ensure_ascii=False) if as_json else "\n".join(lines))


def progress(as_json: bool, line: str) -> None:
    """Print a line while a command works; beside its result."""
    print(line, file=sys.stderr if as_json else sys.stdout, flush=True)
