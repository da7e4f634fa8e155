"""Conversations as they are trained on and asked, with numbers by turn; refused beforehand."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.features import plugins_of
from infrastructure.data.store.examples import TokenizedExample
from infrastructure.models.model_manager import ModelManager
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.model_adapters import (
    ADAPTERS,
    DialogueModelAdapter,
    get_model_adapter,
)
from tests.data.builders import byte_level_tokenizer
from tests.data.trl_masks import TOOLS, model_template, needs_templates, tokenizer_for
from tests.testing.check_models import MODELS

pytestmark = needs_templates

FIRST = [{"role": "user", "content": "What is 2 times 3?"}, {"role": "assistant", "content": "6"}]
TALK = [*FIRST, {"role": "user", "content": "And 3 times 3?"}]
ANSWERED = [*TALK, {"role": "assistant", "content": "The sum is 42."}]
CALL = {"name": "multiply", "arguments": json.dumps({"a": 2, "b": 3})}
WITH_TOOLS = [
    FIRST[0],
    {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": CALL}]},
    {"role": "tool", "name": "multiply", "content": "6"},
    {"role": "assistant", "content": "6", "reasoning_content": "The tool says so."},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3 with its family's own chat template."""
    folder = tmp_path_factory.mktemp("qwen3")
    tokenizer = tokenizer_for(model_template("qwen3"))
    tokenizer.eos_token = "<|im_end|>"
    sizes = {**MODELS["qwen3"][1], "vocab_size": len(tokenizer), "max_position_embeddings": 1024}
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def adapter_for(
    model: Path, packing: bool = True, metrics: Sequence[str] = (), **data: Any
) -> DialogueModelAdapter:
    training = TrainingConfig(metrics=[*metrics])
    adapter = get_model_adapter("dialogue", ModelConfig(name=str(model)), training, "cpu")
    assert isinstance(adapter, DialogueModelAdapter)
    adapter.data_config = DataConfig(**{"max_length": 1024, "packing": packing, **data})
    adapter.initialize_model()
    return adapter


def rows_of(folder: Path, *rows: Any) -> str:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows * 20))
    return str(path)


@pytest.mark.parametrize("train_on", ["answers", "last_answer"])
@pytest.mark.parametrize("messages", [ANSWERED, WITH_TOOLS], ids=["talk", "tools"])
def test_training_and_use_are_rendered_alike(
    model: Path, train_on: str, messages: list[dict[str, Any]]
) -> None:
    adapter = adapter_for(model, train_on=train_on)
    tools = TOOLS if messages is WITH_TOOLS else None
    example = adapter.encode(messages, tools)
    prompt = adapter.prompt_ids(messages[:-1], tools)
    used = adapter.tokenizer.apply_chat_template(
        messages[:1], tools=tools, add_generation_prompt=True
    )["input_ids"]
    assert adapter.prompt_ids(messages[:1], tools) == used
    thoughtless = adapter.tokenizer.apply_chat_template(
        messages[:1], tools=tools, add_generation_prompt=True, enable_thinking=False
    )["input_ids"]
    assert adapter.prompt_ids(messages[:1], tools, enable_thinking=False) == thoughtless != used
    learnt = adapter.tokenizer.decode(example.input_ids[example.supervised])
    assert learnt.count("<|im_end|>") == (2 if train_on == "answers" else 1)
    if train_on == "last_answer":
        assert example.input_ids[: len(prompt)].tolist() == prompt
        assert int(np.flatnonzero(example.supervised)[0]) == len(prompt)
    if tools:
        assert "The tool says so." in learnt
        assert '{"a": 2, "b": 3}' in adapter.tokenizer.decode(example.input_ids)


