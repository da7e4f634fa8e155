"""Detection of texts in a row that are missing in the text that the model reads.

A chat template may leave out a system message, earlier reasoning, or the text next to a tool call.
To detect that, the row is rendered a second time with a mark in place of each text: a character of
Unicode's private planes, which no template knows. The template treats the mark like the text. The
texts are then put back into the marked output, and the result is compared with the text that the
model reads. If both are equal, every mark is the position of its text, and a text whose mark is
missing was left out. No text is searched for, so short, repeated and escaped texts cannot be
confused.

Rows of the same form (the same roles and fields) share one marked output. If the texts do not fit
back, because the template inspects them, the row gets its own marked output: the marks are as long
as the texts, and every string that the template itself contains stays as it is. If that does not
fit either, each text is tried separately. A text that still does not fit counts as undetermined,
never as missing.

White space at the edges of a text does not count, and neither do values without a text of their own
(true, false, null). Text that `max_length` cuts off is not handled here.
"""

import html
import json
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from infrastructure.core.json_text import JsonObject
from infrastructure.core.messages import Message, phrase
from infrastructure.data.readers.rows import ANSWER_ROLES, Conversation, Turn, excerpt

# Version of the facts that are stored with prepared rows. 2: each kind of text with its own cause.
# 3: a conversation may begin with an answer.
ACCOUNTING_VERSION = 3
REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
REASONING = re.compile(r"(\s*<think>)?(.*?)(</think>)", re.DOTALL)
THINK_TAGS = ("<think>", "</think>")
# Kinds of texts, and causes: codes of the words that name them in messages.
REASONING_KIND = "data.lost_reasoning"
AFTER_LAST = "data.lost_after_last"
DESCRIPTION_KIND = "data.lost_tool_description"
FIRST_MARK, MOST_MARKS = 0xF0000, 60_000
MARKS = re.compile(r"([\U000F0000-\U000FFFFD])\1*")
ESCAPED_MARKS = re.compile(r"\\+u(db[89ab][0-9a-f])\\+u(d[c-f][0-9a-f]{2})|\\+U(000f[0-9a-f]{4})")
FIRST_NUMBER = 790_000_000_000  # stands for a number, so that it stays a number
END = "\0"  # end of a text, so that its last piece is matched completely
NUMBERS = re.compile(r"(?<![\d.])79(\d{10})(?:\.5)?(?![\d.])")
CAUSE = "data.template_omits_it"

CAUSES = {AFTER_LAST: "data.no_answer_follows"}
MOST_FORMS = 512  # of rows, whose marked output is cached
MOST_TRIED_ALONE = 64
ROLE_KINDS = {
    "assistant": "data.lost_answer",
    "system": "data.lost_system_message",
    "tool": "data.lost_tool_result",
    "user": "data.lost_user_message",
}


@dataclass(frozen=True, slots=True)
class Missing:
    """A text of a row that the model does not read completely.

    Attributes:
        kind: the kind of text, as a message code such as REASONING_KIND.
        what: description of its kind and its position in the row: "the reasoning of message 3".
        text: the whole text.
        is_learnt: True if the text is part of an answer that is trained on.
        is_cut: True if the model reads a part of the text.
        message: number of its message, from 1; 0 if it belongs to a tool.
    """

    kind: str
    what: str
    text: str
    is_learnt: bool
    is_cut: bool = False
    message: int = 0

    def __str__(self) -> str:
        code = "data.lost_part" if self.is_cut else "data.lost_whole"
        return phrase(code, what=self.what, text=excerpt(self.text, 60))


@dataclass(frozen=True, slots=True)
class Account:
    """The texts of one row that the model does not read, and those for which this is unknown.

    Attributes:
        missing: texts that the model does not read completely, in the order of the row.
        undetermined: descriptions of texts that the model may or may not read.
    """

    missing: tuple[Missing, ...] = ()
    undetermined: tuple[str, ...] = ()

    @property
    def unlearnable(self) -> tuple[Missing, ...]:
        """The trained answers' texts that the chat template drops or the model does not read
        completely.
        """
        return tuple(one for one in self.missing if one.is_learnt)


WHOLE = Account()


