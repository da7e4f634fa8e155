"""Generation of answers to held-out prompts, and the count of exact matches.

Decoding is greedy, so the same model gives the same answers. The model needs a `generate` method.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from infrastructure.core.callbacks import do_nothing
from infrastructure.core.errors import InputError
from infrastructure.data.encoding.picture_tokens import PictureTokens
from infrastructure.data.store.examples import GenerationPrompt
from infrastructure.evaluation.text_scores import exact_match
from infrastructure.models.answer_end import known_ends
from infrastructure.models.model_inputs import inner_model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


ANSWER_MARGIN_TOKENS = 8
LOOKED_AT_EVERY = 4  # answers that must be exact are checked every so many tokens
# Budget of a batch of short prompts: with few tokens, a larger batch does not make a step slower.
BATCH_TOKENS = 3072
SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
UNSURE_CHARACTERS = 4  # at the end of the decoded text: the next token may still change them


@dataclass(frozen=True)
class Answer:
    """A model's answer to a prompt.

    Attributes:
        is_cut: True if the answer was cut off at the maximum length.
    """

    question: GenerationPrompt
    text: str
    is_cut: bool = False


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
    """Generate one greedy answer to each question, and return them in the order of the questions.

    The answers of a batch may be a few tokens longer than its longest expected answer. If the model
    does not stop, the answer is cut there and counts as wrong.

    Args:
        stop_token_ids: the tokens that end an answer, in addition to those of the model's own
            settings.
        batch_size: questions per batch; a batch of short questions without images may have more.
        max_tokens: the maximum length of an answer, instead of the one derived from expected
            answers.
        poll: called between batches; may raise.
        count: called before each batch with the number of answers generated so far and the total.
        pictures: turns the images of the questions into pixels; None: there are no images.
        only_exact: measure only exact matches. Generation of an answer stops as soon as the answer
            cannot match any more, or exceeds the expected length by the usual margin. The first
            answer is generated in full, so that it can be shown.
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
    """Split question numbers into batches, keeping their order.

    A batch has `batch_size` questions, or more if they are so short that it stays within
    `batch_tokens` tokens.

    Args:
        num_tokens: the length of each question plus its longest answer.
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
    """Generate answers to all questions greedily, in one batch.

    Args:
        lengths: the maximum number of tokens of each answer.
        end_ids: the tokens that end an answer; None: those of the model's own generation
            configuration.
        more: further arguments for `generate`.

    Returns:
        The result of `generate`, and the number of its columns that hold the prompts.
    """
    device = next(model.parameters()).device
    width = max(len(question.prompt_ids) for question in questions)
    own = tokenizer.pad_token_id
    pad = own if own is not None or end_ids is None else end_ids[0]
    ids = torch.full((len(questions), width), pad, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, question in enumerate(questions):  # left padding: all prompts end together
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
            max_new_tokens=max(lengths),  # unless an end token comes first
            do_sample=False,
            pad_token_id=pad,
            **given,
            **more,
        )
    return output, width


@contextmanager
def greedy(model: Any) -> Iterator[None]:
    """Make `model.generate` decode greedily, and ignore the rest of its generation configuration.

    Penalties, forbidden words, beam search and the like would make the comparison of two models
    unfair. The special tokens are kept.
    """
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


@contextmanager
def refused_if_not_finite(model: Any, name: str) -> Iterator[None]:
    """Raise an error while the context lasts if no next token follows from the model's logits.

    A model may give some tokens a logit of -inf, but not all of them. If one logit is NaN, so is
    their maximum.

    Args:
        name: the name of the model in the error.
    """

    def check(_module: object, _inputs: object, output: Any) -> None:
        logits = getattr(output, "logits", None)  # a model with its own `generate` may have others
        if logits is not None and not torch.isfinite(logits[:, -1].amax(dim=-1)).all():
            raise not_finite(model, name)

    hook = inner_model(model).register_forward_hook(check)
    try:
        yield
    finally:
        hook.remove()


def not_finite(model: torch.nn.Module, name: str) -> InputError:
    """Return the error for a model that computes values that are NaN or infinite.

    It names a weight that has such values, if there is one.
    """
    damaged = [
        key
        for key, weight in model.named_parameters()
        if weight.is_floating_point()
        and not weight.is_meta
        and not torch.isfinite(weight.float()).all()
    ]
    if not damaged:
        return InputError("evaluation.model_not_finite", model=name)
    return InputError(
        "evaluation.weights_not_finite", model=name, count=len(damaged), weight=damaged[0]
    )


class WrongAnswers:
    """A stopping criterion of transformers that ends answers that are wrong or too long.

    An answer is wrong if no further token can make it exact, and too long at its maximum length.

    The comparison ignores whitespace and the last characters, because the next token may change how
    they are decoded.

    Args:
        width: number of prompt tokens.
        lengths: the maximum number of tokens of each answer.
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
        """Return a mask of the answers that end, as (B,) bool."""
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
    """Return whether the model's `generate` method accepts stopping criteria."""
    parameters = inspect.signature(model.generate).parameters.values()
    return any(p.name == "stopping_criteria" or p.kind is p.VAR_KEYWORD for p in parameters)


def before_stop(ids: list[int], stop_token_ids: list[int]) -> list[int]:
    """Return the generated tokens before the first stop token.

    A stop token need not be a special token.
    """
    ends = (index for index, token in enumerate(ids) if token in stop_token_ids)
    return ids[: next(ends, len(ids))]


def exact_match_by_task(answers: Iterable[Answer]) -> dict[str, float]:
    """Return the share of exact answers for each task, and for all of them under "all"."""
    answers = list(answers)
    tasks = sorted({answer.question.task for answer in answers} - {""})
    shares = {task: _share([a for a in answers if a.question.task == task]) for task in tasks}
    return {**shares, "all": _share(answers)} if answers else {}


def _share(answers: list[Answer]) -> float:
    return sum(exact_match(a.text, a.question.expected) for a in answers) / len(answers)


def example_of(answers: Sequence[Answer]) -> dict[str, str]:
    """Return the first question, its expected answer and the model's; {} without answers."""
    if not answers:
        return {}
    question, written = answers[0].question, answers[0].text
    return {"prompt": question.prompt, "expected": question.expected, "written": written}
