"""Conversion of conversations to text for tokenization, with the positions of their answers.

If there is a chat template, it renders the text. Only the characters that the template marks with
{% generation %} are trained on, as in transformers' `return_assistant_tokens_mask` and TRL's
`assistant_only_loss`. If the template marks nothing, answers are found by comparing its output with
and without the answers. Without a template, the plain format below is used, for training and for
generation:

    every message that is not an answer: its text and a line break
    every answer: its text and the EOS token (and a line break, if the conversation continues)

In both cases, the text begins with one BOS token if the tokenizer uses one.
"""

import importlib.metadata
import json
import re
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infrastructure.core.errors import InputError
from infrastructure.core.json_text import JsonObject
from infrastructure.core.messages import phrase
from infrastructure.core.optional import is_installed
from infrastructure.data.readers.rows import PICTURE_PART, Conversation, Turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Some templates write today's date. A run could not be resumed on data that changes every day.
TEMPLATE_DATE = datetime(2024, 7, 26)
GENERATION_TAG = re.compile(r"\{%-?\s*generation\s*-?%\}")
MARK = re.compile(r"""<\|[^|<>\s'"{}]+\|>""")  # such as <|im_end|>, around messages
TAG = re.compile(r"<[^<>\s]+>")  # such as <|im_end|>, <think> and </s>
COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)
SENTENCE_WORDS = 4  # fewer words are role names
QUESTION, ANSWER = Turn("user", "Ping 7391?"), Turn("assistant", "Pong 4826")
THOUGHT = Turn("assistant", "<think>\nPing?\n</think>\n\nPong 4826")
CALL = Turn(
    "assistant",
    "",
    json.dumps(
        {"tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]}
    ),
)
TOOL: Any = {
    "name": "add",
    "description": "Add numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer", "description": "A number."}},
        "required": ["a"],
    },
}
RESULT = Turn("tool", "7391", json.dumps({"name": "add"}))
HISTORIES = (
    (QUESTION, ANSWER, QUESTION, ANSWER),
    (QUESTION, THOUGHT, QUESTION, THOUGHT),
    (QUESTION, CALL, RESULT, ANSWER, QUESTION, ANSWER),
    (QUESTION, ANSWER, ANSWER, QUESTION, ANSWER),
)
CHANGED = "Zq5"  # appended to an answer to locate it


class FormatError(Exception):
    """An error for a conversation whose answers cannot be found in the template's output.

    Attributes:
        advice: the remedy if it is known, else "".
    """

    def __init__(self, text: str, advice: str = "") -> None:
        super().__init__(text)
        self.advice = advice

    @property
    def sentence(self) -> str:
        """The error message, followed by the remedy if one is known."""
        return f"{self}: {self.advice}" if self.advice else str(self)


class HistoryError(FormatError):
    """An error for a chat template that renders messages differently once more messages follow."""


@dataclass(frozen=True, slots=True)
class Written:
    """A conversation as text, with the positions of its answers.

    Attributes:
        lead: token ids that come before the text.
        spans: (start, end) of each text that the model would generate: an answer and its end token.
        is_learnt: for each span, False if the data excludes it from the loss.
        is_marked: True if the template itself marks the spans. The text is then tokenized as a
            whole, and nothing is added to it.
        given: the beginning of the text that is the row's own prompt, on which nothing is trained;
            "" if the row has no separate prompt.
    """

    lead: tuple[int, ...]
    text: str
    spans: tuple[tuple[int, int], ...]
    is_learnt: tuple[bool, ...]
    is_marked: bool = False
    given: str = ""


