"""The ways to train that are compared in `stackwise_quality`, what each costs, and how it is run.

LISA (2403.17919) trains embedding, norm, head and two layers drawn anew; BAdam (2404.02827) one
layer after the other, in one order and the next. Both are phases of the ordinary step here, and
lose the moments of what stops training, as theirs do.
"""

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.tensor_peak import TensorPeak
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import LoraConfig, ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.features.stackwise.training.rack import Rack
from infrastructure.features.stackwise.training.stack_phases import STACKWISE, StackPhase, StackPlan
from infrastructure.models.lora import layer_of
from infrastructure.training.core.precision import choose_device
from infrastructure.training.core.state import Phase
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.model_adapters.base_adapter import DataSource
from infrastructure.training.model_adapters.standard_adapter import StandardModelAdapter
from infrastructure.training.strategies.standard_strategy import StandardTrainingStrategy

BATCH_SIZE, MAX_LENGTH = 8, 64
NUM_LAYERS, WIDTH, INNER, VOCABULARY = 8, 64, 192, 512
LORA_RANK = 8


@dataclass(frozen=True)
class Arm:
    """A way to train.

    Attributes:
        training: settings.
        cycles: for LISA and BAdam, layers that train at a time; None: neither.
        draws: LISA: layers are drawn, and all else trains, too.
        share: of the full compute.
        num_layers: of the model.
    """

    name: str
    training: dict[str, Any] = field(default_factory=dict)
    lora: bool = False
    cycles: int | None = None
    draws: bool = False
    share: float = 1.0
    num_layers: int = NUM_LAYERS


PROGRESSIVE = {"strategy": "progressive"}
BLOCKS = {"mode": "blockwise", "block_size": 2}
LOPT = {"strategy": "end_to_end", "end_to_end_scope": "stackwise", "local_loss": "reconstruct"}
GROWING = {**PROGRESSIVE, "progressive": {"growth": "once", "init": "copy", "target_stacks": 4}}


SCRATCH = [
    Arm("full"),
    Arm("full, half the compute", share=0.5),
    Arm("full, 4 layers", num_layers=4),
    Arm("progressive, 4 stacks", {**PROGRESSIVE, "progressive": {"target_stacks": 4}}),
    Arm("one step, copy", GROWING),
    Arm("one step, copy, half the compute", GROWING, share=0.5),
    Arm("layer-wise", {"mode": "layerwise"}),
    Arm("block-wise", BLOCKS),
]
FINE_TUNING = [
    Arm("full"),
    Arm("layer-wise", {"mode": "layerwise"}),
    Arm("block-wise", BLOCKS),
    Arm("block-wise, reconstructing", {**BLOCKS, "local_loss": "reconstruct"}),
    Arm("LoPT", {**LOPT, "progressive": {"target_stacks": 2}}),
    Arm("LoRA", lora=True),
    Arm("LISA", cycles=2, draws=True),
    Arm("BAdam", cycles=1),
]
FEW_ROWS = [arm for arm in FINE_TUNING if arm.name not in ("block-wise, reconstructing", "BAdam")]
ARMS = {"scratch": SCRATCH, "fine-tuning": FINE_TUNING, "few rows": FEW_ROWS}


class Pool:
    """Examples without end: an epoch is the next `num_examples` of them, whatever the pool's size.

    So phases, which are epochs long, can have any number of steps.
    """

    def __init__(self, pool: Sequence[Any], held_out: Sequence[Any], count: int, seed: int) -> None:
        self.pool, self.held_out, self.count, self.seed = pool, held_out, count, seed
        self.fingerprint = f"{len(pool)} {count} {seed}"

    @property
    def num_examples(self) -> int:
        return self.count

    def train_batches(
        self, epoch: int, start_example: int, batch_size: int
    ) -> Generator[Sequence[Any], None, None]:
        for start in range(start_example, self.count, batch_size):
            first = epoch * self.count + start
            yield [self._example(first + i) for i in range(min(batch_size, self.count - start))]

    def _example(self, number: int) -> Any:
        turn, place = divmod(number, len(self.pool))
        return self.pool[self._order(turn)[place]]

    def _order(self, turn: int) -> list[int]:
        if getattr(self, "_turn", None) != turn:
            order = list(range(len(self.pool)))
            random.Random(self.seed * 1009 + turn).shuffle(order)
            self._turn, self._kept = turn, order
        return self._kept

    def evaluation_batches(self, batch_size: int) -> Generator[Sequence[Any], None, None]:
        for start in range(0, len(self.held_out), batch_size):
            yield self.held_out[start : start + batch_size]


