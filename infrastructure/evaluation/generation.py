"""Answers that a model writes for held-out prompts, and how many of them are exactly right.

Greedy decoding, so that the same model gives the same answers. For models that have `generate`.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from infrastructure.core.callbacks import do_nothing
from infrastructure.training.data.encoding.picture_tokens import PictureTokens
from infrastructure.training.data.store.examples import GenerationPrompt
from infrastructure.training.models.answer_end import known_ends
from infrastructure.training.models.model_inputs import inner_model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


ANSWER_MARGIN_TOKENS = 8
LOOKED_AT_EVERY = 4  # tokens of an answer that has to be exact
# Of a batch of short prompts: a step of few tokens takes as long as one of more.
BATCH_TOKENS = 3072
SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
UNSURE_CHARACTERS = 4  # at the end of what is written so far: the next token may change them


@dataclass(frozen=True)
class Answer:
    """What the model wrote to a question.

    Attributes:
        is_cut: it had not ended at its greatest length.
    """

    question: GenerationPrompt
    text: str
    is_cut: bool = False

    @property
    def is_exact(self) -> bool:
        """Equal to the expected answer, white space around it aside."""
        return self.text.strip() == self.question.expected.strip()


@torch.no_grad()
def generate_answers(
    model: Any,
    tokenizer: "PreTrainedTokenizerBase",
    questions: Iterable[GenerationPrompt],
    stop_token_ids: list[int],
    batch_size: int = 32,
    max_tokens: int | None = None,
    poll: Callable[[], None] = do_nothing,
    count: Callable[[int, int], None] = do_nothing,
    pictures: PictureTokens | None = None,
    only_exact: bool = False,
) -> list[Answer]:
    """One greedy answer to each question, in the order of the questions.

    A batch may write as many tokens as its longest expected answer and a few more, so a model that
    does not stop is cut there and counted as wrong.

    Args:
        stop_token_ids: what ends an answer, besides what the model's own settings say.
        batch_size: questions in a batch; more of them where all are short and have no pictures.
        max_tokens: the longest answer instead.
        poll: is called between two batches, and may raise.
        count: is given before each batch how many answers are written, of how many.
        pictures: what makes pixels of those of the questions; None: they have none.
        only_exact: nothing else is asked of the answers but whether they are exact: one that
            cannot become so any more, or is longer than the expected one by those few tokens, ends
            there. The first one is whole, to be shown.
    """
    questions = list(questions)
    stop_token_ids = sorted({*stop_token_ids, *known_ends(model)})
    by_length = sorted(range(len(questions)), key=lambda i: len(questions[i].prompt_ids))
    answers: dict[int, Answer] = {}
    was_training = model.training
    model.eval()
    whole = [0] if only_exact and questions and _can_be_stopped(model) else []
    others = [number for number in by_length if number not in whole]
    lengths = [max_tokens or q.expected_length + ANSWER_MARGIN_TOKENS for q in questions]
    num_tokens = [len(q.prompt_ids) + most for q, most in zip(questions, lengths, strict=True)]
    batches = [whole] if whole else []
    batch_tokens = BATCH_TOKENS if pictures is None else 0
    for batch in batches + _batches(others, num_tokens, batch_size, batch_tokens):
        poll()
        count(len(answers), len(questions))
        of_batch, most = [questions[i] for i in batch], [lengths[i] for i in batch]
        is_judged = bool(whole) and batch != whole
        written = _generate_batch(
            model, tokenizer, of_batch, stop_token_ids, most, pictures, is_judged
        )
        answers.update(zip(batch, written, strict=True))
    model.train(was_training)
    return [answers[number] for number in range(len(questions))]


def _batches(
    numbers: Sequence[int], num_tokens: Sequence[int], batch_size: int, batch_tokens: int
) -> list[list[int]]:
    """The questions of these numbers in their order, `batch_size` at once, and more where they are
    so short that a batch has at most `batch_tokens`.

    Args:
        num_tokens: of each question and its longest answer.
    """
    batches: list[list[int]] = [[]]
    longest = 0
    for number in numbers:
        longest = max(longest, num_tokens[number])
        num_more = len(batches[-1]) + 1
        if num_more > batch_size and num_more * longest > batch_tokens:
            batches.append([])
            longest = num_tokens[number]
        batches[-1].append(number)
    return [batch for batch in batches if batch]


def _generate_batch(
    model: Any,
    tokenizer: "PreTrainedTokenizerBase",
    questions: list[GenerationPrompt],
    stop_token_ids: list[int],
    lengths: list[int],
    pictures: PictureTokens | None,
    is_judged: bool,
) -> list[Answer]:
    judging: dict[str, Any] = {}
    if is_judged:
        width = max(len(question.prompt_ids) for question in questions)
        judging["stopping_criteria"] = [WrongAnswers(tokenizer, questions, width, lengths)]
    output, width = generate_greedily(
        model, tokenizer, questions, lengths, pictures, stop_token_ids, **judging
    )
    rows = [(row, before_stop(row, stop_token_ids)) for row in output[:, width:].tolist()]
    texts = tokenizer.batch_decode([written for _, written in rows], skip_special_tokens=True)
    return [
        Answer(question, text, is_cut=len(written) == len(row))
        for question, text, (row, written) in zip(questions, texts, rows, strict=True)
    ]


@torch.no_grad()
def generate_greedily(
    model: Any,
    tokenizer: "PreTrainedTokenizerBase",
    questions: Sequence[GenerationPrompt],
    lengths: Sequence[int],
    pictures: PictureTokens | None,
    end_ids: list[int] | None = None,
    **more: Any,
) -> tuple[Any, int]:
    """Let the model write greedily after each question, all at once.

    Args:
        lengths: the most tokens of each answer.
        end_ids: what ends an answer; None: what the model's own generation configuration says.
        more: for `generate`.

    Returns:
        What `generate` gives, and the number of columns that are the prompts.
    """
    device = next(model.parameters()).device
    width = max(len(question.prompt_ids) for question in questions)
    own = tokenizer.pad_token_id
    pad = own if own is not None or end_ids is None else end_ids[0]
    ids = torch.full((len(questions), width), pad, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, question in enumerate(questions):  # padded on the left: all prompts end together
        length = len(question.prompt_ids)
        ids[row, width - length :] = torch.tensor(list(question.prompt_ids))
        mask[row, width - length :] = 1
    given: dict[str, Any] = {}
    if pictures is not None:
        inputs = pictures.inputs(ids, [p for question in questions for p in question.pictures])
        given = {name: value.to(device) for name, value in inputs.items()}
    if end_ids is not None:
        given["eos_token_id"] = end_ids
    with greedy(model):
        output = model.generate(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            max_new_tokens=max(lengths),  # where nothing ends it before
            do_sample=False,
            pad_token_id=pad,
            **given,
            **more,
        )
    return output, width


@contextmanager
def greedy(model: Any) -> Iterator[None]:
    """Inside, `model.generate` takes the likeliest token each time, whatever the model's generation
    configuration says: penalties, forbidden words, beams and the like would make two models answer
    on unequal terms. Its special tokens stay."""
    inner: Any = inner_model(model)
    own = getattr(inner, "generation_config", None)
    if own is None:
        yield
        return
    plain = type(own)()
    for name in SPECIAL_TOKENS:
        setattr(plain, name, getattr(own, name, None))
    inner.generation_config = plain
    try:
        yield
    finally:
        inner.generation_config = own


class WrongAnswers:
    """Ends the answers of a batch that no further token can make exact, or that are as long as they
    may be: one of transformers' stopping criteria.

    White space is left out of the comparison, and so are the last characters, since how a token is
    spelled may depend on the next one.

    Args:
        width: tokens of the prompts.
        lengths: the most tokens of each answer.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        questions: Sequence[GenerationPrompt],
        width: int,
        lengths: Sequence[int],
    ) -> None:
        self.tokenizer, self.width = tokenizer, width
        self.lengths = torch.tensor(lengths)
        self.expected = ["".join(question.expected.split()) for question in questions]
        self.is_over = torch.zeros(len(questions), dtype=torch.bool)

    def __call__(self, input_ids: torch.Tensor, _scores: object, **_more: object) -> torch.Tensor:
        """Which answers end, (B,) bool."""
        num_written = input_ids.shape[1] - self.width
        self.is_over |= self.lengths <= num_written
        if num_written % LOOKED_AT_EVERY == 0:
            written = self.tokenizer.batch_decode(
                input_ids[:, self.width :].tolist(), skip_special_tokens=True
            )
            for row, (text, expected) in enumerate(zip(written, self.expected, strict=True)):
                self.is_over[row] |= not expected.startswith(_sure_part(text))
        return self.is_over.to(input_ids.device)


def _sure_part(text: str) -> str:
    return "".join(text.split())[:-UNSURE_CHARACTERS]


def _can_be_stopped(model: Any) -> bool:
    """Whether the model's own way of writing takes stopping criteria."""
    parameters = inspect.signature(model.generate).parameters.values()
    return any(p.name == "stopping_criteria" or p.kind is p.VAR_KEYWORD for p in parameters)


def before_stop(ids: list[int], stop_token_ids: list[int]) -> list[int]:
    """The tokens before the first one that ends an answer; not every such token is special."""
    ends = (index for index, token in enumerate(ids) if token in stop_token_ids)
    return ids[: next(ends, len(ids))]


def exact_match_by_task(answers: Iterable[Answer]) -> dict[str, float]:
    """Share of exact answers by task, and over all of them under "all"."""
    answers = list(answers)
    tasks = sorted({answer.question.task for answer in answers} - {""})
    shares = {task: _share([a for a in answers if a.question.task == task]) for task in tasks}
    return {**shares, "all": _share(answers)} if answers else {}


def _share(answers: list[Answer]) -> float:
    return sum(answer.is_exact for answer in answers) / len(answers)