@pytest.mark.parametrize("packing", [True, False])
def test_numbers_by_turn_are_those_of_the_answers_by_themselves(model: Path, packing: bool) -> None:
    """Compared with transformers' own logits, one conversation at a time; messages are examples."""
    adapter = adapter_for(model, packing, metrics=["token_accuracy"])
    network = adapter.model
    assert network is not None
    network.eval()
    talks = [ANSWERED, FIRST, [FIRST[0], *TALK[1:], ANSWERED[-1]]]
    batch = adapter.prepare_batch(talks)
    assert adapter.packs == packing
    with torch.no_grad():
        found = adapter.sum_metrics(network, batch)
        total = adapter.compute_loss(network, batch)
        sums, counts, hits, ends, right = [0.0, 0.0], [0, 0], 0, 0, 0
        for talk in talks:
            example = adapter.encode(talk)
            ids = torch.from_numpy(example.input_ids.astype(np.int64))
            log_probs = network(input_ids=ids[None]).logits[0].log_softmax(-1)
            turn = -1
            for place in range(1, len(ids)):
                if not example.supervised[place]:
                    continue
                turn += not example.supervised[place - 1]
                sums[turn > 0] -= float(log_probs[place - 1, ids[place]])
                counts[turn > 0] += 1
                right += int(log_probs[place - 1].argmax() == ids[place])
                if int(ids[place]) == adapter.tokenizer.eos_token_id:
                    ends += 1
                    hits += int(log_probs[place - 1].argmax() == ids[place])
    assert found["eval_loss_first_answers"] == (pytest.approx(sums[0], rel=1e-5), counts[0])
    assert found["eval_loss_later_answers"] == (pytest.approx(sums[1], rel=1e-5), counts[1])
    assert found["eval_end_accuracy"] == (hits, ends)
    assert ends == 5
    assert found["eval_token_accuracy"] == (right, sum(counts))
    assert len(found) == 4
    assert adapter.count_computed(talks) == batch["input_ids"].numel()
    assert float(total.loss_sum) == pytest.approx(sum(sums), rel=1e-5)  # packed as unpacked
    assert total.num_items == sum(counts) == adapter.count_items(talks)
    assert adapter.count_tokens(talks) == sum(len(adapter.encode(one).input_ids) for one in talks)


def test_a_training_has_numbers_by_turn(model: Path, tmp_path: Path) -> None:
    rows = [
        {"messages": [*FIRST, {"role": "user", "content": f"{n}?"}, FIRST[1]]} for n in range(9)
    ]
    trainer = EnhancedTrainer(
        ModelConfig(name=str(model), adapter="dialogue"),
        TrainingConfig(max_steps=2, batch_size=4, learning_rate=1e-3, validation_frequency=2),
        DataConfig(path=rows_of(tmp_path, *rows), max_length=256, validation_split=0.3),
        device="cpu",
    )
    assert trainer.train().step == 2
    measured = trainer.evaluate()
    assert measured["eval_loss_first_answers"] > 0
    assert measured["eval_loss_later_answers"] > 0
    assert 0 <= measured["eval_end_accuracy"] <= 1


GIVEN = r"models\.given_messages\(\)"
WRONG: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (
        {"text": "Once upon a time."},
        {},
        r"models\.dialogue_adapter_plain_text\(reason=data\.recognized_plain_text\(column=text\)",
    ),
    (
        {"messages": [FIRST[0], {**FIRST[1], "role": "wizard"}]},
        {},
        r"data\.message_role_unknown\(where=.*, role=wizard\)",
    ),
    (
        {"messages": FIRST},
        {"chat_template": "{{ raise_exception('no') }}"},
        r"data\.template_refuses\(error=no\)",
    ),
]


@pytest.mark.parametrize(("row", "data", "words"), WRONG)
def test_what_is_no_conversation_is_refused_before_the_model_loads(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    row: dict[str, Any],
    data: dict[str, Any],
    words: str,
) -> None:
    monkeypatch.setattr(ModelManager, "load", None)
    with pytest.raises(ValueError, match=words):
        adapter_for(model, path=rows_of(tmp_path, row), **data)


def test_of_several_rows_that_are_none_the_first_one_is_named(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelManager, "load", None)
    talks = [{"messages": [{**FIRST[0], "content": word}, FIRST[1]]} for word in ("one", "two")]
    refuses = "{{ raise_exception(messages[0].content) }}"
    with pytest.raises(ValueError, match=r"no_row_is_a_conversation\(.*line=1, .*error=one\)"):
        adapter_for(model, path=rows_of(tmp_path, *talks), chat_template=refuses)
    others = [{"messages": [FIRST[0], {**FIRST[1], "role": role}]} for role in ("wizard", "elf")]
    with pytest.raises(ValueError, match=r"no_row_is_a_conversation\(.*line=1, .*role=wizard\)"):
        adapter_for(model, path=rows_of(tmp_path, *others))


