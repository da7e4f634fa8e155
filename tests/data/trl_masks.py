"""What TRL learns of a conversation and what Temper learns of it, side by side.

The reference is TRL's own: its training templates, and `assistant_only_loss` as its `SFTTrainer`
computes it, by `apply_chat_template(return_assistant_tokens_mask=True)` and by the trainer itself.
Tokenizers are real ones, made here with the special tokens of each template.

Compared are the training templates themselves, and the templates that models have: there TRL takes
its training template for the family, and Temper the model's own where answers can be told apart in
it. Each difference between the two is one of `REASONS`.
"""

import copy
import importlib.util
import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.data.encoding.chat_format import TEMPLATE_DATE
from infrastructure.data.encoding.schema_detection import recognise_shape
from infrastructure.data.encoding.tokenization import ConversationEncoder
from infrastructure.data.readers.rows import LEFT_OUT, BadRow, Row
from infrastructure.data.store.examples import TokenizedExample
from tests.data.builders import SENTENCES

Messages = list[dict[str, Any]]

CONTROL = re.compile(
    r"<\|[\w/]+\|?>|<[\w/]+\|>|<｜[^｜]+｜>|</?(?:start|end)_of_\w+>|\[/?INST\]|\[gMASK\]|<sop>|<image>"
)
WORDS = re.compile(r"</?(?:think|tool_call|tool_response|arg_key|arg_value)>")
WRITES_PARTS = ("idefics3", "llava_next")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "multiply",
            "description": "Multiplies two numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
            },
        },
    }
]
TEXTS = [
    "What is 2 times 3?",
    "The sum is 42.",
    "  leading white space",
    "trailing white space \n",
    "\n\nbegins with line breaks",
    "Ich heiße Jörg, 你好! 🙂",
    "emoji at the end 👩‍👩‍👧",
    "e\u0301 and \u00a0 a wide\u3000space",
    "```python\ndef f(x):\n    return x\n```",
    "\ttabs\tand   runs",
    "<b>html & 'quotes' \"too\"</b>",
    "a" * 60,
    "3",
    "?",
    "one\r\ntwo\rthree",
    "line one\nline two\n\nline four",
    "{{ no_template }} {% raw %}",
    "العربية then English",
    "0.1 + 0.2 = 0.30000000000000004",
    "ends with a colon:",
]


def training_templates() -> dict[str, str]:
    """Every training template that the installed TRL ships, by the name of its family; none where
    it keeps them otherwise, as Colab's 0.29.1 does."""
    files = sorted(_templates_folder().glob("*_training.jinja"))
    return {file.name.removesuffix("_training.jinja"): file.read_text("utf-8") for file in files}


def all_templates() -> dict[str, str]:
    """Every template that the installed TRL ships, by the name of its file."""
    files = sorted(_templates_folder().glob("*.jinja"))
    return {file.stem: file.read_text("utf-8") for file in files}


def model_template(family: str) -> str:
    """The template that models of the family have themselves, as TRL ships it."""
    return (_templates_folder() / f"{family}.jinja").read_text("utf-8")


def model_families() -> list[str]:
    """Whose own template TRL ships and can train with: by marks of its own, or by a training
    template."""
    trained = training_templates()
    files = sorted(_templates_folder().glob("*.jinja"))
    names = [file.stem for file in files if not file.stem.endswith("_training")]
    return [name for name in names if name in trained or "{% generation" in model_template(name)]


def _templates_folder() -> Path:
    """Where they lie; importing TRL takes many seconds."""
    spec = importlib.util.find_spec("trl")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "chat_templates"


needs_templates = pytest.mark.skipif(
    not training_templates(), reason="the installed TRL keeps no files of templates"
)


@cache
def tokenizer_json(kind: str) -> str:
    tokenizer = Tokenizer(models.BPE(byte_fallback=kind == "metaspace"))
    if kind == "metaspace":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet() if kind == "bytes" else []
    bytes_of_fallback = [f"<0x{number:02X}>" for number in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        initial_alphabet=alphabet,
        special_tokens=bytes_of_fallback if kind == "metaspace" else [],
        show_progress=False,
    )
    texts = SENTENCES * 3 if kind == "metaspace" else [*SENTENCES * 3, *TEXTS, "\n\n", "\n\n\n"]
    tokenizer.train_from_iterator(texts, trainer)
    return str(tokenizer.to_str())


