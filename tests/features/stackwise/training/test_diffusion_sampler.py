"""The sampler uncovers what the model is surest of first, and a trained model answers by it."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.data.store.examples import TokenizedExample
from infrastructure.features.stackwise.training.diffusion_sampler import generate_masked
from infrastructure.features.stackwise.training.masking import MaskSchedule
from tests.features.stackwise.training.masked_rows import (
    MASK,
    adapter_of,
    filled_llama,
    objective_of,
)
from tests.models.architectures import SIZES, VOCAB_SIZE

TOKENIZER = SimpleNamespace(mask_token_id=MASK, pad_token_id=0)


class Scripted(torch.nn.Module):
    """Predicts `words[p]` at position p, the surer the larger `sureness[p]`; keeps what it saw."""

    def __init__(self, words: list[int], sureness: list[float]) -> None:
        super().__init__()
        self.device_holder = torch.nn.Parameter(torch.zeros(1))
        self.words, self.sureness = words, sureness
        self.seen: list[list[int]] = []

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        self.seen.append(input_ids[0].tolist())
        logits = torch.zeros(*input_ids.shape, VOCAB_SIZE)
        for place in range(input_ids.shape[1]):
            logits[:, place, self.words[place]] = self.sureness[place]
            logits[:, place, MASK] = 99.0  # a mask is no word, however sure the model is
        return logits


WORDS = [9, 8, 31, 32, 33, 34]
SURENESS = [50.0, 50.0, 1.0, 4.0, 2.0, 3.0]


def test_the_surest_stay_and_the_others_are_hidden_again() -> None:
    model = Scripted(WORDS, SURENESS)
    assert generate_masked(model, TOKENIZER, [[9, 8]], 4, 3) == [[31, 32, 33, 34]]
    assert model.seen == [
        [9, 8, MASK, MASK, MASK, MASK],
        [9, 8, MASK, 32, MASK, 34],
        [9, 8, MASK, 32, 33, 34],
    ]


def test_blocks_are_finished_from_the_left() -> None:
    model = Scripted(WORDS, SURENESS)
    answer = generate_masked(model, TOKENIZER, [[9, 8]], 4, 4, block_length=2)
    assert answer == [[31, 32, 33, 34]]
    assert [row[2:] for row in model.seen] == [
        [MASK, MASK, MASK, MASK],
        [MASK, 32, MASK, MASK],
        [31, 32, MASK, MASK],
        [31, 32, MASK, 34],
    ]


@pytest.mark.parametrize(("num_steps", "passes"), [(1, 1), (2, 2), (None, 4), (9, 4)])
def test_as_many_passes_as_steps(num_steps: int | None, passes: int) -> None:
    model = Scripted(WORDS, SURENESS)
    assert generate_masked(model, TOKENIZER, [[9, 8]], 4, num_steps) == [[31, 32, 33, 34]]
    assert len(model.seen) == passes


def test_temperature_zero_is_deterministic_and_drawing_is_seeded() -> None:
    model = filled_llama().train()
    random_state = torch.get_rng_state()
    prompts = [[7, 8, 9], [10, 11, 12, 13, 14]]

    def answers(**settings: Any) -> list[list[int]]:
        return generate_masked(model, TOKENIZER, prompts, 6, 3, **settings)

    assert answers() == answers(seed=1)
    drawn = answers(temperature=1.0)
    assert drawn == answers(temperature=1.0)
    assert drawn != answers(temperature=1.0, seed=1)
    assert drawn != answers()
    assert all(len(answer) == 6 and MASK not in answer for answer in drawn)
    assert generate_masked(model, TOKENIZER, prompts[:1], 6, 3, temperature=1.0) == drawn[:1]
    first, second = generate_masked(model, TOKENIZER, prompts[:1] * 2, 6, 3, temperature=1.0)
    assert first != second, "an answer to each, not one for both"
    assert model.training
    assert torch.equal(torch.get_rng_state(), random_state)


def test_prompts_of_a_batch_do_not_see_each_other() -> None:
    model = filled_llama()
    prompts = [[7, 8, 9], [10, 11, 12, 13, 14], [15]]
    together = generate_masked(model, TOKENIZER, prompts, 5)
    assert together == [generate_masked(model, TOKENIZER, [one], 5)[0] for one in prompts]
    assert generate_masked(model, TOKENIZER, [], 5) == []


def test_an_empty_prompt_is_answered() -> None:
    """All its tokens are hidden and alike: which is uncovered first is for rounding to decide."""
    for prompts in ([[]], [[7, 8, 9], []]):
        answer = generate_masked(filled_llama(), TOKENIZER, prompts, 5)[-1]
        assert len(answer) == 5
        assert MASK not in answer


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_new_tokens": 0}, r"stackwise\.count_below_one\(name=num_new_tokens, value=0\)"),
        ({"num_steps": 0}, r"stackwise\.count_below_one\(name=num_steps, value=0\)"),
        ({"block_length": -1}, r"stackwise\.count_below_one\(name=block_length, value=-1\)"),
        ({"temperature": -0.5}, r"stackwise\.negative_temperature\(temperature=-0\.5\)"),
        (
            {"tokenizer": SimpleNamespace(mask_token_id=None)},
            "stackwise.sampler_without_mask_token",
        ),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    given = {"tokenizer": TOKENIZER, "num_new_tokens": 4, **settings}
    with pytest.raises(ValueError, match=message):
        generate_masked(filled_llama(), prompts=[[7]], **given)


END, EQUALS, FIRST_LETTER, NUM_LETTERS = 5, 6, 10, 8


def reversing(letters: list[int]) -> tuple[list[int], list[int]]:
    """A prompt and its answer: the letters backwards, and the end."""
    return [*letters, EQUALS], [*letters[::-1], END]


def test_a_trained_model_answers() -> None:
    """Three letters are written backwards, by a model that has only ever filled gaps."""
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**{**SIZES, "vocab_size": 24, "hidden_size": 64}))
    objective = objective_of(None, schedule=MaskSchedule(4, None, {0: 0.25, 3: 1.0}))
    adapter = adapter_of(model.train(), objective)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, 200, pct_start=0.1)
    random = np.random.RandomState(0)
    for step in range(200):
        batch = []
        for _ in range(32):
            letters = (FIRST_LETTER + random.randint(NUM_LETTERS, size=3)).tolist()
            prompt, answer = reversing(letters)
            ids = np.array(prompt + answer, dtype=np.int32)
            batch.append(TokenizedExample(ids, np.arange(len(ids)) >= len(prompt)))
        objective.draw = step
        output = adapter.compute_loss(model, adapter.prepare_batch(batch))
        (output.loss_sum / output.num_items).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    prompts = [(FIRST_LETTER + random.randint(NUM_LETTERS, size=3)).tolist() for _ in range(50)]
    pairs = [reversing(letters) for letters in prompts]
    for num_steps in (4, 2):
        found = generate_masked(model, TOKENIZER, [prompt for prompt, _ in pairs], 4, num_steps)
        right = sum(answer == expected for answer, (_, expected) in zip(found, pairs, strict=True))
        assert right >= 48, f"{right} of 50 in {num_steps} steps"
