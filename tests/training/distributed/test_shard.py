"""A model that is spread over ranks trains as one that is not, and goes on as one, and back.

One pair of processes does all the quick cases, one after another.
"""

import json
import math
import os
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.testing._internal.distributed.fake_pg import FakeStore

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.registries import ADAPTERS, EXTENSIONS, STRATEGIES
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.exit_codes import ExitCode
from infrastructure.models.model_inputs import IN_FORWARD
from infrastructure.training.checkpoints.checkpoint_manager import (
    CheckpointManager,
    load_checkpoint,
)
from infrastructure.training.checkpoints.chunked_version import KEY
from infrastructure.training.checkpoints.snapshot import restore_snapshot
from infrastructure.training.distributed import shard
from infrastructure.training.distributed.group import ALONE
from infrastructure.training.distributed.shard import blocks_of, shard_model
from tests.data.builders import CHATML
from tests.faults.pickle_scan import files_with_pickles
from tests.forks import forked_python
from tests.slow import slow
from tests.training.distributed import spread
from tests.training.distributed.spread import CASES, NUM_STEPS, SAVED_AFTER
from tests.training.distributed.test_replicate import SAVES, SHORT, check_same, folder_of
from tests.training.distributed.trainings import LORA, Case, results

ROOT = Path(__file__).resolve().parents[3]
SPREAD: dict[str, Any] = {**SHORT, "training.shard": "yes"}
UNEVEN: dict[str, Any] = {"training.batch_size": 1, "training.gradient_accumulation": 7}
UNTIED: dict[str, Any] = {
    **{"data.packing": False, **UNEVEN},
    **{"training.optimizer": "sgd", "training.gradient_checkpointing": True},
}
TIED: dict[str, Any] = {"data.packing": True, "training.gradient_accumulation": 3}
DIALOGUE: dict[str, Any] = {
    "model.adapter": "dialogue",
    "data.chat_template": CHATML.replace("{", "{{").replace("}", "}}"),  # a case formats it
}
HELD_OUT: dict[str, Any] = {
    **{**LORA, "data.validation_split": 0.2, "training.strategy": "finetune"},
    "training.loss": "tests.models.test_token_functions:focal",
    "training.metrics": ["tests.models.test_token_functions:accuracy"],
}
TOO_LARGE: dict[int, str | int] = {0: "no memory for all weights"}
WAYS_ON = {
    "one then spread": Case("one then spread", {**SPREAD, **SAVES}, goes_on_from=("one", 3)),
    "spread then one": Case("spread then one", {**SHORT, **SAVES}, 1, goes_on_from=("spread", 3)),
    "spread then spread": Case(
        "spread then spread", {**SPREAD, **SAVES}, goes_on_from=("spread", 3)
    ),
    "spread then replicas": Case(
        "spread then replicas", {**SHORT, **SAVES}, goes_on_from=("spread", 3)
    ),
}
FIRST = [Case("one", {**SHORT, **SAVES}, 1), Case("spread", {**SPREAD, **SAVES})]
QUICK = [
    Case("untied, uneven shares 1", {**SHORT, **UNTIED}, 1),
    Case("untied, uneven shares 2", {**SPREAD, **UNTIED}),
    Case("lora, held out 1", {**SHORT, **HELD_OUT}, 1),
    Case("lora, held out 2", {**SPREAD, **HELD_OUT}),
    Case("lora, held out on disk", {**SPREAD, **HELD_OUT}, planted=TOO_LARGE),
    *FIRST,
    Case("torn", {**SPREAD, **SAVES}, planted={1: "no memory in the update"}, limit_seconds=12),
    Case(
        "torn, again",
        {**SPREAD, **SAVES, "cache.directory": "{folder}/cache torn"},
        goes_on_from=("torn", 2),
    ),
    Case("bad loss", {**SPREAD, **SAVES}, planted={1: "a loss that is none"}),
    Case("failed after a step", SPREAD, planted={0: "an error after a step"}),
    Case("failed, again", SPREAD, goes_on_from=("failed after a step", 3)),
    *(WAYS_ON[name] for name in ("one then spread", "spread then one")),
]
SLOW = [
    *FIRST,
    Case("untied, uneven shares 1", {**SHORT, **UNTIED}, 1),
    Case("untied, uneven shares on disk", {**SPREAD, **UNTIED}, planted=TOO_LARGE),
    Case("tied, packed 1", {**SHORT, **TIED}, 1, model="tied"),
    Case("tied, packed 2", {**SPREAD, **TIED}, model="tied"),
    Case("tied, packed on disk", {**SPREAD, **TIED}, model="tied", planted=TOO_LARGE),
    Case("dialogue 1", {**SHORT, **DIALOGUE}, 1),
    Case("dialogue 2", {**SPREAD, **DIALOGUE}),
    Case(
        "one then on disk",
        {**SPREAD, **SAVES},
        planted=TOO_LARGE,
        goes_on_from=("one", 3),
    ),
    Case("stopped", {**SPREAD, **SAVES}, planted={1: "SIGTERM"}),
    Case("failed", {**SPREAD, **SAVES}, planted={1: "an error"}, limit_seconds=12),
    *(WAYS_ON[name] for name in ("spread then spread", "spread then replicas")),
]


# In the exchanges of layers, and in a round of the group's own in a step.
HUNG = [
    Case(
        f"rank {rank} {where if isinstance(where, str) else f'hangs in round {where}'}",
        {**SPREAD, **SAVES, "training.max_steps": 2},
        planted={rank: where},
        limit_seconds=6.0,
    )
    for rank in (1, 0)
    for where in ("hangs in a gather", "hangs in a reduction", 20)
]


def run_ranks(folder: Path, size: int, *arguments: str) -> None:
    command = [sys.executable, "-m", "tests.training.distributed.spread", str(folder), *arguments]
    ranks = [
        forked_python(
            command, cwd=ROOT, env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size)}
        )
        for rank in range(size)
    ]
    assert [rank.wait() for rank in ranks] == [0] * size


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, saved_llama: Path) -> dict[str, dict[str, Any]]:
    return results(folder_of(tmp_path_factory.mktemp("spread"), saved_llama), QUICK)


@pytest.mark.parametrize(
    ("name", "how"),
    [("untied, uneven shares", "2"), ("lora, held out", "2"), ("lora, held out", "on disk")],
)
def test_a_spread_model_learns_what_one_process_learns(
    name: str, how: str, found: dict[str, dict[str, Any]]
) -> None:
    one, two = found[f"{name} 1"], found[f"{name} {how}"]
    check_same(one, two)
    assert two["evaluation"] == pytest.approx(one["evaluation"], abs=1e-5)
    assert ("eval_accuracy" in one["evaluation"]) == ("held out" in name)


SPREAD_CASES = [case.settings for case in [*QUICK, *SLOW] if case.settings.get("training.shard")]
CHOICES: list[tuple[str, Iterable[str]]] = [
    ("training.strategy", STRATEGIES.built_in),
    ("training.enabled_extensions", EXTENSIONS.built_in),
    ("model.adapter", ADAPTERS.built_in),
    *(
        (f"training.{name}", get_args(TrainingConfig.model_fields[name].annotation))
        for name in ("optimizer", "method")
    ),
]
USUAL = {
    "training.strategy": "standard",
    "training.optimizer": "adamw",
    "training.method": "sft",
    "model.adapter": "standard",
}
REFUSED_BECAUSE = {
    "training.strategy": "config.shard_with_strategy(strategy={})",
    "training.enabled_extensions": "config.shard_with_extensions(extensions={})",
    "model.adapter": "config.shard_with_adapter(adapter={})",
    "training.optimizer": "config.shard_with_8bit_optimizer(optimizer={})",
    "training.method": "config.shard_with_trl_method(method={})",
}


@pytest.mark.parametrize("mode", ["yes", "offload"])
@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in CHOICES for value in values]
)
def test_every_choice_is_compared_with_one_process_or_refused_by_name(
    key: str, value: str, mode: str
) -> None:
    compared = {settings.get(key, USUAL.get(key)) for settings in SPREAD_CASES}
    config = DeploymentConfig(
        **{"num_processes": 2, "device": "cpu", "training.shard": mode},
        **{key: [value] if key == "training.enabled_extensions" else value},
    )
    refused = f"(setting=training.shard={mode}, reason="
    refusals = [text for text in config.problems() if refused in text]
    if value in compared:
        assert refusals == []
        return
    reason = REFUSED_BECAUSE[key].format(value)
    if value == "adamw_offload":
        reason = f"config.shard_with_offloaded_adamw(optimizer={value})"
    assert refusals == [f"config.setting_says{refused}{reason})"]


def check_goes_on(case: dict[str, Any], one: dict[str, Any]) -> None:
    assert case["error"] is None, case["stderr"]
    assert case["rows"] == one["rows"][3:]
    assert case["losses"] == pytest.approx(one["losses"][3:], abs=1e-5)
    assert case["weights"] == pytest.approx(one["weights"], abs=1e-4)


@pytest.mark.parametrize("name", ["one then spread", "spread then one"])
def test_one_process_and_two_go_on_for_each_other(
    name: str, found: dict[str, dict[str, Any]]
) -> None:
    check_goes_on(found[name], found["one"])


def test_all_ranks_go_back_from_a_bad_loss_of_one(found: dict[str, dict[str, Any]]) -> None:
    case = found["bad loss"]
    assert case["error"] is None, case["stderr"]
    assert case["recoveries"][0][0] == "not_finite"
    assert case["recoveries"][0][1].startswith("training.rolled_back_to_skip(start=2,")
    assert case["step"] == 6
    assert all(loss == loss for loss in case["losses"])


def test_a_rank_that_lacks_memory_ends_all_which_go_on_in_smaller_pieces(
    found: dict[str, dict[str, Any]],
) -> None:
    first, again = found["torn"], found["torn, again"]
    failed = "training.rank_failed(name=training.rank_of_size(rank=1, size=2), reason="
    assert first["error"].startswith(f"ProcessLostError: {failed}")
    assert "training.rank_out_of_memory(rank=1, step=3)" in first["error"]
    assert first["versions"][-1] == 2
    assert again["error"] is None, again["stderr"]
    assert again["micro_batch_size"] == 1
    assert again["losses"] == pytest.approx(found["one"]["losses"][2:], abs=1e-5)


def test_what_rank_0_fails_with_after_a_step_is_saved_by_all_before(
    found: dict[str, dict[str, Any]],
) -> None:
    failed = found["failed after a step"]
    assert failed["error"] == "ValueError: planted behind a step"
    assert failed["versions"][-1] == 3
    assert failed["codes"] == [ExitCode.DONE]  # rank 0 says how it ended
    again, one = found["failed, again"], found["one"]
    assert again["error"] is None, again["stderr"]
    assert again["losses"] == pytest.approx(one["losses"][2:], abs=1e-5)  # its end comes once more
    assert again["rows"][1:] == one["rows"][3:]
    assert again["weights"] == pytest.approx(one["weights"], abs=1e-4)


@slow
def test_a_signal_an_error_and_other_modes(tmp_path: Path, saved_llama: Path) -> None:
    found = results(folder_of(tmp_path, saved_llama), SLOW)
    check_same(found["untied, uneven shares 1"], found["untied, uneven shares on disk"])
    check_same(found["tied, packed 1"], found["tied, packed 2"])
    check_same(found["tied, packed 1"], found["tied, packed on disk"])
    check_same(found["dialogue 1"], found["dialogue 2"])
    assert found["stopped"]["stop"] == ["signal", "ended from outside (SIGTERM)"]
    assert found["stopped"]["versions"][-1] == 3
    assert found["failed"]["error"].startswith(
        "ProcessLostError: training.rank_failed(name=training.rank_of_size(rank=1, size=2),"
        " reason=ValueError: planted in a rank"
    )
    for name in ("one then on disk", "spread then spread", "spread then replicas"):
        check_goes_on(found[name], found["one"])


@slow
def test_a_rank_that_hangs_where_a_layer_is_exchanged_ends_the_training(
    tmp_path: Path, saved_llama: Path
) -> None:
    found = results(folder_of(tmp_path, saved_llama), HUNG)
    for case in HUNG:
        (rank,) = case.planted
        result = found[case.name]
        if rank == 1:
            lost = r"training\.rank_(no_progress|missed_collective)\(\w+=training\.rank_of_size"
            lost = rf"ProcessLostError: {lost}\(rank=1, size=2\)"
            assert re.match(lost, result["error"]), (case, result["error"])
        else:
            assert result["codes"] == [ExitCode.PROCESS_LOST], (case, result["error"])
        assert result["seconds"] < 30 * case.limit_seconds
        assert result["versions"][:1] == [0]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """All cases alone, then on two ranks."""
    folder = tmp_path_factory.mktemp("spread")
    spread.make_inputs(folder)
    alone = {case.name: spread.train_alone(folder, case) for case in CASES}
    run_ranks(folder, 2)
    return folder, alone


