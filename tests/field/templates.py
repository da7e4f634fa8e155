"""What each chat template that TRL ships leaves out of a row.

    python -m tests.field.templates

Each part of a row has words of its own that stand nowhere else, so that a reader who knows nothing
of chat templates can look for them in the decoded tokens.
"""

import json
import sys
from dataclasses import dataclass
from typing import Any

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.data.encoding.chat_format import FormatError, TemplateFormat
from infrastructure.data.encoding.row_accounting import Account, RowAccounting
from infrastructure.data.encoding.schema_detection import recognise_shape
from infrastructure.data.readers.rows import BadRow, Conversation, Row
from tests.data.trl_masks import all_templates, tokenizer_for

Messages = list[dict[str, Any]]
REFUSED, WHOLE = "refused", ""


@dataclass(frozen=True)
class Part:
    """A row that holds one kind of text.

    Attributes:
        texts: the words of each text of the row; a text is whole where all of its words are.
    """

    messages: Messages
    texts: tuple[tuple[str, ...], ...]
    tools: tuple[dict[str, Any], ...] = ()

    def conversation(self) -> Conversation:
        """As a row of a data file is understood."""
        values: dict[str, Any] = {"messages": self.messages}
        values |= {"tools": list(self.tools)} if self.tools else {}
        row = Row(json.loads(json.dumps(values)), "row.jsonl", 1)
        conversation = recognise_shape([row], DataConfig()).convert(row)
        assert not isinstance(conversation, BadRow), conversation
        return conversation


def turn(role: str, text: str | None, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": text, **fields}


def called(name: str, **arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"type": "function", "id": "callabcde", "function": function}


def tool(name: str, about: str, parameter: str) -> dict[str, Any]:
    described = {"type": "string", "description": f"{about} too"}
    parameters = {"type": "object", "properties": {parameter: described}, "required": [parameter]}
    function = {"name": name, "description": about, "parameters": parameters}
    return {"type": "function", "function": function}


TALK = (turn("user", "quokka?"), turn("assistant", "wombat."))
MORE = (turn("user", "numbat?"), turn("assistant", "bilby."))
TALK_WORDS = (("quokka",), ("wombat",))
LONG_TALK_WORDS = (*TALK_WORDS, ("numbat",), ("bilby",))
CALLS = [called("emu", dingo="<b>\"galah\" & 'x'</b>"), called("emu", dingo="kea\\n{}")]
RESULTS = [turn("tool", "koel", name="emu", tool_call_id="callabcde")]
RESULTS += [turn("tool", "lorikeet", name="emu", tool_call_id="callabcde")]
TOOLS = (tool("emu", "magpie", "dingo"),)
TAGGED = "<think>\n{}\n</think>\n\n{}"
PARTS = {
    "system": Part([turn("system", "echidna"), *TALK], (("echidna",), *TALK_WORDS)),
    "system in the middle": Part(
        [*TALK, turn("system", "echidna"), *MORE], (("echidna",), *LONG_TALK_WORDS)
    ),
    "early reasoning": Part(
        [TALK[0], turn("assistant", "wombat.", reasoning_content="potoroo"), *MORE],
        (("potoroo",), *LONG_TALK_WORDS),
    ),
    "last reasoning": Part(
        [*TALK, MORE[0], turn("assistant", "bilby.", reasoning_content="potoroo")],
        (("potoroo",), *LONG_TALK_WORDS),
    ),
    "early tags": Part(
        [TALK[0], turn("assistant", TAGGED.format("potoroo", "wombat.")), *MORE],
        (("potoroo",), *LONG_TALK_WORDS),
    ),
    "last tags": Part(
        [*TALK, MORE[0], turn("assistant", TAGGED.format("potoroo", "bilby."))],
        (("potoroo",), *LONG_TALK_WORDS),
    ),
    "call": Part(
        [TALK[0], turn("assistant", "", tool_calls=CALLS[:1]), RESULTS[0], MORE[1]],
        (("quokka",), ("emu",), ("dingo", "galah"), ("koel",), ("bilby",)),
    ),
    "text beside a call": Part(
        [TALK[0], turn("assistant", "wombat.", tool_calls=CALLS[:1]), RESULTS[0], MORE[1]],
        (*TALK_WORDS, ("emu",), ("dingo", "galah"), ("koel",), ("bilby",)),
    ),
    "reasoning before a call": Part(
        [
            TALK[0],
            turn("assistant", "", reasoning_content="potoroo", tool_calls=CALLS[:1]),
            RESULTS[0],
            MORE[1],
        ],
        (("quokka",), ("potoroo",), ("emu",), ("dingo", "galah"), ("koel",), ("bilby",)),
    ),
    "two calls of one name": Part(
        [TALK[0], turn("assistant", "", tool_calls=CALLS), *RESULTS, MORE[1]],
        (("quokka",), ("galah",), ("kea",), ("koel",), ("lorikeet",), ("bilby",)),
    ),
    "tools": Part([*TALK], (*TALK_WORDS, ("emu",), ("magpie",), ("dingo",)), TOOLS),
}
EVERYTHING = Part(
    [
        turn("system", "echidna"),
        TALK[0],
        turn("assistant", "wombat.", reasoning_content="potoroo", tool_calls=CALLS),
        *RESULTS,
        turn("assistant", "cassowary."),
        MORE[0],
        turn("assistant", "bilby.", reasoning_content="quoll"),
    ],
    (
        *((word,) for word in ("echidna", "quokka", "wombat", "potoroo", "koel", "lorikeet")),
        *((word,) for word in ("galah", "kea", "cassowary", "numbat", "bilby", "quoll", "magpie")),
    ),
    TOOLS,
)
PARTS["everything"] = EVERYTHING


@dataclass(frozen=True)
class Found:
    """What became of a part.

    Attributes:
        account: by the mechanism.
        by_reader: the words that are nowhere in the decoded tokens.
    """

    account: Account
    by_reader: frozenset[str]

    def by_mechanism(self, part: Part) -> frozenset[str]:
        """The words of the texts that the mechanism calls missing."""
        missing = [f"{one.what} {one.text}" for one in self.account.missing]
        words = {word for text in part.texts for word in text}
        return frozenset(word for word in words if any(word in one for one in missing))


def look(template: str, part: Part) -> Found | str:
    """What a template makes of a part; else why it refuses it."""
    tokenizer = tokenizer_for(template)
    form, conversation = TemplateFormat(tokenizer), part.conversation()
    try:
        text = form.text_of(conversation)
    except FormatError as error:
        return f"{REFUSED}: {error}"
    account = RowAccounting(form.text_of, [template]).account(conversation, text)
    read = tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"])
    words = {word for words in part.texts for word in words}
    return Found(account, frozenset(word for word in words if word not in read))


def table() -> dict[str, dict[str, str]]:
    """Template → part → what is left out of it, in words; "" is nothing."""
    return {
        name: {title: _shown(look(template, part)) for title, part in PARTS.items()}
        for name, template in all_templates().items()
    }


def _shown(found: Found | str) -> str:
    if isinstance(found, str):
        return REFUSED
    kinds = dict.fromkeys(one.kind for one in found.account.missing)
    return ", ".join([*kinds, *(["undetermined"] if found.account.undetermined else [])])


def main() -> int:
    """Print the table, templates with equal columns together."""
    alike: dict[str, list[str]] = {}
    for name, parts in table().items():
        lines = [f"    {part:24} {shown}" for part, shown in parts.items() if shown]
        alike.setdefault("\n".join(lines) or "    nothing", []).append(name)
    for losses, names in alike.items():
        print(f"{', '.join(names)}\n{losses}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
