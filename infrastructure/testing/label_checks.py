"""Checks of the labels, which decide which tokens the model learns. The model is not run."""

import contextlib
import itertools
import json
from bisect import bisect_left
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from jinja2.exceptions import TemplateError

from infrastructure.core.messages import phrase
from infrastructure.data.data_pipeline import DataPipeline
from infrastructure.data.encoding.chat_format import (
    GENERATION_TAG,
    TEMPLATE_DATE,
    marks_without_token,
    special_tokens,
)
from infrastructure.data.encoding.row_schema import TEXT
from infrastructure.data.encoding.tokenization import (
    LAST_ANSWER,
    ConversationEncoder,
    Encoded,
    TokenIds,
    begins_with,
    num_common,
)
from infrastructure.data.readers.rows import Conversation, Turn
from infrastructure.data.store.examples import TokenizedExample
from infrastructure.models.packing_check import token_embeddings
from infrastructure.testing.results import CheckResult
from infrastructure.testing.subject import Subject

SHOWN_BEFORE = 8  # tokens
NUM_PROMPTS = 8
ROOM_FOR_END = 8  # tokens that a template may write after an answer
END_OF_ANSWERS = "end of answers"

PROMPT, ANSWER = Turn("user", "Ping 7391?"), Turn("assistant", "Pong 4826")
PROBES: tuple[tuple[Turn, ...], ...] = (
    (PROMPT, ANSWER),
    (PROMPT, ANSWER, Turn("user", "Ping 15?"), Turn("assistant", "Pong 60")),
    (Turn("system", "Be 93."), PROMPT, ANSWER, Turn("user", "Ping 15?")),
)
LONGEST_PROBE = 4096  # tokens; templates write long preambles


def check_labels(subject: Subject) -> CheckResult:
    """Check that every example has trained tokens, all of them in the vocabulary and the loss."""
    if not subject.reads_text:
        return CheckResult("labels", "skipped", phrase("testing.model_without_text"))
    examples: list[TokenizedExample] = subject.candidates
    wrong = _first_wrong(subject, examples)
    learnt = sum(int(example.supervised.sum()) for example in examples)
    share = learnt / max(1, sum(len(example.input_ids) for example in examples))
    numbers = {"learnt_share": share, "num_examples": float(len(examples))}
    if wrong:
        return CheckResult("labels", "fail", wrong, phrase("testing.preview_data"), numbers=numbers)
    about = {"percent": 100 * share, "num_examples": len(examples)}
    text = phrase("testing.trained_token_share", **about)
    report = subject.data.report if isinstance(subject.data, DataPipeline) else None
    if report is not None and report.left_out:
        first = report.left_out[0]
        text += phrase(
            "testing.rows_lose_text",
            num_rows=first["rows"],
            text=first["what"],
            place=first["place"],
        )
        remedy = phrase("testing.use_complete_template")
        return CheckResult("labels", "warn", text, remedy, numbers=numbers)
    return CheckResult("labels", "pass", text, numbers=numbers)


def _first_wrong(subject: Subject, examples: Sequence[TokenizedExample]) -> str:
    num_tokens = token_embeddings(subject.model).num_embeddings
    for number, example in enumerate(examples, 1):
        if not example.supervised.any():
            return phrase("testing.example_without_trained_tokens", number=number)
        if example.supervised[0]:
            return phrase("testing.first_token_trained", number=number)
        outside = (example.input_ids < 0) | (example.input_ids >= num_tokens)
        if outside.any():
            return phrase(
                "testing.token_out_of_range",
                number=number,
                token=int(example.input_ids[outside][0]),
                num_tokens=num_tokens,
            )
    if subject.objective is not None:
        return _hidden_wrong(subject, examples) or _learns_prompts(subject, examples)
    wanted, reached = _targets(subject, examples[: len(subject.sample)])
    if not np.array_equal(wanted, reached):
        return phrase(
            "testing.trained_tokens_differ", num_trained=wanted.size, num_reached=reached.size
        )
    return _learns_prompts(subject, examples)


