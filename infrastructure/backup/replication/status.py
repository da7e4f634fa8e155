"""The status of a run's backup: what is safe, what is being copied, what is wrong.

The copier writes the status file; if the copier cannot run, the run writes it. Everything that
displays a status reads this file. The age of the last confirmed checkpoint is the work that would
be lost if this machine died now.
"""

import itertools
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, get_origin

from infrastructure.core.errors import InputError
from infrastructure.core.files import write_json
from infrastructure.core.json_text import parse_json
from infrastructure.core.lock import is_held
from infrastructure.core.messages import phrase

UNKNOWN, OFF, STARTING, GONE = "unknown", "off", "starting", "gone"
FINISHED, LEFT, DOWN, RETRYING = "finished", "left", "down", "retrying"
FENCED = "fenced"
LOCK_SUFFIX = ".lock"  # next to the status: a copier holds it as long as it runs
SUCCESSOR_SUFFIX = ".next.lock"  # held by a copier that waits for the current one to end
STATES = {  # state -> the code of its words
    UNKNOWN: "backup.state_unknown",
    OFF: "backup.state_off",
    STARTING: "backup.state_starting",
    "idle": "backup.state_idle",
    "copying": "backup.state_copying",
    "confirming": "backup.state_confirming",
    "doubtful": "backup.state_doubtful",
    RETRYING: "backup.state_retrying",
    FENCED: "backup.state_fenced",
    DOWN: "backup.state_down",
    FINISHED: "backup.state_finished",
    LEFT: "backup.state_left",
    GONE: "backup.state_gone",
}
ENDED = (UNKNOWN, OFF, FINISHED, LEFT, DOWN)  # states in which no copier has to run
LATE_SECONDS = 60.0  # a version that took longer to arrive is shown with both times


def state_words(state: str) -> str:
    """Return the description of one of `STATES`."""
    return phrase(STATES[state])


class PossibleLoss(NamedTuple):
    """The training time in seconds that would be lost now (None: all of it), with a message about
    it.
    """

    seconds: float | None
    text: str


@dataclass(frozen=True)
class BackupStatus:
    """The status of a backup at one moment. Times are in seconds since 1970.

    Attributes:
        place: the destination, without secrets; "" if it is unknown.
        state: one of `STATES`.
        confirmed_name, confirmed_step: the newest checkpoint that is safe at the destination.
        saved_at, confirmed_at: when that checkpoint was written on this machine, and when it was
            confirmed.
        present_at: when all its files were last seen at the destination; the oldest of these times.
        compared_at, compared_by: when the bytes of its files were last compared, and how; the
            oldest time and the weakest method.
        last_look: the token of the last completed check of that checkpoint.
        in_flight_step: the step of the checkpoint that is being copied.
        in_flight_folder: the finished folder that is being copied, such as "final".
        done_bytes, total_bytes: the progress of that checkpoint or folder.
        published_folders: the URLs of confirmed folders, by the token of the request.
        newest_step: the step of the newest checkpoint on this machine.
        refused_name: the newest checkpoint that is damaged on this machine and was not copied;
            cleared when a newer one is confirmed.
        error: the last error; cleared when copying works again.
        num_failures: how often in a row copying failed.
        advice: what the user can do about the error.
        changed_at: when this status was written.
    """

    place: str = ""
    state: str = UNKNOWN
    confirmed_name: str | None = None
    confirmed_step: int | None = None
    saved_at: float | None = None
    confirmed_at: float | None = None
    present_at: float | None = None
    compared_at: float | None = None
    compared_by: str | None = None
    last_look: str = ""
    in_flight_step: int | None = None
    in_flight_folder: str | None = None
    done_bytes: int = 0
    total_bytes: int = 0
    newest_name: str | None = None
    newest_step: int | None = None
    refused_name: str | None = None
    error: str | None = None
    num_failures: int = 0
    advice: str | None = None
    published_folders: dict[str, str] = field(default_factory=dict)
    changed_at: float | None = None

    @property
    def is_safe(self) -> bool:
        """True if the newest checkpoint on this machine is confirmed."""
        return self.newest_name is not None and self.confirmed_name == self.newest_name

    @property
    def problem(self) -> str | None:
        """The problem, with what the user can do about it; None if there is no problem."""
        if self.error is None:
            return state_words(self.state) if self.state in ("doubtful", FENCED) else None
        return f"{self.error}{self._remedy}"

    @property
    def _remedy(self) -> str:
        """The advice in parentheses. If the copier retries, it includes that copying will
        continue.
        """
        if self.advice is None:
            return ""
        goes_on = phrase("backup.copying_then_continues") if self.state == RETRYING else ""
        return f" ({self.advice}{goes_on})"

    def seen(self, now: float) -> str | None:
        """Describe how and when the confirmed checkpoint was last seen at the destination.

        Example:
        `all its files were there 5 s ago; their bytes were compared 2 min ago (read-back)`.
        """
        if self.present_at is None or self.compared_at is None or self.compared_by is None:
            return None
        present, compared = (age_words(now - at) for at in (self.present_at, self.compared_at))
        return phrase(
            "backup.seen_at_destination",
            seen_age=present,
            compared_age=compared,
            method=self.compared_by,
        )

    def has_looked(self, token: str) -> bool:
        """Return whether the check with this token is done or impossible. "" means that no check is
        awaited.
        """
        return token in ("", self.last_look) or self.state in (OFF, FENCED, DOWN)

    def is_settled(self, name: str | None) -> bool:
        """Return whether checkpoint `name` is confirmed or cannot be copied, so that waiting can
        end.
        """
        return name in (self.confirmed_name, self.refused_name)

    def possible_loss(self, now: float) -> PossibleLoss:
        """Return the age of the last confirmed checkpoint at the time `now`, and a message.

        The age is 0 if the run has ended and all of it is safe. Example of a message:
        `backup: step 120 confirmed 45 s ago at drive:temper (step 140 is being copied, 63%)`.
        """
        if self.state in (UNKNOWN, OFF):
            state = state_words(self.state)
            return PossibleLoss(None, phrase("backup.status_without_destination", state=state))
        problem = ""
        if self.error is not None:
            is_repeated = self.num_failures > 1
            times = phrase("backup.failed_times", count=self.num_failures) if is_repeated else ""
            problem = f"; {self.error}{times}{self._remedy}"
        elif self.state in ("doubtful", FENCED, LEFT, GONE, DOWN):
            problem = f"; {state_words(self.state)}"
        text = phrase(
            "backup.status",
            confirmed=self._confirmed(now),
            place=self.place,
            in_flight=self._on_its_way(),
            problem=problem,
        )
        if self.state == FINISHED:
            return PossibleLoss(0.0, text)
        seconds = None if self.saved_at is None else max(0.0, now - self.saved_at)
        return PossibleLoss(seconds, text)

    def _confirmed(self, now: float) -> str:
        if self.confirmed_at is None or self.saved_at is None:
            return phrase("backup.nothing_confirmed_yet")
        step, age = self.confirmed_step, age_words(now - self.confirmed_at)
        if self.confirmed_at - self.saved_at <= LATE_SECONDS:
            return phrase("backup.step_confirmed", step=step, age=age)
        saved_age = age_words(now - self.saved_at)
        return phrase("backup.step_confirmed_late", step=step, age=age, saved_age=saved_age)

    def _on_its_way(self) -> str:
        if self.in_flight_step is not None:
            percent = 100 * self.done_bytes // self.total_bytes if self.total_bytes else 0
            return phrase(
                "backup.step_in_flight", step=self.in_flight_step, percent=min(99, percent)
            )
        if self.in_flight_folder is not None:
            percent = 100 * self.done_bytes // self.total_bytes if self.total_bytes else 0
            return phrase(
                "backup.folder_in_flight", folder=self.in_flight_folder, percent=min(99, percent)
            )
        if self.newest_step is not None and not self.is_safe:
            return phrase("backup.step_waiting", step=self.newest_step)
        return ""


