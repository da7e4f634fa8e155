"""The extension `multimodal`, which trains a text model with an added vision encoder.

Method: Liu et al. 2023, arXiv 2304.08485. The model is assembled when it is loaded (`tower.py`). It
is an ordinary Llava model of transformers, so checkpoints, the final folder and code that loads
them do not depend on this feature.

First only the new projector is trained, because its random output would otherwise damage what the
text model has learned. Then it is trained together with what the configuration trains (LoRA
adapters or the whole text model).
"""

from typing import Any

import torch

from infrastructure.features.vision_tower.checks import check_images
from infrastructure.models.model_inputs import PROJECTOR
from infrastructure.training.core.state import Phase
from infrastructure.training.extensions.extension_hooks import Extension


class MultimodalExtension(Extension):
    """An extension that trains only the projector in the first phase, for one epoch.

    Args:
        trainer: provides the data configuration.

    Raises:
        ValueError: the rows contain no images.
    """

    name = "multimodal"

    def __init__(self, trainer: Any) -> None:
        check_images(trainer.data_config)

    def first_phases(self, model: torch.nn.Module) -> list[Phase]:
        trains = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        names = frozenset(name for name in trains if PROJECTOR in name.split("."))
        return [Phase("projector", 1, names)]