@dataclass
class LeftOut:
    """Counts, by kind, of the texts in a dataset that the model does not read.

    Attributes:
        cause: the reason why they are not read, as a message code or as the end of a sentence.
        rows: kind → number of rows with such a missing text.
        firsts: kind → the first of these rows: its position, and the missing text.
        causes: kind → cause, for kinds that were read from JSON.
    """

    cause: str = CAUSE
    rows: Counter[str] = field(default_factory=Counter)
    firsts: dict[str, tuple[str, str]] = field(default_factory=dict)
    causes: dict[str, str] = field(default_factory=dict)

    def add(self, place: str, missing: Iterable[Missing]) -> None:
        """Count the missing texts of the row at `place` (file:line)."""
        by_kind: dict[str, Missing] = {}
        for one in missing:
            by_kind.setdefault(one.kind, one)
        for kind, one in by_kind.items():
            self.rows[kind] += 1
            self.firsts.setdefault(kind, (place, str(one)))

    def lines(self) -> list[str]:
        """Return a sentence for each kind of missing text, with its first example."""
        return [
            phrase(
                "data.never_read_by_model",
                kind=phrase(kind),
                count=count,
                example=self.firsts[kind][1],
                place=self.firsts[kind][0],
                cause=self._cause_of(kind),
            )
            for kind, count in self.rows.most_common()
        ]

    def to_json(self) -> list[JsonObject]:
        """Return a JSON object for each kind of missing text, with sentences instead of message
        codes.
        """
        return [
            {
                "kind": phrase(kind),
                "rows": count,
                "place": self.firsts[kind][0],
                "what": self.firsts[kind][1],
                "cause": self._cause_of(kind),
            }
            for kind, count in self.rows.most_common()
        ]

    def _cause_of(self, kind: str) -> str:
        return phrase(self.causes.get(kind) or CAUSES.get(kind, self.cause))

    @classmethod
    def from_json(cls, records: Iterable[Mapping[str, Any]]) -> Self:
        """Restore the counts from the result of `to_json`."""
        left_out = cls()
        for record in records:
            left_out.rows[record["kind"]] = record["rows"]
            left_out.firsts[record["kind"]] = (record["place"], record["what"])
            left_out.causes[record["kind"]] = record["cause"]
        return left_out


def reasoning_forms(conversation: Conversation, source: str) -> Iterator[Conversation]:
    """Yield copies of the conversation with its reasoning in other places that the template
    mentions.

    The places are fields of the message, and tags at the beginning of the answer.
    """
    fields = [name for name in REASONING_FIELDS if re.search(rf"\b{name}\b", source)]
    for name in (*fields, *([None] if THINK_TAGS[1] in source else [])):
        turns = tuple(_with_reasoning_in(turn, name) for turn in conversation.turns)
        if turns != conversation.turns:
            yield replace(conversation, turns=turns)


def _with_reasoning_in(turn: Turn, name: str | None) -> Turn:
    """Return an answer with its reasoning in the field `name`; in tags if `name` is None."""
    fields: dict[str, Any] = json.loads(turn.fields) if turn.fields else {}
    if turn.role != "assistant" or isinstance(fields.get("content"), list):
        return turn
    held = [fields[one] for one in REASONING_FIELDS if isinstance(fields.get(one), str)]
    match = REASONING.match(turn.text)
    if not held and match is None:
        return turn
    thought = held[0] if held else match[2]  # type: ignore[index]
    rest = turn.text[match.end() :] if match else turn.text
    others = {key: value for key, value in fields.items() if key not in REASONING_FIELDS}
    if name is None:
        others.pop("content", None)  # null next to calls; now there is a text
        text = f"<think>\n{thought.strip()}\n</think>\n\n{rest.lstrip()}"
    else:
        others[name] = thought.strip()
        text = rest.lstrip() if match else rest
    return replace(turn, text=text, fields=json.dumps(others, ensure_ascii=False) if others else "")


