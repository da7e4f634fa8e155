"""The model `tactical_mappo`: two agents learn to cover two targets. It uses no text or data files.

It is an example of a registered model: a small actor-critic whose critic sees the whole state
(multi-agent PPO, Yu et al. 2022, arXiv 2103.01955) on a toy grid. A training example is the seed of
one episode. The episode's start and the randomness of its moves come only from this seed, so the
same weights play an episode the same way in any batch. Limits: a fixed grid, five moves, no
obstacles.
"""

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
import torch

GRID_SIZE = 5
NUM_AGENTS = 2
NUM_TARGETS = 2
EPISODE_STEPS = 12
MOVES = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0))
OBSERVATION_SIZE = 2 * (NUM_AGENTS + NUM_TARGETS)
STATE_SIZE = 2 * (NUM_AGENTS + NUM_TARGETS) + 1


@dataclass
class Episodes:
    """The initial positions and the random numbers of B episodes.

    Attributes:
        agents: positions of the agents, (B, NUM_AGENTS, 2) integers in [0, GRID_SIZE).
        targets: positions of the targets, (B, NUM_TARGETS, 2). They do not move.
        noise: Gumbel noise to sample the actions, (B, EPISODE_STEPS, NUM_AGENTS, len(MOVES)).
    """

    agents: torch.Tensor
    targets: torch.Tensor
    noise: torch.Tensor


@dataclass
class Rollout:
    """A recording of B episodes of T steps with N agents.

    Attributes:
        observations: what each agent sees, (B, T, N, OBSERVATION_SIZE).
        states: what the critic sees, (B, T, STATE_SIZE).
        actions: indices into `MOVES`, (B, T, N).
        log_probs: log-probabilities of the actions under the policy that acted, (B, T, N).
        rewards: the fraction of targets covered after each step, shared by all agents, (B, T).
    """

    observations: torch.Tensor
    states: torch.Tensor
    actions: torch.Tensor
    log_probs: torch.Tensor
    rewards: torch.Tensor


class TacticalMappo(torch.nn.Module):
    """An actor-critic with one policy for all agents and one critic of the whole state."""

    def __init__(self, hidden_size: int = 64) -> None:
        super().__init__()
        self.actor = _perceptron(OBSERVATION_SIZE, hidden_size, len(MOVES))
        self.critic = _perceptron(STATE_SIZE, hidden_size, 1)

    def action_log_probs(self, observations: torch.Tensor) -> torch.Tensor:
        """Return log-probabilities of the moves, (..., OBSERVATION_SIZE) -> (..., len(MOVES))."""
        return torch.log_softmax(self.actor(observations).float(), dim=-1)

    def values(self, states: torch.Tensor) -> torch.Tensor:
        """Estimate the discounted returns of states, (..., STATE_SIZE) -> (...)."""
        return self.critic(states).float().squeeze(-1)


def _perceptron(num_inputs: int, hidden_size: int, num_outputs: int) -> torch.nn.Sequential:
    return torch.nn.Sequential(
        torch.nn.Linear(num_inputs, hidden_size),
        torch.nn.Tanh(),
        torch.nn.Linear(hidden_size, hidden_size),
        torch.nn.Tanh(),
        torch.nn.Linear(hidden_size, num_outputs),
    )


def create_episodes(seeds: list[int], device: torch.device) -> Episodes:
    """Create one episode for each seed, independent of the other seeds.

    NumPy guarantees that `RandomState` does not change, so a seed means the same episode in every
    version.
    """
    agents, targets, noise = [], [], []
    for seed in seeds:
        random = np.random.RandomState(seed)
        agents.append(random.randint(GRID_SIZE, size=(NUM_AGENTS, 2)))
        targets.append(random.randint(GRID_SIZE, size=(NUM_TARGETS, 2)))
        noise.append(random.gumbel(size=(EPISODE_STEPS, NUM_AGENTS, len(MOVES))))
    return Episodes(
        torch.as_tensor(np.stack(agents), device=device),
        torch.as_tensor(np.stack(targets), device=device),
        torch.as_tensor(np.stack(noise), dtype=torch.float32, device=device),
    )


