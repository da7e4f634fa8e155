"""Time, memory and disk of a block-wise run, whichever phase was measured."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.features.stackwise.training.outputs import StackRun
from infrastructure.features.stackwise.training.phase_costs import PlanCosts
from infrastructure.features.stackwise.training.rack import Rack
from infrastructure.features.stackwise.training.stack_phases import plan_stacks
from tests.features.stackwise.training.test_phase_costs import phase
from tests.models.architectures import tiny_model

NUM_LAYERS = 4
LENGTHS = np.array([5, 7, 8])


def run_of(training: dict[str, Any], *, lengths: Any = LENGTHS, entered: int = -1) -> StackRun:
    """A run of a Llama in bf16 whose layers were loaded in fp32."""
    config = TrainingConfig(**training)
    rack = Rack(tiny_model("llama", num_hidden_layers=NUM_LAYERS).to(torch.bfloat16))
    stacks = SimpleNamespace(
        rack=rack, plan=plan_stacks(config, rack, 2), loaded_dtype=torch.float32
    )
    strategy = SimpleNamespace(stacks=stacks, cache_source=object(), entered=entered)
    data = SimpleNamespace() if lengths is None else SimpleNamespace(lengths=lambda: lengths)
    trainer: Any = SimpleNamespace(
        training_config=config,
        prepare=lambda: SimpleNamespace(loop=None),
        initialize_data=lambda: data,
        hooks=SimpleNamespace(hooks=[]),
    )
    return StackRun(strategy, trainer)


@pytest.mark.parametrize(
    ("training", "code"),
    [
        ({"strategy": "end_to_end"}, ""),
        ({"strategy": "end_to_end", "qlora_enabled": True}, "stackwise.trains_stacks_low_rank()"),
        ({"mode": "layerwise"}, "stackwise.trains_stacks_in_turn()"),
        (
            {"mode": "layerwise", "qlora_enabled": True},
            "stackwise.trains_stacks_in_turn_low_rank()",
        ),
        (
            {"mode": "layerwise", "progressive": {"new_stack_precision": "nf_fp8"}},
            "stackwise.trains_stacks_in_turn_low_rank()",
        ),
    ],
)
def test_what_trains_is_named(training: dict[str, Any], code: str) -> None:
    assert run_of(training).trained() == code


@pytest.mark.parametrize(("entered", "measured"), [(-1, 1), (0, 0), (1, 1)])
def test_costs_are_those_of_the_measured_phase(
    entered: int, measured: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of({"mode": "blockwise", "block_size": 2}, entered=entered)
    plan = PlanCosts("sequential", [[0, 2]], {"layers": 1}, [phase(1), phase(2, layer_bytes=9)])
    monkeypatch.setattr(run, "_costs", lambda: plan)
    assert run.lines() == plan.lines()
    assert run.lines(3.0) == plan.lines(plan.seconds_of_phases(measured, 3.0))
    assert run.seconds_left(5, 99, 3.0) == plan.seconds_left(5, measured, 3.0)
    assert run.growth_bytes(5, 10, 2) == plan.growth_bytes(5, measured, 10, 2)
    monkeypatch.setattr(run, "_costs", lambda: None)
    assert (run.lines(3.0), run.lines()) == ([], [])
    assert (run.seconds_left(5, 99, 3.0), run.growth_bytes(5, 10, 2)) == (297.0, 0)


def test_the_disk_holds_stacks_the_rack_and_the_cache() -> None:
    blocks = {"mode": "blockwise", "block_size": 1}
    run = run_of(blocks)
    rack = run.strategy.stacks.rack
    in_layers = sum(p.numel() for _, p in rack.parameters_of(0, NUM_LAYERS))
    whole = sum(p.numel() for p in rack.model.parameters())
    model_bytes = 4 * in_layers + 2 * (whole - in_layers)
    cache = 2 * 20 * rack.hidden_size * 2  # two at a time, of 20 tokens in bf16
    limit = 1_000_000
    table: list[tuple[dict[str, Any], Any, tuple[int, int]]] = [
        ({}, LENGTHS, (model_bytes, cache)),
        ({"save_rack": True}, LENGTHS, (2 * model_bytes, cache)),
        ({"save_stacks": False}, LENGTHS, (0, cache)),
        ({"cache_dtype": "fp32"}, LENGTHS, (model_bytes, 2 * cache)),
        ({"cache_mode": "rack"}, LENGTHS, (model_bytes, cache // 2 * 3)),
        ({"cache_size": 1}, LENGTHS * 1000, (model_bytes, limit)),
        ({"cache_size": 1}, None, (model_bytes, limit)),
        ({"cache_dir": "elsewhere"}, LENGTHS, (model_bytes, 0)),
        ({"block_size": 4}, LENGTHS, (model_bytes, 0)),  # no layers are frozen
    ]
    for training, lengths, expected in table:
        found = run_of({**blocks, **training}, lengths=lengths)
        assert found.disk_bytes() == expected, training
    run.strategy.cache_source = None
    assert run.disk_bytes() == (model_bytes, 0)


def test_only_the_phases_are_recorded_if_no_stacks_are_saved(tmp_path: Path) -> None:
    for saves in (True, False):
        found = run_of({"mode": "layerwise", "save_stacks": saves}).observers(tmp_path)
        names = [type(one).__name__ for one in found]
        assert names == ["PhaseRecords", *["StackFiles"] * saves]
