"""A training stays inside its memory, and is told where it does not."""

import gc
import json
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infrastructure.core.errors import MemoryLimitError
from infrastructure.core.process_memory import can_limit_hard, resident_bytes
from infrastructure.optimization.memory_guard import Action
from infrastructure.optimization.recommendations import Recommendation
from infrastructure.training.core.state import RecoveryKind, TrainingState
from infrastructure.training.extensions.extension_hooks import Extension, Observer
from infrastructure.training.sizing import memory_extension
from infrastructure.training.sizing.memory_extension import (
    MemoryExtension,
    MemoryLimits,
)
from tests.slow import slow
from tests.training.toy_training import Training

MIB = 1 << 20
CPU = torch.device("cpu")


def test_a_training_computes_the_same_with_and_without_it() -> None:
    with_it = Training(hooks=[MemoryExtension(MemoryLimits(), CPU)]).run()
    without = Training().run()
    assert torch.equal(with_it.weights, without.weights)
    assert with_it.state.recoveries == []


class Watching(Observer):
    def step_end(self, state: TrainingState) -> None:
        self.collected_by_itself = gc.isenabled()


def test_garbage_is_collected_between_steps_and_by_python_again_afterwards() -> None:
    memory, watching = MemoryExtension(MemoryLimits(), CPU), Watching()
    Training(hooks=[memory, watching]).run()
    assert not watching.collected_by_itself
    assert gc.isenabled()
    assert memory.facts()["garbage_collections"] >= 1


def test_a_limit_below_what_is_there_is_reported_before_the_first_step() -> None:
    memory = MemoryExtension(MemoryLimits(limit_bytes=MIB), CPU)
    training = Training(hooks=[memory])
    with pytest.raises(
        MemoryLimitError, match=r"training\.memory_limit_exceeded_at_start\(limit=1(\.0)? MiB"
    ):
        training.run()
    assert training.state.step == 0
    assert gc.isenabled()


def test_above_its_limit_the_training_goes_on_in_smaller_pieces_and_is_advised() -> None:
    """A GPU's training is not held by the kernel, so the guard answers."""
    saving = Recommendation("training.optimizer: adamw_8bit", "moments in 8 bits", 64 * MIB)
    memory = MemoryExtension(
        MemoryLimits(limit_bytes=1 << 50), torch.device("cuda"), recommend=lambda state: [saving]
    )
    training = Training(hooks=[memory], max_steps=2)

    class Tighten(Extension):
        def step_start(self, state: TrainingState) -> None:
            memory.guard.limit_bytes = MIB

    training.loop.hooks.hooks.insert(0, Tighten())
    training.run()
    assert training.state.micro_batch_size == 1
    noted = [
        one for one in training.state.recoveries if one["kind"] == RecoveryKind.SHORT_OF_MEMORY
    ]
    assert noted[0]["action"] == "training.micro_batch_reduced(size=1)"
    assert "change=training.optimizer: adamw_8bit, saved=64 MiB" in noted[0]["message"]
    assert memory.facts()["num_releases"] >= 1


def test_the_limit_of_the_system_is_lifted_whatever_happens() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    memory = MemoryExtension(MemoryLimits(limit_bytes=resident_bytes() + 2**30), CPU)
    seen: list[int] = []

    class Failing(Observer):
        def step_end(self, state: TrainingState) -> None:
            seen.append(resource.getrlimit(resource.RLIMIT_DATA)[0])
            raise MemoryError("no more")

    training = Training(hooks=[memory, Failing()])
    with pytest.raises(MemoryError) as raised:
        training.run()
    limit = f"{memory.settings.limit_bytes / MIB:.0f} MiB"
    assert f"training.memory_limit_allows_no_more(limit={limit})" in raised.value.__notes__
    if can_limit_hard():
        assert seen[0] not in (before[0], resource.RLIM_INFINITY)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_the_limit_of_the_system_follows_what_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, limits = MemoryExtension(MemoryLimits(), CPU), list[int]()
    hard: Any = SimpleNamespace(tighten=limits.append, lift=lambda: limits.append(0))
    monkeypatch.setattr(memory.guard, "used_bytes", lambda: 7)
    memory._hard, state = hard, TrainingState(torch.nn.Linear(1, 1))
    memory.step_end(state)
    memory.train_end(state)
    memory.train_end(state)
    assert limits == [7, 0]


def test_data_that_nobody_uses_leaves_memory_after_its_time() -> None:
    calls: list[float] = []

    def release(unused_seconds: float) -> int:
        calls.append(unused_seconds)
        return 0

    now = [0.0]
    memory = MemoryExtension(
        MemoryLimits(cache_seconds=5), CPU, release_data=release, clock=lambda: now[0]
    )
    state = TrainingState(torch.nn.Linear(1, 1))
    for now[0] in (0.0, 1.0, 5.0):
        memory.step_end(state)
    assert calls == [5.0, 5.0]
    calls.clear()
    rarely = MemoryExtension(
        MemoryLimits(cache_seconds=3600), CPU, release_data=release, clock=lambda: now[0]
    )
    for now[0] in (100.0, 159.0, 160.0):  # each minute: some of it is older than an hour then
        rarely.step_end(state)
    assert calls == [3600.0, 3600.0]


