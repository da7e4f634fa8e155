"""What a stack-wise training leaves beside its model: each stack, and the whole rack."""

from pathlib import Path

from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.extensions.extension_hooks import Hook
from infrastructure.training.models.model_inputs import inner_model
from infrastructure.training.models.saving import save_whole
from infrastructure.training.stack_observers import StackFiles
from infrastructure.training.stackwise.plain_weights import plain_tensors
from infrastructure.training.stackwise.stack_files import FOLDER
from infrastructure.training.strategies.stackwise_strategy import StackwiseStrategy

RACK = "rack"


def stack_observers(trainer: EnhancedTrainer, folder: Path) -> list[Hook]:
    """What writes the stacks of a training into `folder/stacks`, as far as it is to.

    To be added to the trainer before it is prepared; see `save_stacks_and_rack`.
    """
    if (
        not isinstance(trainer.strategy, StackwiseStrategy)
        or not trainer.training_config.save_stacks
    ):
        return []

    def training() -> dict[str, object]:
        facts = trainer.identity()
        return {"settings": facts["settings"], "data": facts["data"]}

    return [StackFiles(folder / FOLDER, trainer.strategy, training)]


def save_stacks_and_rack(trainer: EnhancedTrainer, folder: Path) -> list[str]:
    """Write all stacks as they are at the training's end, and the rack, as far as they are wanted.

    Returns:
        A sentence for each that the disk refused; the model itself is saved elsewhere.
    """
    state, model = trainer.state, trainer.model
    if not isinstance(trainer.strategy, StackwiseStrategy):
        return []
    assert state is not None
    assert model is not None
    problems = []
    try:
        for hook in trainer.hooks.hooks:
            if isinstance(hook, StackFiles):
                hook.finish(state)
    except OSError as error:
        problems.append(f"the stacks in {folder / FOLDER} are not complete: {error}")
    if trainer.training_config.save_rack:
        inner = inner_model(model)
        state_of_rack = dict(plain_tensors(inner))
        try:
            save_whole(inner, trainer.adapter.tokenizer, folder / RACK, state_of_rack)
        except OSError as error:
            problems.append(f"the rack was not written to {folder / RACK}: {error}")
    return problems
