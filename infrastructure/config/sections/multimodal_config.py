"""The settings of the extension `multimodal`, which adds a vision encoder to a text model."""

from typing import ClassVar

from pydantic import Field

from infrastructure.config.base import ConfigSection
from infrastructure.config.types import CountOrZero, PathText, UsedWhen

MULTIMODAL = "multimodal"  # name of the extension
_IS_ENABLED = UsedWhen(
    lambda config: config.training.enables(MULTIMODAL),
    "config.unused_no_multimodal_extension",
    "config.unused_add_it_there",
)


class MultimodalConfig(ConfigSection):
    """The settings of the vision encoder, the projector and the two training stages, as in LLaVA.

    Source: Liu et al. 2023, arXiv 2304.08485.
    """

    prefix: ClassVar[str] = "training.multimodal"
    help_note: ClassVar[str] = (
        "A vision encoder that {=training.enabled_extensions:multimodal} adds to a text model."
    )
    used_when: ClassVar[tuple[UsedWhen, ...]] = (_IS_ENABLED,)

    vision_tower: PathText | None = Field(
        default=None,
        description="Vision encoder to add, such as CLIP or SigLIP: a folder or a Hub name.",
    )
    projector_epochs: CountOrZero = Field(
        default=1,
        description="Epochs that first train only the projector, in addition to"
        " {=training.num_epochs}.",
    )
