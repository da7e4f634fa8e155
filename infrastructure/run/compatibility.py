"""A comparison of the recorded facts of a run with its current ones, before the run resumes.

If a setting that affects the result has changed, the run does not resume, and the error names the
flag that accepts the change. Another machine or library version may change rounding, so it is only
recorded. The facts are JSON values. For each kind of training, a `Judge` decides which facts are
compared and which may change.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from infrastructure.config.field_help import plain
from infrastructure.core.errors import CheckpointError
from infrastructure.core.messages import phrase
from infrastructure.core.redact import redact

Facts = Mapping[str, Any]

# Any other version of these packages may round differently.
COMPUTING = frozenset(
    {"torch", "transformers", "peft", "bitsandbytes", "unsloth", "trl", "accelerate"}
)
# These produce data and files, which are compared by content.
CHECKED_BY_CONTENT = frozenset({"datasets", "tokenizers", "safetensors"})
PACKAGE_NAMES = ("python", "numpy", *sorted(COMPUTING))


class Verdict(StrEnum):
    """The effect that a changed fact has on resuming a run."""

    HARMLESS = "harmless"
    ROUNDS_OTHERWISE = "rounds otherwise"
    CHANGES_THE_RESULT = "changes the result"
    NEEDS_A_NEW_RUN = "needs a new run"


@dataclass(frozen=True)
class Difference:
    """A setting or other fact that has changed since the run was recorded.

    Attributes:
        name: the name of the fact for `--accept`.
        cause: the cause of the change, if known.
        text: the text to display if the two values themselves mean nothing to the user.
    """

    name: str
    was: object
    current: object
    verdict: Verdict
    cause: str = ""
    text: str = ""

    def __str__(self) -> str:
        if self.text:
            return redact(self.text)
        cause = f" ({self.cause})" if self.cause else ""
        return f"{self.name}: was {_short(self.was)}, is {_short(self.current)}{cause}"


class RunChangedError(CheckpointError):
    """An error for changes since the last checkpoint that affect the result of a run.

    Attributes:
        differences: the differences that prevent the run from resuming.
    """

    def __init__(self, text: str, differences: Sequence[Difference]) -> None:
        super().__init__(text)
        self.differences = tuple(differences)


class Judge(Protocol):
    """The rules of one kind of training: which facts are compared, and the advice to the user."""

    def differences(self, was: Facts, now: Facts) -> Iterable[Difference]:
        """Return all differences between two sets of facts, each with its effect."""

    def how_to_accept(self, names: Sequence[str]) -> str:
        """Return the setting or argument that accepts these differences."""

    def why_never(self, names: Sequence[str]) -> str:
        """Return the reason why these differences cannot be accepted."""

    def other_remedies(self, refused: Sequence[Difference]) -> list[str]:
        """Return other remedies for the user, besides undoing or accepting the changes."""


def check_compatible(
    was: Facts, now: Facts, judge: Judge, accepted: Collection[str] = ()
) -> list[Difference]:
    """Return the differences with which a run may resume, or raise an error.

    Args:
        was: the facts in a checkpoint; empty if none were recorded.
        accepted: the names of differences that may change the result.

    Raises:
        RunChangedError: if a difference changes the result and is not accepted. The error lists all
            such differences.

    The returned differences are harmless, affect only rounding, or are accepted by the user.
    """
    differences = list(judge.differences(was, now)) if was else []
    refused = [
        d
        for d in differences
        if d.verdict is Verdict.NEEDS_A_NEW_RUN
        or (d.verdict is Verdict.CHANGES_THE_RESULT and d.name not in accepted)
    ]
    if refused:
        raise RunChangedError(_refusal(refused, judge), refused)
    return differences


def _refusal(refused: Sequence[Difference], judge: Judge) -> str:
    """Return the message on why a run cannot resume, and what to do about it."""
    acceptable = [d.name for d in refused if d.verdict is Verdict.CHANGES_THE_RESULT]
    never = [d.name for d in refused if d.verdict is Verdict.NEEDS_A_NEW_RUN]
    remedies = [phrase("run.restore_what_changed")]
    if acceptable and not never:
        remedies.append(
            phrase("run.accept_the_change", accept_option=judge.how_to_accept(acceptable))
        )
    remedies += judge.other_remedies(refused)
    why = f" ({judge.why_never(never)})" if never else ""
    return phrase(
        "run.changed_since_checkpoint",
        changes="; ".join(map(str, refused)),
        reason=why,
        remedies=", or ".join(remedies),
    )


def version_differences(was: Facts, current: Facts) -> Iterator[Difference]:
    """Yield the packages whose versions differ. Both mappings of facts need the key `versions`.

    A different version does not prevent a run from resuming, because a new machine may have
    different packages, and no user may be present to accept the difference.
    """
    before, now = was["versions"], current["versions"]
    for package in sorted(before.keys() | now.keys()):
        if before.get(package) != now.get(package):
            verdict = _judged_version(package, before.get(package), now.get(package))
            yield Difference(package, before.get(package), now.get(package), verdict)


def _judged_version(package: str, was: str | None, current: str | None) -> Verdict:
    if was is None or current is None or package in CHECKED_BY_CONTENT:
        return Verdict.HARMLESS  # a missing required package was refused earlier
    same_minor = was.split(".")[:2] == current.split(".")[:2]
    is_harmless = same_minor and package not in COMPUTING
    return Verdict.HARMLESS if is_harmless else Verdict.ROUNDS_OTHERWISE


def in_words(agreed: Sequence[Difference], step: int) -> list[str]:
    """Return messages on the differences with which a run resumes. Harmless ones are left out.

    Args:
        step: the step from which the run resumes.
    """
    by_verdict = {verdict: [d for d in agreed if d.verdict is verdict] for verdict in Verdict}
    rounded = "; ".join(map(str, by_verdict[Verdict.ROUNDS_OTHERWISE]))
    return [
        *(
            [phrase("run.not_bit_exact_after_change", step=step, changes=rounded)]
            if rounded
            else []
        ),
        *(f"accepted: {d}" for d in by_verdict[Verdict.CHANGES_THE_RESULT]),
    ]


def _short(value: object) -> str:
    if isinstance(value, str) and len(value) == 64 and " " not in value:
        return value[:12]  # a hash
    return redact(plain(value))
