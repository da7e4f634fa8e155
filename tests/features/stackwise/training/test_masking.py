"""Masks are exact in number, the same in any batch, and weighted so that the mean is the bound."""

import itertools
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.data.store.examples import TokenizedExample
from infrastructure.features.stackwise.training.masking import (
    CORRUPTIONS,
    MaskedExample,
    MaskedObjective,
    MaskSchedule,
    MaskVocabulary,
    control_tokens,
    masked_objective,
)
from infrastructure.models.model_inputs import bidirectional_mask
from infrastructure.models.tokenizer import train_tokenizer
from infrastructure.training.core.precision import Precision
from infrastructure.training.forward.evaluation_loss import EvaluationLoss
from infrastructure.training.model_adapters import get_model_adapter
from infrastructure.training.model_adapters.standard_adapter import StandardModelAdapter
from tests.features.stackwise.training.masked_rows import (
    FIRST_WORD,
    MASK,
    PAD,
    SPECIAL,
    adapter_of,
    example,
    examples,
    filled_llama,
    objective_of,
)
from tests.models.architectures import VOCAB_SIZE, gradients
from tests.slow import slow_but


def same(left: MaskedExample, right: MaskedExample) -> bool:
    return np.array_equal(left.input_ids, right.input_ids)


def test_shares_are_linear_between_the_given_ones_and_constant_beyond() -> None:
    schedule = MaskSchedule(10, None, {2: 0.2, 6: 0.4, 7: 0.9})
    found = [schedule.fraction(t) for t in range(10)]
    assert found == pytest.approx([0.2, 0.2, 0.2, 0.25, 0.3, 0.35, 0.4, 0.9, 0.9, 0.9])
    assert schedule.bins == tuple(range(10))


def test_by_default_shares_go_from_15_to_90_percent() -> None:
    schedule = MaskSchedule(6, [5, 0, 3])
    assert [schedule.fraction(t) for t in (0, 3, 5)] == pytest.approx([0.15, 0.6, 0.9])
    assert schedule.bins == (5, 0, 3)
    assert MaskSchedule(1).fraction(0) == 0.15


UP_TO_3 = r"allowed=stackwise\.time_steps_allowed\(num_time_steps=4, largest=3\)"


