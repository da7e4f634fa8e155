"""The tokenizer of the sample tasks, made once, since it takes longer to make than to train on them
for some steps.

`python -m infrastructure.training.models.sample_tokenizer` writes it anew, after the sample tasks
or the way of making tokenizers have changed.
"""

from pathlib import Path

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.training.data.preparation.plan import training_texts
from infrastructure.training.data.samples import SAMPLE_TOKENIZER, use_sample_data
from infrastructure.training.models.tokenizer import train_tokenizer


def write(path: Path) -> None:
    """Make it, as a training without data would."""
    config = DeploymentConfig()
    use_sample_data(config)
    vocab_size = config.model.embedded.vocab_size
    made = train_tokenizer(training_texts(config.data), vocab_size)
    made.backend_tokenizer.save(str(path), pretty=False)


if __name__ == "__main__":
    write(SAMPLE_TOKENIZER)