def tokenizer_for(template: str, kind: str = "bytes") -> Any:
    """A real fast tokenizer with the special tokens that the template writes.

    Args:
        kind: "bytes" (as GPT-2's), or "metaspace" (as Llama 2's, with bytes where it knows none).
    """
    source = re.sub(r"\{#.*?#\}", "", template, flags=re.DOTALL)
    control = sorted({*CONTROL.findall(source), "<s>", "</s>", "<end_of_utterance>"})
    words = sorted(set(WORDS.findall(source)))
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(tokenizer_json(kind)),
        bos_token="<s>",
        eos_token="</s>",
        pad_token="</s>",
        additional_special_tokens=[AddedToken(text, normalized=False) for text in control],
    )
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in words])
    tokenizer.chat_template = template
    return tokenizer


@dataclass
class Case:
    """A conversation with what else the row holds.

    Attributes:
        num_given: so many messages are the prompt of a prompt/completion row; 0: one list.
        options: what the row has for the template.
        in_parts: the template reads a message's text as a list of parts only.
    """

    messages: Messages
    tools: list[dict[str, Any]] | None = None
    num_given: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    in_parts: bool = False

    def shown(self) -> Messages:
        """The messages as TRL is given them."""
        return _in_parts(self.messages) if self.in_parts else self.messages

    def row(self) -> dict[str, Any]:
        """As a row of a data file."""
        messages = self.shown()
        row: dict[str, Any] = {"messages": messages}
        if self.num_given:
            before, after = messages[: self.num_given], messages[self.num_given :]
            row = {"prompt": before, "completion": after}
        row |= {"tools": self.tools} if self.tools else {}
        return row | ({"chat_template_kwargs": self.options} if self.options else {})


def cases(count: int, seed: int = 0) -> list[Case]:
    """Varied conversations, always the same ones; kinds take turns."""
    chance = random.Random(seed)
    return [KINDS[number % len(KINDS)](chance) for number in range(count)]


def _text(chance: random.Random) -> str:
    return " ".join(chance.sample(TEXTS, chance.choice((1, 1, 1, 2))))


def _turn(chance: random.Random, role: str, text: str | None = None) -> dict[str, Any]:
    return {"role": role, "content": _text(chance) if text is None else text}


def _turns(chance: random.Random, rounds: int) -> Messages:
    return [_turn(chance, role) for _ in range(rounds) for role in ("user", "assistant")]


def _one(chance: random.Random) -> Case:
    return Case(_turns(chance, 1))


def _plain(chance: random.Random) -> Case:
    return Case(_turns(chance, chance.randint(2, 4)))


def _with_system(chance: random.Random) -> Case:
    return Case([_turn(chance, "system"), *_turns(chance, chance.randint(1, 3))])


def _user_last(chance: random.Random) -> Case:
    return Case([*_turns(chance, chance.randint(1, 3)), _turn(chance, "user")])


def _twice(chance: random.Random) -> Case:
    first, second = _turns(chance, 1), _turns(chance, 1)
    return Case([*first, _turn(chance, "assistant"), *second])


def _empty_answer(chance: random.Random) -> Case:
    turns = _turns(chance, 2)
    turns[chance.choice((1, 3))]["content"] = ""
    return Case(turns)


def _options(chance: random.Random) -> Case:
    return Case(_turns(chance, 2), options={"enable_thinking": chance.choice((True, False))})


def _completion(chance: random.Random) -> Case:
    messages = _turns(chance, chance.randint(1, 3))
    return Case(messages, num_given=len(messages) - 1)


def _thinking(chance: random.Random) -> Case:
    turns = _turns(chance, chance.randint(1, 3))
    key = chance.choice(("reasoning_content", "thinking"))
    for turn in turns[1::2]:
        turn[key] = _text(chance)
    return Case(turns)


def _mixed_thinking(chance: random.Random) -> Case:
    turns = _turns(chance, chance.randint(1, 3))
    for turn in turns[1::2]:
        turn["content"] = f"<think>\n{_text(chance)}\n</think>\n\n{turn['content']}"
    return Case(turns)


def _call(chance: random.Random) -> dict[str, Any]:
    arguments = {"a": chance.randint(0, 9), "b": chance.randint(0, 9)}
    return {"type": "function", "function": {"name": "multiply", "arguments": arguments}}


