"""The sample tasks stand in one file each; as conversations they are three to a chat."""

import json
from collections import Counter
from pathlib import Path

from infrastructure.data.samples import SAMPLE_HELDOUT, SAMPLE_TRAIN
from infrastructure.data.samples.sample_chats import write_sample_chats


def test_every_task_is_there_once_and_in_order(tmp_path: Path) -> None:
    path = write_sample_chats(tmp_path / "chats.jsonl")
    chats = [json.loads(line)["messages"] for line in path.read_text().splitlines()]
    turns = [turn for chat in chats for turn in chat[1:]]
    rows = [json.loads(line) for line in SAMPLE_TRAIN.read_text().splitlines()]
    assert [t["content"] for t in turns[::2]] == [row["prompt"] for row in rows]
    assert [t["content"] for t in turns[1::2]] == [row["completion"] for row in rows]
    assert {turn["role"] for turn in turns[::2]} == {"user"}
    assert {turn["role"] for turn in turns[1::2]} == {"assistant"}
    assert {chat[0]["role"] for chat in chats} == {"system"}
    assert {len(chat) for chat in chats[:-1]} == {7}


def test_no_prompt_stands_twice_and_every_task_is_in_both_files() -> None:
    train, held_out = (
        [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        for path in (SAMPLE_TRAIN, SAMPLE_HELDOUT)
    )
    assert (
        len({row["prompt"] for row in (*train, *held_out)}) == len(train) + len(held_out) == 11056
    )
    tasks = Counter(row["task"] for row in held_out)
    assert tasks == dict.fromkeys({row["task"] for row in train}, 50)