class RowAccounting:
    """A detector of texts in rows that are missing in the output of a chat template.

    Args:
        write: returns a conversation as the text that the model reads. If it raises for a
            conversation with marks, it is unknown whether the model reads the texts of that
            conversation.
        sources: the Jinja source of each template that `write` uses.
    """

    def __init__(self, write: Callable[[Conversation], str], sources: Iterable[str] = ()) -> None:
        self._write = write
        strings, names = _words_of(sources)
        self._strings = tuple(sorted(strings - {""}, reverse=True))  # "ab" before "a"
        self._names = frozenset(strings | names)
        self._forms: OrderedDict[object, _Skeleton | None] = OrderedDict()

    def account(self, conversation: Conversation, text: str) -> Account:
        """Return the texts of a conversation that are missing in `text`, and those for which this
        is unknown.

        Args:
            text: what `write` returned for this conversation.
        """
        if conversation.is_text:
            return WHOLE
        marker = _Marker(kept=THINK_TAGS, names=self._names)
        marked = marker.conversation(conversation)
        skeleton = self._skeleton(marked, marker)
        if skeleton is not None and skeleton.fits(marker.pieces, text):
            return Account(_missing(marker.texts, skeleton)) if skeleton.loses else WHOLE
        return self._by_itself(conversation, text)

    def _skeleton(self, marked: Conversation, marker: "_Marker") -> "_Skeleton | None":
        """Return the cached template output for rows with the same marked form; None if the
        template fails.
        """
        turns = tuple((turn.role, turn.text, turn.fields, turn.is_learnt) for turn in marked.turns)
        form = (turns, marked.inputs, marked.num_given)
        if form in self._forms:
            self._forms.move_to_end(form)
            return self._forms[form]
        skeleton = self._written(marked, marker)
        self._forms[form] = skeleton
        if len(self._forms) > MOST_FORMS:
            self._forms.popitem(last=False)
        return skeleton

    def _written(self, marked: Conversation, marker: "_Marker") -> "_Skeleton | None":
        try:
            return _Skeleton(self._write(marked), marker.lengths)
        except Exception:  # a template may raise anything
            return None

    def _by_itself(self, conversation: Conversation, text: str) -> Account:
        """Return the missing texts of one row, from an output with marks that is made only for this
        row.

        This is necessary if the template inspects the texts of the row.
        """
        marker = _Marker(kept=self._strings, names=self._names, keeps_length=True)
        skeleton = self._written(marker.conversation(conversation), marker)
        if skeleton is not None and skeleton.fits(marker.pieces, text):
            return Account(_missing(marker.texts, skeleton))
        missing: list[Missing] = []
        undetermined = [str(one.what) for one in marker.texts[MOST_TRIED_ALONE:]]
        for number, one in enumerate(marker.texts[:MOST_TRIED_ALONE]):
            alone = _Marker(kept=self._strings, names=self._names, keeps_length=True, only=number)
            skeleton = self._written(alone.conversation(conversation), alone)
            if skeleton is not None and skeleton.fits(alone.pieces, text):
                missing += _missing(alone.texts, skeleton)
            else:
                undetermined.append(str(one.what))
        return Account(tuple(missing), tuple(undetermined))


@dataclass(slots=True)
class _Text:
    """A text in a row, and the indices of the marks that replace it."""

    kind: str
    what: Message
    text: str
    is_learnt: bool
    marks: list[int]
    message: int


