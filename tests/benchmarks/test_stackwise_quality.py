"""The compared trainings cost what is said, and results are kept as they come."""

import pytest
import torch

from benchmarks.selection_pools import Row
from benchmarks.stackwise_arms import ARMS, Arm, Pool, build, cost_per_epoch, memory, run
from benchmarks.stackwise_quality import (
    Workbench,
    full_cost,
    pool_of,
)
from infrastructure.features.stackwise.training.rack import Rack
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Observer
from tests.slow import slow

ROWS = [Row(f"what is {i} and {i + 1}", f"it is {2 * i + 1} as you know") for i in range(40)]
HEAD = 512 * 64 / (4 * 64 * 64 + 3 * 64 * 192)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    return Workbench(tmp_path_factory.mktemp("bench"), ROWS)


def named(kind: str, name: str) -> Arm:
    return next(arm for arm in ARMS[kind] if arm.name == name)


def cost_of(bench: Workbench, arm: Arm) -> float:
    data = pool_of(ROWS, ROWS[:2], everything=True, seed=0)
    trainer = build(arm, bench.new_model(0, arm.num_layers), data, seed=0, rate=1e-3, steps=1)
    rack = Rack(trainer.initialize_model())
    phases = trainer.strategy.phases(rack.model, 1)
    stacks = getattr(trainer.strategy, "stacks", None)
    return cost_per_epoch(arm, rack, phases, getattr(stacks, "plan", None))


@pytest.mark.parametrize(
    ("kind", "name", "cost"),
    [
        ("scratch", "full", 24 + 3 * HEAD),
        ("scratch", "layer-wise", 8 * 3 + sum(range(8)) + 8 * 2 * HEAD + HEAD),
        ("scratch", "one step, copy", 2 * 3 + 8 * 3 + 2 * 3 * HEAD),
        ("fine-tuning", "LoRA", 8 * 2 + 2 * HEAD),
        ("fine-tuning", "BAdam", 3 + 7 * 2 + 2 * HEAD),  # gradients go down to the lowest layer
    ],
)
def test_a_way_costs_the_layers_that_it_runs(
    bench: Workbench, kind: str, name: str, cost: float
) -> None:
    arm = named(kind, name)
    assert cost_of(bench, arm) == pytest.approx(cost)
    if name == "full":
        assert full_cost() == pytest.approx(cost)


def test_lisa_forgets_the_moments_of_what_stops(bench: Workbench) -> None:
    held: list[set[str]] = []

    class Look(Observer):
        name = "look"

        def step_end(self, state: TrainingState) -> None:
            assert state.optimizer is not None
            known = state.optimizer.state
            names = {n for n, p in state.model.named_parameters() if p in known}
            held.append({n.split("layers.")[1].split(".")[0] for n in names if "layers." in n})

    arm = named("fine-tuning", "LISA")
    data = pool_of(ROWS, ROWS[:2], everything=True, seed=0)
    model = bench.new_model(0, 8)
    build(arm, model, data, seed=0, rate=1e-3, steps=1, epochs=4, hooks=[Look()]).train()
    assert [len(layers) for layers in held] == [2, 2, 2, 2]
    assert len(set(map(frozenset, held))) > 1


def test_a_run_takes_the_compute_that_it_is_given(bench: Workbench) -> None:
    data = pool_of(ROWS, ROWS[:8], everything=True, seed=0)
    torch.set_num_threads(1)
    arm = named("scratch", "one step, copy, half the compute")
    model = bench.new_model(0, 8)
    found = run(arm, model, data, seed=0, rate=1e-3, budget=10 * full_cost())
    assert found["compute"] == pytest.approx(0.5, abs=0.1)
    assert found["steps"] == 2 * round(5 * full_cost() / (30 + 6 * HEAD))


@slow
def test_smaller_micro_batches_make_the_same_steps_in_less_memory(bench: Workbench) -> None:
    data = pool_of(ROWS, ROWS[:8], everything=True, seed=0)
    model, arm = bench.new_model(0, 8), Arm("full")
    sizes = [memory(arm, model, data, micro_batch)["tensor_bytes"] for micro_batch in (8, 2)]
    assert sizes[1] < 0.7 * sizes[0]
    losses = []
    for micro_batch in (8, 2):
        settings = {"seed": 0, "rate": 1e-3, "steps": 3, "micro_batch": micro_batch}
        trainer = build(arm, model, data, **settings)
        trainer.train()
        losses.append(trainer.evaluate()["eval_loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_a_pool_gives_each_example_once_before_any_twice() -> None:
    pool = Pool(list(range(10)), [], count=6, seed=0)
    seen = [x for epoch in range(5) for batch in pool.train_batches(epoch, 0, 4) for x in batch]
    assert sorted(seen[:10]) == sorted(seen[10:20]) == list(range(10))
    assert seen[:10] != seen[10:20]
    rest = [x for batch in pool.train_batches(1, 4, 4) for x in batch]
    assert rest == seen[10:12]
