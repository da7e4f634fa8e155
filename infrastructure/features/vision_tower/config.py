"""The setting of the extension `multimodal`, which adds a vision encoder to a text model."""

from typing import ClassVar

from pydantic import Field

from infrastructure.config.base import ConfigSection
from infrastructure.config.types import PathText, UsedWhen

MULTIMODAL = "multimodal"  # name of the extension


class MultimodalConfig(ConfigSection):
    """The vision encoder that is added, as in LLaVA: Liu et al. 2023, arXiv 2304.08485."""

    prefix: ClassVar[str] = "training.multimodal"
    help_note: ClassVar[str] = (
        "A vision encoder that {=training.enabled_extensions:multimodal} adds to a text model."
    )
    used_when: ClassVar[tuple[UsedWhen, ...]] = (
        UsedWhen(
            lambda config: config.training.enables(MULTIMODAL),
            "vision_tower.unused_no_multimodal_extension",
            "vision_tower.unused_add_multimodal_extension",
        ),
    )

    vision_tower: PathText | None = Field(
        default=None,
        description="Vision encoder to add, such as CLIP or SigLIP: a folder or a Hub name.",
    )


class VisionTraining(ConfigSection):
    """The field that the vision encoder adds to the training section."""

    prefix: ClassVar[str] = "training"

    multimodal: MultimodalConfig = Field(
        default=MultimodalConfig(),
        description="The vision encoder that the multimodal extension adds to a model.",
    )
