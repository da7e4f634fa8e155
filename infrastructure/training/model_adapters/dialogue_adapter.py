"""Adapter for training chat models on conversations, with separate metrics for later turns.

In addition to what `StandardModelAdapter` does, it rejects rows that are not conversations, and a
tokenizer without a chat template, before the model is loaded. Examples may also be lists of
messages. Held-out metrics distinguish first and later answers, and include how often the end of an
answer is predicted.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F

from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.data.data_pipeline import chat_template_of, first_rows
from infrastructure.data.encoding.chat_format import FormatError, special_tokens
from infrastructure.data.encoding.row_schema import (
    MESSAGES,
    TEXT,
    RowSchema,
    ShapeError,
)
from infrastructure.data.encoding.tokenization import ConversationEncoder, Encoded
from infrastructure.data.readers.rows import Conversation, Row
from infrastructure.data.store.examples import TokenizedExample
from infrastructure.models.token_functions import TokenFunction
from infrastructure.training.model_adapters.base_adapter import Batch
from infrastructure.training.model_adapters.standard_adapter import StandardModelAdapter

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TURNS, ENDS = "target_turns", "target_ends"
LOSS, HITS = "loss by token", "predicted"
CHAT = RowSchema(
    MESSAGES,
    {"chat": "messages", "tools": "tools", "options": "chat_template_kwargs", "system": "system"},
    "messages given as they are",
)
IN_PYTHON = "models.given_messages"

Messages = Sequence[Mapping[str, Any]]


class DialogueModelAdapter(StandardModelAdapter):
    """An adapter for any causal language model with a chat template, trained on conversations."""

    def initialize_model(self) -> torch.nn.Module:
        """Load the model after checking the first rows and the tokenizer's chat template.

        Raises:
            ValueError: the rows are plain text, the chat template can render none of the first
                rows, or there is no chat template.
        """
        self.initialize_tokenizer()
        model = super().initialize_model()
        self.tokenizer.chat_template = chat_template_of(self.data_config, self.tokenizer)
        return model

    def initialize_tokenizer(self) -> "PreTrainedTokenizerBase | None":
        """Load the tokenizer after checking the rows. For errors see `initialize_model`."""
        rows = self._first_conversations()
        tokenizer = super().initialize_tokenizer()
        if tokenizer is not None:
            tokenizer.chat_template = chat_template_of(self.data_config, tokenizer)
            self._check_rendering(self._encoder_of(tokenizer), rows)
        return tokenizer

    def encode(
        self, messages: Messages, tools: Sequence[Mapping[str, Any]] | None = None, **options: Any
    ) -> TokenizedExample:
        """Tokenize a conversation as a training example.

        Args:
            messages: role and content of each message, optionally tool_calls and reasoning_content.
            tools: JSON schemas of the tools that can be called.
            options: further variables of the chat template, such as enable_thinking.

        Raises:
            ValueError: the messages are not a conversation, or nothing in them is trained on.
        """
        (encoded,) = self.encoder.encode([_conversation(messages, tools, options)])
        if not isinstance(encoded, Encoded):
            raise InputError(
                "models.messages_not_encoded",
                source=phrase(IN_PYTHON),
                reason=encoded.reason,
                detail=encoded.detail,
            )
        return encoded.example

    def prompt_ids(
        self, messages: Messages, tools: Sequence[Mapping[str, Any]] | None = None, **options: Any
    ) -> list[int]:
        """Return the token IDs of a prompt for generating the next message.

        For arguments and errors see `encode`.
        """
        answer = {"role": "assistant", "content": "?"}  # a conversation needs one
        whole = _conversation([*messages, answer], tools, options)
        try:
            return self.encoder.prompt_ids(whole.turns[:-1], whole.inputs)
        except FormatError as error:
            raise InputError(
                "models.messages_not_rendered", source=phrase(IN_PYTHON), sentence=error.sentence
            ) from error

    @cached_property
    def encoder(self) -> ConversationEncoder:
        """The encoder that renders and tokenizes conversations, once the model is loaded."""
        return self._encoder_of(self.tokenizer)

    def prepare_batch(self, examples: Sequence[TokenizedExample | Messages]) -> Batch:
        """Prepare a batch as `StandardModelAdapter` does. Examples may also be lists of messages.

        For each target token, the batch also contains the index of its answer, and whether the
        token ends that answer.
        """
        tokenized = self._tokenized(examples)
        batch = super().prepare_batch(tokenized)
        if self.objective is None:
            turns, ends = zip(*map(self._answers_of, tokenized), strict=True)
            batch[TURNS], batch[ENDS] = np.concatenate(turns), np.concatenate(ends)
        return batch

    def count_items(self, examples: Sequence[TokenizedExample | Messages]) -> int:
        return super().count_items(self._tokenized(examples))

    def count_tokens(self, examples: Sequence[TokenizedExample | Messages]) -> int:
        return super().count_tokens(self._tokenized(examples))

    def count_computed(self, examples: Sequence[TokenizedExample | Messages]) -> int:
        return super().count_computed(self._tokenized(examples))

    def sum_metrics(self, model: torch.nn.Module, batch: Batch) -> dict[str, tuple[float, int]]:
        """Return sums of `training.metrics` and of three metrics for conversations.

        The three metrics are the cross-entropy of first answers, that of later answers, and the
        share of end-of-turn tokens that the model predicts correctly.
        """
        if TURNS not in batch:
            return super().sum_metrics(model, batch)
        losses, hits = _Kept(_cross_entropy), _Kept(_is_predicted)
        every: dict[str, TokenFunction] = {**self.metrics, LOSS: losses, HITS: hits}
        sums = self.token_loss.metric_sums(model, batch, every, self.size_grid)
        turns, ends = batch[TURNS], batch[ENDS]
        return {
            **{key: sums[key] for key in self.metrics},
            "eval_loss_first_answers": losses.sum_of(turns == 0),
            "eval_loss_later_answers": losses.sum_of(turns > 0),
            "eval_end_accuracy": hits.sum_of(ends),
        }

    def _tokenized(self, examples: Sequence[TokenizedExample | Messages]) -> list[TokenizedExample]:
        return [one if isinstance(one, TokenizedExample) else self.encode(one) for one in examples]

    def _answers_of(self, example: TokenizedExample) -> tuple[np.ndarray, np.ndarray]:
        """Return, for each target token, the index of its answer and whether it ends the answer.

        Both arrays have the shape (targets,). The first (int64) is the index of the token's answer
        in the example. The second (bool) is True for the special token that ends an answer.
        """
        mask = example.supervised.copy()
        mask[:1] = False  # nothing predicts the first token
        begins = mask & ~np.concatenate([[False], mask[:-1]])
        words = mask & ~np.isin(example.input_ids, self._spaces)
        followed = np.zeros(len(mask), dtype=bool)
        place = np.flatnonzero(words)
        answer = np.cumsum(begins) - 1
        followed[place[:-1]] = answer[place[1:]] == answer[place[:-1]]
        ends = words & ~followed & np.isin(example.input_ids, self._special)
        return answer[mask], ends[mask]

    @cached_property
    def _special(self) -> np.ndarray:
        return np.array(sorted(special_tokens(self.tokenizer)), dtype=np.int64)

    @cached_property
    def _spaces(self) -> np.ndarray:
        """IDs of tokens that are only whitespace, which may follow the end of an answer."""
        texts = ((n, str(self.tokenizer.decode([n]))) for n in self.tokenizer.get_vocab().values())
        spaces = [n for n, text in texts if text and not text.strip()]
        return np.array(sorted(spaces), dtype=np.int64)

    def _first_conversations(self) -> list[Conversation]:
        """Return the conversations of the first rows, or an empty list without data.

        Raises:
            ValueError: the rows are plain text, or none is a conversation.
        """
        if self.data_config.path is None:
            return []
        rows, schema = first_rows(self.data_config)
        if schema.name == TEXT:
            raise InputError("models.dialogue_adapter_plain_text", reason=schema.reason)
        conversations, first_error = [], None
        for row in rows:
            try:
                conversations.append(schema.conversation(row))
            except ShapeError as error:
                first_error = first_error or (row, error)
        if not conversations and first_error is not None:
            row, why = first_error
            raise InputError(_none_of(rows, row, f"{why.reason}: {why}")) from why
        return conversations

    def _check_rendering(
        self, encoder: ConversationEncoder, conversations: Sequence[Conversation]
    ) -> None:
        """Raise if the chat template can render none of the first conversations.

        Raises:
            ValueError: no conversation can be rendered. The message says why.
        """
        first_error = None
        for conversation in conversations:
            try:
                encoder.write(conversation)
            except FormatError as error:
                first_error = first_error or (conversation, error)
            else:
                return
        if first_error is not None:
            one, reason = first_error
            raise InputError(_none_of(conversations, one, reason.sentence)) from reason

    def _encoder_of(self, tokenizer: Any) -> ConversationEncoder:
        data = self.data_config
        return ConversationEncoder(
            tokenizer,
            max_length=data.max_length,
            over_length=data.over_length,
            train_on=data.train_on,
        )


def _none_of(rows: Sequence[object], first: Row | Conversation, reason: str) -> str:
    """Return the message for data in which no row is a conversation that the chat template can
    render.
    """
    return phrase(
        "models.no_row_is_a_conversation",
        count=len(rows),
        source=first.source,
        line=first.line,
        reason=reason,
    )


def _conversation(
    messages: Messages, tools: Sequence[Mapping[str, Any]] | None, options: Mapping[str, Any]
) -> Conversation:
    values = {
        "messages": list(messages),
        "tools": list(tools or ()),
        "chat_template_kwargs": options,
    }
    try:
        return CHAT.conversation(Row(values, phrase(IN_PYTHON), 1))
    except ShapeError as error:
        raise InputError(
            "models.messages_invalid", source=phrase(IN_PYTHON), reason=error.reason, error=error
        ) from error


class _Kept:
    """A wrapper of a metric that stores the metric's value for each target token, in order."""

    def __init__(self, metric: Any) -> None:
        self.metric = metric
        self.values: list[torch.Tensor] = []

    def __call__(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.metric(logits, targets)
        self.values.append(values.detach().float().cpu())
        return values

    def sum_of(self, chosen: np.ndarray) -> tuple[float, int]:
        """Return the sum of the stored values selected by the mask `chosen` (N,), and their
        number.
        """
        whole = torch.cat(self.values) if self.values else torch.zeros(0)
        return float(whole[torch.from_numpy(chosen)].sum()), int(chosen.sum())


def _cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.float(), targets, reduction="none")


def _is_predicted(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (logits.argmax(dim=-1) == targets).float()
