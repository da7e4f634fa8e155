"""Packing is measured: models that isolate packed rows are told from those that leak."""

from typing import Any

import pytest
import torch

from infrastructure.models import packing_check
from infrastructure.models.model_inputs import attention_implementation
from infrastructure.models.packed_attention import (
    ATTENTION_NAME,
    model_arguments,
    use_packed_attention,
    use_plain_attention,
)
from infrastructure.models.packing_check import (
    check_packing,
    pack_rows,
    packing_difference,
    prepare_packing,
)
from tests.models.architectures import CHUNK, VOCAB_SIZE, gradients, tiny_model

ISOLATED = ["llama", "mistral", "qwen2", "qwen3", "gemma3", "gpt2", "phi", "qwen3_moe"]
LEAKY = ["bloom", "lfm2"]  # no position ids; a convolution over the row


@pytest.mark.parametrize("architecture", ISOLATED)
def test_packed_attention_isolates(architecture: str) -> None:
    model = tiny_model(architecture)
    assert prepare_packing(model) == ""
    difference, leak = packing_difference(model)
    assert difference < 1e-6
    assert leak == 0.0
    assert attention_implementation(model) == ATTENTION_NAME


@pytest.mark.parametrize("architecture", ["gemma2", "qwen3_moe_balanced"])
def test_otherwise_the_models_own_attention_reads_position_ids(architecture: str) -> None:
    """Gemma 2 caps its scores; the balancing loss reads the attention mask."""
    model = tiny_model(architecture)
    assert prepare_packing(model) == ""
    assert attention_implementation(model) == "sdpa"


def test_the_users_attention_is_kept() -> None:
    model = tiny_model("llama", attention="eager")
    assert prepare_packing(model) == ""
    assert attention_implementation(model) == "eager"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("architecture", LEAKY)
def test_a_leak_is_found(architecture: str, dtype: torch.dtype) -> None:
    model = tiny_model(architecture, dtype)
    before = attention_implementation(model)
    reason = prepare_packing(model)
    assert packing_difference(model)[1] > 5e-3
    assert "models.padded_not_packed" in reason
    assert "models.packed_rows_not_isolated" in reason
    assert attention_implementation(model) == before


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_bf16_is_not_mistaken_for_a_leak(architecture: str) -> None:
    assert prepare_packing(tiny_model(architecture, torch.bfloat16)) == ""


def test_the_trap_of_an_all_ones_mask_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers isolates by position ids only if it is given no mask at all."""
    model = tiny_model("llama")
    assert check_packing(model) == ""
    plain_forward = model.forward

    def forward_with_mask(input_ids: torch.Tensor, **kwargs: Any) -> Any:
        return plain_forward(input_ids, attention_mask=torch.ones_like(input_ids), **kwargs)

    monkeypatch.setattr(model, "forward", forward_with_mask)
    assert "models.packed_rows_not_isolated" in check_packing(model)


def test_lora_models_are_measured_through_their_wrapper() -> None:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(tiny_model("llama"), LoraConfig(target_modules=["q_proj"]))
    assert prepare_packing(model) == ""
    assert attention_implementation(model) == ATTENTION_NAME


def test_examples_that_cross_chunks_are_padded() -> None:
    model = tiny_model("llama4")
    assert prepare_packing(model, CHUNK + 1) == (
        "models.attends_in_chunks(prefix=models.padded_not_packed(), name=Llama4ForCausalLM,"
        " reason=models.examples_cross_chunks(max_length=21, chunk=20))"
    )
    assert attention_implementation(model) == "sdpa"


def test_examples_within_a_chunk_are_packed_however_many_there_are() -> None:
    model = tiny_model("llama4").eval()
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(3, VOCAB_SIZE, (n,), generator=generator) for n in (12, 15, CHUNK)]
    with torch.no_grad():
        alone = [model(row[None]).logits[0] for row in rows]
        assert prepare_packing(model, CHUNK) == ""
        packed = model(**model_arguments(model, pack_rows(rows))).logits[0]
    torch.testing.assert_close(packed, torch.cat(alone), rtol=1e-4, atol=1e-5)


def test_a_chunked_model_is_not_packed_by_its_own_attention() -> None:
    reason = prepare_packing(tiny_model("llama4", attention="eager"), CHUNK)
    assert f"reason=models.chunks_from_row_start(chunk={CHUNK})" in reason


def test_a_window_that_no_layer_names_is_found_before_the_training() -> None:
    """No probe is that long, so the longest example is told to the attention."""
    model = tiny_model("llama")
    model.config.sliding_window = 100
    assert prepare_packing(model, 100) == ""
    assert attention_implementation(model) == ATTENTION_NAME
    use_plain_attention(model)
    assert check_packing(model, 101) == ""
    assert use_packed_attention(model)
    assert "models.example_exceeds_window" in check_packing(model, 101)
    assert prepare_packing(model, 101) == ""
    assert attention_implementation(model) == "sdpa"


class Bag(torch.nn.Module):
    """Takes no position ids, so it cannot know where an example ends."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(VOCAB_SIZE, 4)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.embed(input_ids).cumsum(dim=1)


