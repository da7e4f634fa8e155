"""How this stand-in behaves, and what was asked of it."""

import json
import os
from pathlib import Path
from typing import Any


def folder() -> Path:
    return Path(os.environ["FAKE_COLAB"])


def behaviour(name: str, otherwise: Any = None) -> Any:
    file = folder() / "behaviour.json"
    return json.loads(file.read_text()).get(name, otherwise) if file.exists() else otherwise


def note(call: str, **arguments: Any) -> None:
    with (folder() / "calls.jsonl").open("a") as file:
        file.write(json.dumps({"call": call, **arguments}) + "\n")
