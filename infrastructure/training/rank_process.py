"""The process of a rank other than 0: `python -m infrastructure.training.rank_process`.

The process runs the same loop as rank 0 over the same data, but shows and saves nothing. If rank 0
started the process, the arguments are the port of rank 0's store, the rank, and the number of
ranks. If a launcher started it, environment variables contain them.
"""

import logging
import os
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.error_place import described
from infrastructure.core.errors import ProcessLostError
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.redact import redact
from infrastructure.core.stop_signals import ignore_stop_signals, reason_of
from infrastructure.optimization.size_grid import SizeGrid
from infrastructure.training.distributed.group import JoinedGroup
from infrastructure.training.distributed.members import Member, started_by_rank_0
from infrastructure.training.distributed.shard import Sharding
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.placement import Placement
from infrastructure.training.run_facts import compare, facts_of_first
from infrastructure.training.trainer_factory import TrainerFactory


def train_as(member: Member) -> int:
    """Train together with rank 0 until rank 0 stops, and return the exit code.

    The exit code is DONE even if rank 0 has ended or never needed this process, because only rank 0
    reports the result of the run.
    """
    _import_what_takes_long()
    call = member.called()
    if call is None:
        return ExitCode.DONE
    device_type, limit_seconds = call
    logging.disable(logging.WARNING)  # rank 0 logs the same warnings
    warnings.simplefilter("ignore")
    try:
        group = JoinedGroup(
            member.store,
            member.rank,
            member.size,
            torch.device(f"cuda:{member.local_rank}" if device_type == "cuda" else device_type),
            local_rank=member.local_rank,
            limit_seconds=limit_seconds,
            on_orphaned=lambda: os._exit(ExitCode.DONE),
        )
    except ProcessLostError as error:
        return _lost(member, error)
    _stop_all_on_signals(group)
    try:
        facts, tokenizer = facts_of_first(group)
        with group.busy():
            trainer = trainer_of(group, facts, tokenizer)
        compare(group, trainer.prepare())
        trainer.train()
    except ProcessLostError as error:
        is_over = group.has_ended(0)
        group.close(str(error))
        return ExitCode.DONE if is_over else _lost(member, error)
    except BaseException as error:
        text = redact(described(error))
        group.close(text)
        print(f"temper: rank {member.rank}: {text}", file=sys.stderr)
        return ExitCode.FAILED
    group.close()
    return ExitCode.DONE


def _import_what_takes_long() -> None:
    """Import slow packages while this process waits for rank 0 to prepare model and data."""
    with suppress(ImportError):
        import peft  # noqa: F401
        import transformers.modeling_utils  # noqa: F401


def _lost(member: Member, error: ProcessLostError) -> int:
    print(f"temper: rank {member.rank}: {redact(str(error))}", file=sys.stderr)
    return ExitCode.PROCESS_LOST


def trainer_of(
    group: JoinedGroup, facts: Mapping[str, Any], tokenizer: Mapping[str, bytes]
) -> EnhancedTrainer:
    """Create a trainer like that of rank 0, prepared on this rank's device.

    This trainer shows, saves and decides nothing.
    """
    config = DeploymentConfig.from_dict(facts["configuration"])
    config.model.revision = facts["revision"] or config.model.revision
    if group.device.type == "cuda":
        config.device = str(group.device)
        torch.cuda.set_device(group.device)
    sharding = Sharding(facts["sharding"]) if facts["sharding"] else None
    trainer = TrainerFactory().for_one_process(
        config,
        placement=Placement(group, sharding),
        answering=_measured_by_rank_0 if sharding is None else None,
    )
    trainer.adapter.on_disk = facts["on_disk"]
    trainer.planner.repeat(facts["resolved"])
    trainer.use_precision(facts["precision"])
    with tempfile.TemporaryDirectory() as folder:
        for name, content in tokenizer.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        if tokenizer:
            trainer.adapter.saved_tokenizer = Path(folder)
        trainer.initialize_model()
        trainer.adapter.size_grid = SizeGrid(facts["size_grid"])
        trainer.prepare().set_length(facts["total_steps"])
    return trainer


def _stop_all_on_signals(group: JoinedGroup) -> None:
    """Install signal handlers that stop all ranks after their current step.

    They handle stop signals to this rank.
    """
    if threading.current_thread() is not threading.main_thread():
        return

    def request(number: int, _frame: FrameType | None) -> None:
        group.request_stop(reason_of(number))

    ignore_stop_signals()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, request)


def _measured_by_rank_0(*_: Any) -> Mapping[str, float]:
    raise AssertionError("rank 0 measures what the model writes")


def main() -> int:
    """Run the rank given by the command-line arguments, and return the exit code."""
    port, rank, size = map(int, sys.argv[1:])
    return train_as(started_by_rank_0(port, rank, size))


if __name__ == "__main__":
    sys.exit(main())
