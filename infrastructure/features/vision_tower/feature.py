"""A vision encoder for a text model: the extension `multimodal`."""

from infrastructure.core.features import Feature

_HERE = "infrastructure.features.vision_tower"
_TOWER = "training.multimodal.vision_tower"

FEATURE = Feature(
    name="vision_tower",
    fields={"training": f"{_HERE}.config:VisionTraining"},
    plugins={"temper.extensions": {"multimodal": f"{_HERE}.extension:MultimodalExtension"}},
    needs_own_loop=True,
    model_change=f"{_HERE}.tower:change",
    contradictions=f"{_HERE}.checks:CONTRADICTIONS",
    facts={"vision_encoder": f"{_HERE}.checks:vision_encoder"},
    checks=f"{_HERE}.checks:problems",
    check_files=f"{_HERE}.checks:check_files",
    models=(_TOWER,),
)
