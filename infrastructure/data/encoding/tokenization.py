"""Conversion of conversations to token ids with a mask of the trained tokens.

By default, each answer and the token that ends it are trained on, so that the model learns to stop.
If the chat template marks the trained text, tokens and mask are those of transformers'
`return_assistant_tokens_mask`. Otherwise, the text before an answer has the same tokens as at
generation: if tokenizing the whole text at once would change them, prompt and answer are tokenized
separately.
"""

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from infrastructure.core.messages import phrase
from infrastructure.data.encoding.chat_format import (
    FormatError,
    PlainFormat,
    TemplateFormat,
    Written,
    end_of_text,
    shipped_templates,
    special_tokens,
    tags_of,
    training_format,
)
from infrastructure.data.encoding.picture_tokens import PictureTokens
from infrastructure.data.encoding.row_accounting import (
    REASONING_KIND,
    WHOLE,
    Account,
    RowAccounting,
    reasoning_forms,
)
from infrastructure.data.encoding.token_survival import (
    LOST,
    UNCHANGED,
    Survival,
    TokenSurvival,
)
from infrastructure.data.readers.pictures import PictureError
from infrastructure.data.readers.rows import (
    CHAT_TEMPLATE,
    LEFT_OUT,
    NOT_IN_TOKENS,
    NOT_SUPERVISED,
    OVER_LONG,
    PICTURE,
    BadRow,
    Conversation,
    Turn,
    excerpt,
)
from infrastructure.data.store.examples import Picture, TokenizedExample

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import BatchEncoding, PreTrainedTokenizerBase

# Version of the rules for trained tokens. 2: as in TRL if a chat template marks answers; before,
# the token after a marked answer was trained too. 3: a text that begins with BOS or ends with EOS
# gets no second one.
LABELS_VERSION = 3

TOOL_USE = "tool_use"  # the template that transformers uses for tools
KEEP_START = "keep_start"
LAST_ANSWER = "last_answer"

PROBES = (("a b\n", "c d"), ("1.\n", "2 3"), ("é:\n", "é è"), ("a\n", "(b)"))

NUM_TEMPLATES_NAMED = 2
LONGEST_JOINT = 4  # tokens at a prompt's end that may differ when an answer follows

TokenIds = Sequence[int] | npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Encoded:
    """A tokenized conversation.

    Attributes:
        end_token: the token that ends the last answer: the last trained one that is not white
            space. If the end of the last answer was cut off, the special token that ends the answer
            before it, if there is one.
        is_truncated: True if tokens were cut off.
        account: the texts of the conversation that the model does not read.
        is_rewritten: True if the reasoning was converted to another form, because the chat template
            would leave out the form that the row uses.
        survival: changes that the tokenizer made to the trained text.
    """

    example: TokenizedExample
    end_token: int
    is_truncated: bool = False
    account: Account = WHOLE
    is_rewritten: bool = False
    survival: Survival = UNCHANGED


def answer_end_ids(tokenizer: "PreTrainedTokenizerBase", max_length: int = 4096) -> list[int]:
    """Return the tokens that end an answer: EOS, and the end token of the chat template.

    The end token of the template is the last token that it writes after an answer, if this is a
    special token.
    """
    turns = (Turn("user", "1"), Turn("assistant", "2"))
    [written] = ConversationEncoder(tokenizer, max_length=max_length).encode([Conversation(turns)])
    ends = {tokenizer.eos_token_id}
    if isinstance(written, Encoded) and written.end_token in special_tokens(tokenizer):
        ends.add(written.end_token)
    return sorted(ends)


def ends_of_template(processing_class: object) -> list[int]:
    """Return the tokens that end an answer in the chat template of a tokenizer or processor.

    Args:
        processing_class: the `processing_class` of a transformers Trainer.

    Returns:
        The token ids; [] if there is no chat template.
    """
    tokenizer: Any = getattr(processing_class, "tokenizer", processing_class)
    has_both = getattr(tokenizer, "chat_template", None) and getattr(tokenizer, "eos_token", None)
    return answer_end_ids(tokenizer) if has_both else []


@dataclass(frozen=True, slots=True)
class _Accounted:
    """A rendered conversation, and the account of its texts that the model does not read."""

    written: Written
    account: Account
    is_rewritten: bool = False


