"""`import temper`: Temper's public functions and classes.

A name is loaded on first use, so that the import is fast. The command `temper` also starts in this
package, so that it can report if another folder hides the package `infrastructure`.
"""

import importlib
import importlib.util
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

try:
    from infrastructure.core.lazy_exports import lazy_names
except Exception as error:  # whatever another package of that name raises
    _origin = getattr(importlib.util.find_spec("infrastructure"), "origin", None)
    _hidden = (
        f"Temper's package `infrastructure` is hidden by another of that name, {_origin}, which"
        f" Python finds first ({error}): rename that folder, or start where it is not found (in"
        " another folder, or without it in PYTHONPATH)"
    )
    if Path(sys.argv[0]).name in ("temper", "-m"):  # a command has no traceback
        print(f"temper: {_hidden}", file=sys.stderr)
        sys.exit(2)
    raise ImportError(_hidden) from None

_TRAINING = "infrastructure.training"
_PLACES = {
    # training
    "DeploymentConfig": "infrastructure.config.deployment_config",
    "EnhancedTrainer": f"{_TRAINING}.enhanced_trainer",
    "TemperCallback": f"{_TRAINING}.hf_bridge",
    "TrainingConfig": "infrastructure.config.sections.training_config",
    "TrainingDeployment": "infrastructure.deployment.deploy_training",
    "UnifiedTrainer": f"{_TRAINING}.unified_trainer",
    "evaluate": "infrastructure.deployment.one_call",
    "load_config": "infrastructure.config.sources.load",
    "resume": "infrastructure.deployment.one_call",
    "train": "infrastructure.deployment.one_call",
    # user-defined parts, by name
    "register_adapter": f"{_TRAINING}.model_adapters",
    "register_alert_sink": "infrastructure.monitoring.watching.alert_sinks",
    "register_augmentation": "infrastructure.data.encoding.augmentation",
    "register_backend": "infrastructure.backup.backends",
    "register_extension": f"{_TRAINING}.extensions.extension_manager",
    "register_format": "infrastructure.data.readers.sources",
    "register_loss": "infrastructure.models.token_functions",
    "register_metric": "infrastructure.models.token_functions",
    "register_model": "infrastructure.models.registry",
    "register_sink": f"{_TRAINING}.metrics.sinks",
    "register_strategy": f"{_TRAINING}.strategies",
    # base classes of user-defined parts
    "Content": "infrastructure.backup.backends.base",
    "DataSource": f"{_TRAINING}.model_adapters.base_adapter",
    "Extension": f"{_TRAINING}.extensions.extension_hooks",
    "FolderPlace": "infrastructure.backup.backends.folder",
    "LossOutput": f"{_TRAINING}.model_adapters.base_adapter",
    "Method": "infrastructure.config.methods",
    "ModelAdapter": f"{_TRAINING}.model_adapters.base_adapter",
    "Observer": f"{_TRAINING}.extensions.extension_hooks",
    "Phase": f"{_TRAINING}.core.state",
    "Place": "infrastructure.backup.backends.base",
    "Sink": f"{_TRAINING}.metrics.sinks",
    "StandardModelAdapter": f"{_TRAINING}.model_adapters.standard_adapter",
    "StandardTrainingStrategy": f"{_TRAINING}.strategies.standard_strategy",
    "StepOutput": f"{_TRAINING}.core.state",
    "TrainingState": f"{_TRAINING}.core.state",
    "TrainingStrategy": f"{_TRAINING}.strategies.base_strategy",
    "require_content": "infrastructure.backup.backends.base",
}

__all__ = [*_PLACES]
_get = lazy_names(__name__, _PLACES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return metadata.version("temper-train")
    return importlib.import_module("colab") if name == "colab" else _get(name)


def __dir__() -> list[str]:
    own = [name for name in globals() if name.startswith("__")]
    return sorted([*own, *_PLACES, "colab"])