class _Marker:
    """An object that replaces the texts of one conversation by marks.

    Args:
        kept: strings that stay as they are, the longest first.
        names: keys of objects that stay as they are, because the template looks them up.
        keeps_length: True: each mark is as long as its text, and numbers and keys stay as they are.
        only: index of the only text to mark; None: all texts are marked.

    Attributes:
        texts: all texts, in the order of the row.
        pieces: the piece of text that each mark stands for.
        lengths: the length of each mark, in characters.
    """

    def __init__(
        self,
        kept: Sequence[str],
        names: frozenset[str],
        keeps_length: bool = False,
        only: int | None = None,
    ) -> None:
        self.kept, self.names = kept, names
        self.keeps_length, self.only = keeps_length, only
        self.texts: list[_Text] = []
        self.pieces: list[str] = []
        self.lengths: list[int] = []
        self._message = 0

    def conversation(self, conversation: Conversation) -> Conversation:
        inputs = self._inputs(conversation.inputs) if conversation.inputs else ""
        is_prompt = conversation.num_given >= len(conversation.turns)
        last = len(conversation.turns) if is_prompt else conversation.last_answer
        turns = []
        for index, turn in enumerate(conversation.turns):
            self._message = index + 1
            is_learnt = turn.role in ANSWER_ROLES and conversation.is_learnt(index)
            turns.append(self._turn(turn, index + 1, is_learnt, index > last))
        return replace(conversation, turns=tuple(turns), inputs=inputs)

    def _turn(self, turn: Turn, number: int, is_learnt: bool, is_after: bool) -> Turn:
        kind = AFTER_LAST if is_after else ROLE_KINDS.get(turn.role, "")
        kind = kind or phrase("data.lost_message_of_role", role=turn.role)
        what = _words("data.part_message_text", number=number, role=turn.role)
        if turn.role == "system" and number == 1:
            what = _words("data.part_system_message")
        fields: dict[str, Any] = json.loads(turn.fields) if turn.fields else {}
        parts = fields.get("content")
        if isinstance(parts, list):
            owner = self._text(kind, what, turn.text, is_learnt)
            fields["content"] = [
                {**part, "text": self._marked(part["text"], owner)} if "text" in part else part
                for part in parts
            ]
            text = "".join(str(part.get("text", "")) for part in fields["content"])
        elif turn.role == "assistant" and THINK_TAGS[1] in turn.text:
            text = self._with_reasoning(turn.text, kind, what, number, is_learnt)
        else:
            text = self._marked(turn.text, self._text(kind, what, turn.text, is_learnt))
        if fields:
            self._fields(fields, number, is_learnt)
        packed = json.dumps(fields) if fields else ""
        return Turn(turn.role, text, packed, turn.is_learnt)

    def _with_reasoning(
        self, text: str, kind: str, what: Message, number: int, is_learnt: bool
    ) -> str:
        """Mark the reasoning (in tags) and the rest of an answer, as two separate texts."""
        match = REASONING.match(text)
        assert match is not None
        head, thought, close = match.groups()
        rest = text[match.end() :]
        of_message = _words("data.part_message_reasoning", number=number)
        owner = self._text(REASONING_KIND, of_message, thought, is_learnt)
        marked = f"{head or ''}{self._marked(thought, owner)}{close}"
        return marked + self._marked(rest, self._text(kind, what, rest, is_learnt))

    def _fields(self, fields: dict[str, Any], number: int, is_learnt: bool) -> None:
        """Mark the fields of a message other than its content, in place."""
        for name in REASONING_FIELDS:
            if isinstance(value := fields.get(name), str):
                what = _words("data.part_message_reasoning", number=number)
                owner = self._text(REASONING_KIND, what, value, is_learnt)
                fields[name] = self._marked(value, owner)
        if isinstance(value := fields.get("tool_call_id"), str):
            fields["tool_call_id"] = self._unnamed(value)
        calls = fields.get("tool_calls") or ()
        for order, call in enumerate(calls, 1):
            if isinstance(call.get("id"), str):
                call["id"] = self._unnamed(call["id"])
            function = call.get("function", call)
            name = function["name"]
            where = _words("data.part_tool_call", name=name, number=number)
            if len(calls) > 1:
                where = _words("data.part_numbered_call", name=name, number=number, order=order)
            what = _words("data.part_call_name", where=where)
            owner = self._text("data.lost_tool_call", what, name, is_learnt)
            function["name"] = self._marked(name, owner)
            if isinstance(arguments := function.get("arguments"), dict):
                function["arguments"] = self._object(arguments, "", where, is_learnt)

    def _object(
        self, values: dict[str, Any], path: str, where: Message, is_learnt: bool
    ) -> dict[str, Any]:
        """Return the arguments of a tool call with marks. A key and its value together are one
        text.
        """
        owners = {}
        for key in sorted(values, key=str.lower):  # templates may sort by key; marks sort the same
            value = values[key]
            what = _words("data.part_argument", argument=path + key, where=where)
            shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            owner = self._text("data.lost_argument", what, shown, is_learnt)
            owners[key] = (self._key(key, owner), owner)
        return {
            owners[key][0]: self._value(value, f"{path}{key}", where, owners[key][1])
            for key, value in values.items()
        }

    def _value(self, value: Any, path: str, where: Message, owner: int) -> Any:
        if isinstance(value, str):
            return self._marked(value, owner)
        if isinstance(value, dict):
            return self._object(value, f"{path}.", where, self.texts[owner].is_learnt)
        if isinstance(value, list):
            return [self._value(one, path, where, owner) for one in value]
        if isinstance(value, bool) or value is None:
            return value
        return self._number(value, owner)

    def _inputs(self, inputs: str) -> str:
        given = json.loads(inputs)
        for tool in given.get("tools") or ():
            function = tool.get("function", tool)
            name = function["name"]
            what = _words("data.part_tool_name", name=name)
            owner = self._text("data.lost_tool", what, name, False)
            function["name"] = self._marked(name, owner)
            self._schema(function, _words("data.part_of_tool", name=name))
        return json.dumps(given)

    def _schema(self, schema: dict[str, Any], where: Message) -> None:
        """Mark the texts in a tool's description, in place. Types are not marked."""
        if isinstance(value := schema.get("description"), str):
            what = _words("data.part_description", where=where)
            owner = self._text(DESCRIPTION_KIND, what, value, False)
            schema["description"] = self._marked(value, owner)
        if isinstance(values := schema.get("enum"), list):
            shown = json.dumps(values, ensure_ascii=False)
            what = _words("data.part_choices", where=where)
            owner = self._text(DESCRIPTION_KIND, what, shown, False)
            schema["enum"] = [self._marked(v, owner) if isinstance(v, str) else v for v in values]
        if isinstance(properties := schema.get("properties"), dict):
            keys = {}
            for key in sorted(properties, key=str.lower):
                what = _words("data.part_parameter", parameter=key, where=where)
                keys[key] = self._key(key, self._text(DESCRIPTION_KIND, what, key, False))
            schema["properties"] = {keys[key]: value for key, value in properties.items()}
            if isinstance(required := schema.get("required"), list):
                schema["required"] = [keys.get(one, one) for one in required]
            for key, value in properties.items():
                if isinstance(value, dict):
                    self._schema(value, _words("data.part_of_parameter", name=key, where=where))
        for name in ("parameters", "items", "return"):
            if isinstance(schema.get(name), dict):
                inner = _words("data.part_of_schema", name=name, where=where)
                self._schema(schema[name], where if name == "parameters" else inner)

    def _text(self, kind: str, what: Message, text: str, is_learnt: bool) -> int:
        self.texts.append(_Text(kind, what, text, is_learnt, [], self._message))
        return len(self.texts) - 1

    def _marked(self, text: str, owner: int) -> str:
        """Return a text replaced by marks, except for the strings in `kept`."""
        if self.only not in (None, owner):
            return text
        kept = [one for one in self.kept if one in text]
        if not kept:
            return self._piece(text, owner)
        pattern = "|".join(map(re.escape, kept))
        pieces = re.split(f"({pattern})", text)
        if not any(piece.strip() for piece in pieces[::2]):
            return self._piece(text, owner)  # nothing else, so it may be an ordinary word here
        return "".join(
            piece if number % 2 else self._piece(piece, owner)
            for number, piece in enumerate(pieces)
        )

    def _piece(self, text: str, owner: int) -> str:
        bare = text.strip()
        if not bare or len(self.pieces) >= MOST_MARKS:
            return text
        start = text.index(bare)
        mark = self._mark(bare, owner, len(bare) if self.keeps_length else 1)
        return f"{text[:start]}{mark}{text[start + len(bare) :]}"

    def _mark(self, piece: str, owner: int | None, length: int) -> str:
        number = len(self.pieces)
        self.pieces.append(piece)
        self.lengths.append(length)
        if owner is not None:
            self.texts[owner].marks.append(number)
        return chr(FIRST_MARK + number) * length

    def _key(self, key: str, owner: int) -> str:
        is_kept = self.keeps_length or key in self.names
        return key if is_kept else self._piece(key, owner)

    def _unnamed(self, text: str) -> str:
        """Mark a string that differs from row to row and that the model need not read, such as a
        call's ID.
        """
        return text if self.keeps_length else self._mark(text, None, len(text))

    def _number(self, value: float, owner: int) -> float:
        if self.keeps_length or len(self.pieces) >= MOST_MARKS:
            return value
        number = FIRST_NUMBER + len(self.pieces)
        self._mark(str(value), owner, 1)
        return number if isinstance(value, int) else number + 0.5


