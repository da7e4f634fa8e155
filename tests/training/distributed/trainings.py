"""Small trainings, one after another, by the same few ranks: each rank is a fork.

Rank 0 does a case as whoever calls `TrainerFactory.for_run`; the others do it as the processes that
rank 0, or a launcher, would have started. A case with one process is rank 0's alone.
"""

import functools
import json
import math
import os
import signal
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

from infrastructure.core.errors import ProcessLostError
from infrastructure.deployment.forecast import PeakObserver, costs_of
from infrastructure.models.model_inputs import is_sharded
from infrastructure.run.checkpoint_paths import step_of
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager
from infrastructure.training.core.state import TrainingState
from infrastructure.training.distributed import checkpoint_storage
from infrastructure.training.distributed.group import JoinedGroup
from infrastructure.training.distributed.members import CALL, NOT_NEEDED, Member
from infrastructure.training.distributed.ranks import Ranks
from infrastructure.training.distributed.replicate import checksum
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.extensions.extension_hooks import Observer
from infrastructure.training.loop.loop import TrainingLoop
from infrastructure.training.loop.optimizer_step import OptimizerStep
from infrastructure.training.model_adapters.base_adapter import LossOutput
from infrastructure.training.model_adapters.standard_adapter import StandardModelAdapter
from infrastructure.training.placement import Placement
from infrastructure.training.rank_process import train_as
from infrastructure.training.strategies.base_strategy import TrainingStrategy
from infrastructure.training.trainer_factory import TrainerFactory
from tests.forks import Forked
from tests.training.distributed.ranks import TEST_SECONDS, free_port, store_at
from tests.training.distributed.small_groups import small_config, weights_of

LORA: dict[str, Any] = {"model.lora_config": {"r": 4, "dropout": 0.0}}
DROPOUT: dict[str, Any] = {"model.lora_config": {"r": 4, "dropout": 0.3}}


@dataclass(frozen=True)
class Case:
    """One training.

    Attributes:
        settings: of the configuration, besides those of `small_config`.
        size: ranks.
        planted: by rank: what goes wrong there, see `PLANTS`, or the number of the group's round
            that it hangs in.
        goes_on_from: the case and the step of the version that this one begins with.
        model: the name of a folder beside the rows.
        has_forecast: the peak of rank 0's memory is forecast.
    """

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    size: int = 2
    planted: dict[int, str | int] = field(default_factory=dict)
    goes_on_from: tuple[str, int] | None = None
    model: str = "model"
    limit_seconds: float = 20.0
    has_forecast: bool = False


class Seen(Observer):
    """The loss of each step, the norm of its gradients (which AdamW's steps do not show), the rows
    of its batch, and the rounds of the group until then."""

    def __init__(self, trainer: EnhancedTrainer) -> None:
        self.trainer, self.rounds = trainer, 0
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.rows: list[int] = []

    def step_end(self, state: TrainingState) -> None:
        ranks = self.trainer.placement.ranks
        if isinstance(ranks, Ranks) and ranks.group is not None:
            self.rounds = ranks.group._round
        self.losses.append(state.loss)
        self.norms.append(state.metrics.get("grad_norm", math.nan))  # none of a bad loss
        self.rows.append(sum(hash(tuple(e.input_ids.tolist())) for e in state.batch))  # type: ignore[attr-defined]


def of_first(folder: Path, case: Case, member: Member | None) -> dict[str, Any]:
    """Rank 0's training, and what became of it."""
    cache = {"cache.directory": str(folder / f"cache {case.name}")} if case.planted else {}
    given = {
        key: value.format(folder=folder) if isinstance(value, str) else value
        for key, value in case.settings.items()
    }
    settings = {**given, **cache}  # what has fitted is remembered there
    config = small_config(folder, folder / case.model, num_processes=case.size, **settings)
    trainer = TrainerFactory().for_run(config, checkpoint_directory=folder / case.name)
    seen = Seen(trainer)
    peak = PeakObserver()
    trainer.add_hooks([seen, peak])
    if member is not None:
        ranks = trainer.placement.ranks
        assert isinstance(ranks, Ranks)
        ranks._member, ranks.limit_seconds = member, case.limit_seconds
    found: dict[str, Any] = {"error": None}
    started = time.monotonic()
    try:
        if case.goes_on_from is not None:
            assert trainer.checkpoints is not None
            before, step = case.goes_on_from
            trainer.restore(version_of(folder / before, step))
        found["forecast_bytes"] = costs_of(trainer).peak_bytes if case.has_forecast else 0
        trainer.train()
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
        traceback.print_exc()
    if member is not None:
        member.store.compare_set(CALL, "", NOT_NEEDED)
    state = trainer.state
    assert trainer.checkpoints is not None
    is_whole = not is_sharded(state.model)
    return {
        **found,
        "losses": seen.losses,
        "norms": seen.norms,
        "evaluation": state.evaluation,
        "peak_bytes": peak.highest_bytes,
        "rows": seen.rows,
        "weights": weights_of(trainer).double().tolist() if is_whole else [],
        "bits": checksum(state.model) if is_whole else None,
        "recoveries": [[r["kind"], r["action"], r["message"]] for r in state.recoveries],
        "stop": [state.stop_reason, state.stop_message],
        "step": state.step,
        "rounds": seen.rounds,
        "seconds": time.monotonic() - started,
        "micro_batch_size": state.micro_batch_size,
        "versions": [step_of(path) for path in trainer.checkpoints.checkpoints()],
    }


