"""Any damage to any file of prepared data is healed by the next run, or told in one sentence."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infrastructure.core.errors import DataError
from infrastructure.data.data_pipeline import DataPipeline
from infrastructure.data.encoding.augmentation import (
    AUGMENTATIONS,
    register_augmentation,
)
from infrastructure.data.store.token_store import LARGE_FILES
from tests.data.builders import epoch, pairs, pipeline, write_jsonl
from tests.slow import slow_but

STORED = (
    "meta.json",
    "input_ids.npy",
    "supervised.npy",
    "offsets.npy",
    "tasks.npy",
    "row_files.npy",
    "row_lines.npy",
    "train_rows.npy",
    "evaluation_rows.npy",
    "train_contents.npy",
    "evaluation_contents.npy",
    "evaluation.jsonl",
    "quarantine.jsonl",
    "conversations.jsonl",
    "conversation_ends.npy",
)
KINDS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "stored": ({}, STORED),
    "augmented": ({"augmentation": "same"}, STORED),
    "streamed": ({"streaming": True}, (*STORED, "windows.npy", "is_used.npy")),
}
CASES = [(kind, name) for kind, (_, names) in KINDS.items() for name in names]
QUICK = [
    (kind, name)
    for kind, name in CASES
    if kind == "stored" or name in ("conversations.jsonl", "windows.npy", "is_used.npy")
]


def flip(data: bytearray) -> None:
    data[len(data) // 2] ^= 1


def cut(data: bytearray) -> None:
    del data[len(data) // 2 :]


def empty(data: bytearray) -> None:
    data.clear()


@pytest.fixture(autouse=True)
def same() -> Iterator[None]:
    register_augmentation("same", lambda conversation, generator: conversation)
    yield
    AUGMENTATIONS.unregister("same")


def everything(prepared: DataPipeline) -> list[Any]:
    held_out = [e.input_ids.tolist() for batch in prepared.evaluation_batches(8) for e in batch]
    places = prepared.places(0, 0, 5)
    contents = [np.array(prepared.contents(held_out=side)).tolist() for side in (False, True)]
    rows = prepared.evaluation_rows()
    return [epoch(prepared), held_out, rows, prepared.fingerprint, places, contents]


@pytest.mark.parametrize("memory_size", [1000, 0], ids=["in memory", "mapped"])
@pytest.mark.parametrize(("kind", "name"), slow_but(QUICK, CASES))
def test_damage_heals_or_is_reported(
    tmp_path: Path, cache: Path, kind: str, name: str, memory_size: int
) -> None:
    rows = [*pairs(30), {"question": "no answer", "answer": "", "task": "odd"}]
    data = write_jsonl(tmp_path / "train.jsonl", rows)
    settings, names = KINDS[kind]

    def opened() -> DataPipeline:
        return pipeline(data, cache, memory_size=memory_size, max_bad_rows_percent=50, **settings)

    first = everything(opened())
    for damage in (flip, cut, empty):
        (entry,) = (p for p in (cache / "tokens").iterdir() if not p.name.startswith("."))
        assert {p.name for p in entry.iterdir()} == {*names, "in_use.lock"}
        if _damage(entry / name, damage):
            _check_next_run(opened, first, entry, may_be_reported=name in LARGE_FILES)


def _damage(path: Path, damage: Callable[[bytearray], None]) -> bool:
    data = bytearray(path.read_bytes())
    if data:  # of a stream, some are empty anyhow
        damage(data)
    changed = bytes(data) != path.read_bytes()
    path.write_bytes(data)
    return changed


def _check_next_run(
    opened: Callable[[], DataPipeline], first: list[Any], entry: Path, may_be_reported: bool
) -> None:
    try:
        prepared = opened()
        found, was_there = everything(prepared), prepared.report.from_cache
    except DataError as error:
        assert may_be_reported
        text = str(error)
        assert text.startswith(f"data.prepared_data_damaged(folder={entry}, reason=")
        shutil.rmtree(entry)
        assert everything(opened()) == first
        return
    assert found == first
    if was_there:  # what is damaged was not needed
        assert may_be_reported
        assert not prepared.store.is_in_memory
