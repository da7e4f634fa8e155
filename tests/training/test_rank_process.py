"""A rank other than the first: how it ends, and with which code."""

import json
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from infrastructure.core.errors import ProcessLostError
from infrastructure.core.exit_codes import ExitCode
from infrastructure.training import rank_process
from infrastructure.training.distributed.members import CALL, NOT_NEEDED, Member

SECRET = "hf_" + "aB3" * 12


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Return the list of reasons for which the group of this rank was closed."""
    reasons: list[str | None] = []

    class Group:
        def __init__(
            self, store: Any, rank: int, size: int, device: object, **options: Any
        ) -> None:
            assert (rank, size, str(device)) == (2, 3, "cpu")
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
    trainer = SimpleNamespace(train=lambda: done.append("train"))

    facts = ({"a": 1}, {"tokenizer.json": b"{}"})
    monkeypatch.setattr(rank_process, "facts_of_first", lambda group: facts)
    monkeypatch.setattr(rank_process, "trainer_of", lambda group, *of: done.append(of) or trainer)
    monkeypatch.setattr(rank_process, "compare", lambda group, of: done.append(of))
    assert rank_process.train_as(member()) == ExitCode.DONE
    assert done == [facts, trainer, "train"]
    assert closed == [None]


def test_a_rank_that_is_not_needed_ends_without_a_group(closed: list[str | None]) -> None:
    store = dist.HashStore()
    store.set(CALL, NOT_NEEDED)
    assert rank_process.train_as(Member(2, 3, 1, store)) == ExitCode.DONE
    assert closed == []
