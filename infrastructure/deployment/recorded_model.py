"""The description of a run's model in its record, including records of earlier Temper versions.

This module does not load torch.
"""

from pathlib import Path
from typing import Any

from infrastructure.config.methods import SFT
from infrastructure.models.saved_model import (
    ModelSource,
    SourceKind,
    is_there,
    look_into,
    read_json,
)
from infrastructure.run.directory import RunDirectory


def recorded_model(run: RunDirectory) -> dict[str, Any]:
    """Return the description of the model in run.json.

    For runs trained with TRL, earlier versions of Temper recorded only name and size. In that case
    the kind and the LoRA come from the configuration, and the weights of the base are unknown.

    Raises:
        ValueError: if the record is damaged, or the base, which must be inspected, does not exist.
    """
    model: dict[str, Any] = dict(run.read_run().get("model") or {})
    if "kind" in model:
        return model
    config = run.read_configuration()
    if config.training.method == SFT:
        return model
    source, wanted = _source_of(config.model.name), config.model.lora_config
    lora: dict[str, Any] = {}
    if source.kind is SourceKind.LORA_FOLDER:
        lora = {"r": read_json(source.folder / "adapter_config.json").get("r")}
    elif wanted is not None:
        lora = {"r": wanted.r}
    return {**model, "name": config.model.name, "kind": str(source.kind), "lora": lora}


def base_is_recorded(run: RunDirectory) -> bool:
    """Return whether run.json records the weights from which the run started, or that they were
    random.
    """
    return "kind" in (run.read_run().get("model") or {})


def _source_of(name: str) -> ModelSource:
    path = Path(name).expanduser()
    return look_into(path.resolve()) if is_there(path) else ModelSource(SourceKind.HUB, name)