class PoolAdapter(StandardModelAdapter):
    """A causal language model that is given a `Pool`."""

    pool: Pool

    def create_data_source(self, cache_config: CacheConfig, seed: int) -> DataSource:
        return self.pool


class LayerCycles(StandardTrainingStrategy):
    """LISA and BAdam: an epoch for each choice of layers."""

    def __init__(self, config: TrainingConfig, arm: Arm) -> None:
        super().__init__(config)
        self.arm = arm

    def phases(self, model: torch.nn.Module, num_epochs: int) -> list[Phase]:
        chance = random.Random(self.config.seed)
        names = [name for name, _ in model.named_parameters()]
        layers = {name: layer_of(name) for name in names}
        rack = Rack(model)
        inside = {name for name, _ in rack.parameters_of(0, len(rack))}
        numbers = sorted({layers[name] for name in inside})
        outside = set(names) - inside if self.arm.draws else set()
        phases, turn = [], list(numbers)
        for _ in range(num_epochs):
            if self.arm.draws:
                chosen = chance.sample(numbers, self.arm.cycles or 1)
            else:
                chosen, turn = turn[:1], turn[1:]
                if not turn:
                    turn = list(numbers)
                    chance.shuffle(turn)
            train = {name for name in inside if layers[name] in chosen} | outside
            phases.append(Phase(f"layers {chosen}", 1, frozenset(train)))
        return phases

    def take_form(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, index: int
    ) -> None:
        super().take_form(model, optimizer, index)
        if not 0 <= index < len(self._phases_of(model)):
            return
        wanted = self._phases_of(model)[index].parameters or frozenset()
        for name, parameter in model.named_parameters():
            if name not in wanted:
                optimizer.state.pop(parameter, None)
                parameter.grad = None

    def _phases_of(self, model: torch.nn.Module) -> list[Phase]:
        epochs = self.config.num_epochs
        assert isinstance(epochs, int)
        return self.phases(model, epochs)


@dataclass
class Cost:
    """What training takes: forward passes of one layer for a token, and the head's part of one."""

    head: float

    def of_step(self, layers: Sequence[int], heads: int, head_trains: int) -> float:
        """`layers`: for each layer that is run 1 (forward), 2 (and gradients through it) or 3 (and
        gradients of its weights)."""
        return sum(layers) + self.head * (2 * heads + head_trains)


def cost_per_epoch(arm: Arm, rack: Rack, phases: Sequence[Phase], plan: StackPlan | None) -> float:
    """Of one step in each epoch of the training, one after the other: the sum."""
    width = rack.hidden_size
    layer = sum(p.numel() for n, p in rack.parameters_of(0, 1) if p.ndim > 1 and "lora" not in n)
    cost, size = Cost(VOCABULARY * width / layer), len(rack)
    inside = [{n for n, _ in rack.parameters_of(i, i + 1)} for i in range(size)]
    total = 0.0
    for phase in phases:
        if isinstance(phase, StackPhase) and plan is not None and plan.kind == STACKWISE:
            units = plan.units
            local = arm.training.get("local_loss") == "reconstruct"
            heads = 1 if local else len(units)
            total += phase.num_epochs * cost.of_step([3] * size, heads, 1)
            # the tied head is the embedding, and a decoder's two matrices are d * d / 4 each
            total += phase.num_epochs * local * (len(units) - 1) * 1.5 * width * width / layer
            continue
        names = phase.parameters
        start = phase.start if isinstance(phase, StackPhase) else 0
        depth = phase.depth if isinstance(phase, StackPhase) else size
        trains = [names is None or bool(inside[i] & names) for i in range(size)]
        if arm.lora:
            trains = [False] * size  # their weights do not, and gradients go through all
        outside = names is None or bool(set(rack.below) & names)
        lowest = next((i for i in range(size) if trains[i]), 0)
        lowest = 0 if arm.lora or outside else max(start, lowest)
        layers = [1 if i < lowest else 3 if trains[i] else 2 for i in range(depth)]
        local = (
            arm.training.get("local_loss") == "reconstruct"
            and isinstance(phase, StackPhase)
            and phase.depth < size
        )
        head_trains = outside and not arm.lora and not local
        step = cost.of_step(layers, 0 if local else 1, int(head_trains))
        total += phase.num_epochs * (step + local * 1.5 * width * width / layer)
    return total