def test_a_model_that_cannot_read_packed_rows_is_named() -> None:
    assert "models.no_position_ids" in prepare_packing(Bag())


def test_the_probe_leaves_no_trace() -> None:
    model = tiny_model("llama")
    random_state = torch.get_rng_state()
    packing_difference(model)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert model.training
    assert not gradients(model)
    assert not model.get_input_embeddings()._forward_hooks


@pytest.mark.parametrize(
    ("difference", "leak", "dtype", "isolated"),
    [
        (9e-5, 0.0, torch.float32, True),
        (2e-4, 0.0, torch.float32, False),
        (2e-4, 0.0, torch.bfloat16, True),
        (0.0, 9e-6, torch.float32, True),
        (0.0, 2e-5, torch.float32, False),  # rounding alone is smaller
        (0.0, 2e-5, torch.bfloat16, True),
        (0.0, 3e-3, torch.bfloat16, False),
        (0.06, 0.0, torch.bfloat16, False),
    ],
)
@pytest.mark.parametrize("of_pictures", [False, True])
def test_what_differs_and_what_leaks_have_a_limit_each(
    difference: float,
    leak: float,
    dtype: torch.dtype,
    isolated: bool,
    of_pictures: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, none = (difference, leak), (0.0, 0.0)
    monkeypatch.setattr(
        packing_check, "packing_difference", lambda *_: none if of_pictures else found
    )
    model = tiny_model("llama", dtype)
    reason = check_packing(model, None, (lambda _: found) if of_pictures else None)
    rows = "models.packed_rows_with_images()" if of_pictures else "packed rows"
    assert (reason == "") is isolated
    assert isolated or reason.endswith(f", rows={rows}, difference={max(found)})")


def test_a_first_row_is_longer_than_a_window_that_is_small() -> None:
    model = tiny_model("llama")
    for window, lengths in ((None, [7, 9]), (6, [13, 9]), (64, [71, 9]), (65, [7, 9])):
        model.config.sliding_window = window
        rows = packing_check.probe_rows(model, seed=0)
        assert [len(row) for row in rows] == lengths
    other = packing_check.probe_rows(model, seed=1)
    assert not torch.equal(rows[0], other[0])
    assert all(int(row.min()) >= 0 and int(row.max()) < VOCAB_SIZE for row in (*rows, *other))
    with pytest.raises(ValueError, match=r"models\.no_token_embedding\(name=Linear\)"):
        packing_check.probe_rows(torch.nn.Linear(1, 1), seed=0)


def test_rows_with_images_are_checked_after_rows_of_text() -> None:
    model = tiny_model("llama")
    seen: list[object] = []

    def measure(given: torch.nn.Module) -> tuple[float, float]:
        seen.append(given)
        return 0.25, 0.125

    reason = prepare_packing(model, with_pictures=measure)
    assert seen == [model, model], "by each attention"
    parts = reason.removeprefix("models.padded_not_packed()").split("; ")
    names = [f"LlamaForCausalLM with attention '{name}'" for name in (ATTENTION_NAME, "sdpa")]
    rows = "rows=models.packed_rows_with_images(), difference=0.25)"
    assert parts == [f"models.packed_rows_not_isolated(name={name}, {rows}" for name in names]
    assert attention_implementation(model) == "sdpa"

    def fail(_: torch.nn.Module) -> tuple[float, float]:
        raise ValueError("no picture")

    cannot = "cannot read models.packed_rows_with_images() (ValueError: no picture)"
    assert check_packing(model, None, fail) == f"{names[1]} {cannot}"


def test_rows_are_joined_end_to_end() -> None:
    rows = [torch.tensor([5, 6, 7]), torch.tensor([8, 9])]
    found: Any = pack_rows(rows)
    assert found["input_ids"].tolist() == [[5, 6, 7, 8, 9]]
    assert found["position_ids"].tolist() == [[0, 1, 2, 0, 1]]
    assert (found["cu_seq_lens"].tolist(), found["cu_seq_lens"].dtype) == ([0, 3, 5], torch.int32)
    lengths = [pack_rows(rows, longest)["max_length"] for longest in (None, 2, 3, 4)]
    assert lengths == [3, 3, 3, 4]


def test_dropout_does_not_disturb_the_check() -> None:
    assert prepare_packing(tiny_model("gpt2", resid_pdrop=0.5, embd_pdrop=0.5)) == ""
