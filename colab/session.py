"""The session of a notebook: what is available, what outlives the session, and the time left.

session = colab.begin()
config = colab.configure(**session.settings(), …)
"""

import os
from dataclasses import dataclass
from pathlib import Path

from colab.drive import StorageFolder, mount_drive
from colab.runtime import Platform, platform
from colab.secrets import SecretLookup, bring_secrets
from colab.session_clock import SessionClock, clock_of_session
from infrastructure.backup.backends.drive import is_on_drive
from infrastructure.config.sources.environment import variable_of
from infrastructure.core.console_log import quiet_libraries
from infrastructure.core.hardware import describe, detect
from infrastructure.core.messages import phrase
from infrastructure.core.redact import redact
from infrastructure.core.shared_cores import share_the_cores

PLACE_VARIABLE = variable_of("backup.place")
NO_PLACE = ("none", "null")  # as the configuration reads them
RUNS = "runs"
LOCAL_DISK = Path("/content")  # Colab's
KEPT = {
    Platform.COLAB: "notebook.runs_end_with_session",
    Platform.KAGGLE: "notebook.runs_in_kaggle_folder",
    Platform.NOTEBOOK: "notebook.runs_on_disk",
    Platform.TERMINAL: "notebook.runs_on_disk",
}


@dataclass(frozen=True)
class Session:
    """The session of a notebook.

    Attributes:
        project: the name of the folder on Drive.
        place: the folder for backups, or None if an environment variable sets a backup destination.
        secrets: where each secret was found, without its value.
    """

    project: str
    platform: Platform
    clock: SessionClock
    place: StorageFolder | None
    secrets: tuple[SecretLookup, ...]

    def settings(self) -> dict[str, object]:
        """Return settings for `configure`; settings without a value are left out.

        The settings are the output folder (on a fast disk of this machine), the backup destination,
        and the deadline of the last checkpoint.
        """
        settings = {
            "output_dir": str(output_folder(self.project)),
            "backup.place": str(self.place.path) if self.place and self.place.is_drive else None,
            "training.deadline": self.clock.deadline_seconds,
        }
        return {key: value for key, value in settings.items() if value is not None}

    def lines(self) -> list[str]:
        """Return lines about the machine, the backups, the remaining time and the secrets."""
        machine = describe(detect(Path.cwd()))
        return [
            *machine,
            *self._durable(),
            str(self.clock),
            f"secrets: {'; '.join(map(str, self.secrets))}",
        ]

    def _durable(self) -> list[str]:
        if self.place is None:
            place = redact(os.environ[PLACE_VARIABLE])
            return [
                phrase(
                    "notebook.backed_up_by_environment",
                    place=place,
                    variable=PLACE_VARIABLE,
                )
            ]
        if self.place.is_drive:
            return [phrase("notebook.backed_up_to_drive", place=self.place.path)]
        return [f"kept: {phrase(KEPT[self.platform])}", f"      {self.place.reason}"]


def begin(project: str = "temper", use_drive: bool = True) -> Session:
    """Mount Drive if there is one, find the secrets, start the clock, and print what is available.

    If Drive or a secret is missing, this is only reported.

    Args:
        use_drive: whether to use Drive. If False, the user is not asked for consent.

    Raises:
        ValueError: if `project` is not a folder name, or a TEMPER_ variable is wrong.
    """
    quiet_libraries()
    share_the_cores()
    here = platform()
    session = Session(
        project=project,
        platform=here,
        clock=clock_of_session(),
        place=_place(project, use_drive),
        secrets=tuple(bring_secrets()),
    )
    print(*session.lines(), sep="\n")
    return session


def _place(project: str, use_drive: bool) -> StorageFolder | None:
    value = os.environ.get(PLACE_VARIABLE, "").strip()
    if value.lower() in NO_PLACE:
        return StorageFolder(
            output_folder(project),
            False,
            phrase("notebook.backups_turned_off", variable=PLACE_VARIABLE, value=value),
        )
    if value:
        return None
    if not use_drive:
        return StorageFolder(output_folder(project), False, phrase("notebook.drive_not_requested"))
    return mount_drive(project)


def output_folder(project: str) -> Path:
    """Return the folder for runs: next to the notebook, but never on Drive, which is slow."""
    here = Path.cwd()
    return LOCAL_DISK / project / RUNS if is_on_drive(here) else here / RUNS