class PlainFormat:
    """The format for tokenizers without a chat template, and for plain documents."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self.lead = leading_ids(tokenizer)
        self.start = start_of_text(tokenizer)
        self.end = end_of_text(tokenizer)

    def write(self, conversation: Conversation) -> Written:
        if conversation.is_text:
            text = conversation.turns[0].text
            text += "" if text.endswith(self.end) else self.end
            return Written(self._lead(text), text, ((0, len(text)),), (True,))
        text, spans, is_learnt = "", [], []
        for index, turn in enumerate(conversation.taught):
            if turn.calls_tools:
                raise FormatError(
                    phrase("data.message_calls_tools", number=index + 1),
                    phrase("data.no_chat_template"),
                )
            start = len(text)
            text += turn.text
            if turn.role == "assistant":
                text += self.end
                spans.append((start, len(text)))
                is_learnt.append(conversation.is_learnt(index))
            text += "\n"
        return Written(self._lead(text), text[:-1], tuple(spans), tuple(is_learnt))

    def text_of(self, conversation: Conversation) -> str:
        return self.write(conversation).text

    def write_prompt(self, turns: Sequence[Turn], inputs: str = "") -> Written:
        ends = (self.end if turn.role == "assistant" else "" for turn in turns)
        texts = (turn.text + end + "\n" for turn, end in zip(turns, ends, strict=True))
        text = "".join(texts)
        return Written(self._lead(text), text, (), ())

    def _lead(self, text: str) -> tuple[int, ...]:
        """Return the token IDs to put before a text: BOS, or none if the text already begins with
        BOS.
        """
        return () if self.start and text.startswith(self.start) else self.lead


class TemplateFormat:
    """A chat template, with the form in which it expects messages and tool calls.

    Attributes:
        marks_answers: the template marks the trained text with {% generation %}.
        own_end: the end token that the template writes after a marked answer without marking it; ""
            if it marks the end token, or writes none. This token is trained on too, so that the
            model learns to stop.
        writes_end: the template writes an end token after answers, so none has to be added.
        takes_parts: the template needs the content of a message as a list of parts, not as a
            string.
        takes_json_text: the template needs the arguments of a tool call as JSON text, not as an
            object.
        wraps_calls: True: a tool call must be wrapped as {"function": …}; False: it must not be;
            None: the template accepts both.
        wraps_tools: like `wraps_calls`, for the list of available tools.
        origin: the source of the template if it is not the tokenizer's own.
    """

    def __init__(
        self, tokenizer: "PreTrainedTokenizerBase", template: str | None = None, origin: str = ""
    ) -> None:
        self.template: str = template or tokenizer.get_chat_template()
        self.origin = origin
        self.variables: dict[str, object] = dict(tokenizer.special_tokens_map)
        self.writes_date = "strftime_now" in self.template
        if self.writes_date:
            self.variables["strftime_now"] = TEMPLATE_DATE.strftime
        self.marks_answers = GENERATION_TAG.search(self.template) is not None
        self._special = _any_of(special_tokens(tokenizer).values())
        self._ends = _any_of([*special_tokens(tokenizer).values(), *tokenizer.get_added_vocab()])
        self._reads: dict[str, bool] = {}
        self.takes_parts = self._takes_parts()
        self.takes_json_text, self.wraps_calls = self._form_of_calls()
        self.wraps_tools = self._form_of_tools()
        self.own_end, self.writes_end = "", True
        if self.marks_answers:
            self.own_end, self.writes_end = self._find_end()

    def write(self, conversation: Conversation) -> Written:
        if not self.marks_answers:
            return self._write_unmarked(conversation)
        text, spans = self._marked(conversation.turns, conversation.inputs)
        answers = [i for i, turn in enumerate(conversation.turns) if turn.role == "assistant"]
        left_out = [i for i in answers if not conversation.is_learnt(i)]
        is_learnt = [True] * len(spans)
        for index in left_out:
            for number in self._spans_of(conversation, index, text, spans):
                is_learnt[number] = False
        given = ""
        if conversation.num_given:
            before = conversation.turns[: conversation.num_given]
            given, _ = self._render(before, conversation.inputs, prompts=True)
        spans = [(start, self._with_own_end(text, end)) for start, end in spans]
        return Written((), text, tuple(spans), tuple(is_learnt), True, given)

    def text_of(self, conversation: Conversation) -> str:
        turns = conversation.turns if self.marks_answers else conversation.taught
        return self._render(turns, conversation.inputs)[0]

    def _write_unmarked(self, conversation: Conversation) -> Written:
        turns, inputs = conversation.taught, conversation.inputs
        text, _ = self._render(turns, inputs)
        spans, is_learnt = [], []
        for index, turn in enumerate(turns):
            is_prompt = index < conversation.num_given and turn.is_learnt
            if turn.role == "assistant" and not is_prompt:
                if index:
                    start = self._length_before(turns[:index], inputs, text, prompts=True)
                else:
                    start = self._start_of_greeting(turns, inputs, text)
                end = self._length_before(turns[: index + 1], inputs, text)
                spans.append((start, self._without_trailing_space(text, start, end)))
                is_learnt.append(conversation.is_learnt(index))
        return Written((), text, tuple(spans), tuple(is_learnt))

    def can_find_answers(self, last_only: bool) -> bool:
        """Return whether answers can be found in the template's output, as tested on a few
        conversations.

        They can be found if the template renders the text before an answer identically, whatever
        follows. Conversations that the template rejects are ignored.

        Args:
            last_only: only the last answer of each conversation has to be found.
        """
        for history in map(Conversation, HISTORIES):
            try:
                self.write(history.with_last_answer if last_only else history)
            except HistoryError:
                return False
            except FormatError:
                continue
        return True

    @property
    def preamble(self) -> str:
        """The text that the template adds if a conversation has no system message; "" if there is
        none.
        """
        try:
            text, _ = self._render((QUESTION,), "")
        except FormatError:
            return ""
        pieces = self._special.split(text.partition(QUESTION.text)[0])
        spoken = [" ".join(piece.split()) for piece in pieces]
        return next((piece for piece in spoken if len(piece.split()) >= SENTENCE_WORDS), "")

    @property
    def learned_of_prompt(self) -> str:
        """The part of the generation prompt that the template marks as trained; "" if there is
        none.
        """
        if not self.marks_answers:
            return ""
        try:
            prompt, _ = self._render((QUESTION,), "", prompts=True)
            text, spans = self._marked((QUESTION, ANSWER), "")
        except FormatError:
            return ""
        return text[spans[0][0] : len(prompt)] if spans and text.startswith(prompt) else ""

    def reads(self, name: str) -> bool:
        """Return whether the template's source mentions a message field or a template variable."""
        if name not in self._reads:
            source = COMMENT.sub("", self.template)
            self._reads[name] = re.search(rf"\b{re.escape(name)}\b", source) is not None
        return self._reads[name]

    def writes(self, mark: str) -> bool:
        """Return whether the template writes this placeholder for an image part of a message."""
        parts = [{"type": PICTURE_PART}, {"type": "text", "text": QUESTION.text}]
        turn = Turn("user", QUESTION.text, json.dumps({"content": parts}))
        try:
            text, _ = self._render((turn,), "", prompts=True)
        except FormatError:
            return False
        return mark in text and QUESTION.text in text and "'type'" not in text

    def write_whole(self, conversation: Conversation) -> Written:
        """Return the conversation as one text that is trained on as a whole. Raise `FormatError` if
        that fails.
        """
        text = self.text_of(conversation)
        return Written((), text, ((0, len(text)),), (True,))

    def write_prompt(self, turns: Sequence[Turn], inputs: str = "") -> Written:
        return Written((), self._render(turns, inputs, prompts=True)[0], (), ())

    def _length_before(
        self, turns: Sequence[Turn], inputs: str, text: str, prompts: bool = False
    ) -> int:
        prefix, _ = self._render(turns, inputs, prompts=prompts)
        if not text.startswith(prefix):
            what = phrase("data.text_before_answer" if prompts else "data.earlier_messages")
            raise HistoryError(phrase("data.template_rewrites_earlier", what=what))
        return len(prefix)

    def _start_of_greeting(self, turns: Sequence[Turn], inputs: str, text: str) -> int:
        """Return the position at which an answer starts if it is the first message of a
        conversation.

        Few templates render an empty conversation, so this searches for the header of an answer in
        the part of the output that does not depend on the answer.
        """
        if len(turns) == 1:
            raise FormatError(
                phrase("data.conversation_begins_with_answer"),
                phrase("data.put_whole_text_in_column"),
            )
        greetings = (Turn("assistant", CHANGED), Turn("assistant", CHANGED[::-1]))
        outputs = [self._render((greeting, *turns[1:]), inputs)[0] for greeting in greetings]
        before = _common_start(*outputs, text)
        question, prompt = (self._render((QUESTION,), inputs, prompts=p)[0] for p in (False, True))
        header = prompt[len(_common_start(question, prompt)) :]
        if not header or (start := before.rfind(header)) < 0:
            raise FormatError(phrase("data.first_answer_not_located"))
        return start + len(header)

    def _spans_of(
        self, conversation: Conversation, index: int, text: str, spans: Sequence[tuple[int, int]]
    ) -> list[int]:
        """Return the indices of the marked spans that belong to message number `index`.

        These are the spans that change when the text of the message changes, and the separately
        marked end tokens that follow.
        """
        turns = list(conversation.turns)
        turns[index] = _changed(turns[index])
        other, other_spans = self._marked(turns, conversation.inputs)
        spoken = [text[start:end] for start, end in spans]
        now = [other[start:end] for start, end in other_spans]
        differing = [n for n in range(min(len(spoken), len(now))) if spoken[n] != now[n]]
        if len(spoken) != len(now) or not differing:
            raise FormatError(phrase("data.untrained_message_not_located", number=index + 1))
        for after in range(differing[-1] + 1, len(spoken)):
            if self._special.sub("", spoken[after]).strip():
                break  # it holds more than the end of the answer
            differing.append(after)
        return differing

    def _find_end(self) -> tuple[str, bool]:
        """Determine `own_end` and `writes_end` by rendering a known question and answer."""
        try:
            last, last_spans = self._marked((QUESTION, ANSWER), "")
            followed, followed_spans = self._marked((QUESTION, ANSWER, QUESTION), "")
        except FormatError:
            return "", True  # it needs more than a question and an answer
        if not last_spans or not followed_spans:
            return "", True
        spoken = [last[start:end] for start, end in last_spans]
        spoken += [followed[start:end] for start, end in followed_spans]
        if any(_ends_with(self._ends, one.rstrip()) for one in spoken):
            return "", True
        end = self._special.match(last, last_spans[-1][1])
        return (end.group(), True) if end else ("", False)

    def _with_own_end(self, text: str, end: int) -> int:
        is_there = self.own_end and text.startswith(self.own_end, end)
        return end + len(self.own_end) if is_there else end

    def _takes_parts(self) -> bool:
        """Return whether the template renders a message's content only if it is a list of parts."""
        texts = []
        for self.takes_parts in (False, True):
            try:
                texts.append(self._render((QUESTION, ANSWER), "")[0])
            except FormatError:
                texts.append("")
        is_written = [QUESTION.text in text and ANSWER.text in text for text in texts]
        return is_written == [False, True]

    def _form_of_calls(self) -> tuple[bool, bool | None]:
        """Return `takes_json_text` and `wraps_calls` for the first form of a tool call that works.

        For example, DeepSeek V3's template concatenates the arguments with text, and so fails on an
        object; Llama 3.1's template fails on a call without `function`.
        """
        if not self.reads("tool_calls"):
            return False, None
        for self.takes_json_text in (False, True):
            written = [self._writes_call(wrapped) for wrapped in (True, False)]
            if any(written):
                return self.takes_json_text, None if all(written) else written[0]
        return False, None

    def _form_of_tools(self) -> bool | None:
        if not self.reads("tools"):
            return None
        written = []
        for self.wraps_tools in (True, False):
            try:
                text, _ = self._render((QUESTION,), json.dumps({"tools": [TOOL]}))
                written.append(TOOL["name"] in text)
            except FormatError:
                written.append(False)
        return None if all(written) or not any(written) else written[0]

    def tools(self, tools: Any) -> list[JsonObject]:
        """Return the tools of a row in the form that this template expects."""
        return [_wrapped(tool, self.wraps_tools) for tool in tools]

    def _writes_call(self, wrapped: bool) -> bool:
        self.wraps_calls = wrapped
        try:
            return "add" in self._render((QUESTION, CALL), "")[0]
        except FormatError:
            return False

    def _without_trailing_space(self, text: str, start: int, end: int) -> int:
        """Return the end of an answer, excluding white space after its end-of-turn token."""
        stripped = text[start:end].rstrip()
        return start + len(stripped) if _ends_with(self._special, stripped) else end

    def _marked(self, turns: Sequence[Turn], inputs: str) -> tuple[str, Sequence[tuple[int, int]]]:
        """Return the template's output, and the spans that it marks, without empty ones."""
        text, marked = self._render(turns, inputs, mark=True)
        return text, [(start, end) for start, end in marked if end > start]

    def _render(
        self, turns: Sequence[Turn], inputs: str, prompts: bool = False, mark: bool = False
    ) -> tuple[str, list[tuple[int, int]]]:
        """Return the template's output, and the spans that it marks."""
        from jinja2.exceptions import TemplateError
        from transformers.utils.chat_template_utils import render_jinja_template

        if not turns:
            raise FormatError(
                phrase("data.conversation_begins_with_answer"),
                phrase("data.put_whole_text_in_column"),
            )
        given = json.loads(inputs) if inputs else {}
        options = {**self.variables, **given.pop("chat_template_kwargs", {}), **given}
        if options.get("tools"):
            options["tools"] = self.tools(options["tools"])
        try:
            rendered: Any = render_jinja_template(
                conversations=[[self.message(turn) for turn in turns]],
                chat_template=self.template,
                return_assistant_tokens_mask=mark,
                add_generation_prompt=prompts,
                **options,
            )
        except (TemplateError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(phrase("data.template_refuses", error=error)) from error
        (text,), marked = rendered
        return text, list(marked[0]) if mark else []

    def message(self, turn: Turn) -> JsonObject:
        """Return a message in the form that this template expects."""
        message = turn.message()
        if self.takes_parts and isinstance(message["content"], str):
            message["content"] = [{"type": "text", "text": message["content"]}]
        calls: Any = [self._call(call) for call in message.get("tool_calls") or ()]
        if calls:
            message["tool_calls"] = calls
        return message

    def _call(self, call: JsonObject) -> JsonObject:
        """Return a tool call in the form that this template expects."""
        function: Any = call.get("function", call)
        if self.takes_json_text:
            text = json.dumps(function.get("arguments", {}), ensure_ascii=False)
            changed = {**function, "arguments": text}
            call = {**call, "function": changed} if "function" in call else changed
        return _wrapped(call, self.wraps_calls)


def training_format(
    tokenizer: "PreTrainedTokenizerBase", own: TemplateFormat, last_only: bool = False
) -> TemplateFormat:
    """Return the chat template to write training conversations with.

    This is the tokenizer's own template, with one exception: if that template writes earlier
    answers differently from the last one (as in Qwen3), and earlier answers are trained on too,
    TRL's training template of the same family is used, if the installed TRL has one.
    """
    if own.marks_answers or own.can_find_answers(last_only) or not is_installed("trl"):
        return own
    from jinja2.exceptions import TemplateError
    from trl.chat_template_utils import get_training_chat_template

    one = copy(tokenizer)  # TRL takes one template, and some tokenizers have several
    one.chat_template = own.template
    try:
        template = get_training_chat_template(one)
    except (ValueError, TypeError, TemplateError):  # none for this family
        return own
    origin = f"TRL {importlib.metadata.version('trl')}"
    return TemplateFormat(tokenizer, template, origin) if template else own


def _wrapped(one: JsonObject, wraps: bool | None) -> JsonObject:
    """Return a tool or tool call with (True) or without (False) `function` around it; None:
    unchanged.
    """
    function: Any = one.get("function")
    if function is None:
        return {"type": "function", "function": one} if wraps else one
    return function if wraps is False else one


def _common_start(first: str, *others: str) -> str:
    """Return the longest common beginning of these texts."""
    columns = zip(first, *others, strict=False)
    return "".join(letters[0] for letters in takewhile(lambda one: len({*one}) == 1, columns))


def _changed(turn: Turn) -> Turn:
    """Return a copy of the message with another text and other names of the called tools."""
    fields = json.loads(turn.fields) if turn.fields else {}
    for call in fields.get("tool_calls") or ():
        function = call.get("function", call)
        function["name"] += CHANGED
    text = turn.text + CHANGED if "content" not in fields else turn.text
    return replace(turn, text=text, fields=json.dumps(fields) if fields else "")


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that matches any of the texts, trying longer texts first. Without texts, it
    matches nothing.
    """
    ordered = sorted({text for text in texts if text}, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered)) or r"(?!)")


def _ends_with(pattern: re.Pattern[str], text: str) -> bool:
    return any(match.end() == len(text) for match in pattern.finditer(text))


def special_tokens(tokenizer: "PreTrainedTokenizerBase") -> dict[int, str]:
    """Return token id → text of the control tokens, such as EOS and end of turn."""
    added = tokenizer.added_tokens_decoder.items()
    named = zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True)
    return {**{int(i): str(token) for i, token in added if token.special}, **dict(named)}


def marks_without_token(template: str, tokenizer: "PreTrainedTokenizerBase") -> list[str]:
    """Return the marks of a chat template, such as <|im_end|>, that are not single tokens."""
    known = tokenizer.get_vocab()
    return [mark for mark in dict.fromkeys(MARK.findall(template)) if mark not in known]


def spelled_tags(
    template: TemplateFormat, tokenizer: "PreTrainedTokenizerBase"
) -> tuple[list[str], int]:
    """Return the tags around a question and its answer that are not single tokens of this
    tokenizer.

    Also return an estimate of how many extra tokens this takes.
    """
    known = tokenizer.get_vocab()
    tags = [tag for tag in tags_of(template) if tag not in known]
    pieces = [len(tokenizer(tag, add_special_tokens=False)["input_ids"]) for tag in tags]
    return list(dict.fromkeys(tags)), sum(pieces) - len(tags)


def tags_of(template: TemplateFormat) -> list[str]:
    """Return the tags that a chat template writes around a question and its answer."""
    try:
        return TAG.findall(template.text_of(Conversation((QUESTION, ANSWER))))
    except FormatError:
        return []  # it needs more than a question and an answer


def shipped_templates() -> dict[str, Path]:
    """Return the chat templates that come with TRL, by name; {} if TRL is missing or ships none.

    Variants of templates that differ only in marking answers are left out, because Temper finds
    answers itself.
    """
    package = find_spec("trl")
    folders = package.submodule_search_locations if package else None
    if not folders:
        return {}
    files = sorted(Path(folders[0], "chat_templates").glob("*.jinja"))
    return {file.stem: file for file in files if not file.stem.endswith("_training")}


def leading_ids(tokenizer: "PreTrainedTokenizerBase") -> tuple[int, ...]:
    """Return the IDs that the tokenizer itself puts before a text: BOS, or nothing."""
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    start = next((i for i in range(len(whole)) if whole[i : i + len(bare)] == bare), 0)
    return tuple(whole[:start])


def start_of_text(tokenizer: "PreTrainedTokenizerBase") -> str:
    """Return the BOS token as text if the tokenizer puts it before every text, otherwise ""."""
    is_put = leading_ids(tokenizer) == (tokenizer.bos_token_id,)
    return str(tokenizer.bos_token) if is_put else ""


def end_of_text(tokenizer: "PreTrainedTokenizerBase") -> str:
    """Return the EOS token as text.

    Raises:
        ValueError: there is no EOS token, or the tokenizer does not read its text as one token.
    """
    eos = tokenizer.eos_token
    if eos is None:
        raise InputError("data.tokenizer_without_eos")
    if tokenizer(eos, add_special_tokens=False)["input_ids"] != [tokenizer.eos_token_id]:
        raise InputError("data.eos_not_one_token", eos=eos)
    return str(eos)
