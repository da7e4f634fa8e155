"""A checkpoint as a model in the ordinary layout. Needs no GPU and none of the training data."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.stackwise_config import STACKWISE
from infrastructure.core.errors import CheckpointError
from infrastructure.core.files import refuse_what_is_there
from infrastructure.core.json_text import JsonObject
from infrastructure.deployment.resuming import commit_of_base, configuration_of
from infrastructure.run.checkpoint_paths import verify
from infrastructure.run.directory import RunDirectory
from infrastructure.training.checkpoints.checkpoint_manager import (
    CheckpointManager,
    load_checkpoint,
)
from infrastructure.training.models.model_manager import LoadedModel, ModelManager
from infrastructure.training.models.saving import save_model
from infrastructure.training.models.trainable_state import load_trainable_state
from infrastructure.training.resume.fingerprint import base_facts
from infrastructure.training.strategies import get_training_strategy
from infrastructure.training.strategies.base_strategy import NOT_ENTERED


def export_checkpoint(run: RunDirectory, checkpoint: Path | None, folder: Path) -> JsonObject:
    """Write the model of `checkpoint` (None: the newest that verifies) into `folder`.

    Returns:
        run, step, checkpoint and folder.

    Raises:
        ValueError: `folder` holds something, or the run's record or base model is not there.
        CheckpointError: the checkpoint is damaged, or its base model is not what it was.
        OSError: the disk refuses; nothing is left in `folder`.
    """
    refuse_what_is_there(folder)
    if checkpoint is None:
        checkpoint = CheckpointManager(run.checkpoints).newest()
    else:
        verify(checkpoint)
    snapshot = load_checkpoint(checkpoint)
    config = configuration_of(run, checkpoint)
    loaded = _model_of(run, config)
    identity = snapshot.values.get("identity", {})
    _refuse_other_base(identity, loaded)
    with _form_of_phase(config, loaded.model, snapshot.values):
        load_trainable_state(loaded.model, snapshot.tensors["model"])
    registered = loaded.description.get("registered_name")
    name = None if registered is None else str(registered)
    save_model(loaded.model, loaded.tokenizer, folder, registered_name=name)
    return {
        "run": run.run_id,
        "step": snapshot.values["step"],
        "checkpoint": str(checkpoint),
        "folder": str(folder.absolute()),
    }


@contextmanager
def _form_of_phase(
    config: DeploymentConfig, model: torch.nn.Module, values: Mapping[str, Any]
) -> Iterator[None]:
    """Inside, the model has the form that a stack-wise training gave it when it was saved, with
    quantised layers and low-rank matrices; afterwards it is a plain one."""
    name = config.training.strategy_for(config.model)
    if name not in STACKWISE:
        yield
        return
    strategy = get_training_strategy(name, config.training)
    strategy.prepare_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # a form is an optimizer's, too
    strategy.take_form(model, optimizer, values["loop"].get("entered", NOT_ENTERED))
    yield
    strategy.close(is_over=True)


def _model_of(run: RunDirectory, config: DeploymentConfig) -> LoadedModel:
    """The run's model as it was before its first step, in memory of the CPU."""
    revision = commit_of_base(run, config) or config.model.revision
    plain = config.model.copy_with(
        attention="auto", backend="auto", quantization=None, revision=revision
    )
    return ModelManager(
        plain,
        device=torch.device("cpu"),
        seed=config.training.seed,
        tokenizer_directory=run.tokenizer if run.tokenizer.is_dir() else None,
        needs_mask_token=config.training.time_step_masking,
    ).load()


def _refuse_other_base(identity: Mapping[str, object], loaded: LoadedModel) -> None:
    base_model = base_facts(loaded.description)["base_model"]
    if identity.get("base_is_frozen") and identity["base_model"] != base_model:
        raise CheckpointError(
            f"the base model {loaded.description['name']} is not the one that this LoRA was trained"
            " on: bring that back, and export again"
        )
