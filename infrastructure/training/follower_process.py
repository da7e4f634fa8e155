"""A process that computes for a leader: `python -m infrastructure.training.follower_process`.

Told where the leader's folder is, and its own number, when the leader started it; by a launcher's
environment variables otherwise.
"""

import contextlib
import logging
import sys
import tempfile
import warnings
from pathlib import Path

import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.redact import redact
from infrastructure.optimization.size_grid import SizeGrid
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.parallel.exchange import Exchange
from infrastructure.training.parallel.follower import Follower, listen
from infrastructure.training.parallel.membership import Member, join, on_this_machine
from infrastructure.training.parallel.messages import Message
from infrastructure.training.parallel.shares import choose_trained, fingerprint
from infrastructure.training.trainer_factory import TrainerFactory


def follow(member: Member) -> int:
    """Compute for the leader as long as it lives; returns the exit code where it never asked, or
    where something failed here, which the leader is told."""
    channel = join(member)
    if channel is None:
        return ExitCode.DONE
    logging.disable(logging.WARNING)  # the leader says the same
    warnings.simplefilter("ignore")
    hear = listen(channel)
    exchange: Exchange | None = None
    try:
        trainer = _trainer_of(hear(), member)
        assert trainer.model is not None
        channel.send(Message("ready", {"fingerprint": fingerprint(trainer.model)}))
        hear()  # that everybody is ready
        exchange = Exchange(member.store, member.rank, member.size, trainer.device)
        strategy = trainer.bind_strategy()
        Follower(channel, hear, exchange, trainer.adapter, strategy).serve()
    except Exception as error:
        text = redact(f"{type(error).__name__}: {error}")
        with contextlib.suppress(OSError):  # nobody is left to be told
            channel.send(Message("failed", {"text": text}))
    finally:
        if exchange is not None:  # gloo's threads must not outlive the interpreter
            exchange.close()
    return ExitCode.FAILED


def _trainer_of(begin: Message, member: Member) -> EnhancedTrainer:
    """The leader's model, on this process's device; without data and optimizer."""
    config = DeploymentConfig.from_dict(begin.values["configuration"])
    config.model.revision = begin.values["revision"] or config.model.revision
    trainer = TrainerFactory().for_one_process(_on_own_device(config, member))
    if trainer.device.type == "cuda":
        torch.cuda.set_device(trainer.device)
    with tempfile.TemporaryDirectory() as folder:
        if begin.tensors:
            for name, content in begin.tensors.items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.numpy().tobytes())
            trainer.adapter.saved_tokenizer = Path(folder)
        model = trainer.initialize_model()
    trainer.adapter.size_grid = SizeGrid(begin.values["size_grid"])
    choose_trained(model, begin.values["trained"])
    return trainer


def _on_own_device(config: DeploymentConfig, member: Member) -> DeploymentConfig:
    if config.device != "cpu" and torch.cuda.is_available():
        config.device = f"cuda:{member.local_rank}"
    return config


def main() -> int:
    """Follow the leader that started this process."""
    folder, rank, size = sys.argv[1:]
    return follow(on_this_machine(Path(folder), int(rank), int(size)))


if __name__ == "__main__":
    sys.exit(main())