def _hidden_wrong(subject: Subject, examples: Sequence[TokenizedExample]) -> str:
    """Return an error if a masked objective hides the wrong tokens; otherwise "".

    The tokens that the model predicts must be trained, hidden from the model, and not special
    tokens.
    """
    assert subject.objective is not None
    for number, example in enumerate(examples, 1):
        batch = subject.adapter.prepare_batch([example])
        places, targets = batch["target_positions"].cpu(), batch["targets"].cpu()
        ids = torch.as_tensor(example.input_ids).long()
        if not torch.equal(ids[places], targets) or not example.supervised[places].all():
            return phrase("testing.wrong_prediction_targets", number=number)
        if (batch["input_ids"][0].cpu()[places] == targets).any():
            return phrase("testing.targets_not_hidden", number=number)
        if not np.isin(targets.numpy(), subject.objective.vocabulary.ordinary).all():
            return phrase("testing.control_tokens_hidden", number=number)
    return ""


def _targets(
    subject: Subject, examples: Sequence[TokenizedExample]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return two sorted arrays: the examples' trained tokens, and the targets in their batch."""
    wanted = np.concatenate([example.input_ids[example.supervised] for example in examples])
    batch = subject.adapter.prepare_batch(examples)
    targets = batch.get("targets")
    if targets is None:
        labels = batch["labels"]
        targets = labels[labels >= 0]
    return np.sort(wanted), np.sort(targets.cpu().numpy())


def _learns_prompts(subject: Subject, examples: Sequence[TokenizedExample]) -> str:
    """Return an error if all tokens are trained although `train_on` is not `all`; otherwise "".

    In that case, the mask of trained tokens got lost.
    """
    if subject.adapter.data_config.train_on == "all":
        return ""
    pipeline = subject.data
    if not isinstance(pipeline, DataPipeline) or not pipeline.evaluation_rows(1):
        return ""  # plain text, or no rows to compare with
    if all(bool(example.supervised[1:].all()) for example in examples):
        return phrase("testing.prompts_trained")
    return ""


def check_ends(subject: Subject) -> CheckResult:
    """Check that the last trained token of answers ends generation, so that the model learns to
    stop.
    """
    if not subject.reads_text:
        return CheckResult(END_OF_ANSWERS, "skipped", phrase("testing.model_without_text"))
    examples: list[TokenizedExample] = subject.candidates
    stops = _stop_tokens(subject)
    ended = [e for e in examples if _learns_to_end(subject, e, stops)]
    numbers = {"ended_share": len(ended) / max(1, len(examples))}
    names = ", ".join(repr(name) for name in sorted(stops.values())[:3])
    max_length = subject.adapter.data_config.max_length
    if not ended and any(len(example.input_ids) < max_length for example in examples):
        text = phrase("testing.no_answer_stops", tokens=names)
        remedy = phrase("testing.add_end_of_turn")
        return CheckResult(END_OF_ANSWERS, "fail", text, remedy, numbers=numbers)
    if _none_ends(subject):
        text = phrase("testing.every_answer_truncated", tokens=names, max_length=max_length)
        remedy = phrase("testing.fit_answer_ends")
        return CheckResult(END_OF_ANSWERS, "fail", text, remedy, numbers=numbers)
    if len(ended) < len(examples):
        text = phrase(
            "testing.answers_without_end",
            num_unfinished=len(examples) - len(ended),
            num_answers=len(examples),
            tokens=names,
        )
        remedy = phrase("testing.answers_truncated")
        return CheckResult(END_OF_ANSWERS, "warn", text, remedy, numbers=numbers)
    if subject.objective is not None:
        if not np.isin(list(stops), subject.objective.vocabulary.ordinary).any():
            text = phrase("testing.end_token_never_hidden", tokens=names)
            remedy = phrase("testing.add_end_of_turn")
            return CheckResult(END_OF_ANSWERS, "fail", text, remedy, numbers=numbers)
        text = phrase("testing.answer_ends_trained", num_answers=len(examples), tokens=names)
        return CheckResult(END_OF_ANSWERS, "pass", text, numbers=numbers)
    wanted, reached = _targets(subject, ended[: len(subject.sample)])
    if np.isin(reached, list(stops)).sum() < np.isin(wanted, list(stops)).sum():
        text = phrase("testing.end_token_not_in_loss", tokens=names)
        remedy = phrase("testing.end_token_is_padding")
        return CheckResult(END_OF_ANSWERS, "fail", text, remedy, numbers=numbers)
    text = phrase("testing.answer_ends_trained", num_answers=len(examples), tokens=names)
    return CheckResult(END_OF_ANSWERS, "pass", text, numbers=numbers)


def _none_ends(subject: Subject) -> bool:
    """Return whether every answer of the data lost its end token, for example by being cut.

    Plain text, and rows that are trained like plain text, need no end tokens.
    """
    data = subject.data
    return (
        isinstance(data, DataPipeline)
        and data.report.shape != TEXT
        and data.config.train_on != "all"
        and not data.report.end_tokens
    )


def _learns_to_end(subject: Subject, example: TokenizedExample, stops: Collection[int]) -> bool:
    """Return whether the last trained token, apart from white space, is a stop token.

    If all tokens are trained, the template may add a few more tokens after the stop token.
    """
    last = ROOM_FOR_END if subject.adapter.data_config.train_on == "all" else 1
    learnt = example.input_ids[example.supervised][-ROOM_FOR_END:]
    tokenizer = subject.tokenizer
    words = [int(token) for token in learnt if str(tokenizer.decode([int(token)])).strip()]
    return any(token in stops for token in words[-last:])


def _stop_tokens(subject: Subject) -> dict[int, str]:
    special = special_tokens(subject.tokenizer)
    stop_ids = getattr(subject.data, "stop_token_ids", [subject.tokenizer.eos_token_id])
    return {number: special.get(number, str(number)) for number in stop_ids}


def check_answers(subject: Subject) -> CheckResult:
    """Check that only answers and white space are trained, and each end token once.

    An answer that was cut has no end token. The check does not use the code that made the examples:
    it finds the tokens of answers by transformers' `return_assistant_tokens_mask`, or by the
    position of a known answer's text.
    """
    if not subject.reads_text:
        return CheckResult("answers", "skipped", phrase("testing.model_without_text"))
    if subject.adapter.data_config.train_on == "all":
        return CheckResult("answers", "skipped", phrase("testing.all_tokens_trained"))
    examples: list[TokenizedExample] = subject.candidates
    tokenizer, data = subject.tokenizer, subject.adapter.data_config
    longest = max(data.max_length, LONGEST_PROBE)
    encoder = ConversationEncoder(tokenizer, max_length=longest, train_on=data.train_on)
    marks = AnswerMarks(tokenizer, encoder.template.template if encoder.template else None)
    wrong = (marks.wrong_in(example, f"example {n}") for n, example in enumerate(examples, 1))
    first_wrong = next(filter(None, wrong), "")
    num_cut = sum(not marks.has_end(example) for example in examples)
    num_answers = sum(len(runs_of(example)) for example in examples)
    numbers = {"num_answers": float(num_answers), "num_without_end": float(num_cut)}
    if wrong_in_known := marks.wrong_in_known(encoder):
        return CheckResult(
            "answers",
            "fail",
            wrong_in_known,
            phrase("testing.preview_data"),
            numbers=numbers,
        )
    if first_wrong:
        spelt = getattr(getattr(subject.data, "report", None), "special_text_rows", 0)
        remedy = (
            phrase("testing.remove_special_tokens", num_rows=spelt)
            if spelt
            else phrase("testing.preview_data")
        )
        return CheckResult(
            "answers", "warn" if spelt else "fail", first_wrong, remedy, numbers=numbers
        )
    text = phrase("testing.answers_trained", num_answers=num_answers)
    if num_cut:
        about = {"num_answers": num_answers, "num_truncated": num_cut}
        text = phrase("testing.answers_trained_some_truncated", **about)
    return CheckResult("answers", "pass", text, numbers=numbers)


class AnswerMarks:
    """A detector of answers that does not use the code that made the examples.

    Args:
        template: the chat template of the training; None: the tokenizer's.

    Attributes:
        names: the special tokens, as text.
        ends: the special tokens that end answers.
        around: the special tokens that are never part of an answer, such as those around messages.
    """

    def __init__(self, tokenizer: Any, template: str | None = None) -> None:
        self.tokenizer = tokenizer
        own = tokenizer.get_chat_template() if tokenizer.chat_template else None
        self.template = template or own
        self.names = special_tokens(tokenizer)
        self._end = -1  # an end that the template writes after answers and does not mark
        self._end = self._end_of_last(*self._answered(PROBES[0]))
        inside: set[int] = {tokenizer.eos_token_id, self._end} & self.names.keys()
        outside: set[int] = set()
        for turns in PROBES:
            for token, is_answered in zip(*self._answered(turns), strict=True):
                (inside if is_answered else outside).update({token} & self.names.keys())
        self.ends = frozenset(inside)
        self.around = frozenset(outside - inside)

    def _answered(self, turns: Sequence[Turn]) -> tuple[list[int], list[bool]]:
        """Return the tokens of a conversation, and whether each belongs to an answer.

        transformers finds the answers if the template marks them. Otherwise, they are found by
        their texts. Both results are empty if there is no template, or if it rejects the
        conversation.
        """
        ids, answered = _independently(self.tokenizer, self.template, turns)
        for position in range(1, len(ids)):
            answered[position] |= answered[position - 1] and ids[position] == self._end
        return ids, answered

    def _end_of_last(self, ids: list[int], answered: list[bool]) -> int:
        """Return the special token that follows the last answer, if the answer contains no end
        token.

        This token must be the end token: no further message follows, so it cannot begin one.
        Return -1 if there is no such token.
        """
        spoken = [n for n in range(len(ids)) if answered[n] and self._words([ids[n]])]
        if not spoken or ids[spoken[-1]] in self.names:
            return -1
        return next((token for token in ids[spoken[-1] + 1 :] if token in self.names), -1)

    def wrong_in(self, example: TokenizedExample, name: str) -> str:
        """Return an error if the wrong tokens of an example are trained, else "".

        Errors are trained tokens outside of answers, and end tokens that are trained twice or not
        at all.
        """
        ids = [int(token) for token in example.input_ids]
        for start, end in runs_of(example):
            words = self._words(ids[start:end])
            for token in words:
                if token in self.around:
                    return phrase(
                        "testing.token_outside_answers", example=name, token=self.names[token]
                    )
            for token, following in itertools.pairwise(words):
                if token == following and token in self.ends:
                    return phrase(
                        "testing.answer_end_trained_twice", example=name, token=self.names[token]
                    )
            if not words or words[-1] in self.names:
                continue
            rest = itertools.takewhile(lambda n: not example.supervised[n], range(end, len(ids)))
            after = next((ids[n] for n in rest if ids[n] in self.names), -1)
            if after in self.ends:
                return phrase(
                    "testing.answer_end_not_trained", example=name, token=self.names[after]
                )
        return ""

    def has_end(self, example: TokenizedExample) -> bool:
        """Return whether the last answer ends with a special token."""
        words = self._words(example.input_ids[example.supervised].tolist()[-ROOM_FOR_END:])
        return bool(words) and words[-1] in self.names

    def wrong_in_known(self, encoder: ConversationEncoder) -> str:
        """Return an error if the wrong tokens of known conversations are trained, else ""."""
        for turns in PROBES:
            (encoded,) = encoder.encode([Conversation(turns)])
            if not isinstance(encoded, Encoded):
                continue  # the template rejects it
            example, name = encoded.example, "a test conversation"
            runs = [example.input_ids[start:end] for start, end in runs_of(example)]
            learnt = [self.tokenizer.decode(run) for run in runs]
            last = Conversation(turns).last_answer
            for number, turn in enumerate(turns):
                if turn.text not in self.tokenizer.decode(self.tokenizer(turn.text)["input_ids"]):
                    continue  # it has no tokens for these letters
                is_learnt = any(turn.text in text for text in learnt)
                is_wanted = number == last or (
                    turn.role == "assistant" and encoder.train_on != LAST_ANSWER
                )
                if is_learnt != is_wanted:
                    is_not = "" if is_learnt else "not "
                    return phrase(
                        "testing.wrong_turns_trained", example=name, role=turn.role, negation=is_not
                    )
            unlike = (
                "" if encoder.train_on == LAST_ANSWER else self._unlike_marks(example, turns, name)
            )
            if wrong := unlike or self.wrong_in(example, name):
                return wrong
        return ""

    def _unlike_marks(self, example: TokenizedExample, turns: Sequence[Turn], name: str) -> str:
        """Return an error if the trained tokens are not those that the template marks, else ""."""
        if not self.template or not _has_marks(self.tokenizer, self.template):
            return ""
        ids, answered = self._answered(turns)
        triples = zip(example.input_ids.tolist(), ids, example.supervised, answered, strict=False)
        for token, other, is_learnt, is_marked in list(triples)[1:]:
            if token != other:
                return phrase(
                    "testing.tokens_differ_from_template",
                    example=name,
                    unknown_marks=self._lacking(),
                )
            if is_learnt != is_marked:
                what = (
                    phrase("testing.trained_but_not_marked")
                    if is_learnt
                    else phrase("testing.marked_but_not_trained")
                )
                return phrase(
                    "testing.marks_differ_from_template",
                    example=name,
                    token=self.tokenizer.decode([token]),
                    mismatch=what,
                )
        return ""

    def _lacking(self) -> str:
        """Return a hint if the template uses special tokens that the tokenizer lacks, else "".

        This is the usual cause of wrongly trained tokens.
        """
        lacking = marks_without_token(self.template or "", self.tokenizer)
        return phrase("testing.template_marks_unknown", marks=", ".join(lacking)) if lacking else ""

    def _words(self, tokens: Sequence[int]) -> list[int]:
        """Return the tokens that are not white space."""
        decode = self.tokenizer.decode
        return [token for token in tokens if token in self.names or decode([token]).strip()]


def _independently(
    tokenizer: Any, template: str | None, turns: Sequence[Turn]
) -> tuple[list[int], list[bool]]:
    """Return a conversation's tokens and which are in answers, as transformers determines them."""
    if not template:
        return [], []
    answers = [turn.text for turn in turns if turn.role == "assistant"]
    options = {"tokenize": True, "return_dict": True, "strftime_now": TEMPLATE_DATE.strftime}
    has_marks = _has_marks(tokenizer, template)
    marks = {"return_assistant_tokens_mask": has_marks, "chat_template": template}
    for in_parts in (False, True):  # some templates read one form, some the other
        messages: list[dict[str, object]] = [turn.message() for turn in turns]
        for message in messages if in_parts else ():
            message["content"] = [{"type": "text", "text": message["content"]}]
        try:
            encoded = tokenizer.apply_chat_template(messages, **options, **marks)
        except (TemplateError, TypeError, ValueError):
            continue
        ids: list[int] = list(encoded["input_ids"])
        if not all(text in tokenizer.decode(ids) for text in answers):
            continue
        if has_marks:
            return ids, [bool(bit) for bit in encoded["assistant_masks"]]
        places = [_where(tokenizer, ids, text) for text in answers]
        return ids, [any(bits) for bits in zip(*places, strict=True)]
    return [], []


def _has_marks(tokenizer: Any, template: str) -> bool:
    return tokenizer.is_fast and bool(GENERATION_TAG.search(template))


def _where(tokenizer: Any, ids: list[int], text: str) -> list[bool]:
    """Return a mask of the tokens that contain the text.

    The text is located by decoding prefixes and suffixes of the tokens.
    """
    places = range(len(ids) + 1)
    start = bisect_left(places, True, key=lambda n: text not in tokenizer.decode(ids[n:])) - 1
    end = bisect_left(places, True, key=lambda n: text in tokenizer.decode(ids[:n]))
    return [start <= position < end for position in range(len(ids))]


def runs_of(example: TokenizedExample) -> list[tuple[int, int]]:
    """Return (start, end) of each contiguous run of trained tokens."""
    padded = np.concatenate([[0], example.supervised.astype(np.int8), [0]])
    edges = np.flatnonzero(np.diff(padded)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def check_template(subject: Subject) -> CheckResult:
    """Check that the prompt before an answer is the same in training and at inference.

    At inference, the prompt is the output of the tokenizer's chat template with its generation
    prompt. Without a template, it is what Temper passes to the model for generation.
    """
    pipeline = subject.data
    if not subject.reads_text or not isinstance(pipeline, DataPipeline):
        return CheckResult("prompts", "skipped", phrase("testing.model_without_text"))
    for number, example in enumerate(subject.candidates, 1):
        ids, bos = example.input_ids, subject.tokenizer.bos_token_id
        if bos is not None and len(ids) > 1 and ids[0] == ids[1] == bos:
            text = phrase("testing.duplicate_bos", number=number)
            return CheckResult("prompts", "fail", text, phrase("testing.remove_second_bos"))
    return check_prompts(pipeline)


def check_prompts(pipeline: DataPipeline) -> CheckResult:
    """Check that held-out prompts are the same in training and at inference."""
    prompts = _prompts_in_use(pipeline)
    if not prompts:
        return _check_invented(pipeline)
    for ids, nearest in zip(prompts, _nearest_examples(pipeline, prompts), strict=True):
        if not begins_with(pipeline.tokenizer, nearest, ids):
            return _differ(pipeline, ids, nearest)
    text = phrase("testing.prompts_match", num_prompts=len(prompts))
    return CheckResult("prompts", "pass", text, numbers={"num_prompts": float(len(prompts))})


def _check_invented(pipeline: DataPipeline) -> CheckResult:
    """Run `check_prompts` on an invented conversation, for data without held-out rows."""
    turns = (Turn("user", "How much is 2 + 3?"), Turn("assistant", "5"))
    encoder = ConversationEncoder(pipeline.tokenizer, max_length=pipeline.config.max_length)
    (encoded,) = encoder.encode([Conversation(turns)])
    example = getattr(encoded, "example", None)
    if example is None:
        text = phrase("testing.no_prompt_to_compare")
        return CheckResult("prompts", "skipped", text)
    ids = _prompt_in_use(pipeline, [{"role": "user", "content": turns[0].text}])
    ids = ids or encoder.prompt_ids(turns[:1])
    if not begins_with(pipeline.tokenizer, example.input_ids, ids):
        return _differ(pipeline, ids, example.input_ids)
    return CheckResult("prompts", "pass", phrase("testing.question_matches"))


def _differ(pipeline: DataPipeline, ids: Sequence[int], taught: TokenIds) -> CheckResult:
    """Return a result that describes how an inference prompt differs from the nearest example."""
    decode, common = pipeline.tokenizer.decode, num_common(taught, ids)
    used, trained = (list(map(int, one[common : common + 5])) for one in (ids, taught))
    before = decode(list(ids[max(0, common - SHOWN_BEFORE) : common]))
    where = phrase("testing.prompt_differs_after", before=before, used=decode(used))
    if _ends_with_space(pipeline):
        text = phrase("testing.prompt_ends_with_space", difference=where, trained=decode(trained))
        remedy = phrase("testing.remove_trailing_space")
        return CheckResult("prompts", "fail", text, remedy)
    text = phrase("testing.prompts_differ", difference=where, trained=decode(trained))
    remedy = phrase("testing.make_prompts_match")
    return CheckResult("prompts", "fail", text, remedy)


def _ends_with_space(pipeline: DataPipeline) -> bool:
    """Return whether the template's generation prompt ends with a space."""
    write = partial(pipeline.tokenizer.apply_chat_template, [{"role": "user", "content": "a"}])
    if pipeline.tokenizer.chat_template is None:
        return False
    try:
        without = str(write(tokenize=False, add_generation_prompt=False))
        prompt = str(write(tokenize=False, add_generation_prompt=True))
    except (TemplateError, TypeError, ValueError):
        return False
    return prompt != without and prompt.endswith(" ")


def _nearest_examples(pipeline: DataPipeline, prompts: list[list[int]]) -> list[TokenIds]:
    """Return, for each prompt, the held-out example with the longest common prefix."""
    nearest: list[TokenIds] = [[] for _ in prompts]
    most = [-1] * len(prompts)
    with contextlib.closing(pipeline.evaluation_batches(64)) as batches:
        for batch in batches:
            for example, (number, ids) in itertools.product(batch, enumerate(prompts)):
                common = num_common(example.input_ids, ids)
                if common > most[number]:
                    most[number], nearest[number] = common, example.input_ids
            if most == list(map(len, prompts)):
                break
    return nearest


def _prompts_in_use(pipeline: DataPipeline) -> list[list[int]]:
    """Return the inference prompts of some held-out rows that were not cut for training."""
    prompts = []
    data = pipeline.config
    encoder = ConversationEncoder(
        pipeline.tokenizer, max_length=data.max_length, train_on=data.train_on
    )
    for row, question in pipeline.rows_with_questions(NUM_PROMPTS):
        template = encoder.template_for(row.inputs)
        writes_history_anew = template is not None and template.origin
        if writes_history_anew and any(message["role"] == "assistant" for message in row.messages):
            continue  # the data report mentions it
        ids = _prompt_in_use(pipeline, row.messages, row.inputs) or question.prompt_ids
        if len(ids) + question.expected_length + ROOM_FOR_END < data.max_length:
            prompts.append(ids)
    return prompts


def _prompt_in_use(
    pipeline: DataPipeline, messages: list[dict[str, Any]], inputs: str = ""
) -> list[int] | None:
    """Return the tokens of the inference prompt for these messages, tools and options.

    None if the tokenizer has no template, or if it requires the messages in another form.
    """
    tokenizer = pipeline.tokenizer
    if not tokenizer.chat_template:
        return None
    given = json.loads(inputs) if inputs else {}
    options = {"strftime_now": TEMPLATE_DATE.strftime, **given.pop("chat_template_kwargs", {})}
    try:
        text = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **given, **options
        )
    except (TemplateError, TypeError, ValueError):
        return None
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids
