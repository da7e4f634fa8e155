"""A rank other than the first: how it ends, and with which code."""

import json
import signal
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.errors import ProcessLostError
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.stop_signals import reason_of
from infrastructure.optimization.size_grid import SizeGrid
from infrastructure.training import rank_process
from infrastructure.training.distributed.members import CALL, NOT_NEEDED, Member
from infrastructure.training.trainer_factory import TrainerFactory

SECRET = "hf_" + "aB3" * 12


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Return the list of reasons for which the group of this rank was closed."""
    reasons: list[str | None] = []

    class Group:
        def __init__(
            self, store: Any, rank: int, size: int, device: object, **options: Any
        ) -> None:
            assert (rank, size) == (2, 3)
            assert str(device) == ("cuda:1" if store.check(["on gpu"]) else "cpu")
            if store.check(["lost"]):
                raise ProcessLostError(f"{SECRET} never came")
            assert (options["local_rank"], options["limit_seconds"]) == (1, 7.0)
            self.ended = json.loads(store.get("ended")) if store.check(["ended"]) else []

        def has_ended(self, rank: int) -> bool:
            assert reasons == []  # afterwards its store may be gone
            return rank in self.ended

        def busy(self) -> Any:
            return nullcontext()

        def close(self, reason: str | None = None) -> None:
            reasons.append(reason)

    monkeypatch.setattr(rank_process, "JoinedGroup", Group)
    monkeypatch.setattr(rank_process, "_stop_all_on_signals", lambda group: None)
    monkeypatch.setattr(rank_process.logging, "disable", lambda level: None)
    return reasons


def member(*ended: int) -> Member:
    store = dist.HashStore()
    store.set("ended", json.dumps(ended))
    found = Member(2, 3, 1, store)
    found.call_others("cpu", 7.0)
    return found


@pytest.mark.parametrize(
    ("error", "ended", "code", "reason", "shown"),
    [
        (ProcessLostError("rank 0 is gone"), [0], ExitCode.DONE, "rank 0 is gone", ""),
        (
            ProcessLostError(f"{SECRET} is gone"),
            [2],
            ExitCode.PROCESS_LOST,
            f"{SECRET} is gone",
            "temper: rank 2: *** is gone\n",
        ),
        (
            OSError(f"no {SECRET}"),
            [],
            ExitCode.FAILED,
            "OSError: no ***",
            "temper: rank 2: OSError",
        ),
    ],
)
def test_how_a_rank_ends_is_known_by_its_code_and_its_words(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    closed: list[str | None],
    error: Exception,
    ended: list[int],
    code: int,
    reason: str,
    shown: str,
) -> None:
    def fail(group: object) -> None:
        raise error

    monkeypatch.setattr(rank_process, "facts_of_first", fail)
    assert rank_process.train_as(member(*ended)) == code
    [given] = closed
    assert str(given).startswith(reason)
    printed = capsys.readouterr().err
    assert printed.startswith(shown)
    assert bool(printed) == bool(shown)
    assert SECRET not in printed


def test_a_rank_trains_what_rank_0_trains(
    monkeypatch: pytest.MonkeyPatch, closed: list[str | None]
) -> None:
    done: list[object] = []
    trainer = SimpleNamespace(train=lambda: done.append("train"), prepare=lambda: "the session")

    facts = ({"a": 1}, {"tokenizer.json": b"{}"})
    monkeypatch.setattr(rank_process, "facts_of_first", lambda group: facts)
    monkeypatch.setattr(rank_process, "trainer_of", lambda group, *of: done.append(of) or trainer)
    monkeypatch.setattr(rank_process, "compare", lambda group, of: done.append(of))
    assert rank_process.train_as(member()) == ExitCode.DONE
    assert done == [facts, "the session", "train"]
    assert closed == [None]


def test_a_rank_computes_on_the_gpu_of_its_number(
    monkeypatch: pytest.MonkeyPatch, closed: list[str | None]
) -> None:
    def fail(group: object) -> None:
        raise OSError

    monkeypatch.setattr(rank_process, "facts_of_first", fail)
    on_gpu = member()
    on_gpu.store.set("on gpu", "")
    on_gpu.call_others("cuda", 7.0)
    assert rank_process.train_as(on_gpu) == ExitCode.FAILED
    assert closed[0].startswith("OSError")


def test_a_rank_that_others_do_not_join_ends_as_lost(
    capsys: pytest.CaptureFixture[str], closed: list[str | None]
) -> None:
    lonely = member()
    lonely.store.set("lost", "")
    assert rank_process.train_as(lonely) == ExitCode.PROCESS_LOST
    assert (closed, capsys.readouterr().err) == ([], "temper: rank 2: *** never came\n")


@pytest.mark.parametrize(
    ("sharding", "revision", "files"),
    [("", "", {}), ("offload", "abc", {"sub/merges.txt": b"a b", "tokenizer.json": b"{}"})],
)
def test_a_rank_builds_the_trainer_of_rank_0(
    monkeypatch: pytest.MonkeyPatch, sharding: str, revision: str, files: dict[str, bytes]
) -> None:
    """And shows, saves and decides nothing; the tokenizer's files are there while it is read."""
    made: list[Any] = []
    done: dict[str, Any] = {}
    given: dict[str, Any] = {}

    def for_one_process(_: object, config: DeploymentConfig, **options: Any) -> Any:
        made.append(config)
        given.update(options)
        return trainer

    def initialize_model() -> None:
        folder = trainer.adapter.saved_tokenizer
        found = [path for path in folder.rglob("*") if path.is_file()] if folder else []
        done["files"] = {str(path.relative_to(folder)): path.read_bytes() for path in found}

    def prepare() -> Any:
        done["size grid"] = trainer.adapter.size_grid  # which the loop's identity has
        return SimpleNamespace(set_length=lambda steps: done.update(steps=steps))

    trainer: Any = SimpleNamespace(
        adapter=SimpleNamespace(saved_tokenizer=None, size_grid=SizeGrid.EXACT),
        planner=SimpleNamespace(repeat=lambda plan: done.update(plan=plan)),
        use_precision=lambda name: done.update(precision=name),
        initialize_model=initialize_model,
        prepare=prepare,
    )
    monkeypatch.setattr(TrainerFactory, "for_one_process", for_one_process)
    configuration = DeploymentConfig(**{"model.revision": "main"}, num_processes=2)
    facts = {
        **{"configuration": configuration.to_dict(), "revision": revision, "sharding": sharding},
        **{"on_disk": True, "resolved": {"training.batch_size": 4}, "precision": "bf16"},
        **{"size_grid": "sixteenths", "total_steps": 7},
    }
    group: Any = SimpleNamespace(device=torch.device("cpu"), size=2, is_first=False)
    assert rank_process.trainer_of(group, facts, files) is trainer
    assert done == {
        **{"files": files, "size grid": SizeGrid.SIXTEENTHS, "plan": facts["resolved"]},
        **{"precision": "bf16", "steps": 7},
    }
    assert made[0].num_processes == 2
    assert made[0].model.revision == (revision or "main")
    assert given["placement"].ranks is group
    assert given["placement"].sharding == (sharding or None)
    assert trainer.adapter.on_disk
    assert (given["answering"] is None) == bool(sharding)  # the ranks evaluate a shard together


def test_a_signal_to_a_rank_stops_all_but_that_of_the_terminal() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    reasons: list[str] = []
    group: Any = SimpleNamespace(request_stop=reasons.append)
    try:
        rank_process._stop_all_on_signals(group)
        for number in numbers:
            signal.raise_signal(number)
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    assert reasons == [reason_of(signal.SIGTERM), reason_of(signal.SIGHUP)]


def test_a_rank_that_is_not_needed_ends_without_a_group(closed: list[str | None]) -> None:
    store = dist.HashStore()
    store.set(CALL, NOT_NEEDED)
    assert rank_process.train_as(Member(2, 3, 1, store)) == ExitCode.DONE
    assert closed == []
