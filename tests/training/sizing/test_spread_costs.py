"""What a rank of a training takes whose model is spread, measured on a real small model."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.core.process_memory import resident_bytes
from infrastructure.optimization.memory_prediction import MemoryBudget
from infrastructure.training.distributed import checkpoint_storage, shard
from infrastructure.training.sizing import spread_costs as spread_costs_module
from infrastructure.training.sizing.batch_plan import BatchPlan
from infrastructure.training.sizing.cost_measurement import SAVING_BYTES
from infrastructure.training.sizing.spread_costs import SpreadState, spread_costs, spread_state
from tests.training.small_runs import small_trainer


class Model(torch.nn.Module):
    """1000 numbers around two layers of 200 and 300."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(100, 10)
        self.layers = torch.nn.ModuleList(
            torch.nn.Linear(10, width, bias=False) for width in (20, 30)
        )


def state_of(model: torch.nn.Module, **options: Any) -> SpreadState:
    def adamw(module: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameter for _, parameter in module.named_parameters())

    return spread_state(model, adamw, 4, **{"offload": False, "on_gpu": True, **options})


def test_a_rank_keeps_its_part_and_puts_together_what_computes() -> None:
    state = state_of(Model())
    assert abs(state.whole_bytes - 16 * 1500) <= 3 * 4  # and AdamW's number of each step
    assert state.part_bytes == -(-state.whole_bytes // 4)
    assert state.together_bytes == 4 * (1000 * 2 + 300 * 2 * 2)


def test_what_is_kept_in_main_memory_takes_none_of_a_gpu() -> None:
    whole, kept = state_of(Model()), state_of(Model(), offload=True)
    assert kept == replace(whole, part_bytes=0)
    on_cpu = state_of(Model(), offload=True, on_gpu=False)  # which has no other memory
    assert on_cpu == state_of(Model(), on_gpu=False)
    assert on_cpu.part_bytes == whole.part_bytes


def test_a_cpu_copies_what_is_sent_and_fetches_no_block_ahead() -> None:
    model = Model()
    at_the_start = 1000 * (1 + 2)
    assert state_of(model, on_gpu=False).together_bytes == 4 * at_the_start
    model.embedding = torch.nn.Embedding(100, 1)
    while_computing = 100 * 2 + 300 * 2 + 300
    assert state_of(model, on_gpu=False).together_bytes == 4 * while_computing
    model.requires_grad_(False)
    model.embedding.requires_grad_(True)
    assert state_of(model, on_gpu=False).together_bytes == 4 * (100 * 2 + 300 * 2)


def test_frozen_weights_are_spread_and_have_no_gradients() -> None:
    model = Model()
    model.embedding.requires_grad_(False)
    state = state_of(model)
    assert abs(state.whole_bytes - (4 * 1000 + 16 * 500)) <= 3 * 4
    assert state.together_bytes == 4 * (1000 + max(300 * 2 * 2, 1000 + 300))
    model.requires_grad_(False)
    model.layers[0].requires_grad_(True)
    model.embedding = torch.nn.Embedding(100, 1)
    assert state_of(model).together_bytes == 4 * (100 * 2 + max(300 * 3, 300 * 2 + 200 * 2))


def test_ranks_of_one_cpu_share_its_memory_and_its_time(saved_llama: Path, tmp_path: Path) -> None:
    measurement = small_trainer(saved_llama, tmp_path).cost_measurement()
    measurement.budget = MemoryBudget(cpu_limit="4GB")
    costs = spread_costs(measurement, BatchPlan(4, 3), 2, offload=False)
    assert costs.limit_bytes == measurement.budget.limit_bytes(torch.device("cpu")) // 2
    assert costs.heaviest_units == measurement.heaviest_units(4)
    assert costs.longest_units == measurement.units(measurement.longest(1))
    assert 0.5 * resident_bytes() < costs.peak_bytes < 2 * resident_bytes()
    # In a step each rank does two of the micro-batches of 4, whose backward pass takes as long as
    # two forward ones; each evaluates every example.
    assert costs.step_seconds == pytest.approx(2 * 3 * 4 * costs.evaluation_seconds)
    assert all(parameter.grad is None for parameter in measurement.model.parameters())


@pytest.mark.parametrize(
    ("background", "gathered", "is_copied"),
    [(1, 1 << 40, True), (1, 0, False), (1 << 40, 0, False)],
)
def test_what_rank_0_gathers_is_kept_while_it_is_written(
    monkeypatch: pytest.MonkeyPatch, background: int, gathered: int, is_copied: bool
) -> None:
    monkeypatch.setattr(spread_costs_module, "BACKGROUND_BYTES", background)
    monkeypatch.setattr(checkpoint_storage, "GATHERED_BYTES", gathered)
    model = Model()
    model.layers.requires_grad_(False)
    state = state_of(model, on_gpu=False)
    trained_bytes = 3 * 4 * 1000  # the embeddings, and two numbers of AdamW for each
    found = spread_costs_module._copy_bytes(model, state)
    assert found == pytest.approx((trained_bytes + SAVING_BYTES) * is_copied, abs=4)


def test_large_blocks_go_back_at_once_while_it_is_measured(
    monkeypatch: pytest.MonkeyPatch, saved_llama: Path, tmp_path: Path
) -> None:
    events: list[str] = []
    forward = spread_costs_module._forward

    def noted(*arguments: Any) -> None:
        events.append("forward")
        forward(*arguments)

    monkeypatch.setattr(spread_costs_module, "give_back_large_blocks", lambda: events.append("set"))
    monkeypatch.setattr(spread_costs_module, "_forward", noted)
    monkeypatch.setattr(shard, "SMALL_MODEL_BYTES", 0)
    measurement = small_trainer(saved_llama, tmp_path).cost_measurement()
    spread_costs(measurement, BatchPlan(2, 1), 2, offload=False)
    assert events[:2] == ["set", "forward"]
    assert events.count("set") == 1


def test_a_rank_needs_its_part_and_what_is_gathered_instead_of_the_whole_model(
    monkeypatch: pytest.MonkeyPatch, saved_llama: Path, tmp_path: Path
) -> None:
    """Here the process uses 1 GiB, and a micro-batch takes 100 bytes for each of its units."""
    measurement, idle, counts = small_trainer(saved_llama, tmp_path).cost_measurement(), 1 << 30, []

    class Peak:
        def now(self) -> int:
            return idle

        def read(self) -> int:
            return idle + 100 * measurement.units(measurement.usual[: counts[-1]])

    @contextmanager
    def peak_memory(device: torch.device) -> Iterator[Peak]:
        yield Peak()

    monkeypatch.setattr(spread_costs_module, "PeakMemory", lambda device: Peak())
    monkeypatch.setattr(spread_costs_module, "peak_memory", peak_memory)
    monkeypatch.setattr(spread_costs_module, "_forward", lambda _, count: counts.append(count))
    model = measurement.model
    state = spread_state(
        model,
        lambda samples: measurement.strategy.create_optimizer(samples, 0.0),
        2,
        offload=False,
        on_gpu=False,
    )
    costs = spread_costs(measurement, BatchPlan(8, 1), 2, offload=False)
    assert counts == [1, 1, 2, 4]  # of the four examples of a rank
    whole = sum(parameter.nbytes for parameter in model.parameters())
    fixed = idle - whole + state.part_bytes + state.together_bytes
    assert costs.memory.fixed_bytes == pytest.approx(fixed)
    assert costs.memory.bytes_per_unit == pytest.approx(100.0)
