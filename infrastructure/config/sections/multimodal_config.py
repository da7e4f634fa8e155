"""The vision tower that the extension `multimodal` puts on a model of text."""

from typing import ClassVar

from pydantic import Field

from infrastructure.config.base import ConfigSection
from infrastructure.config.types import CountOrZero, PathText, UsedWhen

MULTIMODAL = "multimodal"  # the extension
_IS_ENABLED = UsedWhen(
    lambda config: config.training.enables(MULTIMODAL),
    "config.unused_no_multimodal_extension",
    "config.unused_add_it_there",
)


class MultimodalConfig(ConfigSection):
    """Llava's parts and its two stages (Liu et al. 2023, arXiv 2304.08485)."""

    prefix: ClassVar[str] = "training.multimodal"
    used_when: ClassVar[tuple[UsedWhen, ...]] = (_IS_ENABLED,)

    vision_tower: PathText | None = Field(
        default=None,
        description="Model that sees, such as a CLIP or SigLIP: a folder or a hub name.",
    )
    projector_epochs: CountOrZero = Field(
        default=1,
        description="Passes over the data, before num_epochs, that train the projector alone.",
    )
    image_token: str = Field(
        default="<image>", description="Token that stands for a picture; added where it is none."
    )