class _Skeleton:
    """The template's output for a row with marks, split into the marks and the literals between
    them.

    Attributes:
        whole: the marks that occur in full length at least once.
        seen: the marks of which at least a part occurs.
        loses: True if a mark is missing or cut.
    """

    def __init__(self, written: str, lengths: Sequence[int]) -> None:
        text = NUMBERS.sub(_number_mark, ESCAPED_MARKS.sub(_unescaped, written))
        self._literals: list[str] = []
        self._slots: list[tuple[int, int]] = []  # a mark's number, and 0 or its part
        self.whole: set[int] = set()
        self.seen: set[int] = set()
        end = 0
        for match in MARKS.finditer(text):
            number = ord(match[1]) - FIRST_MARK
            self._literals.append(text[end : match.start()])
            end = match.end()
            # IndexError: a character of the private planes that is not a mark
            times, rest = divmod(end - match.start(), lengths[number])
            self.seen.add(number)
            for part in [0] * times + [rest] * (rest > 0):
                self._slots.append((number, part))
                self._literals.append("")
                if not part:
                    self.whole.add(number)
            self._literals.pop()
        self._literals.append(text[end:])
        self.loses = len(self.whole) < len(lengths)

    def fits(self, pieces: Sequence[str], text: str) -> bool:
        """Return whether the output is `text` once its marks are replaced by the row's texts.

        A text may appear in `text` unchanged, as JSON, Python or HTML, or shortened.
        """
        text, literals = f"{text}{END}", [*self._literals[:-1], f"{self._literals[-1]}{END}"]
        position, before = 0, literals[0]
        for (number, part), after in zip(self._slots, literals[1:], strict=True):
            for head, rest in _ways(before, pieces[number], part, after):
                if text.startswith((head + rest, head + rest[:-1] + '"'), position):
                    position, before = position + len(head), rest
                    break
            else:
                return False
        return text[position:] == before


