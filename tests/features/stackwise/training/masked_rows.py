"""A tiny model and examples made by numpy's frozen generator: the same numbers on every machine."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.data.store.examples import TokenizedExample
from infrastructure.features.stackwise.training.masking import MaskedObjective, MaskSchedule
from infrastructure.training.model_adapters.standard_adapter import StandardModelAdapter
from tests.models.architectures import SIZES, VOCAB_SIZE

PAD, MASK, SPECIAL = 0, 4, (0, 1, 2, 3)
FIRST_WORD = 5  # ids from here on are text


def filled_llama(seed: int = 0) -> Any:
    """A tiny Llama whose weights come from `numpy.random.RandomState`, in evaluation mode."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    random = np.random.RandomState(seed)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            values = torch.from_numpy(0.2 * random.standard_normal(tuple(parameter.shape)))
            parameter.copy_(values + (parameter.ndim == 1))
    return model.eval()


def example(
    length: int, seed: int = 0, num_supervised: int | None = None, first: int = FIRST_WORD
) -> TokenizedExample:
    """Text of random ids; the last `num_supervised` are learnt, else all but the first."""
    ids = np.random.RandomState(seed).randint(first, VOCAB_SIZE, length).astype(np.int32)
    learnt = length - 1 if num_supervised is None else num_supervised
    return TokenizedExample(ids, np.arange(length) >= length - learnt)


def examples() -> list[TokenizedExample]:
    """Plain text and answers, of several lengths."""
    return [example(9, 1), example(14, 2, 6), example(5, 3, 2), example(12, 4)]


def objective_of(
    time_step: int | None = None,
    *,
    num_time_steps: int = 5,
    seed: int = 0,
    schedule: MaskSchedule | None = None,
    **settings: Any,
) -> MaskedObjective:
    schedule = schedule or MaskSchedule(num_time_steps)
    objective = MaskedObjective(schedule, seed, MASK, VOCAB_SIZE, SPECIAL, **settings)
    objective.time_step = time_step
    return objective


def adapter_of(model: Any, objective: MaskedObjective) -> StandardModelAdapter:
    """An adapter of a model that is there already."""
    adapter = StandardModelAdapter(ModelConfig(), TrainingConfig(), torch.device("cpu"))
    adapter.model = model
    adapter.tokenizer = SimpleNamespace(pad_token_id=PAD, mask_token_id=MASK)
    adapter.set_objective(objective)
    return adapter
