"""How a conversation is written down before it is tokenised, and where its answers stand.

With a chat template, the template writes; answers are found by comparing what it writes with and
without them. Without one, the plain format below is used, for training and for generation alike:

    every message that is no answer: its text and a line break
    every answer: its text and the EOS token (and a line break, if the conversation goes on)

Both begin with the BOS token once, if the tokenizer uses one.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from infrastructure.training.data.rows import Conversation, Turn

# Some templates write today's date. Data that differs from day to day could not be resumed.
TEMPLATE_DATE = datetime(2024, 7, 26)
GENERATION_TAG = re.compile(r"\{%-?\s*generation\s*-?%\}")


class FormatError(Exception):
    """The chat template cannot write this conversation so that its answers can be found."""


@dataclass(frozen=True, slots=True)
class Written:
    """A conversation as text.

    Attributes:
        lead: token ids that come before the text.
        spans: where the answers stand in the text, with what ends them.
    """

    lead: tuple[int, ...]
    text: str
    spans: tuple[tuple[int, int], ...]


class ChatFormat(Protocol):
    """A way to write conversations down."""

    def write(self, conversation: Conversation) -> Written:
        """The conversation as text with its answers marked; raises `FormatError`."""

    def write_prompt(self, turns: Sequence[Turn]) -> Written:
        """The text before an answer, as it stands at generation; raises `FormatError`."""


class PlainFormat:
    """The format for tokenizers without a chat template, and for plain documents."""

    def __init__(self, tokenizer: Any) -> None:
        self.lead = leading_ids(tokenizer)
        self.end = end_of_text(tokenizer)

    def write(self, conversation: Conversation) -> Written:
        if conversation.is_text:
            text = conversation.turns[0].text + self.end
            return Written(self.lead, text, ((0, len(text)),))
        text, spans = "", []
        for turn in conversation.turns:
            start = len(text)
            text += turn.text
            if turn.role == "assistant":
                text += self.end
                spans.append((start, len(text)))
            text += "\n"
        return Written(self.lead, text[:-1], tuple(spans))

    def write_prompt(self, turns: Sequence[Turn]) -> Written:
        ends = (self.end if turn.role == "assistant" else "" for turn in turns)
        texts = (turn.text + end + "\n" for turn, end in zip(turns, ends, strict=True))
        return Written(self.lead, "".join(texts), ())


class TemplateFormat:
    """The tokenizer's chat template.

    Answers are those that the template marks with {% generation %}, if it does; else they are found
    by what it writes with and without them. The end-of-turn token after an answer belongs to it.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.template: str = tokenizer.get_chat_template()
        self.variables: dict[str, Any] = dict(tokenizer.special_tokens_map)
        self.writes_date = "strftime_now" in self.template
        if self.writes_date:
            self.variables["strftime_now"] = TEMPLATE_DATE.strftime
        self._marks_answers = GENERATION_TAG.search(self.template) is not None
        texts = sorted(special_tokens(tokenizer).values(), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, texts)) or r"(?!)")

    def write(self, conversation: Conversation) -> Written:
        if self._marks_answers:
            text, marked = self._render(conversation.turns, mark=True)
            spans = [(start, self._with_end(text, end)) for start, end in marked if end > start]
            return Written((), text, tuple(spans))
        text, _ = self._render(conversation.turns)
        turns, spans = conversation.turns, []
        for index, turn in enumerate(turns):
            if turn.role == "assistant":
                start = self._length_before(turns[:index], text, prompts=True)
                end = self._length_before(turns[: index + 1], text)
                spans.append((start, self._without_trailing_space(text, start, end)))
        return Written((), text, tuple(spans))

    def write_prompt(self, turns: Sequence[Turn]) -> Written:
        return Written((), self._render(turns, prompts=True)[0], ())

    def _length_before(self, turns: Sequence[Turn], text: str, prompts: bool = False) -> int:
        prefix, _ = self._render(turns, prompts=prompts)
        if not text.startswith(prefix):
            what = "what stands before an answer" if prompts else "earlier messages"
            raise FormatError(
                f"the template writes {what} differently once the conversation goes on, so its"
                " answers cannot be told apart; give data.chat_template one that does not, or one"
                " with {% generation %}"
            )
        return len(prefix)

    def _with_end(self, text: str, end: int) -> int:
        """The end of an answer, with the end-of-turn token that follows it."""
        follows = self._special.match(text, end)
        return follows.end() if follows else end

    def _without_trailing_space(self, text: str, start: int, end: int) -> int:
        """Where an answer ends: with its end-of-turn token, not with the space after it."""
        stripped = text[start:end].rstrip()
        last = [match.end() for match in self._special.finditer(stripped)][-1:]
        return start + len(stripped) if last == [len(stripped)] else end

    def _render(
        self, turns: Sequence[Turn], prompts: bool = False, mark: bool = False
    ) -> tuple[str, list[tuple[int, int]]]:
        """What the template writes, and the answers that it marks."""
        from jinja2.exceptions import TemplateError
        from transformers.utils.chat_template_utils import render_jinja_template

        if not turns:
            raise FormatError("the conversation begins with an answer")
        try:
            rendered: Any = render_jinja_template(
                conversations=[[{"role": turn.role, "content": turn.text} for turn in turns]],
                chat_template=self.template,
                return_assistant_tokens_mask=mark,
                add_generation_prompt=prompts,
                **self.variables,
            )
        except (TemplateError, TypeError) as error:
            raise FormatError(f"the template refuses the conversation: {error}") from error
        (text,), marked = rendered
        return text, list(marked[0]) if mark else []


def special_tokens(tokenizer: Any) -> dict[int, str]:
    """Tokens that are control, not text: EOS, end of turn and the like."""
    added = tokenizer.added_tokens_decoder.items()
    named = zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True)
    return {**{int(i): str(token) for i, token in added if token.special}, **dict(named)}


def leading_ids(tokenizer: Any) -> tuple[int, ...]:
    """What the tokenizer puts before a text by itself: BOS, or nothing."""
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    start = next((i for i in range(len(whole)) if whole[i : i + len(bare)] == bare), 0)
    return tuple(whole[:start])


def end_of_text(tokenizer: Any) -> str:
    """The EOS token as text.

    Raises:
        ValueError: there is none, or the tokenizer does not read it as one token.
    """
    eos = tokenizer.eos_token
    if eos is None:
        raise ValueError(
            "the tokenizer has no EOS token, so a model could never learn to stop: set"
            " tokenizer.eos_token, or use a tokenizer with a chat template"
        )
    if tokenizer(eos, add_special_tokens=False)["input_ids"] != [tokenizer.eos_token_id]:
        raise ValueError(
            f"the tokenizer does not read its EOS token {eos!r} as one token: add it as a special"
            " token"
        )
    return str(eos)
