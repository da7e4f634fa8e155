"""The sample tasks as conversations, as an example of a user's own chat file.

Each conversation consists of three questions of the training file with their answers, so it
contains no held-out question, and every answer is correct.
"""

import json
from pathlib import Path

from infrastructure.core.files import write_text
from infrastructure.data.samples import SAMPLE_TRAIN

QUESTIONS_PER_CHAT = 3
SYSTEM = "You are short and exact."


def write_sample_chats(path: Path) -> Path:
    """Write the conversations into `path`, one per line, `{"messages": [{"role", "content"}, …]}`.

    Raises:
        OSError: the file cannot be written.
    """
    rows = [json.loads(line) for line in SAMPLE_TRAIN.read_text(encoding="utf-8").splitlines()]
    starts = range(0, len(rows), QUESTIONS_PER_CHAT)
    chats = [json.dumps({"messages": messages(rows[i : i + QUESTIONS_PER_CHAT])}) for i in starts]
    write_text(path, "\n".join(chats) + "\n")
    return path


def messages(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return one conversation: a system message, then questions and answers in turn."""
    turns = [{"role": "system", "content": SYSTEM}]
    for row in rows:
        turns.append({"role": "user", "content": row["prompt"]})
        turns.append({"role": "assistant", "content": row["completion"]})
    return turns