class ConversationEncoder:
    """A tokenizer of conversations for training, and of prompts for generation.

    Args:
        tokenizer: a transformers tokenizer, fast or slow, with or without a chat template.
        max_length: maximum length of an example in tokens.
        over_length: what happens to longer examples: "quarantine" skips them, "keep_start" cuts off
            their ends as TRL does, "truncate" cuts the beginnings of their prompts (see
            `truncate`).
        train_on: what is trained on: "answers", the "last_answer" of each conversation, or "all"
            for every token but the first.
        pictures: encoder of images into tokens; None: the model reads only text.

    Raises:
        ValueError: the tokenizer has no usable EOS token.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        max_length: int,
        over_length: str = "quarantine",
        train_on: str = "answers",
        pictures: PictureTokens | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.over_length = over_length
        self.train_on = train_on
        self.pictures = pictures
        self.own_template = TemplateFormat(tokenizer) if tokenizer.chat_template else None
        named = tokenizer.chat_template if isinstance(tokenizer.chat_template, dict) else {}
        self.own_tool_template = (
            TemplateFormat(tokenizer, named[TOOL_USE]) if TOOL_USE in named else None
        )
        self.plain = None if self.own_template else PlainFormat(tokenizer)
        self.special_tokens = special_tokens(tokenizer)
        self.splits_cleanly = _splits_cleanly(tokenizer)
        self.survival = TokenSurvival(tokenizer)
        self._is_space: dict[int, bool] = {}
        self._advised: str | None = None

    @cached_property
    def template(self) -> TemplateFormat | None:
        """The chat template for training conversations. Prompts use the tokenizer's own
        template.
        """
        if self.own_template is None:
            return None
        return training_format(self.tokenizer, self.own_template, self.train_on == LAST_ANSWER)

    @cached_property
    def tool_template(self) -> TemplateFormat | None:
        """The chat template for training conversations with tools; None if there is none."""
        if self.own_tool_template is None:
            return None
        return training_format(self.tokenizer, self.own_tool_template, self.train_on == LAST_ANSWER)

    def encode(
        self, conversations: Sequence[Conversation], folder: Path = Path()
    ) -> list[Encoded | BadRow]:
        """Return each conversation as tokens, or as a `BadRow` with the reason why it cannot be
        used, in order.

        Args:
            folder: the folder that paths of images are relative to.
        """
        results: dict[int, Encoded | BadRow] = {}
        accounted: dict[int, _Accounted] = {}
        for index, conversation in enumerate(conversations):
            try:
                whole = self._accounted(self._for_writing(conversation))
            except FormatError as error:
                results[index] = _bad(conversation, CHAT_TEMPLATE, str(error), error.advice)
                continue
            if lost := whole.account.unlearnable:
                writer = phrase("data.chat_template" if self.own_template else "data.plain_format")
                detail = phrase("data.answer_not_written", lost=lost[0], writer=writer)
                advice = self.advice_for(self._for_writing(conversation))
                results[index] = _bad(conversation, LEFT_OUT, detail, advice)
            else:
                accounted[index] = whole
        written = [whole.written for whole in accounted.values()]
        tokens = self._tokenise(written)
        learned = [np.array(ids, dtype=np.int64)[mask].tolist() for ids, mask in tokens]
        survivals = iter(self.survival.of_rows(written, learned))
        for (index, whole), (ids, mask) in zip(accounted.items(), tokens, strict=True):
            conversation, one, survival = conversations[index], whole.written, next(survivals)
            if survival.kind == LOST:
                results[index] = _bad(conversation, NOT_IN_TOKENS, survival.example)
                continue
            texts = (turn.text for turn in conversation.turns)
            if unread := self.survival.lost_of(texts, one.text, ids):
                survival = replace(survival, unread=unread)
            adds_end = not one.is_marked or self._needs_end(conversation)
            try:
                pictures, ids, mask = self._with_pictures(conversation, one, ids, mask, folder)
            except PictureError as error:
                results[index] = _bad(conversation, PICTURE, str(error))
            else:
                result = self._finish(conversation, ids, mask, adds_end, pictures)
                if isinstance(result, Encoded):
                    result = replace(
                        result,
                        account=whole.account,
                        is_rewritten=whole.is_rewritten,
                        survival=survival,
                    )
                results[index] = result
        return [results[index] for index in range(len(conversations))]

    def _with_pictures(
        self, conversation: Conversation, written: Written, ids: list[int], mask: Mask, folder: Path
    ) -> tuple[tuple[Picture, ...], list[int], Mask]:
        """Return a conversation's images, and its tokens and mask with the image tokens inserted.

        Raises:
            PictureError: an image cannot be used.
        """
        if self.pictures is None:
            if conversation.num_pictures:
                raise PictureError("data.model_accepts_text_only")
            return (), ids, mask
        images: list[Image]
        read, images = self.pictures.read(conversation.pictures, folder)
        whole, whole_mask = self.pictures.in_place(ids, mask, images)
        self.pictures.check(written.text, ids, whole, images)
        return tuple(read), whole, whole_mask

    def prompt_ids(
        self, turns: Sequence[Turn], inputs: str = "", images: Sequence["Image"] = ()
    ) -> list[int]:
        """Return the tokens of a prompt, as the model's own chat template writes it at generation.

        Args:
            inputs: other inputs of the chat template, as in `Conversation.inputs`.
            images: the images for the image parts of the messages.

        Raises:
            FormatError: the chat template rejects these messages. PictureError: the numbers of
                images and of image placeholders in the template's output differ.
        """
        written = self.prompt_written(turns, inputs)
        ids = [*written.lead, *self._ids([written.text])[0]]
        if not images:
            return ids
        assert self.pictures is not None
        return self.pictures.in_place(ids, np.zeros(len(ids), dtype=bool), images)[0]

    def prompt_account(self, turns: Sequence[Turn], inputs: str = "") -> Account:
        """Return which texts of a prompt the model does not read. Raise `FormatError` if that
        fails.
        """
        text = self.prompt_written(turns, inputs).text
        conversation = Conversation(tuple(turns), inputs=inputs, num_given=len(turns))
        return self._prompt_accounting.account(conversation, text)

    @cached_property
    def _prompt_accounting(self) -> RowAccounting:
        return RowAccounting(self._prompt_text, self.template_sources)

    def _prompt_text(self, conversation: Conversation) -> str:
        return self.prompt_written(conversation.turns, conversation.inputs).text

    def prompt_text(self, turns: Sequence[Turn], inputs: str = "") -> str:
        """Return a prompt for display.

        A single message is shown without its role, several messages with their roles. Messages that
        the model does not read are marked.
        """
        if len(turns) == 1:
            return turns[0].text
        account = self.prompt_account(turns, inputs)
        left_out = {one.message for one in account.missing if one.kind != REASONING_KIND}
        return "\n".join(
            phrase("data.message_left_out", role=turn.role, text=turn.text)
            if number in left_out
            else f"{turn.role}: {turn.text}"
            for number, turn in enumerate(turns, 1)
        )

    def prompt_written(self, turns: Sequence[Turn], inputs: str) -> Written:
        """Return a prompt as text. Raise `FormatError` if that fails."""
        if self._spells_pictures:
            turns = [self._spelled_out(turn) for turn in turns]
        return (self.own_template_for(inputs) or self._plain()).write_prompt(turns, inputs)

    def num_tokens(self, text: str) -> int:
        """Return the number of tokens of a text, without a template or special tokens."""
        return len(self._ids([text])[0])

    def _accounted(self, conversation: Conversation) -> _Accounted:
        """Return a conversation as text, and which of its texts are missing there.

        If the template would leave out reasoning that should be trained on, the reasoning is moved
        from tags to a field or from a field to tags, if the template keeps it there. Raise
        `FormatError` if that fails.
        """
        first = self._account(conversation)
        if not any(one.kind == REASONING_KIND for one in first.account.unlearnable):
            return first
        form = self._format(conversation)
        source = form.template if isinstance(form, TemplateFormat) else ""
        for other in reasoning_forms(conversation, source):
            try:
                second = self._account(other)
            except FormatError:
                continue
            if not second.account.unlearnable:
                return replace(second, is_rewritten=True)
        return first

    def _account(self, conversation: Conversation) -> _Accounted:
        written = self._write(conversation)
        return _Accounted(written, self._accounting.account(conversation, written.text))

    @cached_property
    def _accounting(self) -> RowAccounting:
        return RowAccounting(self._text_of, self.template_sources)

    @property
    def template_sources(self) -> list[str]:
        """The Jinja sources of all templates that conversations are written with."""
        formats = (
            *(self.own_template, self.template),
            *(self.own_tool_template, self.tool_template),
        )
        return list(dict.fromkeys(one.template for one in formats if one))

    def _text_of(self, conversation: Conversation) -> str:
        return self._format(conversation).text_of(conversation)

    def advice_for(self, conversation: Conversation) -> str:
        """Return advice for a row if the chat template leaves out text of its answers."""
        if self._advised is None:  # once, because other rows lack the same
            names = list(itertools.islice(self._writing(conversation), NUM_TEMPLATES_NAMED))
            some = (
                phrase("data.shipped_template_examples", names=" or ".join(names)) if names else ""
            )
            self._advised = phrase("data.use_complete_template", examples=some)
        return self._advised

    def _writing(self, conversation: Conversation) -> Iterator[str]:
        """Yield names of TRL's chat templates that would keep all trained text of a conversation.

        Only templates whose tags are tokens of this tokenizer are considered.
        """
        known = self.tokenizer.get_vocab()
        for name, path in shipped_templates().items():
            template = TemplateFormat(self.tokenizer, path.read_text("utf-8"))
            tags = tags_of(template)
            if not tags or any(tag not in known for tag in tags):
                continue
            accounting = RowAccounting(template.text_of, [template.template])
            try:
                account = accounting.account(conversation, template.text_of(conversation))
            except FormatError:
                continue
            if not account.unlearnable and not account.undetermined:
                yield name

    def template_for(self, inputs: str) -> TemplateFormat | None:
        """Return the training template for conversations with these inputs, or None."""
        return self.tool_template if self._is_for_tools(inputs) else self.template

    def _is_for_tools(self, inputs: str) -> bool:
        """Return whether the tokenizer's template for tools applies, as in transformers."""
        if self.own_tool_template is None or not inputs:
            return False
        return bool(json.loads(inputs).get("tools"))

    def own_template_for(self, inputs: str) -> TemplateFormat | None:
        """Return the template for prompts with these inputs; None if there is none."""
        return self.own_tool_template if self._is_for_tools(inputs) else self.own_template

    def _format(self, conversation: Conversation) -> PlainFormat | TemplateFormat:
        if conversation.is_text or self.own_template is None:
            return self._plain()
        own = self.own_template_for(conversation.inputs)
        form = own if self._is_whole(conversation) else self.template_for(conversation.inputs)
        assert form is not None
        return form

    def write(self, conversation: Conversation) -> Written:
        """Return a conversation as text with its trained spans. Raise `FormatError` if that
        fails.
        """
        return self._write(self._for_writing(conversation))

    def _for_writing(self, conversation: Conversation) -> Conversation:
        if self.train_on == LAST_ANSWER and not conversation.is_text:
            conversation = conversation.with_last_answer
        if conversation.num_pictures and self._spells_pictures:
            turns = tuple(self._spelled_out(turn) for turn in conversation.turns)
            conversation = replace(conversation, turns=turns)
        return conversation

    def _is_whole(self, conversation: Conversation) -> bool:
        """Return whether the whole conversation is trained on, so that no answers have to
        be found.
        """
        return self.train_on == "all" and all(turn.is_learnt for turn in conversation.turns)

    def _write(self, conversation: Conversation) -> Written:
        form = self._format(conversation)
        if isinstance(form, TemplateFormat) and self._is_whole(conversation):
            return form.write_whole(conversation)
        return form.write(conversation)

    @cached_property
    def _spells_pictures(self) -> bool:
        """True if image placeholders are inserted into the texts, because the template writes none.

        The template of a vision-language model writes the placeholders itself.
        """
        if self.pictures is None:
            return False
        if self.own_template is None:
            return True
        return self.pictures.has_text_template and not self.own_template.writes(self.pictures.mark)

    def _spelled_out(self, turn: Turn) -> Turn:
        """Return a message with its image placeholders inserted into its text."""
        assert self.pictures is not None
        mark = self.pictures.mark
        texts = [str(part.get("text", mark)) for part in turn.parts]
        if not texts:
            return turn
        fields = {k: v for k, v in json.loads(turn.fields).items() if k != "content"}
        return replace(turn, text="".join(texts), fields=json.dumps(fields) if fields else "")

    def _needs_end(self, conversation: Conversation) -> bool:
        """Return whether an end token must be added after answers, because the template writes
        none.
        """
        template = self.template_for(conversation.inputs)
        assert template is not None
        return not template.writes_end

    def _plain(self) -> PlainFormat:
        self.plain = self.plain or PlainFormat(self.tokenizer)
        return self.plain

    def _ids(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        options = {"return_attention_mask": False, "return_token_type_ids": False}
        encoded = self.tokenizer(texts, add_special_tokens=False, verbose=False, **options)
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    def _tokenise(self, written: list[Written]) -> list[tuple[list[int], Mask]]:
        if not self.tokenizer.is_fast:  # it has no offsets of tokens
            return self._tokenise_apart(written)
        marked = iter(self._tokenise_marked([w for w in written if w.is_marked]))
        apart = iter(self._tokenise_apart([w for w in written if not w.is_marked]))
        return [next(marked if one.is_marked else apart) for one in written]

    def _tokenise_marked(self, written: list[Written]) -> list[tuple[list[int], Mask]]:
        """Tokenize each text as a whole. Tokens with a marked character are trained on."""
        if not written:
            return []
        texts = [w.text for w in written]
        encoded = self.tokenizer(texts, add_special_tokens=False, verbose=False)
        results = []
        for number, one in enumerate(written):
            ids: list[int] = encoded["input_ids"][number]
            mask = np.zeros(len(ids), dtype=bool)
            is_given = np.zeros(len(ids), dtype=bool)
            for (start, end), is_learnt in zip(one.spans, one.is_learnt, strict=True):
                tokens = _tokens_of(encoded, number, start, end)
                (mask if is_learnt else is_given)[tokens] = True
            is_given[: num_common(self._ids([one.given])[0], ids) if one.given else 0] = True
            results.append((ids, self._learnt(mask, is_given)))
        return results

    def _learnt(self, mask: Mask, is_given: Mask) -> Mask:
        return ~is_given if self.train_on == "all" else mask & ~is_given

    def _tokenise_apart(self, written: list[Written]) -> list[tuple[list[int], Mask]]:
        pieces = [_pieces(w) for w in written]
        if not self.splits_cleanly:
            return self._tokenise_whole(written, pieces)
        parts = iter(self._ids([text for texts in pieces for text in texts]))
        return [
            self._masked(one, [next(parts) for _ in texts])
            for one, texts in zip(written, pieces, strict=True)
        ]

    def _tokenise_whole(
        self, written: list[Written], pieces: list[list[str]]
    ) -> list[tuple[list[int], Mask]]:
        """Tokenize whole texts, then split the tokens at the answers.

        This is necessary for tokenizers that give different tokens if the text is split first.
        """
        whole = self._ids([w.text for w in written])
        parts = iter(self._ids([text for texts in pieces for text in texts[:-1]]))
        results = []
        for one, texts, ids in zip(written, pieces, whole, strict=True):
            heads = [next(parts) for _ in texts[:-1]]
            bounds = self._bounds(texts, heads, ids)
            if bounds is None:
                apart = [heads[0], *(self._continuation(text) for text in texts[1:])]
            else:
                apart = [ids[a:b] for a, b in itertools.pairwise([0, *bounds, len(ids)])]
            results.append(self._masked(one, apart))
        return results

    def _continuation(self, text: str) -> list[int]:
        """Return the tokens that a text has inside a longer text, after a line break."""
        lead, both = self._ids(["\n", "\n" + text])
        return both[len(lead) :] if both[: len(lead)] == lead else self._ids([text])[0]

    def _bounds(self, texts: list[str], heads: list[list[int]], ids: list[int]) -> list[int] | None:
        """Return the token position after each piece; None if a token spans two pieces."""
        bounds: list[int] = []
        position = 0
        for index, head in enumerate(heads):
            if ids[position : position + len(head)] == head:
                position += len(head)
            else:
                prefix = self._ids(["".join(texts[: index + 1])])[0]
                if ids[: len(prefix)] != prefix:
                    return None
                position = len(prefix)
            bounds.append(position)
        return bounds

    def _masked(self, written: Written, parts: list[list[int]]) -> tuple[list[int], Mask]:
        """Join the tokens of the pieces, and mark those of answers as trained."""
        answers = {start: n for n, (start, _) in enumerate(written.spans)}
        ids, owners = list(written.lead), [-1] * len(written.lead)
        for start, part in zip(_edges(written), parts, strict=False):
            ids += part
            owners += [answers.get(start, -1)] * len(part)
        owner = np.array(owners, dtype=np.int64)
        left_out = [n for n, is_learnt in enumerate(written.is_learnt) if not is_learnt]
        return ids, self._learnt(owner >= 0, np.isin(owner, left_out))

    def _finish(
        self,
        conversation: Conversation,
        ids: list[int],
        mask: Mask,
        adds_end: bool,
        pictures: tuple[Picture, ...] = (),
    ) -> Encoded | BadRow:
        if adds_end:
            ids, mask = self._with_end(ids, mask)
        tokens = np.array(ids, dtype=np.int32)
        mask[:1] = False
        is_over_long = len(tokens) > self.max_length
        if is_over_long and self.over_length == "quarantine":
            detail = phrase(
                "data.example_too_long", num_tokens=len(tokens), max_length=self.max_length
            )
            return _bad(conversation, OVER_LONG, detail)
        if is_over_long and self.over_length == KEEP_START and mask.any():
            first_learnt = int(np.flatnonzero(mask)[0])
            if first_learnt >= self.max_length:
                detail = phrase(
                    "data.no_trained_token_in_limit",
                    num_tokens=len(tokens),
                    max_length=self.max_length,
                )
                return _bad(conversation, OVER_LONG, detail)
            tokens, mask = tokens[: self.max_length].copy(), mask[: self.max_length].copy()
        elif is_over_long and mask.any():
            tokens, mask = truncate(tokens, mask, self.max_length, self.tokenizer.bos_token_id)
        if not mask.any():
            return _bad(conversation, NOT_SUPERVISED, phrase("data.no_answer_token_left"))
        if pictures and is_over_long and self._cuts_a_picture(ids, tokens):
            detail = phrase(
                "data.limit_cuts_image", num_tokens=len(ids), max_length=self.max_length
            )
            return _bad(conversation, OVER_LONG, detail)
        example = TokenizedExample(tokens, mask, conversation.task, pictures)
        return Encoded(example, self._end_token(tokens, mask, is_over_long), is_over_long)

    def _cuts_a_picture(self, whole: TokenIds, cut: TokenIds) -> bool:
        assert self.pictures is not None
        of_pictures = self.pictures.token_ids
        return int(np.isin(cut, of_pictures).sum()) != int(np.isin(whole, of_pictures).sum())

    def _with_end(self, ids: list[int], mask: Mask) -> tuple[list[int], Mask]:
        """Add EOS after the last answer if no special token ends that answer, so that generation
        stops.
        """
        last = self._last_word(ids, mask)
        if last < 0 or self._is_special(ids[last]):
            return ids, mask
        last = int(np.flatnonzero(mask)[-1])
        end_of_text(self.tokenizer)  # raises if there is none
        return [*ids[: last + 1], int(self.tokenizer.eos_token_id)], np.append(
            mask[: last + 1], True
        )

    def _end_token(self, ids: TokenIds, mask: Mask, is_cut: bool) -> int:
        last = self._last_word(ids, mask)
        if is_cut and not self._is_special_at(ids, last):
            ends = np.flatnonzero(mask[:-1] & ~mask[1:])  # of answers with text after them
            upto = int(ends[-1]) + 1 if ends.size else 0
            earlier = self._last_word(ids[:upto], mask[:upto])
            last = earlier if self._is_special_at(ids, earlier) else last
        return int(ids[max(last, int(np.flatnonzero(mask)[0]))])

    def _is_special_at(self, ids: TokenIds, position: int) -> bool:
        return position >= 0 and self._is_special(int(ids[position]))

    def _last_word(self, ids: TokenIds, mask: Mask) -> int:
        """Return the position of the last trained token that is not white space, or -1."""
        for position in np.flatnonzero(mask)[::-1]:
            if not self.is_space(int(ids[position])):
                return int(position)
        return -1

    def is_space(self, token: int) -> bool:
        """Return whether a token is only white space."""
        if token not in self._is_space:
            text = str(self.tokenizer.decode([token], skip_special_tokens=False))
            self._is_space[token] = not self._is_special(token) and not text.strip()
        return self._is_space[token]

    def _is_special(self, token: int) -> bool:
        return token in self.special_tokens


def _pieces(written: Written) -> list[str]:
    """Return the text, split before and after each answer, without empty pieces."""
    return [written.text[start:end] for start, end in itertools.pairwise(_edges(written))]


def _edges(written: Written) -> list[int]:
    return sorted({0, len(written.text), *(edge for span in written.spans for edge in span)})


def _tokens_of(encoded: "BatchEncoding", number: int, start: int, end: int) -> slice:
    """Return the slice of tokens that cover the characters from `start` to `end`."""
    tokens = (encoded.char_to_token(number, position) for position in range(start, end))
    first = next((token for token in tokens if token is not None), None)
    tokens = (encoded.char_to_token(number, position) for position in range(end - 1, start - 1, -1))
    last = next((token for token in tokens if token is not None), None)
    return slice(0, 0) if first is None or last is None else slice(first, last + 1)


def num_common(ids: TokenIds, others: TokenIds) -> int:
    """Return the length of the common prefix of two token sequences."""
    length = min(len(ids), len(others))
    same = np.asarray(ids[:length]) == np.asarray(others[:length])
    return length if same.all() else int(np.argmin(same))


def begins_with(tokenizer: "PreTrainedTokenizerBase", ids: TokenIds, prompt: TokenIds) -> bool:
    """Return whether an example's tokens begin with those of a prompt.

    The texts are compared instead of the tokens from the first different token on, because one
    token may span the end of the prompt and the beginning of the answer.
    """
    same = num_common(ids, prompt)
    if same == len(prompt):
        return True
    rest = str(tokenizer.decode(list(prompt[same:])))
    return len(prompt) - same <= LONGEST_JOINT and str(
        tokenizer.decode(list(ids[same : len(prompt) + 1]))
    ).startswith(rest)


def _splits_cleanly(tokenizer: "PreTrainedTokenizerBase") -> bool:
    """Return whether splitting a text after a line break leaves its tokens unchanged.

    It does not for tokenizers that put a mark before the first word, or whose special tokens absorb
    the space next to them.
    """
    added = tokenizer.added_tokens_decoder.values()
    if any(getattr(token, side, False) for token in added for side in ("lstrip", "rstrip")):
        return False

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    return all(ids(left + right) == ids(left) + ids(right) for left, right in PROBES)


def _bad(conversation: Conversation, reason: str, detail: str, advice: str = "") -> BadRow:
    shown = excerpt(conversation.turns[0].text)
    place = (conversation.source, conversation.line)
    return BadRow(*place, reason, detail, shown, advice=advice)


def truncate(
    tokens: npt.NDArray[np.int32], mask: Mask, max_length: int, bos_id: int | None = None
) -> tuple[npt.NDArray[np.int32], Mask]:
    """Cut an over-long example so that the last answer is kept, completely if possible.

    The beginning of the prompt is cut first (BOS stays). If the answer alone is too long, its end
    is cut as well, including EOS, so that at least a quarter of `max_length` remains for the text
    before the answer. A plain document keeps its beginning.
    """
    last = int(np.flatnonzero(mask)[-1])
    unsupervised = np.flatnonzero(~mask[:last])
    start = int(unsupervised[-1]) + 1 if len(unsupervised) else 0
    num_answer = last + 1 - start
    num_before = min(start, max(max_length - num_answer, max_length // 4))
    kept = slice(start - num_before, start - num_before + max_length)
    cut_tokens, cut_mask = tokens[kept].copy(), mask[kept].copy()
    if tokens[0] == bos_id:
        cut_tokens[0] = tokens[0]
    cut_mask[0] = False
    return cut_tokens, cut_mask