def version_of(root: Path, step: int) -> Path:
    """The version of a step.

    Raises:
        LookupError: there is none.
    """
    there = {step_of(path): path for path in CheckpointManager(root).checkpoints()}
    return there[step]


# What goes wrong on a rank


@contextmanager
def _replaced(owner: type, name: str, value: Callable[..., Any]) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def no_memory_for_two() -> Iterator[None]:
    """No more than one example fits at a time."""
    prepare = StandardModelAdapter.prepare_batch

    def one(self: StandardModelAdapter, examples: Sequence[Any]) -> dict[str, Any]:
        if len(examples) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory: planted")
        return prepare(self, examples)

    with _replaced(StandardModelAdapter, "prepare_batch", one):
        yield


@contextmanager
def no_memory_in_update() -> Iterator[None]:
    """The optimizer's third step runs out of memory, once."""
    update, count = TrainingStrategy.update_parameters, [0]

    def torn(self: TrainingStrategy, *parts: Any) -> torch.Tensor:
        count[0] += 1
        if count[0] == 3:
            raise torch.OutOfMemoryError("CUDA out of memory: planted in the update")
        return update(self, *parts)

    with _replaced(TrainingStrategy, "update_parameters", torn):
        yield


@contextmanager
def a_loss_that_is_none() -> Iterator[None]:
    """Some loss of the third step is no number, once."""
    compute, run, count = StandardModelAdapter.compute_loss, OptimizerStep.run, [0]

    def counted(self: OptimizerStep, *parts: Any) -> None:
        count[0] += 1
        run(self, *parts)

    def spoilt(self: StandardModelAdapter, model: torch.nn.Module, batch: Any) -> LossOutput:
        output = compute(self, model, batch)
        if count[0] == 3:
            count[0] += 100
            output.loss_sum = output.loss_sum * float("nan")
        return output

    with (
        _replaced(OptimizerStep, "run", counted),
        _replaced(StandardModelAdapter, "compute_loss", spoilt),
    ):
        yield


@contextmanager
def no_memory_for_all_weights() -> Iterator[None]:
    """No process has the memory for the whole model."""
    with _replaced(Placement, "is_too_large", lambda self, *_: self.is_first and self.size > 1):
        yield


def _at_step(number: int, act: Callable[[OptimizerStep], None]) -> Any:
    @contextmanager
    def planted() -> Iterator[None]:
        run, count = OptimizerStep.run, [0]

        def counted(self: OptimizerStep, *parts: Any) -> None:
            count[0] += 1
            if count[0] == number:
                act(self)
            run(self, *parts)

        with _replaced(OptimizerStep, "run", counted):
            yield

    return planted


@contextmanager
def an_error_after_a_step() -> Iterator[None]:
    """What looks at the third step fails, when all ranks have done it."""
    is_due, count = TrainingLoop._log_is_due, [0]

    def failing(self: TrainingLoop, *parts: Any) -> bool:
        count[0] += 1
        if count[0] == 3:
            raise ValueError("planted behind a step")
        return is_due(self, *parts)

    with _replaced(TrainingLoop, "_log_is_due", failing):
        yield


def _spoil(step: OptimizerStep) -> None:
    with torch.no_grad():
        step.optimizer.param_groups[0]["params"][0].add_(1e-3)


def _fail(_: OptimizerStep) -> None:
    raise ValueError("planted in a rank")