@torch.no_grad()
def play(model: TacticalMappo, episodes: Episodes, *, exploration: float) -> Rollout:
    """Let the model play the episodes, and record every step.

    Args:
        exploration: share of uniformly random moves mixed into the policy, in (0, 1). With 0 the
            most probable move is always played.
    """
    agents = episodes.agents
    steps = []
    for step in range(EPISODE_STEPS):
        observations = observe(agents, episodes.targets)
        states = observe_all(agents, episodes.targets, step)
        policy = model.action_log_probs(observations)
        acting = explore(policy, exploration)
        noise = episodes.noise[:, step] if exploration else 0.0
        actions = (acting + noise).argmax(dim=-1)
        log_probs = acting.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        agents = move(agents, actions)
        steps.append((observations, states, actions, log_probs, covered(agents, episodes.targets)))
    return Rollout(*(torch.stack(column, dim=1) for column in zip(*steps, strict=True)))


def explore(log_probs: torch.Tensor, exploration: float) -> torch.Tensor:
    """Mix a share of uniformly random moves into a policy, and return its log-probabilities."""
    return torch.log((1 - exploration) * log_probs.exp() + exploration / len(MOVES))


def move(agents: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """Move the agents by one step, and return their new positions. The walls stop them."""
    return (agents + torch.tensor(MOVES, device=agents.device)[actions]).clamp(0, GRID_SIZE - 1)


def covered(agents: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the fraction of targets that have an agent on them, (B,)."""
    same = (agents.unsqueeze(2) == targets.unsqueeze(1)).all(dim=-1)
    return same.any(dim=1).float().mean(dim=-1)


def observe(agents: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return what each agent sees: its position, and the offsets to other agents and targets.

    The shape is (B, NUM_AGENTS, OBSERVATION_SIZE). Agent k lists the targets from number k on, so
    that agents with the same policy can prefer different targets. With one common order, all agents
    learn to run to the same target.
    """
    seen = []
    for agent in range(NUM_AGENTS):
        others = agents.roll(-agent, dims=1)[:, 1:]
        places = torch.cat([others, targets.roll(-agent, dims=1)], dim=1)
        own = agents[:, agent : agent + 1]
        seen.append(torch.cat([own, places - own], dim=1).flatten(1))
    return torch.stack(seen, dim=1) / GRID_SIZE


def observe_all(agents: torch.Tensor, targets: torch.Tensor, step: int) -> torch.Tensor:
    """Return what the critic sees, (B, STATE_SIZE): all positions and the share of steps left."""
    places = torch.cat([agents, targets], dim=1).flatten(1) / GRID_SIZE
    left = torch.full((len(places), 1), 1 - step / EPISODE_STEPS, device=places.device)
    return torch.cat([places, left], dim=-1)


@dataclass(frozen=True)
class EnvironmentSeeds:
    """A data source of episode seeds: new ones in every epoch, but always the same for evaluation.

    Attributes:
        seed: determines all episode seeds.
        num_examples: episodes in one epoch.
        num_evaluation_examples: held-out episodes.
    """

    seed: int = 0
    num_examples: int = 512
    num_evaluation_examples: int = 128

    @property
    def fingerprint(self) -> str:
        """A text that contains all values that determine the examples."""
        return f"tactical_mappo-{self.seed}-{self.num_examples}-{self.num_evaluation_examples}"

    def train_batches(
        self, epoch: int, start_example: int, batch_size: int
    ) -> Generator[list[int], None, None]:
        """Yield batches of episode seeds, from `start_example` on. The last one may be smaller."""
        return _batches(self._seeds(epoch + 1, self.num_examples)[start_example:], batch_size)

    def evaluation_batches(self, batch_size: int) -> Generator[list[int], None, None]:
        """Yield batches of the held-out episode seeds."""
        return _batches(self._seeds(0, self.num_evaluation_examples), batch_size)

    def _seeds(self, stream: int, count: int) -> list[int]:
        """Return `count` random 32-bit seeds of a stream (an epoch, or the evaluation).

        Two streams have a seed in common with a probability of about count**2 to 4 billion.
        """
        return (
            np.random.RandomState([self.seed, stream])
            .randint(2**32, size=count, dtype=np.uint32)
            .tolist()
        )


def _batches(seeds: list[int], batch_size: int) -> Generator[list[int], None, None]:
    for start in range(0, len(seeds), batch_size):
        yield seeds[start : start + batch_size]
