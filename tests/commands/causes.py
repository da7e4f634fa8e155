"""Which line of the project answers a wrong input: two inputs with one such line have one cause."""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from pydantic import ValidationError

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core import messages
from infrastructure.training.methods import check

ROOT = Path(__file__).parents[2]
OURS = tuple(f"{ROOT / name}/" for name in ("infrastructure", "colab"))
# These collect sentences, and raise them together.
COLLECTORS = ("check_supported", "check_method")


@contextmanager
def places_of_sentences(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Inside, the line is noted which yields a sentence about settings that do not fit together."""
    places: dict[str, str] = {}

    def trace(frame: FrameType, event: str, value: Any) -> Any:
        if event == "return" and isinstance(value, str) and frame.f_code.co_flags & 0x20:
            places.setdefault(value, _place(frame.f_code.co_filename, frame, frame.f_lineno))
        file = frame.f_code.co_filename
        return trace if file.startswith(OURS) and file != messages.__file__ else None

    original = DeploymentConfig.problems

    def problems(config: DeploymentConfig) -> list[str]:
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            return original(config)
        finally:
            sys.settrace(before)

    monkeypatch.setattr(DeploymentConfig, "problems", problems)
    of_method = check.problems_of

    def problems_of(*arguments: Any) -> list[str]:
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            return of_method(*arguments)
        finally:
            sys.settrace(before)

    monkeypatch.setattr(check, "problems_of", problems_of)
    yield places


def cause_of(error: BaseException, sentences: dict[str, str]) -> str:
    """`file:function:line` of the innermost line of ours that refused the input."""
    cause = ""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if isinstance(current, ValidationError):
            inner = current.errors(include_url=False)[0].get("ctx", {}).get("error")
            current = inner if isinstance(inner, BaseException) else None
            continue
        cause = _raised_at(current, sentences) or cause
        current = current.__cause__ or current.__context__
    return cause


def _raised_at(error: BaseException, sentences: dict[str, str]) -> str | None:
    """None where something else than the project has raised it."""
    frames = list(traceback.walk_tb(error.__traceback__))
    if not frames or not frames[-1][0].f_code.co_filename.startswith(OURS):
        return None
    frame, line = frames[-1]
    if frame.f_code.co_name in COLLECTORS:
        return next((place for text, place in sentences.items() if text in str(error)), None)
    return _place(frame.f_code.co_filename, frame, line)


def _place(file: str, frame: FrameType, line: int) -> str:
    return f"{Path(file).relative_to(ROOT)}:{frame.f_code.co_qualname}:{line}"
