"""Where checkpoints are copied to, and what that may cost."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le
from pydantic import Field

from infrastructure.config.base import ConfigSection
from infrastructure.config.types import LARGEST, NotNegative, PathText, Positive, UsedWhen


class BackupConfig(ConfigSection):
    """The copy of a run that this machine's death cannot reach."""

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
        description="Folder, Drive, fsspec URL, hf:// bucket or repository, module:Class://…;"
        " none: no backups.",
    )
    keep: Annotated[int, Ge(2), Le(LARGEST)] = Field(
        default=2, description="Confirmed versions kept there; older ones are removed."
    )
    compression: Literal["auto", "zstd", "off"] = Field(
        default="auto", description="Compress what is copied; auto: on Drive and remote places."
    )
    megabytes_per_second: Positive | None = Field(
        default=None, description="Bandwidth that copying may take; none: all there is."
    )
    finish_seconds: NotNegative = Field(
        default=900.0, description="Longest wait at the end for the last version to be confirmed."
    )
    allow_missing_place: bool = Field(
        default=False,
        description="Train although the place cannot be reached at the start; copy when it comes.",
    )
    emergency_seconds: NotNegative = Field(
        default=20.0, description="As finish_seconds, where a signal stopped the training."
    )
