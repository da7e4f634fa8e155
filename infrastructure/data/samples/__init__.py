"""Sample data that comes with Temper: instruction examples of several tasks."""

from pathlib import Path

from infrastructure.config.auto import trains_from_scratch
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.precedence import Layer
from infrastructure.config.methods import SFT
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import EmbeddedModelConfig
from infrastructure.core.features import all_of

SAMPLE_TRAIN = Path(__file__).parent / "train.jsonl"
SAMPLE_HELDOUT = Path(__file__).parent / "heldout.jsonl"
SAMPLE_TOKENIZER = Path(__file__).parent / "tokenizer.json"
# Settings that do not affect which texts are read.
_OF_OTHER_THINGS = {"max_length", "num_workers", "packing", "prefetch_factor", "pin_memory"}


# More rows in three epochs train better than fewer rows in four, with the same number of steps.
SAMPLE_EPOCHS = 3
SAMPLE_TASK_COLUMN = "task"
PLACE = "by the samples"  # the source of settings that are chosen for the samples


def use_sample_data(config: DeploymentConfig) -> None:
    """If no data path is set, configure the run to train the embedded model on the sample tasks.

    The run takes `SAMPLE_EPOCHS` epochs unless the user has set its length. Features may also
    change settings that the user has not set. Runs of a TRL method are not changed, because they
    need rows of another shape.
    """
    is_sft = config.training.method == SFT
    if config.data.path is None and trains_from_scratch(config.model) and is_sft:
        config.data.path = str(SAMPLE_TRAIN)
        config.came_from("data.path", PLACE)
        if not config.data.eval_path:
            config.data.eval_path = str(SAMPLE_HELDOUT)
            config.came_from("data.eval_path", PLACE)
        if not config.data.task_column:
            config.data.task_column = SAMPLE_TASK_COLUMN
            config.came_from("data.task_column", PLACE)
        for choose in all_of("on_samples"):
            choose(config, PLACE)
        if config.training.max_steps is None and _is_open(config, "training.num_epochs"):
            config.training.num_epochs = SAMPLE_EPOCHS
            config.came_from("training.num_epochs", PLACE)


def is_sample_data(data: DataConfig) -> bool:
    """Return whether the data settings are those of the sample tasks in an unconfigured run."""
    usual = DataConfig(
        path=str(SAMPLE_TRAIN), eval_path=str(SAMPLE_HELDOUT), task_column=SAMPLE_TASK_COLUMN
    )
    names = DataConfig.model_fields.keys() - _OF_OTHER_THINGS
    return all(getattr(data, name) == getattr(usual, name) for name in names)


def known_tokenizer(data: DataConfig, vocab_size: int) -> Path | None:
    """Return the ready-made tokenizer file for this data and vocabulary size, or None."""
    is_usual = vocab_size == EmbeddedModelConfig().vocab_size
    return SAMPLE_TOKENIZER if is_usual and is_sample_data(data) else None


def _is_open(config: DeploymentConfig, key: str) -> bool:
    return config.source(key).layer is Layer.DEFAULT