def test_a_lack_of_memory_is_reported_once_with_the_first_few_remedies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[TrainingState] = []

    def recommend(state: TrainingState) -> list[Recommendation]:
        calls.append(state)
        return [Recommendation(f"change {n}", "why", MIB) for n in range(5)]

    memory = MemoryExtension(MemoryLimits(), CPU, recommend=recommend)
    monkeypatch.setattr(memory.guard, "used_bytes", lambda: 7 * MIB)
    state = TrainingState(torch.nn.Linear(1, 1), micro_batch_size=2)
    answers = [Action.RELEASED, Action.RELEASED, Action.SMALLER, Action.SMALLER]
    for answer in answers:
        monkeypatch.setattr(memory.guard, "check", lambda answer=answer: answer)
        memory.step_end(state)
    assert [one["action"] for one in state.recoveries] == [
        "training.unused_memory_released()",
        "training.micro_batch_reduced(size=1)",
    ]
    assert calls == [state]
    assert [one["kind"] for one in state.recoveries] == ["short_of_memory"] * 2
    advice = [str(recommend(state)[n]) for n in range(3)]
    shown = "".join(f"; {one}" for one in advice)
    message = f"training.main_memory_use(used=7 MiB, advice={shown})"
    assert state.recoveries[0]["message"] == message
    memory.guard = SimpleNamespace(highest_bytes=1, num_releases=2, released_bytes=3)  # type: ignore
    memory.garbage = SimpleNamespace(num_collections=4, seconds=0.5)  # type: ignore[assignment]
    assert memory.facts() == {
        **{"highest_bytes": 1, "num_releases": 2, "released_bytes": 3, "limit_bytes": None},
        **{"garbage_collections": 4, "garbage_seconds": 0.5, "recommendations": advice},
    }


def test_free_blocks_of_a_gpu_are_given_back_beyond_what_may_be_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[object, int]] = []
    monkeypatch.setattr(
        memory_extension, "drop_gpu_cache_above", lambda device, kept: calls.append((device, kept))
    )
    state = TrainingState(torch.nn.Linear(1, 1))
    MemoryExtension(MemoryLimits(), CPU).step_end(state)
    assert calls == []
    MemoryExtension(MemoryLimits(gpu_cache_bytes=0), CPU).step_end(state)
    assert calls == [(CPU, 0)]


def test_an_error_of_another_kind_is_not_explained_by_the_limit_of_memory() -> None:
    memory = MemoryExtension(MemoryLimits(limit_bytes=resident_bytes() + 2**30), CPU)
    state = TrainingState(torch.nn.Linear(1, 1))
    memory.train_start(state)
    try:
        state.error = OSError("the disk went away")
        memory.error(state)
        assert not getattr(state.error, "__notes__", [])
    finally:
        memory.train_end(state)


RUN = """
import json, sys
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.process_memory import peak_resident_bytes, resident_bytes
from infrastructure.training.extensions.extension_hooks import Observer
from infrastructure.training.trainer_factory import TrainerFactory

class Start(Observer):
    def train_start(self, state):
        self.bytes = resident_bytes()

folder, limit = sys.argv[1], sys.argv[2]
config = DeploymentConfig(**{
    "training.batch_size": 128, "training.max_steps": 3, "data.packing": False,
    "training.validation_interval": None, "device": "cpu", "cache.directory": folder,
    "training.mixed_precision": False, "memory.cpu_memory_limit": limit})
start = Start()
trainer = TrainerFactory().for_run(config, hooks=[start])
state = trainer.train()
peak = peak_resident_bytes()
print(json.dumps({"start": start.bytes, "peak": peak, "loss": state.loss,
                  "micro": state.micro_batch_size, "kinds": [r["kind"] for r in state.recoveries]}))
"""


def run(folder: Path, limit: str) -> dict[str, Any]:
    command = [sys.executable, "-c", RUN, str(folder), limit]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@slow
@pytest.mark.skipif(not can_limit_hard(), reason="only Linux refuses memory to one process")
def test_a_real_training_stays_below_its_limit_and_learns_the_same(tmp_path: Path) -> None:
    free = run(tmp_path / "free", "none")
    limit = free["start"] + int(0.6 * (free["peak"] - free["start"]))
    held = run(tmp_path / "held", f"{limit}B")
    assert held["peak"] <= limit < free["peak"]
    assert held["micro"] < free["micro"] == 128
    assert "out_of_memory" in held["kinds"]
    assert held["loss"] == pytest.approx(free["loss"], rel=1e-3)
