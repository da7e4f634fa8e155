"""The embedded model: a Llama of the shape asked for, the same from the same seed."""

from typing import Any

import pytest
import torch

from infrastructure.config.sections.model_config import EmbeddedModelConfig
from infrastructure.models.embedded import build_embedded_model
from infrastructure.models.tokenizer import train_tokenizer

TINY = EmbeddedModelConfig(
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    intermediate_size=48,
    vocab_size=300,
    max_positions=64,
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(["the dog and the cat", "12 apples"] * 5, 300)


def weights(config: EmbeddedModelConfig, tokenizer: Any, seed: int) -> dict[str, torch.Tensor]:
    return build_embedded_model(config, tokenizer, seed).state_dict()


def test_it_has_the_shape_and_the_tokens_requested(tokenizer: Any) -> None:
    config: Any = build_embedded_model(TINY, tokenizer, 0).config
    assert config.hidden_size == 32
    assert config.num_hidden_layers == 2
    assert config.num_attention_heads == 4
    assert config.num_key_value_heads == 4
    assert config.intermediate_size == 48
    assert config.max_position_embeddings == 64
    assert config.vocab_size == len(tokenizer) < 300
    assert config.pad_token_id == tokenizer.pad_token_id
    assert config.bos_token_id == tokenizer.bos_token_id
    assert config.eos_token_id == tokenizer.eos_token_id


def test_embeddings_are_tied(tokenizer: Any) -> None:
    model: Any = build_embedded_model(TINY, tokenizer, 0)
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()


@pytest.mark.parametrize(("hidden_size", "spread"), [(128, 0.06), (256, 0.06), (320, 0.02)])
def test_narrow_models_start_wider(tokenizer: Any, hidden_size: int, spread: float) -> None:
    config = TINY.model_copy(update={"hidden_size": hidden_size})
    matrix = weights(config, tokenizer, 0)["model.layers.0.self_attn.q_proj.weight"]
    assert matrix.std().item() == pytest.approx(spread, rel=0.05)


def test_an_untrained_model_is_about_as_good_as_guessing(tokenizer: Any) -> None:
    model: Any = build_embedded_model(EmbeddedModelConfig(), tokenizer, 0)
    ids = torch.randint(len(tokenizer), (4, 32), generator=torch.Generator().manual_seed(0))
    loss = model(input_ids=ids, labels=ids).loss.item()
    assert loss == pytest.approx(torch.tensor(float(len(tokenizer))).log().item(), rel=0.15)
