"""The plan of a stack-wise training beside what its phases then hold, and as a table for people."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.messages import WORDS
from infrastructure.features.stackwise.training import outputs
from infrastructure.features.stackwise.training.layer_forms import LayerForm
from infrastructure.features.stackwise.training.outputs import StackRun
from infrastructure.features.stackwise.training.phase_costs import (
    PhaseCosts,
    PlanCosts,
    Weight,
    _spans,
    _stored_bytes,
    plan_costs,
)
from infrastructure.features.stackwise.training.quantized_trunk import quantized_bytes
from infrastructure.features.stackwise.training.rack import Rack
from infrastructure.features.stackwise.training.stack_phases import plan_stacks
from infrastructure.training.core import precision
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Observer
from infrastructure.training.trainer_factory import TrainerFactory
from tests.deployment.runs import deploy
from tests.features.stackwise.training.test_strategy import (
    AT_ONCE,
    SEQUENTIAL,
    STEPS,
    config_of,
)
from tests.models.architectures import tiny_model
from tests.slow import slow_but

QLORA = {
    "strategy": "progressive",
    "progressive": {"target_stacks": 2, "trunk_strategy": "qlora"},
    "quantization_enabled": True,
}
CASES: dict[str, dict[str, Any]] = {
    "blockwise": SEQUENTIAL["blockwise"],
    "reconstruct": SEQUENTIAL["reconstruct"],
    "rackwise": AT_ONCE["rackwise"],
    "quantised": {"mode": "blockwise", "block_size": 2, "quantization_enabled": True},
    "qlora": QLORA,
    "bf16": {"strategy": "progressive", "progressive": {"new_stack_precision": "bf16"}},
    "nf_fp8": {"strategy": "progressive", "progressive": {"new_stack_precision": "nf_fp8"}},
    "sgd": {"mode": "blockwise", "block_size": 2, "optimizer": "sgd"},
}


class Held(Observer):
    """The bytes that a training really holds, phase by phase."""

    def __init__(self) -> None:
        self.bytes: dict[int, dict[str, int]] = {}
        self.trained: dict[int, int] = {}

    def after_backward(self, state: TrainingState) -> None:
        with_gradient = [p for p in state.model.parameters() if p.grad is not None]
        held = self.bytes.setdefault(state.position.phase, {})
        held["gradient_bytes"] = sum(p.grad.nbytes for p in with_gradient if p.grad is not None)
        self.trained[state.position.phase] = sum(p.numel() for p in with_gradient)

    def step_end(self, state: TrainingState) -> None:
        held = self.bytes[state.position.phase]
        weights = [*state.model.parameters(), *state.model.buffers()]
        assert state.optimizer is not None
        kept = [v for s in state.optimizer.state.values() for v in s.values()]
        held["weights_bytes"] = sum(tensor.nbytes for tensor in weights)
        held["optimizer_bytes"] = sum(v.nbytes for v in kept if isinstance(v, torch.Tensor))


def heading(stacks: str, order: str, num_steps: int, num_phases: int) -> str:
    """The first line of a plan."""
    counts = f"num_steps={num_steps}, num_phases={num_phases}"
    return f"stackwise.plan_heading(stacks={stacks}, order={order}, {counts})"


@pytest.mark.parametrize("name", slow_but(["reconstruct", "qlora", "nf_fp8", "bf16"], CASES))
def test_the_predicted_bytes_are_the_held_bytes(name: str, tmp_path: Path) -> None:
    config = config_of(tmp_path, **CASES[name])
    trainer = TrainerFactory().for_run(config)
    held = Held()
    trainer.add_hooks([held])
    plan = StackRun(trainer.strategy, trainer).plan()
    assert plan is not None
    state = trainer.train()
    assert [phase.num_parameters for phase in plan.phases] == list(held.trained.values())
    for index, phase in enumerate(plan.phases):
        predicted = {key: getattr(phase, key) for key in held.bytes[index]}
        assert predicted == held.bytes[index], phase.name
    assert sum(phase.num_steps for phase in plan.phases) == state.total_steps


def test_stacks_in_16_bits_are_computed_so_on_every_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without bf16 instructions a training computes in fp32, which takes no weights of 16 bits."""
    monkeypatch.setattr(precision, "best_precision", lambda _device: "fp32")
    computed = {"bf16": "bf16", "blockwise": "fp32"}
    for name, format_name in computed.items():
        trainer = TrainerFactory().for_run(config_of(tmp_path, **CASES[name]))
        assert trainer.precision.name == format_name