def _tool_turns(chance: random.Random, calls: int) -> Messages:
    content = chance.choice(("", None, _text(chance)))
    call: dict[str, Any] = {"role": "assistant", "content": content}
    call["tool_calls"] = [_call(chance) for _ in range(calls)]
    results = [{"role": "tool", "name": "multiply", "content": "6"} for _ in range(calls)]
    return [_turn(chance, "user"), call, *results, _turn(chance, "assistant")]


def _tool_call(chance: random.Random) -> Case:
    messages = _tool_turns(chance, 1) + _turns(chance, chance.randint(0, 2))
    return Case(messages, chance.choice((TOOLS, None)))


def _two_tool_calls(chance: random.Random) -> Case:
    return Case([_turn(chance, "system"), *_tool_turns(chance, 2)], TOOLS)


KINDS = (
    _plain,
    _with_system,
    _tool_call,
    _thinking,
    _user_last,
    _twice,
    _one,
    _completion,
    _two_tool_calls,
    _mixed_thinking,
    _empty_answer,
    _options,
)


@dataclass(frozen=True)
class Learnt:
    """Tokens, and which of them are learnt; the first one has nothing that predicts it."""

    ids: list[int]
    mask: list[bool]

    def example(self) -> TokenizedExample:
        return TokenizedExample(np.array(self.ids, dtype=np.int32), np.array(self.mask))


def by_transformers(tokenizer: Any, case: Case) -> Learnt | Exception:
    """As TRL's `SFTTrainer` does it with `assistant_only_loss`; else the error."""
    messages = copy.deepcopy(case.shown())
    options = {"tools": case.tools, "strftime_now": TEMPLATE_DATE.strftime, **case.options}
    options |= {"tokenize": True, "return_dict": True}
    try:
        found = tokenizer.apply_chat_template(
            messages, return_assistant_tokens_mask=True, **options
        )
        ids, mask = list(found["input_ids"]), [bool(bit) for bit in found["assistant_masks"]]
        if case.num_given:
            prompt = tokenizer.apply_chat_template(
                messages[: case.num_given], add_generation_prompt=True, **options
            )
            pairs = enumerate(zip(prompt["input_ids"], ids, strict=False))
            given = next((at for at, (a, b) in pairs if a != b), len(prompt["input_ids"]))
            mask = [bit and position >= given for position, bit in enumerate(mask)]
    except Exception as error:
        return error
    return Learnt(ids, [False, *mask[1:]])


def _in_parts(messages: Messages) -> Messages:
    changed = copy.deepcopy(messages)
    for message in changed:
        if isinstance(message["content"], str):
            message["content"] = [{"type": "text", "text": message["content"]}]
    return changed


def by_temper(encoder: ConversationEncoder, case: Case) -> Learnt | str:
    """As a row of a data file becomes an example; else why the row is refused."""
    row = Row(json.loads(json.dumps(case.row())), "a.jsonl", 1)
    conversation = recognise_shape([row], DataConfig()).convert(row)
    if isinstance(conversation, BadRow):
        return str(conversation)
    (result,) = encoder.encode([conversation])
    if isinstance(result, BadRow):
        return str(result)
    example = result.example
    return Learnt(example.input_ids.tolist(), example.supervised.tolist())


@contextmanager
def fixed_date() -> Iterator[None]:
    """TRL's trainer writes today's date into some templates; Temper a fixed one, to be repeatable:
    in here both do."""

    class Fixed(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return TEMPLATE_DATE

    with mock.patch("transformers.utils.chat_template_utils.datetime", Fixed):
        yield


def by_the_trainer(tokenizer: Any, given: Sequence[Case], folder: Path) -> list[Learnt]:
    """What a real `SFTTrainer` with `assistant_only_loss` would train on.

    Args:
        given: all of one kind: messages, or prompts with completions; TRL takes each of them.
    """
    from datasets import IterableDataset
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl import SFTConfig, SFTTrainer

    rows = [copy.deepcopy(case.row()) for case in given]
    sizes: dict[str, Any] = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 1, "vocab_size": len(tokenizer)}
    settings: dict[str, Any] = {"assistant_only_loss": True, "max_length": None, "max_steps": 1}
    trainer = SFTTrainer(
        LlamaForCausalLM(LlamaConfig(**sizes)),
        SFTConfig(str(folder), report_to=[], use_cpu=True, bf16=False, **settings),
        train_dataset=IterableDataset.from_generator(lambda: iter(rows)),
        processing_class=tokenizer,
    )
    found = []
    prepared: Any = trainer.train_dataset
    for row in prepared:
        mask = [label != -100 for label in row["labels"]]
        found.append(Learnt(list(row["input_ids"]), [False, *mask[1:]]))
    return found


