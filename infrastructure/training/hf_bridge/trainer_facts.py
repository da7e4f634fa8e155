"""What a Trainer's training is made of, as JSON values: kept in versions, compared when it goes on.

A difference that changes the result stops, with the name that accepts it.
"""

import dataclasses
import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, TypedDict

import torch

from infrastructure.core.json_text import JsonValue
from infrastructure.core.lookup import nearest
from infrastructure.run.compatibility import (
    PACKAGE_NAMES,
    Difference,
    Facts,
    Verdict,
    version_differences,
)
from infrastructure.training.core.preserve import preserve
from infrastructure.training.hf_bridge.trainer_state import TrainerParts
from infrastructure.training.models.trainable_state import trainable_state
from infrastructure.training.resume.fingerprint import MachineFacts, machine_facts

if TYPE_CHECKING:
    from transformers import TrainingArguments

# A Trainer takes these from the checkpoint, whatever its arguments say by then.
IN_THE_CHECKPOINT = (
    "learning_rate",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "optim",
    "optim_args",
)
DECIDING = (
    *IN_THE_CHECKPOINT,
    "max_grad_norm",
    "num_train_epochs",
    "max_steps",
    "lr_scheduler_type",
    "lr_scheduler_kwargs",
    "warmup_ratio",
    "warmup_steps",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "train_sampling_strategy",
    "dataloader_drop_last",
    "seed",
    "data_seed",
    "bf16",
    "fp16",
    "tf32",
    "label_smoothing_factor",
    "neftune_noise_alpha",
    "loss_type",
    "packing",
    "padding_free",
    "max_length",
    "completion_only_loss",
    "assistant_only_loss",
    "embedding_learning_rate",
)
FACT_NAMES = ("data", "base_model", "device", "world_size")
BRIDGE_PACKAGES = ("trl", "accelerate")
NAMES = (*DECIDING, *FACT_NAMES, *PACKAGE_NAMES, *BRIDGE_PACKAGES)
NUM_ROWS = 16


class DataFacts(TypedDict):
    """How many examples there are, and a hash of some; None of what cannot be known."""

    num_examples: int | None
    rows: str | None


class TrainerFacts(MachineFacts):
    """What decides the result of a Trainer's training."""

    arguments: dict[str, JsonValue]
    data: DataFacts
    base_model: str | None


def facts_of(parts: TrainerParts, dataset: object) -> TrainerFacts:
    """What decides the result of this training.

    Args:
        dataset: the one that it trains on, as the Trainer's data loader has it.
    """
    facts = machine_facts(parts.device, parts.args.world_size)
    return {
        **facts,
        "versions": {**facts["versions"], **_bridge_versions()},
        "arguments": deciding_arguments(parts.args),
        "data": data_facts(dataset, parts.device),
        "base_model": frozen_fingerprint(parts.model),
    }


def _bridge_versions() -> dict[str, str]:
    versions = {}
    for package in BRIDGE_PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def deciding_arguments(args: "TrainingArguments") -> dict[str, JsonValue]:
    """The arguments of a Trainer that decide what it comes to; others may change freely."""
    known = {field.name for field in dataclasses.fields(args)}
    return {name: _plain(getattr(args, name)) for name in DECIDING if name in known}


def _plain(value: object) -> JsonValue:
    if isinstance(value, Enum):
        value = value.value
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def data_facts(dataset: Any, device: torch.device) -> DataFacts:
    """How many examples there are, and a hash of some of them; None of what cannot be known, such
    as the rows of a stream, or of a data set that gives a row another way each time."""
    try:
        num_examples = len(dataset)
    except TypeError:
        return {"num_examples": None, "rows": None}
    with preserve(random=device):
        first, second = _hash_of_rows(dataset, num_examples), _hash_of_rows(dataset, num_examples)
    return {"num_examples": num_examples, "rows": first if first == second else None}


def _hash_of_rows(dataset: Any, num_examples: int) -> str:
    digest = hashlib.sha256()
    for index in sorted({i * num_examples // NUM_ROWS for i in range(NUM_ROWS)}):
        if index < num_examples:
            digest.update(_spelt(dataset[index]).encode())
    return digest.hexdigest()


def _spelt(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{value.tolist()}"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key!s}:{_spelt(value[key])}' for key in sorted(value, key=str))}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_spelt, value))}]"
    return repr(value)


@torch.no_grad()
def frozen_fingerprint(model: torch.nn.Module) -> str | None:
    """A hash of the weights that do not train and are in no checkpoint; None: there are none.

    Each tensor counts with the sum of its bits read as whole numbers, which is exact in any order
    and as fast as memory is read.
    """
    trained = {tensor.data_ptr() for tensor in trainable_state(model).values()}
    digest = hashlib.sha256()
    is_any = False
    for name, tensor in model.named_parameters():
        if tensor.data_ptr() not in trained and not tensor.is_meta:
            total = tensor.detach().view(_WHOLE[tensor.element_size()]).sum(dtype=torch.int64)
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {int(total)}\n".encode())
            is_any = True
    return digest.hexdigest() if is_any else None


_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def known_names(accept: Collection[str]) -> frozenset[str]:
    """What may differ although it changes the result.

    Raises:
        ValueError: nothing that is compared, and may differ, is called so; suggests the nearest.
    """
    for name in accept:
        if name in IN_THE_CHECKPOINT:
            raise ValueError(f"accept={name!r} has no effect: {_why_not(name)}")
        if name not in NAMES:
            meant = nearest(name, NAMES)
            hint = f"; did you mean {meant!r}?" if meant else ""
            raise ValueError(f"accept={name!r}: nothing that is compared is called so{hint}")
    return frozenset(accept)


def _why_not(name: str) -> str:
    return f"a Trainer that goes on takes {name} from its checkpoint, whatever its arguments say"


class TrainerJudge:
    """What may change in a Trainer's training; see `compatibility.Judge`.

    Args:
        is_whole: the Trainer was made from a configuration, so that a flag accepts.
    """

    def __init__(self, is_whole: bool = False) -> None:
        self.is_whole = is_whole

    def differences(self, was: Facts, now: Facts) -> Iterator[Difference]:
        """Arguments, facts and versions that differ."""
        before, current = was["arguments"], now["arguments"]
        for name in DECIDING:
            if before.get(name) != current.get(name):
                fixed = name in IN_THE_CHECKPOINT
                verdict = Verdict.NEEDS_A_NEW_RUN if fixed else Verdict.CHANGES_THE_RESULT
                yield Difference(name, before.get(name), current.get(name), verdict)
        for name in FACT_NAMES:
            if was[name] != now[name]:
                yield Difference(name, was[name], now[name], Verdict.CHANGES_THE_RESULT)
        yield from version_differences(was, now)

    def how_to_accept(self, names: Sequence[str]) -> str:
        """The argument for it."""
        if self.is_whole:
            return " ".join(f"--accept {name}" for name in names)
        return f"TemperCallback(..., accept={list(names)!r})"

    def why_never(self, names: Sequence[str]) -> str:
        """It would have no effect."""
        return "; ".join(map(_why_not, names))

    def other_remedies(self, refused: Sequence[Difference]) -> list[str]:
        """Another run beside this one."""
        if self.is_whole:
            return ["begin another run with --new-run"]
        return ["give this training another name"]
