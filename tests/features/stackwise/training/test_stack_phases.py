"""Which layers train in each phase, which run, and at which time step."""

from typing import Any

import pytest

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.features.stackwise.training.rack import Rack
from infrastructure.features.stackwise.training.reconstruction import FeatureDecoders
from infrastructure.features.stackwise.training.stack_adapters import StackAdapters
from infrastructure.features.stackwise.training.stack_phases import (
    StackPhase,
    StackPlan,
    Unit,
    adapter_pairs,
    caches_trunk,
    divide,
    plan_stacks,
    time_steps_of,
)
from tests.models.architectures import tiny_model

PAIRS = {"mode": "blockwise", "block_size": 2}
THREE = {"strategy": "progressive", "progressive": {"target_stacks": 3}}
QLORA_TRUNK = {"progressive": {"target_stacks": 3, "trunk_strategy": "qlora"}}
NEW_QUANTIZED = {"progressive": {"target_stacks": 2, "new_stack_precision": "nf_fp8"}}


def planned(training: dict[str, Any], num_layers: int = 4) -> tuple[Rack, StackPlan]:
    """A plan of two epochs for a model that has the modules which are only for training."""
    config = TrainingConfig(**training)
    rack = Rack(tiny_model("llama", num_hidden_layers=num_layers))
    units = divide(num_layers, config)
    FeatureDecoders(rack.hidden_size, len(units) - 1).attach_to(rack.model)
    StackAdapters(config, plan_stacks(config, rack, 1), list(rack.layers), 0)
    return rack, plan_stacks(config, rack, 2)


def parts_of(rack: Rack, phase: StackPhase) -> str:
    """The parts that train, from the input up: b(elow), layers and their pairs, a(bove),
    d(ecoder)."""
    if phase.parameters is None:
        return "all"
    parts = "b" * set(rack.below).issubset(phase.parameters)
    for index in range(len(rack)):
        own = [name for name, _ in rack.parameters_of(index, index + 1)]
        plain = [name for name in own if "stack_adapters" not in name]
        trained = phase.parameters & set(own)
        assert trained.isdisjoint(plain) or trained.issuperset(plain)
        pairs = sorted({name.split(".")[-2] for name in trained if name not in plain})
        parts += str(index) * trained.issuperset(plain) + f"{index}:{''.join(pairs)}" * bool(pairs)
    parts += "a" * set(rack.above).issubset(phase.parameters)
    decoders = {n.split(".")[1] for n in phase.parameters if n.startswith("training_only.")}
    return parts + "".join(f"d{number}" for number in sorted(decoders))


