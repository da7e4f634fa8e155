"""Where checkpoints are copied to, and what that may cost."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le
from pydantic import Field

from infrastructure.config.section import Section
from infrastructure.config.values import LARGEST, Later, NotNegative, PathText, Positive

_B = Later("B")


class BackupConfig(Section):
    """The copy of a run that this machine's death cannot reach."""

    prefix: ClassVar[str] = "backup"

    place: Annotated[PathText | None, _B] = Field(
        default=None,
        description="Folder, mounted Drive, fsspec URL or hf:// repository; none: no backups.",
    )
    keep: Annotated[int, Ge(2), Le(LARGEST), _B] = Field(
        default=2, description="Confirmed versions kept there; older ones are removed."
    )
    compression: Annotated[Literal["auto", "zstd", "off"], _B] = Field(
        default="auto", description="Compress what is copied; auto: on Drive and remote places."
    )
    megabytes_per_second: Annotated[Positive | None, _B] = Field(
        default=None, description="Bandwidth that copying may take; none: all there is."
    )
    finish_seconds: Annotated[NotNegative, _B] = Field(
        default=900.0, description="Longest wait at the end for the last version to be confirmed."
    )
    emergency_seconds: Annotated[NotNegative, _B] = Field(
        default=20.0, description="As finish_seconds, where a signal stopped the training."
    )