def build(
    arm: Arm,
    model: Path,
    pool: Callable[[Any, int], Pool],
    *,
    seed: int,
    rate: float,
    steps: int,
    epochs: int = 1,
    micro_batch: int = BATCH_SIZE,
    hooks: Sequence[Any] = (),
) -> EnhancedTrainer:
    """A trainer of an arm.

    Args:
        model: folder of what it begins with.
        pool: gives the data for a tokenizer and a number of examples of an epoch.
        steps: of an epoch.
        epochs: of a phase.
        micro_batch: examples at a time; a step has `BATCH_SIZE` of them in all.
    """
    model_config = ModelConfig(
        name=str(model), lora_config=LoraConfig(r=LORA_RANK, alpha=16) if arm.lora else None
    )
    training = TrainingConfig(
        **{
            "strategy": "finetune" if arm.lora else "standard",
            **({"strategy": "auto"} if "mode" in arm.training else {}),
            **arm.training,
            "seed": seed,
            "num_epochs": epochs,
            "batch_size": micro_batch,
            "gradient_accumulation": BATCH_SIZE // micro_batch,
            "learning_rate": rate,
            "warmup_steps": 10,
            "mixed_precision": False,
            "validation_interval": None,
        }
    )
    data = DataConfig(max_length=MAX_LENGTH, num_workers=0)
    adapter = PoolAdapter(model_config, training, choose_device("cpu"))
    trainer = EnhancedTrainer(
        model_config,
        training,
        data,
        adapter,
        LayerCycles(training, arm) if arm.cycles else None,
        device="cpu",
        hooks=hooks,
    )
    trainer.initialize_model()
    adapter.pool = pool(adapter.tokenizer, steps * BATCH_SIZE)
    return trainer


def run(
    arm: Arm,
    model: Path,
    pool: Callable[[Any, int], Pool],
    *,
    seed: int,
    rate: float,
    budget: float,
    cycle_steps: int = 10,
) -> dict[str, Any]:
    """Train for as much compute as there is, and give the held-out loss.

    Args:
        budget: forward passes of a layer for a batch; an arm takes its share of it.
        cycle_steps: of LISA and BAdam, between two choices.
    """
    probe = build(arm, model, pool, seed=seed, rate=rate, steps=1)
    rack = Rack(probe.initialize_model())
    plan = None
    if arm.cycles:
        # every choice of as many layers costs otherwise: its mean over two hundred
        phases = probe.strategy.phases(rack.model, 200)
        step_cost = cost_per_epoch(arm, rack, phases, None) / 200
        epochs = max(1, round(budget * arm.share / (cycle_steps * step_cost)))
        steps = cycle_steps
        all_phases = probe.strategy.phases(rack.model, epochs)
    else:
        phases = probe.strategy.phases(rack.model, 1)
        plan = getattr(getattr(probe.strategy, "stacks", None), "plan", None)
        epochs = 1
        steps = max(1, round(budget * arm.share / cost_per_epoch(arm, rack, phases, plan)))
        all_phases = phases
    spent = steps * cost_per_epoch(arm, rack, all_phases, plan)
    trainer = build(arm, model, pool, seed=seed, rate=rate, steps=steps, epochs=epochs)
    state = trainer.train()
    loss = trainer.evaluate()["eval_loss"]
    return {"loss": loss, "steps": state.step, "compute": spent / budget}


def memory(
    arm: Arm, model: Path, pool: Callable[[Any, int], Pool], micro_batch: int = BATCH_SIZE
) -> dict[str, int]:
    """The most that tensors took, and the most that was kept for backward passes, in two steps of
    each phase."""
    peak, saved = TensorPeak(), TensorPeak()
    epochs = 4 if arm.cycles else 1
    trainer = build(
        arm, model, pool, seed=0, rate=1e-3, steps=2, epochs=epochs, micro_batch=micro_batch
    )
    trainer.prepare()
    whole = trainer.initialize_model()
    own = {t.untyped_storage()._cdata for t in (*whole.parameters(), *whole.buffers())}
    peak.count([*whole.parameters(), *whole.buffers()], "weights")

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage()._cdata not in own:
            saved.count([tensor], "saved")
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), peak:
        trainer.train()
    return {"tensor_bytes": peak.highest, "activation_bytes": saved.highest}