CASES: dict[str, tuple[dict[str, Any], list[tuple[str, str, int, int]]]] = {
    "layerwise": (
        {"mode": "layerwise"},
        [
            ("layer 1 of 4", "b0ad0", 0, 1),
            ("layer 2 of 4", "1d1", 1, 2),
            ("layer 3 of 4", "2d2", 2, 3),
            ("layer 4 of 4", "3", 3, 4),
        ],
    ),
    "blockwise": (
        {"mode": "blockwise", "block_size": 3},
        [("layers 1 to 3 of 4", "b012ad0", 0, 3), ("layer 4 of 4", "3", 3, 4)],
    ),
    "fused": (
        {"mode": "fused", "block_size": 2},
        [("layers 1 to 2 of 4", "b01ad0", 0, 2), ("layers 1 to 4 of 4", "b0123a", 0, 4)],
    ),
    "growing": (
        {"strategy": "progressive", "progressive": {"target_stacks": 4, "growth": "once"}},
        [("layer 1 of 4", "b0ad0", 0, 1), ("layers 1 to 4 of 4", "b0123a", 0, 4)],
    ),
    "reconstructing": (
        {**PAIRS, "local_loss": "reconstruct"},
        [("layers 1 to 2 of 4", "b01d0", 0, 2), ("layers 3 to 4 of 4", "23a", 2, 4)],
    ),
    "low-rank trunk": (
        {**THREE, **QLORA_TRUNK},
        [
            ("layer 1 of 4", "b0ad0", 0, 1),
            ("layer 2 of 4", "0:11d1", 0, 2),
            ("layers 3 to 4 of 4", "0:11:123", 0, 4),
        ],
    ),
    "low-rank trunk again": (
        {"mode": "layerwise", "qlora_enabled": True, "qlora_strategy": "progressive"},
        [
            ("layer 1 of 4", "b0ad0", 0, 1),
            ("layer 2 of 4", "0:11d1", 0, 2),
            ("layer 3 of 4", "0:121:12d2", 0, 3),
            ("layer 4 of 4", "0:1231:122:13", 0, 4),
        ],
    ),
    "quantized new stacks": (
        {"strategy": "progressive", **NEW_QUANTIZED},
        [("layers 1 to 2 of 4", "b0:01:0ad0", 0, 2), ("layers 3 to 4 of 4", "2:03:0", 2, 4)],
    ),
    "at once": ({"strategy": "end_to_end"}, [("all stacks", "all", 0, 4)]),
    "low-rank at once": (
        {"strategy": "end_to_end", "qlora_enabled": True},
        [("all stacks", "0:01:02:03:0", 0, 4)],
    ),
    "masks": (
        {**PAIRS, "time_step_masking": True, "num_time_steps": 3},
        [
            ("layers 1 to 2 of 4, time step 0", "b01ad0", 0, 2),
            ("layers 3 to 4 of 4, time step 2", "23", 2, 4),
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_phase_trains_its_parts(name: str) -> None:
    training, expected = CASES[name]
    rack, plan = planned(training)
    found = [(one.name, parts_of(rack, one), one.start, one.depth) for one in plan.phases]
    assert found == expected
    assert {one.num_epochs for one in plan.phases} == {2}
    assert {one.begins_anew for one in plan.phases} == {plan.is_sequential}
    units = [one.unit for one in plan.phases]
    assert units == (plan.units if plan.is_sequential else [None])


def test_a_cache_of_masked_inputs_has_a_phase_for_each_time_step() -> None:
    masks = {"time_step_masking": True, "time_step_bins": [4, 1], "time_interpretation": "input"}
    for caches, expected in ((True, [1, 4, 1, 4]), (False, [None, None]), (None, [None, None])):
        _, plan = planned({**PAIRS, **masks, "cache_activations": caches})
        assert [one.time_step for one in plan.phases] == expected
        assert [one.unit.index for one in plan.phases if one.unit] == (
            [0, 0, 1, 1] if caches else [0, 1]
        )


def test_time_steps_of_the_depth_are_spread_over_the_units() -> None:
    config = TrainingConfig(time_step_masking=True, time_step_bins=[9, 0, 4, 2])
    table = {1: [0], 2: [0, 9], 3: [0, 4, 9], 4: [0, 2, 4, 9], 5: [0, 2, 4, 4, 9]}
    for count, expected in table.items():
        assert [time_steps_of(config, i, count) for i in range(count)] == [[t] for t in expected]
    assert time_steps_of(TrainingConfig(), 0, 3) == [None]


@pytest.mark.parametrize(
    ("training", "sizes"),
    [
        ({"strategy": "end_to_end", "progressive": {"target_stacks": 9}}, [1, 1, 1]),
        ({"mode": "fused", "block_size": 2}, [2, 1]),
        ({"strategy": "progressive", "progressive": {"target_stacks": 1, "growth": "once"}}, [3]),
        (
            {"strategy": "progressive", "progressive": {"target_stacks": 3, "growth": "once"}},
            [1, 2],
        ),
        ({"strategy": "progressive", "progressive": {"target_stacks": 3}}, [1, 1, 1]),
    ],
)
def test_a_model_of_three_layers_is_divided(training: dict[str, Any], sizes: list[int]) -> None:
    units = divide(3, TrainingConfig(**training))
    assert [unit.last - unit.first for unit in units] == sizes
    assert [unit.index for unit in units] == list(range(len(sizes)))


def test_stacks_that_train_at_once_are_as_many_as_were_set() -> None:
    shape = {"strategy": "end_to_end", "end_to_end_scope": "stackwise"}
    with pytest.raises(ValueError, match=r"more_stacks_than_layers\(wanted=4, num_layers=3"):
        divide(3, TrainingConfig(**shape))


@pytest.mark.parametrize(
    ("training", "keys"),
    [
        ({"mode": "layerwise"}, [[], [], []]),
        ({"mode": "layerwise", "qlora_enabled": True}, [["1"], ["1"], []]),
        (
            {"mode": "layerwise", "qlora_enabled": True, "qlora_progressive_enabled": True},
            [["1", "2"], ["1"], []],
        ),
        ({"strategy": "progressive", **NEW_QUANTIZED}, [["0"], ["0"], ["0"]]),
        ({"strategy": "end_to_end", "qlora_enabled": True}, [["0"], ["0"], ["0"]]),
        ({"strategy": "end_to_end", **NEW_QUANTIZED}, [[], [], []]),
    ],
)
def test_a_unit_has_the_pairs_that_its_phases_name(
    training: dict[str, Any], keys: list[list[str]]
) -> None:
    config = TrainingConfig(**training)
    plan = plan_stacks(config, Rack(tiny_model("llama", num_hidden_layers=3)), 1)
    units = [Unit(index, index, index + 1) for index in range(3)]
    three = StackPlan(plan.kind, units)
    assert [adapter_pairs(config, three, unit) for unit in units] == keys


def test_a_trunk_is_cached_if_it_is_read_again_or_a_cache_was_requested() -> None:
    layerwise = {"mode": "layerwise"}
    table: list[tuple[dict[str, Any], tuple[bool, bool]]] = [
        (layerwise, (False, True)),
        ({**layerwise, "cache_activations": True}, (True, True)),
        ({**layerwise, "cache_activations": False}, (False, False)),
        ({"mode": "fused"}, (False, False)),
        ({**layerwise, "qlora_enabled": True}, (False, False)),
        ({"strategy": "end_to_end"}, (False, False)),
    ]
    for training, expected in table:
        config = TrainingConfig(**training)
        assert (caches_trunk(config, 1), caches_trunk(config, 2)) == expected, training
