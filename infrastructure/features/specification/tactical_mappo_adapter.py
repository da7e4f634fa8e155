"""Adapter for `tactical_mappo`: plays episodes, and computes multi-agent PPO's clipped loss.

Each batch of new episodes gets one gradient step. The policy that acts contains a share of random
moves, so it differs from the policy that is trained, and the clipping has an effect.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F

from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.json_text import JsonObject, as_text
from infrastructure.core.messages import Setting, phrase
from infrastructure.features.specification.tactical_mappo import (
    EPISODE_STEPS,
    EnvironmentSeeds,
    Episodes,
    Rollout,
    TacticalMappo,
    create_episodes,
    play,
)
from infrastructure.models.model_change import changes_of
from infrastructure.models.model_manager import ModelManager
from infrastructure.models.saving import save_model
from infrastructure.training.model_adapters.base_adapter import (
    Batch,
    DataSource,
    LossOutput,
    ModelAdapter,
)

DISCOUNT = 0.9
GAE_LAMBDA = 0.95
CLIP = 0.2
VALUE_WEIGHT = 0.5
ENTROPY_WEIGHT = 0.01
EXPLORATION = 0.05


class TacticalMappoAdapter(ModelAdapter):
    """The adapter for `tactical_mappo`. Examples are episode seeds, and items environment steps.

    In training the loss is PPO's: clipped surrogate, value error, entropy. In evaluation it is the
    negative reward per step when the most probable moves are played: -1 is perfect.
    """

    def __init__(
        self, model_config: ModelConfig, training_config: TrainingConfig, device: torch.device
    ) -> None:
        super().__init__(model_config, training_config, device)
        self.description: JsonObject = {}

    def initialize_model(self) -> torch.nn.Module:
        manager = ModelManager(
            self.model_config,
            device=self.device,
            seed=self.training_config.seed,
            gradient_checkpointing=self.training_config.gradient_checkpointing,
            checkpointing_mode=self.training_config.gradient_checkpointing_mode,
        )
        manager.changes = changes_of(self.model_config, self.training_config)
        loaded = manager.load()
        self.model, self.description = loaded.model, loaded.description
        return loaded.model

    def create_data_source(self, cache_config: CacheConfig, seed: int) -> DataSource:
        return EnvironmentSeeds(seed)

    def prepare_batch(self, examples: Sequence[int]) -> Batch:
        return asdict(create_episodes(list(examples), self.device))

    def count_items(self, examples: Sequence[int]) -> int:
        return len(examples) * EPISODE_STEPS

    def count_tokens(self, examples: Sequence[int]) -> int:
        return self.count_items(examples)

    def compute_loss(self, model: torch.nn.Module, batch: Batch) -> LossOutput:
        model, episodes = cast(TacticalMappo, model), Episodes(**batch)
        if not model.training:
            rewards = play(model, episodes, exploration=0.0).rewards
            return LossOutput(-rewards.sum(), rewards.numel())
        rollout = play(model, episodes, exploration=EXPLORATION)
        return LossOutput(ppo_loss(model, rollout).sum(), rollout.rewards.numel())

    def compute_metrics(self, model: torch.nn.Module, batch: Batch) -> dict[str, float]:
        rewards = play(cast(TacticalMappo, model), Episodes(**batch), exploration=0.0).rewards
        return {
            "covered_targets": float(rewards.mean()),
            "covered_at_end": float(rewards[:, -1].mean()),
        }

    def describe(self) -> JsonObject:
        return self.description

    def notes(self) -> list[str]:
        unread = [key for key in ("path", "eval_path") if getattr(self.data_config, key)]
        return [
            phrase("specification.eval_loss_is_coverage"),
            *(
                phrase("specification.data_setting_no_effect", key=Setting(f"data.{key}"))
                for key in unread
            ),
        ]

    def save(self, directory: Path) -> None:
        assert self.model is not None
        save_model(
            self.model,
            None,
            directory,
            registered_name=as_text(self.description["registered_name"]),
        )


def ppo_loss(model: TacticalMappo, rollout: Rollout) -> torch.Tensor:
    """Return the PPO loss of every environment step, (B, T).

    Advantages are not normalized over the batch, so the loss does not depend on how a batch is
    split. All agents share one advantage.

    Source: Schulman et al. 2017, arXiv 1707.06347, equation 9.
    """
    values = model.values(rollout.states)
    advantages = generalized_advantages(rollout.rewards, values.detach())
    log_probs = model.action_log_probs(rollout.observations)
    chosen = log_probs.gather(-1, rollout.actions.unsqueeze(-1)).squeeze(-1)
    ratio = (chosen - rollout.log_probs).exp()
    shared = advantages.unsqueeze(-1)
    surrogate = torch.minimum(ratio * shared, ratio.clamp(1 - CLIP, 1 + CLIP) * shared)
    entropy = -(log_probs.exp() * log_probs).sum(dim=-1)
    policy_loss = -(surrogate + ENTROPY_WEIGHT * entropy).mean(dim=-1)
    value_error = F.mse_loss(values, advantages + values.detach(), reduction="none")
    return policy_loss + VALUE_WEIGHT * value_error


def generalized_advantages(rewards: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return generalized advantage estimates (GAE), (B, T), of episodes that end after T steps.

    Source: Schulman et al. 2016, arXiv 1506.02438.

    Args:
        rewards: (B, T).
        values: the critic's estimates before each step, (B, T).
    """
    next_values = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], dim=1)
    errors = rewards + DISCOUNT * next_values - values
    advantages = torch.empty_like(errors)
    running = torch.zeros_like(errors[:, 0])
    for step in reversed(range(errors.shape[1])):
        running = errors[:, step] + DISCOUNT * GAE_LAMBDA * running
        advantages[:, step] = running
    return advantages