def adamw(samples: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for _, p in samples.named_parameters()])


def plan_for(name: str, training: dict[str, Any], **model: Any) -> PlanCosts:
    rack, config = Rack(tiny_model(name, **model)), TrainingConfig(**training)
    return plan_costs(
        config,
        rack,
        plan_stacks(config, rack, 2),
        create_optimizer=adamw,
        steps_per_epoch=10,
        total_steps=10**9,
        loaded_dtype=torch.float32,
    )


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("llama", {"layers", "embedding", "final norm", "head"}),
        ("gpt2", {"layers", "embedding (tied: also the head)", "final norm"}),
        ("phi", {"layers", "embedding", "final norm", "head"}),
        ("qwen3_moe", {"layers", "embedding", "final norm", "head"}),
    ],
)
def test_what_lies_outside_the_layers_is_named(name: str, parts: set[str]) -> None:
    found = plan_for(name, {"mode": "layerwise"})
    assert set(found.parameters) == parts
    model = tiny_model(name)
    assert sum(found.parameters.values()) == sum(p.numel() for p in model.parameters())
    if name == "phi":  # its head has a bias
        assert found.parameters["head"] == sum(p.numel() for p in model.lm_head.parameters())


def test_many_phases_take_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_for("llama", {"mode": "layerwise"}, num_hidden_layers=32)
    lines = plan.lines()
    assert len(lines) <= 14
    text = "\n".join(lines)
    order = "stackwise.order_one_after_another()"
    assert heading("stackwise.equal_stacks(num_stacks=32, num_layers=1)", order, 640, 32) in text
    assert "1: layer 1 of 32, embedding, final norm, head" in text
    assert "32: layer 32 of 32" in text
    assert "16: layer 16 of 32" not in text
    monkeypatch.delenv(WORDS)  # the width is that of the words
    assert max(map(len, plan.lines())) <= 130


def test_one_block_is_the_whole_model() -> None:
    text = "\n".join(plan_for("llama", {"mode": "blockwise", "block_size": 99}).lines())
    order = "stackwise.order_as_a_whole()"
    assert heading("stackwise.equal_stacks(num_stacks=1, num_layers=2)", order, 20, 1) in text


def test_the_plan_of_a_model_that_grows_has_its_phases() -> None:
    shape = {"strategy": "progressive", "progressive": {"target_stacks": 4, "growth": "once"}}
    plan = plan_for("llama", shape, num_hidden_layers=4)
    text = "\n".join(plan.lines([60.0, 180.0]))
    stacks = "stackwise.unequal_stacks(num_stacks=2, smallest=1, largest=3)"
    assert heading(stacks, "stackwise.order_growing()", 40, 2) in text
    assert [phase.name for phase in plan.phases] == ["layer 1 of 4", "layers 1 to 4 of 4"]
    predicted = [line.partition("about ")[2] for line in plan.lines([60.0, 180.0])]
    assert predicted[3:5] == ["1 min 00 s", "3 min 00 s"]


def work_of(plan: PlanCosts) -> tuple[int, int]:
    """Of one layer and of the head, a forward pass."""
    rack = Rack(tiny_model("llama", num_hidden_layers=4))
    layer = sum(p.numel() for _, p in rack.parameters_of(0, 1) if p.ndim > 1)
    return layer, plan.parameters["head"]


