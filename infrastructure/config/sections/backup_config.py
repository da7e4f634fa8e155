"""The settings of backups: where checkpoints are copied, and at what cost."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le
from pydantic import Field

from infrastructure.config.base import ConfigSection
from infrastructure.config.types import LARGEST, NotNegative, PathText, Positive, UsedWhen


class BackupConfig(ConfigSection):
    """The settings of a run's backup, which protects against the loss of the training machine."""

    prefix: ClassVar[str] = "backup"
    used_when: ClassVar[tuple[UsedWhen, ...]] = (
        UsedWhen(
            lambda config: config.backup.place is not None,
            "config.unused_no_backup_destination",
            "config.unused_set_it_too",
        ),
    )

    place: PathText | None = Field(
        default=None,
        description="Backup destination: folder, Drive, s3://…, hf://…, or your"
        " module:Class://…; none: off.",
    )
    keep: Annotated[int, Ge(2), Le(LARGEST)] = Field(
        default=2,
        description="Confirmed checkpoints to keep at the backup destination; older ones are"
        " removed.",
    )
    compression: Literal["auto", "zstd", "off"] = Field(
        default="auto",
        description="Compression of backups; auto: on for Drive and remote destinations.",
    )
    megabytes_per_second: Positive | None = Field(
        default=None, description="Bandwidth limit for backups, in MB per second; none: unlimited."
    )
    finish_seconds: NotNegative = Field(
        default=900.0,
        description="Longest wait at the end of a run until its last backup is"
        " confirmed, in seconds.",
    )
    allow_missing_place: bool = Field(
        default=False,
        description="Start even if the backup destination is unreachable; back up when it"
        " becomes reachable.",
    )
    emergency_seconds: NotNegative = Field(
        default=20.0,
        description="Longest wait for the last backup after a signal stopped the run, in seconds.",
    )