def _ways(before: str, piece: str, part: int, after: str) -> Iterator[tuple[str, str]]:
    """Yield the ways in which a text can appear between two literals of the template's output.

    Each way is a pair: the output up to the end of the text, and the rest of the second literal.
    """
    for spelled in (piece[:part], piece[-part:]) if part else _spellings(piece):
        yield before + spelled, after
    if before[-1:] == "'" == after[:1]:  # Python uses other quotes for a text that contains these
        yield before[:-1] + repr(piece), after[1:]


def _spellings(piece: str) -> Iterator[str]:
    """Yield the forms in which a template may write a text: unchanged, as JSON, Python or HTML."""
    yield piece
    quoted = json.dumps(piece, ensure_ascii=False)[1:-1]
    yield from (quoted, json.dumps(piece)[1:-1])
    yield repr(piece)[1:-1]
    yield json.dumps(quoted, ensure_ascii=False)[1:-1]
    for text in (piece, quoted):  # as Jinja escapes it
        yield html.escape(text).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")


def _missing(texts: Sequence[_Text], skeleton: _Skeleton) -> tuple[Missing, ...]:
    """Return the texts of which a mark is missing or incomplete.

    Reasoning does not count if the same message also holds it in a field that the template reads.
    """
    lost = [one for one in texts if not skeleton.whole.issuperset(one.marks)]
    thoughts = (one for one in texts if one.kind == REASONING_KIND and one not in lost)
    written = {(str(one.what), one.text.strip()) for one in thoughts}
    return tuple(
        Missing(
            one.kind,
            str(one.what),
            one.text.strip(),
            one.is_learnt,
            not skeleton.seen.isdisjoint(one.marks),
            one.message,
        )
        for one in lost
        if (str(one.what), one.text.strip()) not in written
    )


def _words(code: str, /, **about: object) -> Message:
    """Return a message that is rendered only when it is used, because most messages are never
    shown.
    """
    return Message(code, about)


def _words_of(sources: Iterable[str]) -> tuple[set[str], set[str]]:
    """Return the string literals and the names in the Jinja sources of templates."""
    from jinja2 import Environment

    strings, names = set(), set()
    for source in sources:
        for _, kind, value in Environment().lex(source):
            if kind == "string":
                text = value[1:-1].encode("ascii", "backslashreplace").decode("unicode-escape")
                strings.add(text)
            elif kind == "name":
                names.add(value)
    return strings, names


def _unescaped(match: re.Match[str]) -> str:
    if match[3]:
        return chr(int(match[3], 16))
    high, low = int(match[1], 16), int(match[2], 16)
    return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))


def _number_mark(match: re.Match[str]) -> str:
    number = int(match[1])
    return chr(FIRST_MARK + number) if number < MOST_MARKS else match[0]