@pytest.mark.parametrize(
    ("training", "layers", "heads"),
    [
        ({"mode": "layerwise"}, [3, 3.5, 4, 4.5], [3, 2, 2, 2]),  # of two passes the second reads
        ({"mode": "layerwise", "cache_activations": False}, [3, 4, 5, 6], [3, 2, 2, 2]),
        ({"mode": "fused", "block_size": 2}, [6, 12], [3, 3]),
        ({"strategy": "end_to_end", "end_to_end_scope": "rackwise"}, [12], [3]),
        (
            {"strategy": "end_to_end", "progressive": {"target_stacks": 2}}
            | {"end_to_end_scope": "stackwise"},
            [12],
            [6],
        ),
        ({"mode": "layerwise", "local_loss": "reconstruct"}, [3, 3.5, 4, 4.5], [0, 0, 0, 3]),
        (
            {"strategy": "end_to_end", "progressive": {"target_stacks": 2}}
            | {"end_to_end_scope": "stackwise", "local_loss": "reconstruct"},
            [12],
            [3],
        ),
        ({"mode": "layerwise", "qlora_enabled": True}, [3, 5, 7, 9], [3, 2, 2, 2]),
    ],
    ids=[
        *("cached", "computed", "fused", "rackwise", "stackwise"),
        *("reconstructed", "reconstructed at once", "low-rank trunk"),
    ],
)
def test_the_time_of_a_phase_is_that_of_its_products(
    training: dict[str, Any], layers: list[float], heads: list[int]
) -> None:
    plan = plan_for("llama", training, num_hidden_layers=4)
    layer, head = work_of(plan)
    wanted = [layer * a + head * b for a, b in zip(layers, heads, strict=True)]
    assert [phase.step_work for phase in plan.phases] == pytest.approx(wanted)
    last = len(wanted) - 1
    seconds = plan.seconds_of_phases(last, 2.0)
    assert seconds[last] == pytest.approx(2.0 * 20)
    assert seconds[0] / seconds[last] == pytest.approx(wanted[0] / wanted[last])
    assert plan.seconds_left(0, last, 2.0) == pytest.approx(sum(seconds))
    assert plan.seconds_left(5, last, 2.0) == pytest.approx(sum(seconds) - seconds[0] / 4)


def test_the_largest_phase_to_come_is_counted() -> None:
    shape = {"strategy": "progressive", "progressive": {"target_stacks": 4, "growth": "once"}}
    plan = plan_for("llama", shape, num_hidden_layers=4)
    small, large = plan.phases
    kept = 100 * 4 * (large.kept_values - small.kept_values)
    assert large.kept_values == 4 * small.kept_values > 0
    assert plan.growth_bytes(0, 0, 100, 4) == large.total_bytes - small.total_bytes + kept
    assert plan.growth_bytes(0, 1, 100, 4) == 0
    blocks = plan_for("llama", {"mode": "layerwise"}, num_hidden_layers=4)
    first, last = blocks.phases[0], blocks.phases[-1]  # the first trains the embedding, too
    assert blocks.growth_bytes(0, 3, 100, 4) == first.total_bytes - last.total_bytes > 0
    assert blocks.growth_bytes(75, 3, 100, 4) == 0


def phase(number: int, *, layer_bytes: int = 1 << 20, num_steps: int = 20) -> PhaseCosts:
    """The costs of one layer, in the first phase also of a tied embedding."""
    outside = {"embedding (tied: also the head)": 500} if number == 1 else {}
    return PhaseCosts(
        **{"name": f"layer {number}", "num_epochs": 2, "num_steps": num_steps, "adapts": []},  # type: ignore[arg-type]
        **{"trains": [[number - 1, number]], "start": 0, "depth": number, "time_step": None},  # type: ignore[arg-type]
        parameters={"layers": 1_000_000, **outside},
        weights_bytes=4 * layer_bytes,
        gradient_bytes=2 * layer_bytes,
        optimizer_bytes=layer_bytes,
        step_work=float(number),
    )


def test_a_plan_is_shown_with_its_largest_phase_and_all_notes() -> None:
    parameters = {"layers": 999_999, "embedding": 2_000_000_000, "low-rank matrices": 5}
    phases = [phase(1), phase(2, layer_bytes=3 << 20), phase(3)]
    plan = PlanCosts("sequential", [[0, 1], [1, 3]], parameters, phases, 7 << 20, "nf_fp8")
    heading, *table, of_all, memory, finished, cached = plan.lines([1.0, 62.0, 3.0])
    stacks = "stackwise.unequal_stacks(num_stacks=2, smallest=1, largest=2)"
    order = "stackwise.order_one_after_another()"
    assert (
        heading == f"stackwise.plan_heading(stacks={stacks}, order={order}, num_steps=60,"
        " num_phases=3)"
    )
    cells = [re.split(r"\s{2,}", line.strip()) for line in table]
    assert [row for row in cells if row[0][0].isalnum()] == [
        ["phase", "parameters that train", "steps", "memory", "time"],
        ["1: layer 1, embedding", "1.00 M", "20", "7.0 MiB", "about 1.0 s"],
        ["2: layer 2", "1.00 M", "20", "21.0 MiB", "about 1 min 02 s"],
        ["3: layer 3", "1.00 M", "20", "7.0 MiB", "about 3.0 s"],
    ]
    assert [of_all, memory, finished, cached] == [
        "stackwise.plan_parameters(total=2.00 B, layers=999,999,"
        " others=embedding 2.00 B (> 99.9%))",
        "stackwise.memory_without_activations(description=stackwise.memory_parts("
        "weights=12.0 MiB, gradients=6.0 MiB, optimizer=3.0 MiB))",
        "stackwise.finished_layers_stored(form=8 bits (fp8))",
        "stackwise.cached_activations_size(size=7.0 MiB)",
    ]
    assert plan.num_layers == 3
    assert len(replace(plan, cache_bytes=None, finished_as=None).lines()) == len(table) + 3
    own = replace(plan, finished_as="mine").lines()[-2]
    assert own == "stackwise.finished_layers_stored(form=mine)"


