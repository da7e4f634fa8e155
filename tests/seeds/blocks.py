"""The code blocks of the five specifications, whose texts lie in this folder."""

import re
import textwrap
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^(?:#+ |\d+\. \*\*)(.*?)[*:]*$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        name: of the document and the heading above it, such as "000 Training Loop"; from the second
            block under it on with a number.
        language: as the fence says; empty where it does not.
    """

    name: str
    language: str
    text: str


def all_blocks() -> dict[str, Block]:
    """Every block of every document, by name, in their order."""
    found: dict[str, Block] = {}
    for path in sorted(FOLDER.glob("*.txt")):
        text = path.read_text()
        seen: Counter[str] = Counter()
        for match in _FENCE.finditer(text):
            heading = _headings_before(text, match.start())[-1]
            title = re.sub(r"^[\d.]+ ", "", heading)
            seen[title] += 1
            number = f" {seen[title]}" if seen[title] > 1 else ""
            name = f"{path.stem} {title}{number}"
            found[name] = Block(name, match[2], textwrap.dedent(match[3]))
    return found


def _headings_before(text: str, position: int) -> list[str]:
    """Of the document's own text: a comment in a block looks like one."""
    without_blocks = _FENCE.sub(lambda match: " " * len(match[0]), text)
    return [match[1] for match in _HEADING.finditer(without_blocks[:position])]


def num_fences() -> int:
    """Lines that open or close a block, over all documents."""
    return sum(
        len(re.findall(r"^ *```", path.read_text(), re.MULTILINE)) for path in FOLDER.glob("*.txt")
    )
