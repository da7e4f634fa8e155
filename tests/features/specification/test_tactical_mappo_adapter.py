"""The loss is PPO's, splits like every other loss, and training with it really helps."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.features.specification import tactical_mappo_adapter
from infrastructure.features.specification.tactical_mappo import (
    EnvironmentSeeds,
    Rollout,
    TacticalMappo,
    create_episodes,
    play,
)
from infrastructure.features.specification.tactical_mappo_adapter import (
    TacticalMappoAdapter,
    generalized_advantages,
    ppo_loss,
)
from infrastructure.models.model_manager import load_saved
from infrastructure.training.model_adapters import adapter_name
from tests.slow import slow

CPU = torch.device("cpu")


@pytest.fixture
def adapter() -> TacticalMappoAdapter:
    adapter = TacticalMappoAdapter(ModelConfig(name="tactical_mappo"), TrainingConfig(), CPU)
    adapter.initialize_model()
    return adapter


def evaluate(adapter: TacticalMappoAdapter, source: EnvironmentSeeds) -> float:
    assert adapter.model is not None
    adapter.model.eval()
    loss_sum, num_items = 0.0, 0
    with torch.no_grad():
        for examples in source.evaluation_batches(64):
            output = adapter.compute_loss(adapter.model, adapter.prepare_batch(examples))
            loss_sum, num_items = loss_sum + float(output.loss_sum), num_items + output.num_items
    adapter.model.train()
    return loss_sum / num_items


@slow  # the loss, its gradient and the metrics are computed by hand below
def test_training_makes_the_team_ten_times_better_than_chance(
    adapter: TacticalMappoAdapter,
) -> None:
    source = adapter.create_data_source(CacheConfig(), seed=0)
    assert isinstance(source, EnvironmentSeeds)
    model = adapter.model
    assert model is not None
    assert -evaluate(adapter, source) < 0.15
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(10):
        for examples in source.train_batches(epoch, 0, 32):
            output = adapter.compute_loss(model, adapter.prepare_batch(examples))
            (output.loss_sum / output.num_items).backward()
            optimizer.step()
            optimizer.zero_grad()
    # every target covered from the first moment on would be 1; walking there costs about 0.17
    assert -evaluate(adapter, source) > 0.75
    batch = adapter.prepare_batch(list(range(100)))
    metrics = adapter.compute_metrics(model, batch)
    assert 0.75 < metrics["covered_targets"] < metrics["covered_at_end"] <= 1


def test_eight_times_one_is_one_times_eight(adapter: TacticalMappoAdapter) -> None:
    model = adapter.model
    assert model is not None
    gradients = []
    for size in (8, 1):
        model.zero_grad()
        for start in range(0, 8, size):
            examples = list(range(8))[start : start + size]
            output = adapter.compute_loss(model, adapter.prepare_batch(examples))
            assert output.num_items == adapter.count_items(examples)
            (output.loss_sum / adapter.count_items(range(8))).backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*gradients, strict=True))


def test_advantages_of_an_episode_by_hand() -> None:
    rewards, values = torch.tensor([[1.0, 0.0, 2.0]]), torch.tensor([[0.5, 1.0, 0.25]])
    last = 2.0 - 0.25
    middle = 0.0 + 0.9 * 0.25 - 1.0 + 0.9 * 0.95 * last
    first = 1.0 + 0.9 * 1.0 - 0.5 + 0.9 * 0.95 * middle
    expected = torch.tensor([[first, middle, last]])
    assert torch.allclose(generalized_advantages(rewards, values), expected)


def test_the_loss_of_a_step_by_hand(adapter: TacticalMappoAdapter) -> None:
    model = adapter.model
    assert isinstance(model, TacticalMappo)
    rollout = play(model, create_episodes([1, 2], CPU), exploration=0.05)
    ppo_loss(model, rollout).sum().backward()
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    with torch.no_grad():
        values = model.values(rollout.states)
        advantages = generalized_advantages(rollout.rewards, values)
    log_probs = model.action_log_probs(rollout.observations)
    expected = torch.zeros(())
    for b, t in itertools.product(*map(range, rollout.rewards.shape)):
        gain, num_agents = advantages[b, t], rollout.actions.shape[2]
        for agent in range(num_agents):
            each = log_probs[b, t, agent]
            ratio = (each[rollout.actions[b, t, agent]] - rollout.log_probs[b, t, agent]).exp()
            clipped = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
            expected = expected - (clipped - 0.01 * (each.exp() * each).sum()) / num_agents
        error = model.values(rollout.states[b, t]) - (gain + values[b, t])
        expected = expected + 0.5 * error**2
    torch.testing.assert_close(ppo_loss(model, rollout).sum(), expected)
    expected.backward()
    for one, other in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(one, other.grad)


def test_moves_are_random_in_training_and_the_best_ones_in_evaluation(
    adapter: TacticalMappoAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = adapter.model
    assert isinstance(model, TacticalMappo)
    given: list[float] = []

    def played(*parts: Any, exploration: float) -> Rollout:
        given.append(exploration)
        return play(*parts, exploration=exploration)

    monkeypatch.setattr(tactical_mappo_adapter, "play", played)
    batch = adapter.prepare_batch([1, 2, 3])
    best = play(model, create_episodes([1, 2, 3], CPU), exploration=0.0).rewards
    assert adapter.compute_metrics(model, batch) == pytest.approx(
        {"covered_targets": best.mean().item(), "covered_at_end": best[:, -1].mean().item()}
    )
    adapter.compute_loss(model.train(), batch)
    assert adapter.compute_loss(model.eval(), batch).loss_sum == -best.sum()
    assert given == [0.0, 0.05, 0.0]


def test_new_weights_are_those_of_the_seed() -> None:
    def first(seed: int) -> torch.Tensor:
        config = TrainingConfig(seed=seed)
        made = TacticalMappoAdapter(ModelConfig(name="tactical_mappo"), config, CPU)
        return next(made.initialize_model().parameters())

    assert torch.equal(first(1), first(1))
    assert not torch.equal(first(1), first(2))
    masked = TrainingConfig(time_step_masking=True)
    with pytest.raises(ValueError, match=r"stackwise\.masking_needs_text\(name=tactical_mappo\)"):
        TacticalMappoAdapter(ModelConfig(name="tactical_mappo"), masked, CPU).initialize_model()


def test_its_adapter_is_its_own() -> None:
    for wanted in ("auto", "standard", "tactical_mappo"):
        model = ModelConfig(name="tactical_mappo", adapter=wanted)
        assert adapter_name(model, DataConfig()) == "tactical_mappo"
    with pytest.raises(ValueError, match=r"models\.registered_model_adapter\(adapter=dialogue,"):
        adapter_name(ModelConfig(name="tactical_mappo", adapter="dialogue"), DataConfig())


def test_the_clip_takes_the_gradient_of_moves_that_left_the_region(
    adapter: TacticalMappoAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = adapter.model
    assert model is not None
    monkeypatch.setattr(tactical_mappo_adapter, "ENTROPY_WEIGHT", 0.0)
    rollout = play(model, create_episodes([1], CPU), exploration=0.05)
    rollout.rewards.fill_(10.0)
    ppo_loss(model, rollout).sum().backward()
    assert model.actor[0].weight.grad.abs().sum() > 0
    model.zero_grad()
    # as if the acting policy had made every move half as probable: all ratios are 2
    rollout.log_probs -= torch.log(torch.tensor(2.0))
    ppo_loss(model, rollout).sum().backward()
    assert model.actor[0].weight.grad.abs().sum() == 0


def test_data_that_is_not_read_is_reported(adapter: TacticalMappoAdapter) -> None:
    assert adapter.notes() == ["specification.eval_loss_is_coverage()"]
    assert adapter.count_tokens([1, 2]) == adapter.count_items([1, 2]) == 24
    adapter.data_config = DataConfig(path="chats.jsonl", eval_path="test.jsonl")
    assert adapter.notes()[1:] == [
        "specification.data_setting_no_effect(key=data.path)",
        "specification.data_setting_no_effect(key=data.eval_path)",
    ]


def test_it_is_saved_under_its_name(adapter: TacticalMappoAdapter, tmp_path: Path) -> None:
    adapter.save(tmp_path / "final")
    assert adapter.describe()["num_parameters"] > 0
    assert adapter.notes()
    assert adapter.model is not None
    again = load_saved(tmp_path, device=CPU).model
    assert all(
        torch.equal(a, b)
        for a, b in zip(adapter.model.parameters(), again.parameters(), strict=True)
    )