def test_the_phases_in_the_middle_of_a_long_plan_are_left_out() -> None:
    expected = {
        7: ["1", "2", "3", "4", "5", "6", "7"],
        8: ["1", "2", "3", "4", "…", "6", "7", "8"],
        12: ["1", "2", "3", "4", "…", "10", "11", "12"],
    }
    for count, numbers in expected.items():
        plan = PlanCosts(
            "sequential", [[0, 9]], {"layers": 1}, [phase(n + 1) for n in range(count)]
        )
        first = [line.split()[0].rstrip(":") for line in plan.lines()[1:-2]]
        assert [number for number in first if number.isdigit() or number == "…"] == numbers


def test_the_phase_of_a_step_and_the_time_that_is_left() -> None:
    phases = [phase(n + 1, num_steps=steps) for n, steps in enumerate((20, 0, 10))]
    plan = PlanCosts("sequential", [[0, 3]], {}, phases)
    assert [plan.index_at(step) for step in (0, 19, 20, 29, 30, 99)] == [0, 0, 2, 2, 2, 2]
    assert plan.seconds_of_phases(1, 4.0) == [2.0 * 20, 0.0, 6.0 * 10]
    assert [plan.seconds_left(step, 1, 4.0) for step in (0, 5, 20, 25, 30)] == [
        *(100.0, 90.0, 60.0, 30.0, 0.0)
    ]


def test_the_steps_of_a_run_are_those_that_its_phases_get() -> None:
    rack, config = Rack(tiny_model("llama", num_hidden_layers=4)), TrainingConfig(mode="layerwise")
    found = plan_costs(
        config,
        rack,
        plan_stacks(config, rack, 2),
        create_optimizer=adamw,
        steps_per_epoch=10,
        total_steps=45,
        loaded_dtype=torch.float32,
        cache_bytes=5,
    )
    assert [one.num_steps for one in found.phases] == [20, 20, 5, 0]
    assert (found.cache_bytes, found.finished_as) == (5, None)
    assert (found.kind, found.stacks) == ("sequential", [[n, n + 1] for n in range(4)])
    quantized = plan_for("llama", {"mode": "layerwise", "quantization_enabled": True})
    assert quantized.finished_as == "nf_fp8"


@pytest.mark.parametrize("is_recomputed", [False, True])
def test_what_is_kept_for_the_backward_pass_is_that_of_the_layers_with_gradients(
    is_recomputed: bool,
) -> None:
    rack = Rack(tiny_model("llama", num_hidden_layers=4))
    matrices = [p.shape for _, p in rack.parameters_of(0, 1) if p.ndim > 1]
    each = rack.hidden_size if is_recomputed else sum(map(sum, matrices))
    for training, layers in (
        ({"mode": "layerwise"}, [1, 1, 1, 1]),
        ({"mode": "fused", "block_size": 3}, [3, 4]),
        ({"mode": "blockwise", "block_size": 3, "qlora_enabled": True}, [3, 4]),
    ):
        given = {**training, "gradient_checkpointing": is_recomputed}
        plan = plan_for("llama", given, num_hidden_layers=4)
        assert [one.kept_values for one in plan.phases] == [each * number for number in layers]


