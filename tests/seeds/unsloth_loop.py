"""The training loop of 000 as it is written there, made of one configuration, in a process that has
imported Unsloth."""

from typing import Any

import infrastructure.training as ours
from infrastructure.config.deployment_config import DeploymentConfig
from tests.seeds.blocks import all_blocks

WITH_UNSLOTH = ("000 Implementation", "000 Initialization Phase")  # and again "000 Training Loop"
GIVEN = (
    *("UnslothTrainer", "DataPipeline", "ModelManager", "TrainingContext"),
    *("should_optimize", "should_checkpoint", "quantum_optimize"),
)


def train_as_written(settings: dict[str, Any]) -> dict[str, Any]:
    """What the loop has done."""
    config = DeploymentConfig(**settings)
    names: dict[str, Any] = {name: getattr(ours, name) for name in GIVEN}
    names |= {"config": config, "setup_environment": lambda: None}
    blocks = all_blocks()
    exec(blocks["000 Initialization Phase"].text, names)
    exec(blocks["000 Training Loop"].text, names)
    context = names["initialize_training"]()
    trainer, manager = context.trainer, context.manager
    assert type(trainer) is ours.UnslothTrainer
    assert type(manager) is ours.ModelManager
    assert trainer.model is manager.base_model
    assert trainer.optimizer.param_groups
    assert trainer.scheduler is not None
    assert trainer.quantization is None
    assert trainer.model_config.backend == "unsloth"
    names["training_loop"](context)
    return {
        "steps": context.state.step,
        "saved": len(trainer.checkpoints.checkpoints()),
        "epochs": config.num_epochs,
        "device": str(trainer.device),
        "adapters": manager.adapters,
    }
