"""Compare what a run began with and what it finds now, before it resumes.

A decision that has changed stops it, with the name that accepts the change; another machine or
library is recorded, since the sums may round otherwise from there on. Both sides are plain JSON
values. Which of them are compared, and what of them may change, is the judge's: one for each kind
of training.
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

# Any other version of them may round otherwise.
COMPUTING = frozenset(
    {"torch", "transformers", "peft", "bitsandbytes", "unsloth", "trl", "accelerate"}
)
# They make data and files, and those are compared by content.
CHECKED_BY_CONTENT = frozenset({"datasets", "tokenizers", "safetensors"})
PACKAGE_NAMES = ("python", "numpy", *sorted(COMPUTING))


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
        text: what is shown of it, where its two values say nothing to a person.
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
    """What decides the result has changed since a checkpoint was saved.

    Attributes:
        differences: what is refused.
    """

    def __init__(self, text: str, differences: Sequence[Difference]) -> None:
        super().__init__(text)
        self.differences = tuple(differences)


class Judge(Protocol):
    """What one kind of training compares, and what it tells a person to do."""

    def differences(self, was: Facts, now: Facts) -> Iterable[Difference]:
        """Everything that differs, with what it does."""

    def how_to_accept(self, names: Sequence[str]) -> str:
        """What a person writes so that these may differ."""

    def why_never(self, names: Sequence[str]) -> str:
        """Why these cannot be accepted."""

    def other_remedies(self, refused: Sequence[Difference]) -> list[str]:
        """What else a person can do, besides bringing it back as it was."""


def check_compatible(
    was: Facts, now: Facts, judge: Judge, accepted: Collection[str] = ()
) -> list[Difference]:
    """The differences that are harmless, merely round otherwise, or are accepted.

    Args:
        was: the facts in a checkpoint; empty: who saved it recorded none.
        accepted: names of differences that may change the result.

    Raises:
        RunChangedError: what is not accepted changes the result; lists all of it.
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
    """The sentence for what stops a run from going on, with what to do."""
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
    """Yield the packages that are not the ones they were; both facts need `versions`. None of them
    stops a run: a machine that comes back has another image, and nobody is there to accept it."""
    before, now = was["versions"], current["versions"]
    for package in sorted(before.keys() | now.keys()):
        if before.get(package) != now.get(package):
            verdict = _judged_version(package, before.get(package), now.get(package))
            yield Difference(package, before.get(package), now.get(package), verdict)


def _judged_version(package: str, was: str | None, current: str | None) -> Verdict:
    if was is None or current is None or package in CHECKED_BY_CONTENT:
        return Verdict.HARMLESS  # what is needed and not there was refused before
    same_minor = was.split(".")[:2] == current.split(".")[:2]
    is_harmless = same_minor and package not in COMPUTING
    return Verdict.HARMLESS if is_harmless else Verdict.ROUNDS_OTHERWISE


def in_words(agreed: Sequence[Difference], step: int) -> list[str]:
    """Return the lines for what differs, matters, and does not stop the run that resumes at
    `step`."""
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