def test_the_sample_of_a_large_matrix_has_the_size_of_the_whole() -> None:
    forms = [LayerForm(stored_as="nf_fp8")] * 2
    large = Weight("w", "layers", torch.Size((256, 128)), torch.bfloat16, 1)
    assert _stored_bytes(large, forms) == quantized_bytes("nf_fp8", 256, 128)
    found = {
        _stored_bytes(replace(large, **other), forms)  # type: ignore[arg-type]
        for other in ({"shape": torch.Size((4, 8, 1024))}, {"layer": None}, {"part": "head"})
    }
    assert found == {2 * 256 * 128}
    assert [_spans({None}), _spans({5, 0, 4, None, 1, 3})] == [[], [[0, 2], [3, 6]]]


def test_all_at_once_is_one_phase() -> None:
    shape = {"strategy": "end_to_end", "progressive": {"target_stacks": 2}}
    text = "\n".join(plan_for("llama", shape).lines())
    order = "stackwise.order_one_common_loss()"
    assert heading("stackwise.equal_stacks(num_stacks=2, num_layers=1)", order, 20, 1) in text
    assert "1: all stacks, embedding, final norm, head" in text


def test_the_formula_of_block_coordinate_descent() -> None:
    """2 M + 16 M / D bytes for the blocks, where weights are bf16 and the block that trains is in
    fp32 (BAdam, 2404.02827). In fp32 its weights are its own master copy."""
    rack = Rack(tiny_model("llama", num_hidden_layers=8).to(torch.bfloat16))
    config = TrainingConfig(mode="blockwise", block_size=2)
    found = plan_costs(
        config,
        rack,
        plan_stacks(config, rack, 1),
        create_optimizer=adamw,
        steps_per_epoch=1,
        total_steps=9,
        loaded_dtype=torch.bfloat16,
    )
    count = found.parameters["layers"]
    outside = sum(n for part, n in found.parameters.items() if part != "layers")
    formula = 2 * count + 16 * count / 4
    assert found.phases[1].total_bytes - 2 * outside == pytest.approx(formula, rel=0.1)


def test_the_plan_is_reported_and_recorded(tmp_path: Path) -> None:
    """With the cache that it takes, before the forecast."""
    config = config_of(tmp_path, mode="blockwise", block_size=2, cache_activations=True)
    config.verbose = True
    run, lines = deploy(config)
    [first] = [
        i
        for i, line in enumerate(lines)
        if line.startswith("stackwise.plan_heading(stacks=stackwise.equal_stacks(num_stacks=2")
    ]
    [forecast] = [i for i, line in enumerate(lines) if "deployment.forecast_summary" in line]
    assert first < forecast
    assert any("stackwise.cached_activations_size" in line for line in lines)
    assert lines[first + 1].split()[-1] == "time"
    found = json.loads((run / "stackwise.json").read_text())
    assert [phase["trains"] for phase in found["plan"]["phases"]] == [[[0, 2]], [[2, 4]]]
    assert found["began"] == [{"phase": 0, "step": 0}, {"phase": 1, "step": STEPS}]
    assert found["plan"]["cache_bytes"] > 0
    assert "Block-wise training" in (run / "report.html").read_text()


def test_where_no_layer_is_frozen_no_cache_is_mentioned(tmp_path: Path) -> None:
    for training, is_cached in (({"block_size": 99}, False), ({"block_size": 2}, True)):
        config = config_of(tmp_path, mode="blockwise", cache_activations=True, **training)
        trainer = TrainerFactory().for_run(config)
        plan = StackRun(trainer.strategy, trainer).plan()
        assert plan is not None
        assert (plan.cache_bytes is not None) == is_cached


def test_any_other_training_has_no_plan(tmp_path: Path) -> None:
    trainer = TrainerFactory().for_run(config_of(tmp_path, strategy="standard"))
    assert trainer.strategy.run_parts(trainer).lines() == []


def test_a_plan_that_cannot_be_made_stops_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such number")

    monkeypatch.setattr(outputs, "plan_costs", fail)
    trainer = TrainerFactory().for_run(config_of(tmp_path, mode="blockwise", block_size=2))
    parts = trainer.strategy.run_parts(trainer)
    trainer.add_hooks(parts.observers(tmp_path))
    assert (parts.lines(), parts.seconds_left(0, 3, 2.0)) == ([], 6.0)
    assert trainer.train().step == 2 * STEPS
    assert not (tmp_path / "stackwise.json").exists()
    assert "stackwise.stack_plan_unavailable(error=no such number)" in caplog.text
