"""What a run's record says of its model, also where an earlier Temper wrote less.

Loads no torch.
"""

from pathlib import Path
from typing import Any

from infrastructure.config.sections.training_config import SFT
from infrastructure.run.directory import RunDirectory
from infrastructure.training.models.saved_model import (
    ModelSource,
    SourceKind,
    is_there,
    look_into,
    read_json,
)


def recorded_model(run: RunDirectory) -> dict[str, Any]:
    """The model of run.json. Of a training by TRL, its name and size alone were once written; its
    kind and its LoRA are then those of the configuration. Which weights the base had is not known.

    Raises:
        ValueError: the record is damaged, or the base, which has to tell, is not there.
    """
    model: dict[str, Any] = dict(run.read_run().get("model") or {})
    config = run.read_configuration()
    if "kind" in model or config.training.method == SFT:
        return model
    source, wanted = _source_of(config.model.name), config.model.lora_config
    lora: dict[str, Any] = {}
    if source.kind is SourceKind.LORA_FOLDER:
        lora = {"r": read_json(source.folder / "adapter_config.json").get("r")}
    elif wanted is not None:
        lora = {"r": wanted.r}
    return {**model, "name": config.model.name, "kind": str(source.kind), "lora": lora}


def base_is_recorded(run: RunDirectory) -> bool:
    """Whether the record says which weights the training began with, or that they were new."""
    return "kind" in (run.read_run().get("model") or {})


def _source_of(name: str) -> ModelSource:
    path = Path(name).expanduser()
    return look_into(path.resolve()) if is_there(path) else ModelSource(SourceKind.HUB, name)
