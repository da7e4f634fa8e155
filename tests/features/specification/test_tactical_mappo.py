"""The toy environment keeps its rules, and an episode depends on its seed alone."""

import itertools

import pytest
import torch

from infrastructure.features.specification.tactical_mappo import (
    EPISODE_STEPS,
    GRID_SIZE,
    MOVES,
    EnvironmentSeeds,
    TacticalMappo,
    covered,
    create_episodes,
    explore,
    move,
    observe,
    observe_all,
    play,
)

CPU = torch.device("cpu")


@pytest.fixture
def model() -> TacticalMappo:
    torch.manual_seed(0)
    return TacticalMappo()


def test_walls_stop_the_agents() -> None:
    corner = torch.tensor([[[0, 0], [GRID_SIZE - 1, GRID_SIZE - 1]]])
    outwards = [MOVES.index((-1, 0)), MOVES.index((0, 1))]
    assert torch.equal(move(corner, torch.tensor([outwards])), corner)
    inwards = [MOVES.index((1, 0)), MOVES.index((0, -1))]
    moved = move(corner, torch.tensor([inwards]))
    assert moved.tolist() == [[[1, 0], [GRID_SIZE - 1, GRID_SIZE - 2]]]


@pytest.mark.parametrize(
    ("agents", "share"),
    [([[0, 0], [1, 1]], 1.0), ([[0, 0], [0, 0]], 0.5), ([[2, 2], [3, 3]], 0.0)],
)
def test_a_target_counts_once(agents: list[list[int]], share: float) -> None:
    targets = torch.tensor([[[0, 0], [1, 1]]])
    assert covered(torch.tensor([agents]), targets).tolist() == [share]


def test_agents_see_the_world_from_themselves() -> None:
    agents, targets = torch.tensor([[[1, 1], [3, 0]]]), torch.tensor([[[0, 4], [2, 2]]])
    first, second = (observe(agents, targets) * GRID_SIZE)[0].round().int().tolist()
    assert first == [1, 1, 2, -1, -1, 3, 1, 1]
    assert second == [3, 0, -2, 1, -1, 2, -3, 4]


def test_the_critic_sees_all_places_and_the_share_of_steps_that_are_left() -> None:
    agents, targets = torch.tensor([[[1, 1], [3, 0]]]), torch.tensor([[[0, 4], [2, 2]]])
    places = [place / 5 for place in (1, 1, 3, 0, 0, 4, 2, 2)]
    for step, left in ((0, 1.0), (3, 0.75), (11, 1 / 12)):
        assert observe_all(agents, targets, step)[0].tolist() == pytest.approx([*places, left])


def test_an_episode_is_played_step_by_step(model: TacticalMappo) -> None:
    episodes = create_episodes([5, 6], CPU)
    rollout, agents = play(model, episodes, exploration=0.1), episodes.agents
    for step in range(EPISODE_STEPS):
        assert torch.equal(rollout.observations[:, step], observe(agents, episodes.targets))
        expected = observe_all(agents, episodes.targets, step)
        assert torch.equal(rollout.states[:, step], expected)
        agents = move(agents, rollout.actions[:, step])
        assert torch.equal(rollout.rewards[:, step], covered(agents, episodes.targets))


def test_an_episode_depends_on_its_seed_alone(model: TacticalMappo) -> None:
    together = play(model, create_episodes([3, 4, 5], CPU), exploration=0.1)
    torch.manual_seed(99)
    alone = play(model, create_episodes([4], CPU), exploration=0.1)
    assert torch.equal(together.actions[1], alone.actions[0])
    assert torch.equal(together.rewards[1], alone.rewards[0])
    assert not torch.equal(together.actions[0], together.actions[1])


def test_moves_follow_the_policy_with_its_share_of_random_ones(model: TacticalMappo) -> None:
    log_probs = torch.log_softmax(torch.tensor([4.0, 0, 0, 0, -30.0]), dim=-1)
    mixed = explore(log_probs, 0.5).exp()
    assert torch.allclose(mixed.sum(), torch.tensor(1.0))
    assert mixed[-1] == pytest.approx(0.1)
    with torch.no_grad():
        model.actor[-1].weight.zero_()
        model.actor[-1].bias.copy_(log_probs)
    rollout = play(model, create_episodes(list(range(300)), CPU), exploration=0.5)
    counts = torch.bincount(rollout.actions.flatten(), minlength=len(MOVES)).float()
    assert torch.allclose(counts / counts.sum(), mixed, atol=0.02)
    assert torch.allclose(rollout.log_probs.exp(), mixed[rollout.actions], atol=1e-6)
    greedy = play(model, create_episodes([1], CPU), exploration=0.0)
    assert greedy.actions.unique().tolist() == [0]


def test_seeds_are_a_pure_function_of_seed_and_epoch() -> None:
    source = EnvironmentSeeds(seed=7, num_examples=10, num_evaluation_examples=5)
    whole = list(source.train_batches(2, 0, 4))
    assert [len(batch) for batch in whole] == [4, 4, 2]
    assert list(source.train_batches(2, 4, 4)) == whole[1:]
    assert next(source.train_batches(2, 3, 3)) == list(itertools.chain(*whole))[3:6]
    assert whole != list(source.train_batches(3, 0, 4))
    assert whole != list(EnvironmentSeeds(8, 10, 5).train_batches(2, 0, 4))
    assert [len(batch) for batch in source.evaluation_batches(3)] == [3, 2]
    assert source.fingerprint == "tactical_mappo-7-10-5"


def test_training_and_evaluation_episodes_differ() -> None:
    source = EnvironmentSeeds()
    held_out = set(itertools.chain(*source.evaluation_batches(16)))
    trained = {s for epoch in range(20) for b in source.train_batches(epoch, 0, 64) for s in b}
    assert held_out.isdisjoint(trained)
    assert (len(held_out), source.num_examples, source.seed) == (128, 512, 0)
    places = create_episodes(sorted(held_out), CPU)
    for positions in (places.agents, places.targets):
        assert torch.unique(positions).tolist() == [*range(GRID_SIZE)]
    assert len(trained) == 20 * source.num_examples


def test_the_rollout_has_the_documented_shapes(model: TacticalMappo) -> None:
    rollout = play(model, create_episodes([1, 2, 3], CPU), exploration=0.1)
    assert rollout.observations.shape == (3, EPISODE_STEPS, 2, 8)
    assert rollout.states.shape == (3, EPISODE_STEPS, 9)
    assert rollout.actions.shape == rollout.log_probs.shape == (3, EPISODE_STEPS, 2)
    assert rollout.rewards.shape == model.values(rollout.states).shape == (3, EPISODE_STEPS)
