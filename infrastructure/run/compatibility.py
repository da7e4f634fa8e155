"""What a run began with against what it finds now, before it goes on.

A difference that changes the result stops, with the flag that accepts it; one that does not, or
only in the last digits of sums, is told. Both sides are plain JSON values, see `training_facts`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.field_help import plain
from infrastructure.config.fingerprint import counts, differing_keys
from infrastructure.config.schema import schema_of
from infrastructure.core.errors import CheckpointError
from infrastructure.core.lookup import nearest
from infrastructure.core.redact import redact
from infrastructure.optimization.size_grid import SizeGrid

Facts = Mapping[str, Any]

# What these make is compared itself: the examples in their order.
COMPARED_BY_CONTENT = frozenset({"data.path", "data.chat_template", "data.format"})
# `auto` here may mean the very number that is written now.
RESOLVED = (
    "training.learning_rate",
    "training.num_epochs",
    "training.batch_size",
    "training.gradient_accumulation",
)
# Measured where the configuration leaves them open: equal settings may mean other numbers.
MEASURED = RESOLVED[2:]
# The tensors of a checkpoint have no place in a model or an optimizer of another shape.
NEEDS_A_NEW_RUN = (
    "model.embedded.",
    "model.lora_config.r",
    "model.lora_config.target_modules",
    "model.adapter",
    "model.backend",
    "model.dtype",
    "training.strategy",
    "training.layerwise_lr_decay",
)
# Where they compute, a patch of them may round otherwise.
ON_THE_GPU = frozenset({"torch", "transformers", "peft", "bitsandbytes", "unsloth"})
# They make data and files, and those are compared by content.
CHECKED_BY_CONTENT = frozenset({"datasets", "tokenizers", "safetensors"})
OTHER_LABELS = (
    "the run was begun by a version of Temper that marks otherwise which tokens are learnt; before"
    " labels of version 2, tokens after the end of an answer could be learnt too: a new run is"
    " advised"
)
FACT_NAMES = ("data", "base_model", "device", "precision", "deterministic", "world_size")
PACKAGE_NAMES = ("python", "numpy", *sorted(ON_THE_GPU))


class Verdict(StrEnum):
    """What a difference does."""

    HARMLESS = "harmless"
    ROUNDS_OTHERWISE = "rounds otherwise"
    CHANGES_THE_RESULT = "changes the result"
    NEEDS_A_NEW_RUN = "needs a new run"


@dataclass(frozen=True)
class Difference:
    """Something that is not what it was.

    Attributes:
        name: what `--accept` calls it.
        cause: where it comes from, if that is known.
    """

    name: str
    was: Any
    found: Any
    verdict: Verdict
    cause: str = ""

    def __str__(self) -> str:
        cause = f" ({self.cause})" if self.cause else ""
        return f"{self.name}: was {_short(self.was)}, is {_short(self.found)}{cause}"


def differences(was: Facts, found: Facts) -> list[Difference]:
    """Everything that differs between the facts of a checkpoint and those of this process."""
    if not was:  # saved by one's own loop, which recorded nothing
        return []
    return [*_settings(was, found), *_facts(was, found), *version_differences(was, found)]


def agree(was: Facts, found: Facts, accept: Collection[str] = ()) -> list[Difference]:
    """The differences that are harmless, merely round otherwise, or are accepted.

    Args:
        accept: names of differences that may change the result; see `names`.

    Raises:
        ValueError: `accept` holds a name that there is not.
        CheckpointError: what is not accepted changes the result; lists all of it.
    """
    accepted = {canonical_name(name) for name in accept}
    all_of_them = differences(was, found)
    refused = [
        d
        for d in all_of_them
        if d.verdict is Verdict.NEEDS_A_NEW_RUN
        or (d.verdict is Verdict.CHANGES_THE_RESULT and d.name not in accepted)
    ]
    if refused:
        raise CheckpointError(refusal(refused))
    return all_of_them


def recorded_grid(was: Facts) -> SizeGrid:
    """How the run of a checkpoint rounds the lengths of its batches; whoever goes on repeats it.

    Raises:
        CheckpointError: in a way that is not known here.
    """
    name = was.get("size_grid", SizeGrid.EXACT)  # before there was a choice
    try:
        return SizeGrid(name)
    except ValueError:
        raise CheckpointError(
            f"this checkpoint rounds the lengths of its batches in a way ({name}) that this version"
            " does not know: it was saved by a later one, which goes on with it"
        ) from None


def refusal(refused: Sequence[Difference]) -> str:
    """The sentence for what stops a run from going on, with what to do."""
    acceptable = [d.name for d in refused if d.verdict is Verdict.CHANGES_THE_RESULT]
    never = [d.name for d in refused if d.verdict is Verdict.NEEDS_A_NEW_RUN]
    remedies = ["bring it back as it was"]
    if acceptable and not never:
        remedies.append(f"accept what comes of it with --accept {','.join(acceptable)}")
    if any(d.name == "precision" for d in refused):
        was = next(d.was for d in refused if d.name == "precision")
        remedies.append(f"give --mixed-precision {was} for the precision")
    remedies.append("start anew with `temper train --new-run`")
    why = f" ({', '.join(never)} cannot change within a run)" if never else ""
    return (
        "since this checkpoint was saved, what decides the result has changed: "
        f"{'; '.join(map(str, refused))}{why}: {', or '.join(remedies)}"
    )


def canonical_name(name: str) -> str:
    """The name of a difference, given in full (`training.seed`) or short (`seed`).

    Raises:
        ValueError: there is none of that name; suggests the nearest.
    """
    known = names()
    if name in known:
        return known[name]
    meant = nearest(name, known)
    hint = f"did you mean {meant!r}?" if meant else f"there are {', '.join(FACT_NAMES)}, settings…"
    raise ValueError(f"--accept {name!r}: nothing that is compared is called so; {hint}")


def names() -> dict[str, str]:
    """Every name that `accept` takes, and the name that is shown for it."""
    keys = [key for key in schema_of(DeploymentConfig).fields if counts(key)]
    shown = {key: shown_name(key) for key in keys}
    return {
        **shown,
        **{short: short for short in shown.values()},
        **{name: name for name in (*FACT_NAMES, *PACKAGE_NAMES)},
    }


def shown_name(key: str) -> str:
    """What `--accept` calls a setting: its last name where no other setting has that."""
    leaf = key.rpartition(".")[2]
    known = [k for k in schema_of(DeploymentConfig).fields if counts(k)]
    is_unique = sum(k.rpartition(".")[2] == leaf for k in known) == 1
    return leaf if is_unique and leaf not in ("name", "path", "format", "r") else key


def _settings(was: Facts, found: Facts) -> Iterator[Difference]:
    before, now = was["settings"], found["settings"]
    for key in dict.fromkeys([*differing_keys(before, now), *MEASURED]):
        values = before.get(key), now.get(key)
        if key in RESOLVED:  # checkpoints of before have no measured numbers
            values = tuple(f["resolved"].get(key, f["settings"].get(key)) for f in (was, found))
            if values[0] == values[1]:
                continue
        yield Difference(shown_name(key), *values, _judged_setting(key, was, found))


def _judged_setting(key: str, was: Facts, found: Facts) -> Verdict:
    if key.startswith(NEEDS_A_NEW_RUN) or key == "model.lora_config":
        return Verdict.NEEDS_A_NEW_RUN
    same_data = was["data"] == found["data"]
    same_base = was["base_model"] is not None and was["base_model"] == found["base_model"]
    if (key in COMPARED_BY_CONTENT and same_data) or (key == "model.name" and same_base):
        return Verdict.HARMLESS
    if key == "model.revision" and same_base:
        return Verdict.HARMLESS
    return Verdict.CHANGES_THE_RESULT


def _facts(was: Facts, found: Facts) -> Iterator[Difference]:
    for name in (*FACT_NAMES, "machine"):
        before, now = was[name], found[name]
        if name == "base_model" and not was["base_is_frozen"]:
            continue  # training all weights has overwritten it
        if before != now:
            cause = OTHER_LABELS if name == "data" and _has_other_labels(was, found) else ""
            yield Difference(name, before, now, _judged_fact(name, before, now), cause)


def _has_other_labels(was: Facts, found: Facts) -> bool:
    """Checkpoints of before have no version of how answers are marked."""
    return bool(was.get("labels", 1) != found.get("labels", 1))


def _judged_fact(name: str, before: Any, now: Any) -> Verdict:
    if name == "machine":
        return Verdict.HARMLESS
    if name == "world_size":  # the same sums in another order, and dropout drawn anew
        return Verdict.ROUNDS_OTHERWISE
    if name == "precision" and "fp16" in (before, now):  # a checkpoint holds its gradient scaler
        return Verdict.NEEDS_A_NEW_RUN
    return Verdict.CHANGES_THE_RESULT


def version_differences(was: Facts, found: Facts) -> Iterator[Difference]:
    """Packages that are not the ones they were; both facts need `versions` and `device`."""
    before, now = was["versions"], found["versions"]
    on_gpu = any(facts["device"] != "cpu" for facts in (was, found))
    for package in sorted(before.keys() | now.keys()):
        if before.get(package) != now.get(package):
            verdict = _judged_version(package, before.get(package), now.get(package), on_gpu)
            yield Difference(package, before.get(package), now.get(package), verdict)


def _judged_version(package: str, was: str | None, found: str | None, on_gpu: bool) -> Verdict:
    if was is None or found is None or package in CHECKED_BY_CONTENT:
        return Verdict.HARMLESS  # what is needed and not there was refused before
    if on_gpu and package in ON_THE_GPU:
        return Verdict.CHANGES_THE_RESULT
    same_minor = was.split(".")[:2] == found.split(".")[:2]
    return Verdict.HARMLESS if same_minor else Verdict.CHANGES_THE_RESULT


def _short(value: Any) -> str:
    is_hash = isinstance(value, str) and len(value) == 64 and " " not in value
    return value[:12] if is_hash else redact(plain(value))
