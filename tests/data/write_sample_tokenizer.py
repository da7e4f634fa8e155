"""The stored tokenizer of the sample tasks, because training it takes longer than some steps.

`python -m tests.data.write_sample_tokenizer` writes it again, after a change of the
sample tasks or of the creation of tokenizers.
"""

from pathlib import Path

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.data.preparation.plan import training_texts
from infrastructure.data.samples import SAMPLE_TOKENIZER, use_sample_data
from infrastructure.models.tokenizer import train_tokenizer


def write(path: Path) -> None:
    """Create the tokenizer as a run without data would, and write it to `path`."""
    config = DeploymentConfig()
    use_sample_data(config)
    vocab_size = config.model.embedded.vocab_size
    made = train_tokenizer(training_texts(config.data), vocab_size)
    made.backend_tokenizer.save(str(path), pretty=False)


if __name__ == "__main__":
    write(SAMPLE_TOKENIZER)
