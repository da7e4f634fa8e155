"""Models that attend both ways when they are told to are told from those that cannot."""

from typing import Any

import pytest
import torch

from infrastructure.features.stackwise.training.bidirectional import (
    check_bidirectional,
    late_influence,
)
from infrastructure.models.model_inputs import bidirectional_mask
from infrastructure.models.packed_attention import model_arguments, use_packed_attention
from tests.models.architectures import HEAD_DIM, SIZES, VOCAB_SIZE, WINDOW, tiny_model

EXPERTS = {**SIZES, "num_local_experts": 4}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "phi3": ("Phi3Config", SIZES),
    "gemma": ("GemmaConfig", HEAD_DIM),
    "mixtral": ("MixtralConfig", EXPERTS),
}
BOTH_WAYS = ["llama", "qwen2", "phi3", "gemma", "gpt2", "mixtral", "mistral", "gemma2", "qwen3_moe"]


def model_of(family: str, dtype: torch.dtype = torch.float32, attention: str | None = None) -> Any:
    if family not in FAMILIES:
        return tiny_model(family, dtype, attention)
    import transformers

    config_class, arguments = FAMILIES[family]
    config = getattr(transformers, config_class)(**arguments)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return transformers.AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation=attention
        )


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", BOTH_WAYS)
def test_every_token_sees_all_others_and_no_padding(family: str, attention: str) -> None:
    model = model_of(family, attention=attention)
    check_bidirectional(model)
    late, padding = late_influence(model)
    assert late > 5e-3
    assert padding < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", BOTH_WAYS)
def test_without_the_mask_a_decoder_is_found_out(
    family: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the number formats of a training, new weights included."""
    model = model_of(family, dtype)
    check_bidirectional(model)
    plain_forward = model.forward

    def forward_that_passes_the_mask_by(
        input_ids: torch.Tensor, attention_mask: Any = None, **kwargs: Any
    ) -> Any:
        return plain_forward(input_ids, **kwargs)

    monkeypatch.setattr(model, "forward", forward_that_passes_the_mask_by)
    with pytest.raises(ValueError, match=r"stackwise\.attention_stays_causal"):
        check_bidirectional(model)


def test_padding_that_is_seen_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager attention adds its mask to the scores: one of true and false hides next to nothing."""
    model = model_of("llama", attention="eager")
    plain_forward = model.forward

    def forward(input_ids: torch.Tensor, attention_mask: Any = None, **kwargs: Any) -> Any:
        return plain_forward(input_ids, attention_mask=attention_mask == 0, **kwargs)

    monkeypatch.setattr(model, "forward", forward)
    with pytest.raises(ValueError, match=r"stackwise\.attends_to_padding"):
        check_bidirectional(model)


@pytest.mark.parametrize(
    ("architecture", "refusal"),
    [("bloom", "not_bidirectional"), ("qwen3_moe_balanced", "balancing_loss_reads_mask")],
)
def test_a_model_that_takes_no_such_mask_is_refused(architecture: str, refusal: str) -> None:
    with pytest.raises(ValueError, match=rf"stackwise\.{refusal}"):
        check_bidirectional(tiny_model(architecture))


def test_the_attention_of_packed_rows_takes_the_mask() -> None:
    model = model_of("llama")
    assert use_packed_attention(model)
    check_bidirectional(model)


def test_the_check_leaves_no_trace() -> None:
    model = model_of("gpt2")
    model.transformer.h[0].eval()
    modes = [module.training for module in model.modules()]
    random_state = torch.get_rng_state()
    check_bidirectional(model)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert [module.training for module in model.modules()] == modes


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_padded_row_is_as_alone(attention: str) -> None:
    model = model_of("mistral", attention=attention).eval()
    ids = torch.randint(3, VOCAB_SIZE, (2, 2 * WINDOW), generator=torch.Generator().manual_seed(0))
    is_real = torch.ones_like(ids)
    is_real[1, WINDOW:] = 0
    batch = {"input_ids": ids, "attention_mask": is_real, "is_bidirectional": True}
    alone = {"input_ids": ids[1:, :WINDOW], "attention_mask": is_real[1:, :WINDOW]}
    with torch.no_grad():
        found = model(**model_arguments(model, batch)).logits[1, :WINDOW]
        expected = model(**model_arguments(model, alone | {"is_bidirectional": True})).logits[0]
        causal = model(**model_arguments(model, alone)).logits[0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert (found - causal).abs().max() > 1e-2


def test_the_mask_takes_no_memory_of_its_own() -> None:
    mask = bidirectional_mask(model_of("llama"), torch.ones(3, 1000, dtype=torch.long))
    assert mask.shape == (3, 1, 1000, 1000)
    assert mask.untyped_storage().nbytes() == 3000