def short_words(status: BackupStatus, now: float) -> str:
    """Return the last confirmed step and its age as a short text: `backup: step 120, 45 s old`."""
    if status.state == FENCED:
        return phrase("backup.short_status_fenced")
    if status.state == DOWN:
        return phrase("backup.short_status_not_copying")
    failing = phrase("backup.copying_fails") if status.state == RETRYING else ""
    if status.saved_at is None:
        return phrase("backup.short_status_none_confirmed", failing=failing)
    age = age_words(now - status.saved_at)
    return phrase("backup.short_status", step=status.confirmed_step, age=age, failing=failing)


def age_words(seconds: float) -> str:
    """Format a duration in its two largest units: `45 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    whole = max(0, int(seconds))
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    for (name, size), (next_name, next_size) in itertools.pairwise(units):
        if whole >= size:
            rest = whole % size // next_size
            return f"{whole // size} {name}" + (f" {rest} {next_name}" if rest else "")
    return f"{whole} s"


def write_status(path: Path, status: BackupStatus) -> None:
    """Write `status` as JSON, atomically.

    Raises:
        OSError: if the disk fails.
    """
    write_json(path, asdict(status))


def read_status(path: Path) -> BackupStatus:
    """Read the status in `path`. If the file is missing or damaged, return a status with unknown
    values.
    """
    try:
        contents = parse_json(path.read_bytes(), parse_constant=_no_constant)
    except (OSError, ValueError):
        return BackupStatus()
    if not isinstance(contents, dict) or contents.get("state") not in STATES:
        return BackupStatus()
    known = {field.name: field.type for field in fields(BackupStatus)}
    if not all(_is_of(contents[name], kind) for name, kind in known.items() if name in contents):
        return BackupStatus()
    whole: dict[str, Any] = {name: contents[name] for name in known if name in contents}
    return BackupStatus(**whole)


def live_status(path: Path) -> BackupStatus:
    """Read the status in `path`. If its copier was killed, set the state to `GONE`.

    Nothing is being copied in the state `GONE`.
    """
    status = read_status(path)
    if status.state in ENDED or is_held(path.with_suffix(LOCK_SUFFIX)) is not False:
        return status
    status = read_status(path)  # the copier may have ended in order just now
    if status.state in ENDED:
        return status
    return replace(status, state=GONE, in_flight_step=None, in_flight_folder=None)


def _no_constant(text: str) -> None:
    raise InputError("backup.not_a_valid_time", constant=text)


def _is_of(value: object, kind: object) -> bool:
    kinds = kind.__args__ if isinstance(kind, UnionType) else (kind,)
    allowed = {*kinds, int} if float in kinds else {get_origin(each) or each for each in kinds}
    return type(value) in allowed