# Why Temper learns other tokens than TRL from a model's own template; what a model writes by itself
# is learnt by both.
SPACE = "white space beside an answer"  # what follows its end, or is one token with what is before
HEADER = "what the generation prompt writes"
TAIL = "messages after the last answer are left out"  # nothing of them is learnt
REASONS = (SPACE, HEADER, TAIL)
LEAVES_OUT = "leaves out what is to be learned"
REWRITTEN = "reasoning in the other form"


def reasons_of(
    tokenizer: Any, wanted: Learnt, ours: Learnt, options: Mapping[str, Any] | None = None
) -> list[str]:
    """Why two examples of one conversation differ; nothing where that is not explained.

    Args:
        options: what the row has for the template.
    """
    text, our_text = tokenizer.decode(wanted.ids), tokenizer.decode(ours.ids)
    if not text.startswith(our_text.rstrip()):
        return []
    reasons = [TAIL] if text.rstrip() != our_text.rstrip() else []
    runs, our_runs = learnt_texts(tokenizer, wanted), learnt_texts(tokenizer, ours)
    if runs == our_runs:
        return reasons or [SPACE]
    if _without_space(runs) == _without_space(our_runs):
        return [*reasons, SPACE]
    header = _generation_prompt(tokenizer, options or {})
    count = len(ours.ids)
    if wanted.ids[:count] == ours.ids:
        bits = [a and not b for a, b in zip(wanted.mask, ours.mask, strict=False)]
        is_less = all(a or not b for a, b in zip(wanted.mask, ours.mask, strict=False))
        added = learnt_texts(tokenizer, Learnt(ours.ids, bits))
        return [*reasons, HEADER] if is_less and all(t.strip() in header for t in added) else []
    for run, our_run in itertools.zip_longest(runs, our_runs, fillvalue=""):
        run, our_run = run.strip(), our_run.strip()
        if not run.endswith(our_run) or run.removesuffix(our_run).strip() not in header:
            return []
    return [*reasons, HEADER]


def learnt_texts(tokenizer: Any, learnt: Learnt) -> list[str]:
    """The stretches of learnt tokens."""
    padded = np.concatenate([[0], np.array(learnt.mask, dtype=int), [0]])
    edges = np.flatnonzero(np.diff(padded))
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return [tokenizer.decode(learnt.ids[start:end]) for start, end in pairs]


def _without_space(texts: Sequence[str]) -> str:
    return "".join("".join(texts).split())


def _generation_prompt(tokenizer: Any, options: Mapping[str, Any]) -> str:
    question = [{"role": "user", "content": "?"}]
    bare, prompt = (
        tokenizer.apply_chat_template(
            question, tokenize=False, add_generation_prompt=adds, **options
        )
        for adds in (False, True)
    )
    return str(prompt.removeprefix(bare))


@dataclass
class Comparison:
    """What was found for one template.

    Attributes:
        counts: by outcome; LEAVES_OUT are rows that TRL trains on without some of the calls or
            the reasoning of their answers, because the template does not write them: Temper
            refuses them, or (REWRITTEN) writes the reasoning in the form that the template reads.
        different: in words, each that should not be.
        same: the conversations that both learn alike, with what TRL learns.
    """

    counts: Counter[str] = field(default_factory=Counter)
    different: list[str] = field(default_factory=list)
    same: list[tuple[Case, Learnt]] = field(default_factory=list)