def assert_alike(numbers: list[list[float]], expected: list[list[float]]) -> None:
    assert len(numbers) == len(expected)
    torch.testing.assert_close(torch.tensor(numbers), torch.tensor(expected), rtol=1e-5, atol=1e-5)


@slow
def test_two_ranks_train_as_one_process(trained: tuple[Path, dict[str, Any]]) -> None:
    folder, alone = trained
    together = json.loads((folder / "losses 0 2.json").read_text())
    for case in CASES:
        assert_alike(together[case.name]["losses"], alone[case.name])


@slow
def test_two_ranks_go_on_from_one_process(trained: tuple[Path, dict[str, Any]]) -> None:
    folder, alone = trained
    together = json.loads((folder / "losses 0 2.json").read_text())
    for case in CASES:
        assert_alike(together[case.name]["gone on"], alone[case.name][SAVED_AFTER:])


@slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_one_process_goes_on_from_two_ranks(
    trained: tuple[Path, dict[str, Any]], case: spread.Case
) -> None:
    folder, alone = trained
    root = spread.store_of_case(folder, case, 2)
    spread.backup_of(folder, case, 2).repair()
    manager = CheckpointManager(root)
    newest = manager.newest()
    manifest = manager.store.read(newest.stem)
    assert (KEY in manifest.values) == (case.saving in ("shards", "apart"))
    assert bool(manifest.copied_apart) == (case.saving == "apart")
    trainer = spread.trainer_of(folder, case)
    loop, state = trainer.prepare().loop, trainer.state
    restore_snapshot(load_checkpoint(newest), state, loop.optimizer_step)
    numbers = spread.steps(trainer, ALONE, SAVED_AFTER, NUM_STEPS)
    assert_alike(numbers, alone[case.name][SAVED_AFTER:])
    assert files_with_pickles(root) == []


@slow
def test_four_ranks_go_on_from_two(trained: tuple[Path, dict[str, Any]]) -> None:
    folder, alone = trained
    run_ranks(folder, 4, "2")
    together = json.loads((folder / "losses 2 4.json").read_text())
    for case in CASES:
        assert_alike(together[case.name], alone[case.name][SAVED_AFTER:])


def test_the_blocks_of_a_model_are_its_outermost_lists() -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = torch.nn.ModuleList([torch.nn.Linear(2, 2)])

    model = torch.nn.Sequential(torch.nn.Embedding(3, 2), torch.nn.ModuleList([Block(), Block()]))
    assert blocks_of(model) == list(model[1])


@pytest.mark.parametrize("what", ["two blocks", "a block and the head"])
def test_layers_that_share_weights_are_refused(what: str) -> None:
    blocks = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
    head = torch.nn.Linear(2, 2)
    sharing = head if what == "a block and the head" else blocks[0]
    sharing.weight = blocks[1].weight  # type: ignore[assignment]
    mesh: Any = SimpleNamespace(device_type="cpu")  # it is not looked at
    with pytest.raises(ValueError, match=r"training\.layers_share_weights"):
        shard_model(torch.nn.ModuleDict({"blocks": blocks, "head": head}), mesh)


@pytest.mark.parametrize(
    ("device_type", "offload", "num_bytes", "comes_and_goes"),
    [
        ("cpu", False, 24, True),
        ("cuda", True, 24, True),
        ("cuda", False, 24, False),
        ("cpu", False, 25, False),
    ],
)
def test_large_blocks_go_back_at_once_where_layers_come_and_go_in_main_memory(
    monkeypatch: pytest.MonkeyPatch,
    device_type: str,
    offload: bool,
    num_bytes: int,
    comes_and_goes: bool,
) -> None:
    """And the model is no small one; this one has 24 bytes."""
    events: list[str] = []

    def stop(*_: object, **__: object) -> None:
        raise InterruptedError  # behind the first block nothing is looked at

    monkeypatch.setattr(shard, "give_back_large_blocks", lambda: events.append("set"))
    monkeypatch.setattr(shard, "fully_shard", stop)
    monkeypatch.setattr(shard, "SMALL_MODEL_BYTES", num_bytes)
    mesh: Any = SimpleNamespace(device_type=device_type)
    model = torch.nn.Sequential(torch.nn.ModuleList([torch.nn.Linear(2, 2)]))
    with pytest.raises(InterruptedError):
        shard_model(model, mesh, offload=offload)
    assert events == ["set"] * comes_and_goes