@contextmanager
def hanging_in(number: int) -> Iterator[None]:
    """The rank lives and does nothing, from the middle of a step on, until the other has ended."""
    next_round = JoinedGroup._next_round

    def counted(self: JoinedGroup) -> int:
        if self._round + 1 == number:
            while not self.has_ended(1 - self.rank):
                time.sleep(0.05)
            time.sleep(2.0)  # who hangs says nothing either while the other one ends
            raise ProcessLostError("it does not hang any more")
        return next_round(self)

    with _replaced(JoinedGroup, "_next_round", counted):
        yield


def _hanging_in_layers(exchange: str, number: int) -> Callable[[], Any]:
    """The rank lives and does nothing where FSDP exchanges what a layer has, from one time on."""

    @contextmanager
    def planted() -> Iterator[None]:
        next_round, act = JoinedGroup._next_round, getattr(FSDPParamGroup, exchange)
        groups: list[JoinedGroup] = []
        count = [0]

        def noted(self: JoinedGroup) -> int:
            groups.append(self)
            return next_round(self)

        def counted(self: FSDPParamGroup, *parts: Any, **more: Any) -> Any:
            count[0] += 1
            if count[0] == number:
                while not groups[-1].has_ended(1 - groups[-1].rank):
                    time.sleep(0.05)
                time.sleep(2.0)
                raise ProcessLostError("it does not hang any more")
            return act(self, *parts, **more)

        with (
            _replaced(JoinedGroup, "_next_round", noted),
            _replaced(FSDPParamGroup, exchange, counted),
        ):
            yield

    return planted


PLANTS: dict[str, Callable[[], Any]] = {
    "hangs in a gather": _hanging_in_layers("unshard", 8),
    "hangs in a reduction": _hanging_in_layers("post_backward", 4),
    "no memory for two": no_memory_for_two,
    "no memory for all weights": no_memory_for_all_weights,
    "no memory in the update": no_memory_in_update,
    "a loss that is none": a_loss_that_is_none,
    "SIGTERM": _at_step(3, lambda _: os.kill(os.getpid(), signal.SIGTERM)),
    "SIGKILL": _at_step(3, lambda _: os.kill(os.getpid(), signal.SIGKILL)),
    "other weights": _at_step(2, _spoil),
    "an error": _at_step(3, _fail),
    "an error after a step": an_error_after_a_step,
}


def _be(rank: int, port: int, folder: Path, cases: Sequence[Case]) -> None:
    """Do all cases as one rank."""
    torch.set_num_threads(1)
    checkpoint_storage.GATHERED_BYTES = 0  # of a model that is spread, each rank saves its part
    store = store_at(port)
    for case in cases:
        prefix = dist.PrefixStore(case.name, store)
        member = Member(rank, case.size, rank, prefix) if case.size > 1 else None
        with _planted(case.planted.get(rank)):
            if rank == 0:
                found = of_first(folder, case, member)
                (folder / f"{case.name}.json").write_text(json.dumps(found))
            elif rank < case.size:
                assert member is not None
                code = train_as(member)
                (folder / f"{case.name} rank {rank}.json").write_text(json.dumps(code))
        if dist.is_initialized():  # a rank that waited for one that hangs leaves it to its end
            dist.destroy_process_group()


def _planted(what: str | int | None) -> AbstractContextManager[None]:
    if what is None:
        return nullcontext()
    planted: AbstractContextManager[None] = (
        hanging_in(what) if isinstance(what, int) else PLANTS[what]()
    )
    return planted


def results(folder: Path, cases: Sequence[Case]) -> dict[str, dict[str, Any]]:
    """What became of each case, by its name.

    Args:
        folder: has the models, and `rows.jsonl` where a case does not name its data.
    """
    port = free_port()
    holder = store_at(port, is_host=True)  # as a launcher does
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    size = max(case.size for case in cases)
    ranks = [
        Forked(functools.partial(_be, rank, port, folder, cases), **pipes) for rank in range(size)
    ]
    try:
        limit = 2 * TEST_SECONDS + 10 * len(cases)
        errors = [ranks[0].communicate(timeout=limit)[1]]
        if ranks[0].returncode:  # what it would have called the others to, it never does
            for rank in ranks[1:]:
                rank.kill()
        errors += [rank.communicate(timeout=limit)[1] for rank in ranks[1:]]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    del holder
    found = {}
    for case in cases:
        path = folder / f"{case.name}.json"
        assert path.exists(), f"{case.name}: {errors[0][-3000:]} {errors[1:]}"
        found[case.name] = json.loads(path.read_text())
        found[case.name]["stderr"] = errors
        codes = [folder / f"{case.name} rank {rank}.json" for rank in range(1, case.size)]
        found[case.name]["codes"] = [json.loads(p.read_text()) for p in codes if p.exists()]
    return found