def test_one_good_row_among_the_first_is_enough(model: Path, tmp_path: Path) -> None:
    """How many may be bad is for data.max_bad_rows_percent."""
    bad = {"messages": [FIRST[0], {**FIRST[1], "role": "wizard"}]}
    adapter_for(model, path=rows_of(tmp_path, bad, {"messages": FIRST}))


def test_a_tokenizer_without_a_template_is_refused_and_a_given_one_is_used(
    saved_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = "{% for m in messages %}{{ m.role }}: {{ m.content }}</s>{% endfor %}"
    adapter = adapter_for(saved_llama, chat_template=given, max_length=64)
    assert adapter.tokenizer.chat_template == given
    monkeypatch.setattr(ModelManager, "load", None)
    with pytest.raises(ValueError, match=r"data\.dialogue_needs_template"):
        adapter_for(saved_llama)


def test_messages_that_are_too_long_are_cut_or_refused_as_rows_are(model: Path) -> None:
    whole = adapter_for(model).encode(ANSWERED)
    length = len(whole.input_ids) - 3
    cut = adapter_for(model, max_length=length, over_length="truncate").encode(ANSWERED)
    assert len(cut.input_ids) <= length
    begun = adapter_for(model, max_length=length, over_length="keep_start")
    ends = begun.prepare_batch([begun.encode(ANSWERED)])["target_ends"]
    assert (ends.sum(), whole.supervised.sum() - len(ends)) == (1, 3)  # one of two is cut off
    detail = rf"detail=data\.example_too_long\(num_tokens={length + 3}, max_length={length}\)"
    refusal = rf"models\.messages_not_encoded\(source={GIVEN}, reason=over-long, {detail}"
    with pytest.raises(ValueError, match=refusal):
        adapter_for(model, max_length=length, over_length="quarantine").encode(ANSWERED)


def test_an_answer_ends_with_its_last_special_token_that_only_space_follows() -> None:
    adapter = DialogueModelAdapter(ModelConfig(), TrainingConfig(), torch.device("cpu"))
    adapter.tokenizer = byte_level_tokenizer()
    word, line = (adapter.tokenizer(text)["input_ids"] for text in ("A", "\n"))
    [end] = adapter.tokenizer.convert_tokens_to_ids(["<|im_end|>"])
    tokens = [  # and whether each is learned, which answer it is of, and whether it ends it
        *(
            (word[0], 1, None, None),
            (word[0], 1, 0, False),
            (end, 1, 0, True),
            (line[0], 1, 0, False),
        ),
        *((word[0], 0, None, None), (end, 1, 1, False), (word[0], 1, 1, False)),
        *((end, 0, None, None), (line[0], 1, 2, False), (end, 1, 2, False), (end, 1, 2, True)),
        *((line[0], 0, None, None), (end, 1, 3, True)),
    ]
    ids, learned = (np.array(column) for column in [*zip(*tokens, strict=True)][:2])
    example = TokenizedExample(ids.astype(np.int32), learned.astype(bool))
    turns, ends = adapter._answers_of(example)
    assert example.supervised.tolist() == learned.astype(bool).tolist()
    assert turns.tolist() == [turn for _, _, turn, _ in tokens if turn is not None]
    assert ends.tolist() == [is_end for _, _, _, is_end in tokens if is_end is not None]


def test_messages_that_are_none_are_named(model: Path) -> None:
    adapter = adapter_for(model)
    refusal = rf"models\.messages_invalid\(source={GIVEN}, reason=no supervised token, error="
    with pytest.raises(ValueError, match=refusal):
        adapter.encode(TALK[:1])
    with pytest.raises(ValueError, match=r"data\.message_role_unknown"):
        adapter.prompt_ids([{"role": "wizard", "content": "?"}])
    del adapter.encoder
    adapter.tokenizer.chat_template = "{{ raise_exception('no') }}"
    refusal = rf"models\.messages_not_rendered\(source={GIVEN}, sentence=.*\(error=no\)"
    with pytest.raises(ValueError, match=refusal):
        adapter.prompt_ids(TALK)


def test_the_configuration_knows_the_names_of_all_adapters_before_they_are_loaded() -> None:
    assert {*ADAPTERS.built_in} == {*ADAPTERS._provided, *plugins_of(ADAPTERS.group)}