@pytest.mark.parametrize(
    ("bins", "fractions", "message"),
    [
        ([0, 4], None, rf"stackwise\.time_step_bin_out_of_range\(time_step=4, {UP_TO_3}"),
        ([-1], None, r"stackwise\.time_step_bin_out_of_range\(time_step=-1"),
        ([1, 2, 1], None, r"stackwise\.duplicate_time_step_bin\(time_step=1\)"),
        ([], None, "stackwise.no_time_step_bins"),
        (None, {7: 0.5}, rf"stackwise\.mask_time_step_out_of_range\(time_step=7, {UP_TO_3}"),
        (None, {1: 0.0}, r"mask_fraction_out_of_range\(fraction=0\.0, time_step=1\)"),
        (None, {1: 1.5}, r"mask_fraction_out_of_range\(fraction=1\.5, time_step=1\)"),
        (None, {1: math.nan}, r"mask_fraction_out_of_range\(fraction=nan, time_step=1\)"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(bins: Any, fractions: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MaskSchedule(4, bins, fractions)


@pytest.mark.parametrize("time_step", range(5))
def test_exactly_the_share_of_what_is_supervised_is_masked(time_step: int) -> None:
    objective = objective_of(time_step)
    for length in range(2, 60):
        given = example(length, seed=length, num_supervised=length // 2)
        masked = objective.mask(given)
        expected = max(1, round(objective.schedule.fraction(time_step) * (length // 2)))
        assert len(masked.positions) == len(set(masked.positions.tolist())) == expected
        assert objective.count_masked(given) == expected
        assert given.supervised[masked.positions].all()
        assert (masked.input_ids[masked.positions] == MASK).all()
        assert np.array_equal(masked.targets, given.input_ids[masked.positions])
        kept = np.setdiff1d(np.arange(length), masked.positions)
        assert np.array_equal(masked.input_ids[kept], given.input_ids[kept])


def test_special_tokens_are_never_masked() -> None:
    given = example(200, first=0)  # one token in twenty is special
    special = np.isin(given.input_ids, [*SPECIAL, MASK])
    masked = objective_of(schedule=MaskSchedule(1, None, {0: 1.0})).mask(given)
    assert special.sum() > 3
    assert np.array_equal(np.flatnonzero(given.supervised & ~special), masked.positions)


def test_masks_depend_on_seed_content_time_step_and_draw_alone() -> None:
    given = example(100)
    objective = objective_of(schedule=MaskSchedule(3, None, {0: 0.5}))
    objective.time_step = 1
    first = objective.mask(given)
    assert same(first, objective.mask(example(100)))
    assert same(first, replace_draw(objective, 7).mask(given)), "one time step for all: one mask"
    for other in (
        objective_of(1, seed=1, schedule=objective.schedule).mask(given),
        objective_of(2, schedule=objective.schedule).mask(given),
    ):
        assert not np.array_equal(first.positions, other.positions)
    learnt_less = TokenizedExample(given.input_ids, given.supervised & (np.arange(100) != 50))
    assert not np.array_equal(first.positions, objective.mask(learnt_less).positions)
    objective.time_step = None
    masks = [replace_draw(objective, draw).mask(given) for draw in (0, 1, 0)]
    assert same(masks[0], masks[2])
    assert not same(masks[0], masks[1])


def replace_draw(objective: Any, draw: int) -> Any:
    objective.draw = draw
    return objective


def test_masks_are_the_same_on_every_machine() -> None:
    """A checkpoint goes on elsewhere: these numbers may never change."""
    assert objective_of(2).mask(example(12)).positions.tolist() == [1, 5, 6, 7, 10, 11]
    objective = objective_of(None)
    steps = [replace_draw(objective, draw).time_step_of(example(12)) for draw in range(6)]
    assert steps == [3, 1, 1, 1, 2, 4]
    uniform = objective_of(2, seed=3, corruption="uniform").mask(example(8))
    assert uniform.positions.tolist() == [1, 2, 6, 7]
    assert uniform.input_ids.tolist() == [49, 46, 14, 72, 72, 14, 87, 73]


@pytest.mark.parametrize(("weighting", "weight"), [("inverse", 4.0), ("none", 1.0)])
def test_the_weight_is_that_of_the_share_and_not_of_its_rounding(
    weighting: str, weight: float
) -> None:
    schedule = MaskSchedule(3, None, {1: 0.25})
    masked = objective_of(1, schedule=schedule, weighting=weighting).mask(example(12))
    assert (len(masked.positions), masked.time_step, masked.weight) == (3, 1, weight)
    assert (masked.input_ids.dtype, masked.positions.dtype, masked.targets.dtype) == (
        *(np.int32, np.int64, np.int64),
    )
    held_out = objective_of(None, schedule=schedule)
    held_out.draw = 5
    assert same(
        held_out.mask(example(12), held_out=True), replace_draw(held_out, 0).mask(example(12))
    )


@pytest.mark.parametrize("mask_token_id", [-1, 10])
def test_a_mask_token_outside_of_the_vocabulary_is_refused(mask_token_id: int) -> None:
    numbers = rf"\(mask_token_id={mask_token_id}, count=10"
    with pytest.raises(ValueError, match=r"stackwise\.mask_token_not_in_vocabulary" + numbers):
        MaskedObjective(MaskSchedule(3), 0, mask_token_id, 10, [])
    last = MaskedObjective(MaskSchedule(3), 0, 9, 10, [0, 3])
    assert last.vocabulary.ordinary.tolist() == [1, 2, 4, 5, 6, 7, 8]
    first = MaskedObjective(MaskSchedule(3), 0, 0, 10, [])
    assert first.vocabulary.ordinary.tolist() == list(range(1, 10))


def rows_of(batch: dict[str, torch.Tensor], row: int) -> tuple[list[int], list[int], list[int]]:
    """Ids, masked positions and targets of one example of a batch."""
    length = int(batch["attention_mask"][row].sum())
    width = batch["input_ids"].shape[1]
    mine = batch["target_positions"] // width == row
    positions = (batch["target_positions"][mine] % width).tolist()
    return batch["input_ids"][row, :length].tolist(), positions, batch["targets"][mine].tolist()


@pytest.mark.parametrize("time_step", [None, 3])
def test_batches_do_not_change_the_masks(time_step: int | None) -> None:
    adapter = adapter_of(filled_llama(), objective_of(time_step))
    given = examples()
    whole = adapter.prepare_batch(given)
    backwards = adapter.prepare_batch(given[::-1])
    for row, one in enumerate(given):
        alone = rows_of(adapter.prepare_batch([one]), 0)
        assert alone == rows_of(whole, row) == rows_of(backwards, len(given) - 1 - row)
        assert alone[1]


def test_a_batch_counts_its_own_items() -> None:
    for weighting in ("inverse", "none"):
        adapter = adapter_of(filled_llama(), objective_of(2, weighting=weighting))
        batch = adapter.prepare_batch(examples())
        output = adapter.compute_loss(adapter.model, batch)  # type: ignore[arg-type]
        expected = {"inverse": 8 + 6 + 2 + 11, "none": len(batch["targets"])}[weighting]
        assert output.num_items == adapter.count_items(examples()) == expected
        assert ("target_weights" in batch) == (weighting == "inverse")
        assert adapter.count_computed(examples()) == batch["input_ids"].numel()


def test_a_split_batch_has_the_same_loss() -> None:
    model = filled_llama()
    adapter = adapter_of(model, objective_of(None))
    losses = [
        sum(adapter.compute_loss(model, adapter.prepare_batch(part)).loss_sum for part in parts)
        for parts in ([examples()], [[one] for one in examples()])
    ]
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=0)


@pytest.mark.parametrize("given", [example(6, first=0), example(5, num_supervised=0)])
def test_nothing_to_mask_is_no_item_and_no_loss(given: TokenizedExample) -> None:
    if given.supervised.any():
        given = replace(given, input_ids=given.input_ids % len(SPECIAL))
    model = filled_llama()
    adapter = adapter_of(model, objective_of(1))
    output = adapter.compute_loss(model, adapter.prepare_batch([given]))
    output.loss_sum.backward()
    assert (output.loss_sum.item(), output.num_items, adapter.count_items([given])) == (0.0, 0, 0)
    assert not any(gradient.any() for gradient in gradients(model).values())


def test_each_bin_has_its_share_over_many_tokens() -> None:
    """Of 120,000 tokens, each example drawing its own time step."""
    schedule = MaskSchedule(10, [1, 4, 8], {0: 0.15, 5: 0.5, 9: 0.9})
    objective = objective_of(schedule=schedule)
    length, num_examples = 101, 1200
    hits, drawn, tokens = Counter[int](), Counter[int](), Counter[int]()
    by_position = np.zeros(length)
    for seed in range(num_examples):
        masked = objective.mask(example(length, seed))
        drawn[masked.time_step] += 1
        hits[masked.time_step] += len(masked.positions)
        tokens[masked.time_step] += length - 1
        by_position[masked.positions] += 1
    assert sum(tokens.values()) >= 100_000
    assert set(drawn) == set(schedule.bins)
    for time_step, number in drawn.items():
        assert abs(number - num_examples / 3) < 5 * math.sqrt(num_examples * 2 / 9)
        share = hits[time_step] / tokens[time_step]
        assert abs(share - schedule.fraction(time_step)) <= 0.5 / (length - 1)  # rounding, no more
    overall = sum(hits.values()) / sum(tokens.values())
    deviations = (by_position[1:] - num_examples * overall) / math.sqrt(
        num_examples * overall * (1 - overall)
    )
    assert by_position[0] == 0
    assert np.abs(deviations).max() < 5


def log_probs_of(model: Any, ids: list[int]) -> torch.Tensor:
    """(L, V), each token seeing all others."""
    given = torch.tensor([ids])
    mask = bidirectional_mask(model, torch.ones_like(given))
    with torch.no_grad():
        return model(input_ids=given, attention_mask=mask).logits[0].log_softmax(dim=-1)


def hidden_loss(model: Any, ids: list[int], hidden: tuple[int, ...]) -> float:
    """The cross-entropies of the hidden tokens, summed."""
    seen = [MASK if place in hidden else token for place, token in enumerate(ids)]
    log_probs = log_probs_of(model, seen)
    return -sum(float(log_probs[place, ids[place]]) for place in hidden)


@pytest.mark.parametrize("num_words", slow_but([3], [2, 3, 4]))
def test_the_mean_over_all_masks_is_the_bound(num_words: int) -> None:
    """Each mask of a tiny case has the loss that is computed by hand, each number of tokens has
    the mean over its masks, and over all numbers that is the mean over all orders of uncovering
    the tokens one by one: the bound that masked diffusion trains (LLaDA, equations 3 and 6)."""
    model = filled_llama()
    ids = [7, *range(20, 20 + num_words)]
    given = TokenizedExample(np.array(ids, dtype=np.int32), np.arange(len(ids)) > 0)
    places = range(1, len(ids))
    fractions = {k: (k + 1) / num_words for k in range(num_words)}
    means = []
    for time_step in range(num_words):
        losses: dict[tuple[int, ...], float] = {}
        for seed in range(150):
            schedule = MaskSchedule(num_words, None, fractions)
            objective = objective_of(time_step, seed=seed, schedule=schedule)
            hidden = tuple(objective.mask(given).positions.tolist())
            if hidden not in losses:
                adapter = adapter_of(model, objective)
                output = adapter.compute_loss(model, adapter.prepare_batch([given]))
                losses[hidden] = output.loss_sum.item() / output.num_items
        weight = num_words / (time_step + 1)
        expected = {
            hidden: weight * hidden_loss(model, ids, hidden) / num_words
            for hidden in itertools.combinations(places, time_step + 1)
        }
        assert losses == pytest.approx(expected, rel=1e-5)
        means.append(sum(losses.values()) / len(losses))
    by_order = []
    for order in itertools.permutations(places):
        steps = [(order[index:], order[index]) for index in range(num_words)]
        seen = [([MASK if p in rest else t for p, t in enumerate(ids)], p) for rest, p in steps]
        by_order.append(-sum(float(log_probs_of(model, s)[p, ids[p]]) for s, p in seen))
    bound = sum(by_order) / len(by_order) / num_words
    assert sum(means) / num_words == pytest.approx(bound, rel=1e-5)


def test_all_masks_are_equally_likely() -> None:
    objective = objective_of(schedule=MaskSchedule(1, None, {0: 0.5}))
    drawn = Counter(
        tuple(replace_draw(objective, draw).mask(example(5)).positions.tolist())
        for draw in range(600)
    )
    assert set(drawn) == set(itertools.combinations(range(1, 5), 2))
    assert sum((count - 100) ** 2 / 100 for count in drawn.values()) < 20.5  # p = 0.001


def test_uniform_corruption_gives_any_other_word() -> None:
    words = np.arange(FIRST_WORD, 12, dtype=np.int32)
    vocabulary = MaskVocabulary(MASK, words)
    given = np.full(12_000, 8, dtype=np.int32)
    random = np.random.RandomState(0)
    found = CORRUPTIONS.get("uniform")(given, vocabulary, random)
    counts = Counter(found.tolist())
    assert set(counts) == set(words.tolist()) - {8}
    assert all(abs(count - 2000) < 5 * math.sqrt(2000) for count in counts.values())
    last = CORRUPTIONS.get("uniform")(np.full(7000, 11, dtype=np.int32), vocabulary, random)
    assert set(last.tolist()) == set(words.tolist()) - {11}
    beyond = CORRUPTIONS.get("uniform")(np.full(7000, 99, dtype=np.int32), vocabulary, random)
    assert set(beyond.tolist()) == set(words.tolist())
    control = CORRUPTIONS.get("uniform")(np.full(7000, 2, dtype=np.int32), vocabulary, random)
    assert set(control.tolist()) == set(words.tolist())


def test_uniform_corruption_learns_the_same_targets() -> None:
    plain, uniform = objective_of(2), objective_of(2, corruption="uniform")
    given = example(60)
    masked, replaced = plain.mask(given), uniform.mask(given)
    assert np.array_equal(masked.positions, replaced.positions)
    assert np.array_equal(masked.targets, replaced.targets)
    assert (replaced.input_ids[replaced.positions] != replaced.targets).all()
    assert not np.isin(replaced.input_ids[replaced.positions], [*SPECIAL, MASK]).any()
    assert same(replaced, objective_of(2, corruption="uniform").mask(given))


def test_a_corruption_of_ones_own() -> None:
    def next_word(ids: Any, vocabulary: MaskVocabulary, random: Any) -> Any:
        return np.minimum(ids + 1, VOCAB_SIZE - 1)

    with CORRUPTIONS.registered("next_word", next_word):
        masked = objective_of(2, corruption="next_word").mask(example(20))
    expected = np.minimum(masked.targets + 1, VOCAB_SIZE - 1)
    assert np.array_equal(masked.input_ids[masked.positions], expected)


def test_an_unknown_name_gets_the_nearest_one() -> None:
    unknown = r"what=corruption, name=unifrom, hint=core\.did_you_mean\(meant=uniform\)"
    with pytest.raises(ValueError, match=unknown):
        objective_of(corruption="unifrom")


def adapter_for(folder: Path, **settings: Any) -> StandardModelAdapter:
    model = ModelConfig(name=str(folder), lora_config=settings.pop("lora_config", None))
    config = TrainingConfig(time_step_masking=True, **settings)
    adapter = get_model_adapter("standard", model, config, "cpu")
    assert isinstance(adapter, StandardModelAdapter)
    adapter.data_config = DataConfig(max_length=64)
    adapter.initialize_model()
    return adapter


def test_a_configuration_makes_the_objective(saved_llama: Path) -> None:
    adapter = adapter_for(
        saved_llama,
        num_time_steps=10,
        time_step_bins=[3, 7],
        time_step_mask_fractions={0: 0.2, 9: 0.2},
        seed=5,
        mask_weighting="none",
        corruption="uniform",
    )
    objective = adapter.objective
    assert objective is not None
    assert (objective.time_step, objective.seed, objective.schedule.bins) == (None, 5, (3, 7))
    assert objective.schedule.fraction(7) == pytest.approx(0.2)
    assert (objective.weighting, objective.corruption) == ("none", "uniform")
    assert not adapter.packs
    assert adapter.describe()["corruption"] == "uniform"
    config = TrainingConfig(time_step_masking=True, time_interpretation="input")
    found = masked_objective(config, adapter.tokenizer, 301)
    assert found is not None
    assert found.time_step is None
    assert len(found.vocabulary.ordinary) == 301 - len(found._special)
    assert masked_objective(TrainingConfig(), adapter.tokenizer, 301) is None
    without: Any = SimpleNamespace(mask_token_id=None)
    for tokenizer in (None, without):
        with pytest.raises(ValueError, match=r"stackwise\.masking_without_mask_token"):
            masked_objective(config, tokenizer, 301)  # type: ignore[arg-type]


def test_held_out_masks_stay_and_training_masks_change(saved_llama: Path) -> None:
    adapter = adapter_for(saved_llama, time_interpretation="input")
    given = examples()
    model, objective = adapter.model, adapter.objective
    assert model is not None
    assert objective is not None

    def held_out() -> dict[str, float]:
        return EvaluationLoss(model, adapter, Precision("fp32", "cpu")).measure([given])

    before, first = held_out(), adapter.prepare_batch(given)["input_ids"]
    objective.draw = 1
    assert not torch.equal(adapter.prepare_batch(given)["input_ids"], first)
    assert held_out() == before
    assert before["eval_loss"] > 0


def test_what_ends_an_answer_is_learnt_and_other_control_is_not() -> None:
    tokenizer = train_tokenizer(["What is 12 + 5? 17", "Reverse abc: cba"] * 3, 300)
    names = tokenizer.convert_ids_to_tokens(sorted(control_tokens(tokenizer)))
    assert names == ["<|pad|>", "<|begin|>", "<|user|>", "<|assistant|>", "<|system|>"]
    tokenizer.chat_template = (
        "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|system|>\n{% endfor %}"
    )
    names = tokenizer.convert_ids_to_tokens(sorted(control_tokens(tokenizer)))
    assert "<|system|>" not in names, "here it ends a message"
    assert "<|end|>" not in names, "it ends plain texts"


def test_the_padding_of_a_batch_is_never_seen() -> None:
    """The loss of a short example is the same beside a long one."""
    model = filled_llama()
    adapter = adapter_of(model, objective_of(2))
    short, long = example(5, 3), example(40, 9)
    alone = adapter.compute_loss(model, adapter.prepare_batch([short])).loss_sum
    batch = adapter.prepare_batch([short, long])
    assert (batch["input_ids"][0, 5:] == PAD).all()
    width = batch["input_ids"].shape[1]
    mine = batch["target_positions"] < width
    kept = {"target_positions", "targets", "target_weights"}
    beside = {k: v[mine] if k in kept else v for k, v in batch.items()}
    loss = adapter.compute_loss(model, beside).loss_sum
    torch.testing.assert_close(loss, alone, rtol=1e-5, atol=0)
