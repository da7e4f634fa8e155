"""The embedded model: a small Llama built from the configuration, without a download."""

from typing import TYPE_CHECKING

import torch

from infrastructure.config.sections.model_config import EmbeddedModelConfig
from infrastructure.core.importing import importing

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Wider than the usual 0.02, because a model this small then starts to copy words much earlier.
INITIALIZER_RANGE = 0.06
USUAL_INITIALIZER_RANGE = 0.02
SMALL_HIDDEN_SIZE = 256


def build_embedded_model(
    config: EmbeddedModelConfig, tokenizer: "PreTrainedTokenizerBase", seed: int
) -> torch.nn.Module:
    """Build a new `LlamaForCausalLM` with tied embeddings for `tokenizer`.

    The same seed gives the same model. torch's random state is unchanged.
    """
    with importing():
        from transformers import LlamaConfig, LlamaForCausalLM

    small = config.hidden_size <= SMALL_HIDDEN_SIZE
    llama = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_heads,
        max_position_embeddings=config.max_positions,
        initializer_range=INITIALIZER_RANGE if small else USUAL_INITIALIZER_RANGE,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(llama)