def compare(
    family: str,
    template: str,
    given: Sequence[Case],
    kind: str = "bytes",
    model: str | None = None,
) -> Comparison:
    """Temper's tokens and mask against TRL's for one template.

    Args:
        template: what TRL trains with.
        model: the model's own template, which Temper is given; None: the same.
    """
    tokenizer = tokenizer_for(model or template, kind)
    encoder = ConversationEncoder(tokenizer, max_length=1 << 20)
    reference = copy.deepcopy(tokenizer)
    reference.chat_template = template
    found = Comparison()
    for number, plain in enumerate(given):
        case = replace(plain, in_parts=family in WRITES_PARTS)
        wanted, ours = by_transformers(reference, case), by_temper(encoder, case)
        outcome = _outcome(wanted, ours)
        if model and isinstance(wanted, Learnt) and isinstance(ours, Learnt) and wanted != ours:
            reasons = reasons_of(tokenizer, wanted, ours, case.options)
            outcome = "; ".join(reasons) or outcome
        if outcome == "DIFFERENT":
            others = [by_transformers(reference, other) for other in _forms(case)]
            is_other = any(
                one == ours
                or (
                    isinstance(one, Learnt)
                    and isinstance(ours, Learnt)
                    and reasons_of(tokenizer, one, ours, case.options)
                )
                for one in others
            )
            outcome = REWRITTEN if is_other else outcome
        found.counts[outcome] += 1
        if outcome == "same" and isinstance(wanted, Learnt):
            found.same.append((case, wanted))
        if outcome in ("DIFFERENT", "REFUSED BY TEMPER ALONE", "REFUSED BY TRL ALONE"):
            shown = _difference(tokenizer, wanted, ours)
            found.different.append(f"{family}, {kind}, case {number}: {outcome}: {shown}")
    return found


def compare_with_trainer(
    family: str, template: str, found: Comparison, folder: Path, kind: str = "bytes"
) -> None:
    """Holds what `compare` found alike against a real trainer, and counts it."""
    tokenizer = tokenizer_for(template, kind)
    for has_prompt in (False, True):
        pairs = [pair for pair in found.same if bool(pair[0].num_given) == has_prompt]
        learnt = by_the_trainer(tokenizer, [case for case, _ in pairs], folder) if pairs else []
        for (_, wanted), one in zip(pairs, learnt, strict=True):
            found.counts["same in the trainer" if one == wanted else "DIFFERENT"] += 1
            if one != wanted:
                shown = _difference(tokenizer, one, wanted)
                found.different.append(f"{family}, {kind}: the trainer: {shown}")


def _forms(case: Case) -> Iterator[Case]:
    """The case with the reasoning of its answers in another field, or in tags."""
    for name in ("reasoning_content", "reasoning", "thinking", None):
        messages = copy.deepcopy(case.messages)
        for message in messages:
            thought = message.pop("thinking", message.pop("reasoning_content", None))
            if thought is not None and name:
                message[name] = thought.strip()
            elif thought is not None:
                text = f"<think>\n{thought.strip()}\n</think>\n\n{message['content'].lstrip()}"
                message["content"] = text
        yield replace(case, messages=messages)


def _outcome(wanted: Learnt | Exception, ours: Learnt | str) -> str:
    if isinstance(wanted, Exception):
        return "both refuse" if isinstance(ours, str) else "REFUSED BY TRL ALONE"
    if isinstance(ours, str):
        alone = LEAVES_OUT if f": {LEFT_OUT} (" in ours else "REFUSED BY TEMPER ALONE"
        return alone if any(wanted.mask) else "nothing to learn"
    return "same" if wanted == ours else "DIFFERENT"


def _difference(tokenizer: Any, wanted: Learnt | Exception, ours: Learnt | str) -> str:
    if isinstance(wanted, Exception) or isinstance(ours, str):
        return f"TRL {str(wanted)[:150]!r}, Temper {str(ours)[:250]!r}"
    pairs = enumerate(zip(wanted.ids, ours.ids, strict=False))
    places = [number for number, (a, b) in pairs if a != b]
    if places or len(wanted.ids) != len(ours.ids):
        at = places[0] if places else min(len(wanted.ids), len(ours.ids))
        near = slice(max(0, at - 8), at + 8)
        shown = f"TRL {tokenizer.decode(wanted.ids[near])!r}"
        shown += f", Temper {tokenizer.decode(ours.ids[near])!r}"
        return f"ids at {at} of {len(wanted.ids)} and {len(ours.ids)}: {shown}"
    places = [i for i, (a, b) in enumerate(zip(wanted.mask, ours.mask, strict=True)) if a != b]
    tokens = [tokenizer.decode([ours.ids[i]]) for i in places[:6]]
    return (
        f"mask at {places[:6]}: {tokens!r}, learnt by {'Temper' if ours.mask[places[0]] else 'TRL'}"
    )