class Gathering(DefaultAllGather):
    """Writes down when a block is put together, and what of those before is still there."""

    def __init__(self, events: list[str], name: str, received: list[StorageWeakRef]) -> None:
        super().__init__()
        self.events, self.name, self.received = events, name, received

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        self.events.append(f"{self.name} is put together")
        assert all(one.expired() for one in self.received)
        block = super().allocate(size, dtype=dtype, device=device)
        self.received.append(StorageWeakRef(block.untyped_storage()))
        return block


class Chain(torch.nn.Module):
    """Three blocks, one after the other, behind a weight of the model's own; a backward pass writes
    down when it is done with one."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self.events = events
        self.scale = torch.nn.Parameter(torch.ones(2))
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(2, 2) for _ in range(3)])

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        values = values * self.scale
        for index, block in enumerate(self.blocks):
            done = f"block {index} is done"
            values = values + 0  # so that it is not the output of the block before
            if values.requires_grad:
                values.register_hook(lambda _, done=done: self.events.append(done))
            values = block(values)
        return values


def test_no_block_is_put_together_on_a_cpu_before_the_last_one_is_done() -> None:
    """And where no gradient is wanted, nothing stays together behind a pass or a call inside."""
    events: list[str] = []
    received: list[StorageWeakRef] = []
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        model = Chain(events)
        shard_model(model, init_device_mesh("cpu", (2,)))
        for index, block in enumerate(model.blocks):
            assert isinstance(block, FSDPModule)
            block.set_custom_all_gather(Gathering(events, f"block {index}", received))
        with torch.no_grad():
            model(torch.ones(1, 2))
            assert isinstance(model.scale, DTensor)
            inside = getattr(model, IN_FORWARD)
            assert inside(lambda power: model.scale**power, 2).tolist() == [1.0, 1.0]
            assert isinstance(model.scale, DTensor)
        events.clear()
        loss = model(torch.ones(1, 2, requires_grad=True)).sum()
        assert events == [f"block {index} is put together" for index in range(3)]
        events.clear()
        loss.backward()
    finally:
        dist.destroy_process_group()
    assert events == [
        f"block {index} is {what}" for index in (2, 1, 0) for what in ("put together", "done")
    ]


class Synced(torch.nn.Module):
    """Sixteen weights, of which some train; notes whether the next gradients are summed."""

    def __init__(self, num_trained: int) -> None:
        super().__init__()
        self.frozen = torch.nn.Parameter(torch.ones(16 - num_trained), requires_grad=False)
        self.trained = torch.nn.Parameter(torch.ones(num_trained))
        self.sums: list[bool] = []

    def set_requires_gradient_sync(self, sums: bool) -> None:
        self.sums.append(sums)


@pytest.mark.parametrize(("num_trained", "sums"), [(2, [False, True]), (3, [True, True])])
def test_few_gradients_are_summed_once_and_many_after_each_micro_batch(
    monkeypatch: pytest.MonkeyPatch, num_trained: int, sums: list[bool]
) -> None:
    monkeypatch.setattr(shard, "FSDPModule", Synced)
    model = Synced(num_trained)
    for is_last in (False, True):
        shard.sum_after_backward(model, is_last=is_last)
    assert model.sums == sums


@pytest.mark.parametrize(("limit", "timeout"), [(7.0, timedelta(seconds=7)), (math.inf, None)])
def test_exchanges_of_layers_end_after_the_limit_of_the_group(
    monkeypatch: pytest.MonkeyPatch, limit: float, timeout: timedelta | None
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(shard.dist, "new_group", lambda timeout: made.append(timeout) or "ranks")
    monkeypatch.setattr(shard.DeviceMesh, "from_group", lambda *group: made.append(group))
    group: Any = SimpleNamespace(limit_seconds=limit, device=torch.device("cuda:1"))
    shard.mesh_of(group)
    assert made == [timeout, ("ranks", "cuda")]
