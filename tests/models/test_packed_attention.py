"""Packed attention is causal attention of each example alone, and sdpa for everything else."""

import contextlib
import gc
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForImageTextToText

from infrastructure.features.cpu_kernels import short_attention
from infrastructure.models import packed_attention as module
from infrastructure.models.model_inputs import attention_implementation
from infrastructure.models.packed_attention import (
    ATTENTION_NAME,
    PackingUnsupportedError,
    attention_form,
    by_segment,
    has_varlen_kernel,
    is_segment_mask,
    model_arguments,
    packed_attention,
    segment_mask,
    sliding_window,
    use_packed_attention,
    use_plain_attention,
    varlen,
)
from infrastructure.models.packing_check import pack_rows
from infrastructure.models.token_loss import TokenLoss
from tests.models.architectures import VOCAB_SIZE, gradients, tiny_model
from tests.training.seeing_models import llava_config, tiny_tokenizer

LENGTHS = [5, 1, 9, 3]
CAUSAL = SimpleNamespace(is_causal=True, config=SimpleNamespace())


def boundaries(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def random_heads(num_heads: int, device: str = "cpu", dtype: Any = torch.float32) -> torch.Tensor:
    shape = (1, num_heads, sum(LENGTHS), 8)
    generator = torch.Generator().manual_seed(num_heads)
    return torch.randn(shape, generator=generator).to(device, dtype).requires_grad_()


def allowed(window: int | None) -> torch.Tensor:
    """The mask (T, T) that packed attention never builds."""
    example = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
    length = len(example)
    mask = (example[:, None] == example) & torch.ones(length, length, dtype=torch.bool).tril()
    return mask if window is None else mask.triu(1 - window)


@pytest.mark.parametrize("num_key_heads", [4, 2, 1])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("scaling", [None, 0.3])
def test_it_is_masked_attention(
    num_key_heads: int, window: int | None, scaling: float | None
) -> None:
    heads = [random_heads(4), random_heads(num_key_heads), random_heads(num_key_heads)]
    expected = F.scaled_dot_product_attention(
        *heads, attn_mask=allowed(window), scale=scaling, enable_gqa=True
    ).transpose(1, 2)
    mask = segment_mask(boundaries(LENGTHS), max(LENGTHS))
    actual, _ = packed_attention(
        CAUSAL,  # type: ignore[arg-type]
        *heads,
        mask,
        scaling=scaling,
        sliding_window=window,
    )
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
    weights = torch.randn(actual.shape, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        torch.autograd.grad((actual * weights).sum(), heads),
        torch.autograd.grad((expected * weights).sum(), heads),
        rtol=1e-5,
        atol=1e-5,
    )


def test_the_segment_mask_takes_no_memory() -> None:
    mask = segment_mask(boundaries(LENGTHS), max_length=9)
    assert mask.shape == (1, 1, 9, 5)
    assert mask.untyped_storage().nbytes() == 5 * 4
    assert is_segment_mask(mask)
    assert not is_segment_mask(None)
    assert not is_segment_mask(torch.ones(1, 5, dtype=torch.int64))
    assert not is_segment_mask(torch.zeros(1, 1, 5, 5, dtype=torch.bool))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"softcap": 50.0}, r"models\.packed_arguments_unsupported\(arguments=softcap\)"),
        (
            {"position_bias": torch.zeros(1)},
            r"models\.packed_arguments_unsupported\(arguments=position_bias\)",
        ),
        ({"is_causal": False}, r"models\.packed_attention_is_causal\(\)"),
        ({"output_attentions": True}, r"models\.packed_attention_is_causal\(\)"),
    ],
)
def test_what_it_cannot_do_is_refused(arguments: dict[str, Any], message: str) -> None:
    heads = [random_heads(2)] * 3
    mask = segment_mask(boundaries(LENGTHS), max(LENGTHS))
    with pytest.raises(PackingUnsupportedError, match=message):
        packed_attention(CAUSAL, *heads, mask, **arguments)  # type: ignore[arg-type]


def test_autocast_reaches_it() -> None:
    heads = [random_heads(2), random_heads(2), random_heads(2).bfloat16()]
    mask = segment_mask(boundaries(LENGTHS), max(LENGTHS))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual, _ = packed_attention(CAUSAL, *heads, mask)  # type: ignore[arg-type]
    heads = [head.bfloat16() for head in heads]
    expected = F.scaled_dot_product_attention(*heads, attn_mask=allowed(None)).transpose(1, 2)
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)


def test_two_rows_are_refused() -> None:
    heads = [random_heads(2).expand(2, -1, -1, -1)] * 3
    mask = segment_mask(boundaries(LENGTHS), max(LENGTHS))
    with pytest.raises(PackingUnsupportedError, match=r"models\.packed_attention_one_row"):
        packed_attention(CAUSAL, *heads, mask)  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", ["sliding_window", "attention_chunk_size"])
def test_a_window_of_unknown_layers_is_refused_where_it_matters(limit: str) -> None:
    heads = [random_heads(2)] * 3
    mask = segment_mask(boundaries(LENGTHS), max(LENGTHS))
    short, long = (
        SimpleNamespace(is_causal=True, config=SimpleNamespace(**{limit: tokens}))
        for tokens in (4, 9)
    )
    packed_attention(long, *heads, mask)  # type: ignore[arg-type]
    with pytest.raises(PackingUnsupportedError, match=limit):
        packed_attention(short, *heads, mask)  # type: ignore[arg-type]


@pytest.mark.parametrize("architecture", ["llama", "mistral", "gemma3", "gpt2", "qwen3_moe"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_packed_training_is_padded_training(architecture: str, checkpointing: bool) -> None:
    model = tiny_model(architecture)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(3, VOCAB_SIZE, (n,), generator=generator) for n in (12, 4, 9)]
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=0)
    mask = (padded != 0).long()
    expected, num_items = TokenLoss()(
        model,
        {"input_ids": padded, "attention_mask": mask, "labels": padded.where(mask == 1, -100)},
    )
    expected.backward()
    expected_gradients = gradients(model)
    assert use_packed_attention(model)
    packed = pack_rows(rows)
    actual, num_packed_items = TokenLoss()(model, {**packed, "labels": packed["input_ids"].clone()})
    actual.backward()
    assert num_packed_items == num_items
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=0)
    for name, gradient in gradients(model).items():
        scale = expected_gradients[name].abs().max().clamp_min(1e-3)
        assert (gradient - expected_gradients[name]).abs().max() <= 5e-6 * scale, name


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_lengths_are_read_once_a_batch(
    checkpointing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model("llama")
    assert use_packed_attention(model)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    read, found = module._read_lengths, []

    def count(mask: torch.Tensor) -> list[int]:
        found.append(read(mask))
        return found[-1]

    monkeypatch.setattr(module, "_read_lengths", count)
    known = len(module._known_lengths)
    for lengths in ([3, 5], [4, 4]):  # the same shape, other boundaries
        batch = pack_rows([torch.arange(3, 3 + n) for n in lengths])
        model(**model_arguments(model, batch)).logits.sum().backward()
    assert found == [[3, 5], [4, 4]]
    gc.collect()
    assert len(module._known_lengths) <= known


def test_generation_goes_on_as_before() -> None:
    model = tiny_model("llama").eval()
    prompts = torch.tensor([[0, 0, 5, 6], [7, 8, 9, 10]])
    arguments: dict[str, Any] = {
        "attention_mask": (prompts != 0).long(),
        "max_new_tokens": 6,
        "do_sample": False,
        "eos_token_id": None,
    }
    expected = model.generate(prompts, **arguments)
    assert use_packed_attention(model)
    assert torch.equal(model.generate(prompts, **arguments), expected)
    alone = model.generate(prompts[:1, 2:], **{**arguments, "attention_mask": torch.ones(1, 2)})
    assert torch.equal(alone[0, 2:], expected[0, 4:])


def test_a_saved_model_does_not_know_of_it(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = tiny_model("llama")
    assert use_packed_attention(model)
    model.save_pretrained(tmp_path)
    assert all(ATTENTION_NAME not in file.read_text() for file in tmp_path.glob("*.json"))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert attention_implementation(loaded) == "sdpa"


def test_it_is_switched_on_and_off() -> None:
    model = tiny_model("llama")
    assert use_packed_attention(model)
    assert use_packed_attention(model)
    assert attention_implementation(model) == ATTENTION_NAME
    use_plain_attention(model)
    assert attention_implementation(model) == "sdpa"


def test_a_checkpoint_records_what_decides_the_last_digits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, cpu, bf16 = tiny_model("llama"), torch.device("cpu"), torch.bfloat16
    assert attention_form(model, cpu, bf16, 16) == "sdpa"
    use_packed_attention(model)
    by_products = attention_form(model, cpu, bf16, 16)
    assert by_products.startswith(f"{ATTENTION_NAME}, products")
    for other in ((cpu, torch.float32, 16), (cpu, bf16, 1), (torch.device("cuda"), bf16, 16)):
        assert attention_form(model, *other) == ATTENTION_NAME
    monkeypatch.setattr(short_attention, "MAX_PRODUCT", 1)
    assert attention_form(model, cpu, bf16, 16) != by_products
    monkeypatch.setattr(module, "added_ways", lambda: ())
    assert attention_form(model, cpu, bf16, 16) == ATTENTION_NAME


@pytest.mark.parametrize(("architecture", "attention"), [("llama", "eager"), ("bloom", None)])
def test_the_users_choice_and_other_models_are_left_alone(
    architecture: str, attention: str | None
) -> None:
    model = tiny_model(architecture, attention=attention)
    assert not use_packed_attention(model)
    assert attention_implementation(model) == "eager"
    assert not use_packed_attention(torch.nn.Linear(1, 1))


def test_each_attention_gets_its_own_arguments() -> None:
    batch = pack_rows([torch.arange(3), torch.arange(5)])
    model = tiny_model("llama")
    assert model_arguments(model, batch).keys() == {"input_ids", "position_ids"}
    model.config._attn_implementation_internal = "flash_attention_2"
    arguments = model_arguments(model, batch)
    assert arguments["cu_seq_lens_q"].tolist() == arguments["cu_seq_lens_k"].tolist() == [0, 3, 8]
    assert arguments["max_length_q"] == arguments["max_length_k"] == 5
    assert "attention_mask" not in arguments


def test_a_model_without_position_ids_is_refused() -> None:
    class NoPositions(torch.nn.Module):
        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return input_ids

    with pytest.raises(ValueError, match=r"models\.no_position_ids"):
        model_arguments(NoPositions(), pack_rows([torch.arange(3)]))


def test_a_kernel_for_each_length_is_made_of_half_precision_on_a_cpu() -> None:
    cases = [("cpu", torch.bfloat16), ("cpu", torch.float32), ("meta", torch.bfloat16)]
    made = [module.compiles_kernels(torch.empty(1, device=d, dtype=t)) for d, t in cases]
    assert made == [True, False, False]


def test_where_no_kernels_are_made_for_lengths_they_are_not_rounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "rounded_layout", lambda mask: pytest.fail("it was rounded"))
    mask = segment_mask(boundaries(LENGTHS), max(LENGTHS), length_step=16)
    packed_attention(CAUSAL, *(random_heads(2) for _ in range(3)), mask)  # type: ignore[arg-type]


def test_a_torch_without_the_kernel_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", None)
    assert module.varlen_kernel.__wrapped__() is None


def test_each_example_is_followed_by_its_first_token_up_to_a_length_that_repeats() -> None:
    layout = module._make_layout([3, 4, 5], 4)
    assert layout.lengths == [4, 4, 8]
    assert layout.source.tolist() == [0, 1, 2, 0, 3, 4, 5, 6, 7, 8, 9, 10, 11, 7, 7, 7]
    assert layout.places.tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12]


def test_no_kernel_for_fp32_on_a_cpu() -> None:
    assert not has_varlen_kernel(random_heads(2), random_heads(2), dropout=0.0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("window", [None, 3])
def test_the_kernel_agrees_with_masked_attention(window: int | None) -> None:
    heads = [random_heads(n, "cuda", torch.bfloat16) for n in (4, 2, 2)]
    assert has_varlen_kernel(heads[0], heads[2], dropout=0.0)
    actual = varlen(*heads, boundaries(LENGTHS).cuda(), max(LENGTHS), None, window)
    expected = F.scaled_dot_product_attention(
        *heads, attn_mask=allowed(window).cuda(), enable_gqa=True
    ).transpose(1, 2)
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)


def on_a_gpu(width: int = 8, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Heads that say that they lie on a GPU; there is no memory behind them."""
    with FakeTensorMode():
        return torch.empty(1, 2, sum(LENGTHS), width, dtype=dtype, device="cuda")


@pytest.mark.parametrize(
    ("query", "value", "dropout", "capability", "takes"),
    [
        (on_a_gpu(), on_a_gpu(), 0.0, (8, 0), True),
        (on_a_gpu(), on_a_gpu(), 0.0, (9, 0), True),
        (on_a_gpu(dtype=torch.float16), on_a_gpu(dtype=torch.float16), 0.0, (8, 0), True),
        (on_a_gpu(256), on_a_gpu(256), 0.0, (8, 0), True),
        (on_a_gpu(257), on_a_gpu(257), 0.0, (8, 0), False),
        (on_a_gpu(16), on_a_gpu(8), 0.0, (8, 0), False),
        (on_a_gpu(), on_a_gpu(), 0.1, (8, 0), False),
        (on_a_gpu(), on_a_gpu(), 0.0, (7, 5), False),
        (on_a_gpu(dtype=torch.float32), on_a_gpu(dtype=torch.float32), 0.0, (8, 0), False),
    ],
)
def test_what_the_kernel_takes(
    monkeypatch: pytest.MonkeyPatch,
    query: torch.Tensor,
    value: torch.Tensor,
    dropout: float,
    capability: tuple[int, int],
    takes: bool,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(module, "varlen_kernel", lambda: pytest.fail)
    assert has_varlen_kernel(query, value, dropout) == takes


def test_without_a_kernel_none_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(module, "varlen_kernel", lambda: None)
    assert not has_varlen_kernel(on_a_gpu(), on_a_gpu(), 0.0)


def masked_kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    longest_query: int,
    longest_key: int,
    *,
    scale: float | None,
    window_size: tuple[int, int],
    enable_gqa: bool,
) -> torch.Tensor:
    """What torch's kernel is documented to compute, by a mask, for (T, H, D)."""
    assert first.tolist() == second.tolist() == boundaries(LENGTHS).tolist()
    assert longest_query == longest_key == max(LENGTHS)
    back, ahead = window_size
    assert ahead == 0
    assert first.is_contiguous()
    heads = [tensor.transpose(0, 1).unsqueeze(0) for tensor in (query, key, value)]
    mask = allowed(None if back == -1 else back + 1)
    found = F.scaled_dot_product_attention(
        *heads, attn_mask=mask, scale=scale, enable_gqa=enable_gqa
    )
    return found[0].transpose(0, 1)


@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("scaling", [None, 0.5])
def test_the_kernel_computes_the_same_attention(
    monkeypatch: pytest.MonkeyPatch, window: int | None, scaling: float | None
) -> None:
    monkeypatch.setattr(module, "varlen_kernel", lambda: masked_kernel)
    monkeypatch.setattr(module, "has_varlen_kernel", lambda *heads: True)
    heads = [random_heads(n) for n in (4, 2, 2)]
    mask = segment_mask(boundaries(LENGTHS), max(LENGTHS))
    actual, none = packed_attention(
        CAUSAL,  # type: ignore[arg-type]
        *heads,
        mask,
        scaling=scaling,
        sliding_window=window,
    )
    expected = by_segment(*heads, LENGTHS, 0.0, scaling, window)
    torch.testing.assert_close(actual, expected)
    assert none is None


@pytest.mark.parametrize("limit", [max(LENGTHS) - 1, max(LENGTHS), max(LENGTHS) + 1])
def test_a_window_counts_where_an_example_is_longer(limit: int) -> None:
    window = sliding_window(torch.nn.Module(), max(LENGTHS), {"sliding_window": limit})
    assert window == (limit if limit < max(LENGTHS) else None)


def test_an_ordinary_mask_is_left_to_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def forward(*arguments: Any, **named: Any) -> Any:
        given.append((arguments, named))
        return "output", None

    monkeypatch.setattr("transformers.integrations.sdpa_attention.sdpa_attention_forward", forward)
    for mask in (None, torch.zeros(1, 1, 5, 5, dtype=torch.bool)):
        arguments: Any = (CAUSAL, "query", "key", "value", mask, 0.25, 0.5, False)
        assert packed_attention(*arguments, more=1) == ("output", None)
        assert given.pop() == (arguments, {"more": 1})


class Way:
    """An attention of a feature that takes a row or leaves it."""

    def __init__(self, takes: bool, form: str) -> None:
        self.is_taken, self.given_form, self.calls = takes, form, list[Any]()

    def takes(self, *given: Any) -> bool:
        self.calls.append(given)
        return self.is_taken

    def attend(self, *given: Any) -> Any:
        self.calls.append(given)
        return "output"

    def form(self, *given: Any) -> str:
        self.calls.append(given)
        return self.given_form


def test_the_first_added_way_that_takes_a_row_attends(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = left, taken, unseen = Way(False, "a"), Way(True, ""), Way(True, "c")
    monkeypatch.setattr(module, "added_ways", lambda: ways)
    query, key, value = (random_heads(n) for n in (4, 2, 2))
    mask = segment_mask(boundaries(LENGTHS), max(LENGTHS))
    arguments: Any = (CAUSAL, query, key, value, mask, 0.25, 0.5)
    assert packed_attention(*arguments, sliding_window=3) == ("output", None)
    assert left.calls == [(value, mask, 0.25, 3)]
    assert taken.calls == [(value, mask, 0.25, 3), (query, key, value, mask, 0.5)]
    assert unseen.calls == []
    model, cpu = tiny_model("llama"), torch.device("cpu")
    use_packed_attention(model)
    assert attention_form(model, cpu, torch.float32, 8) == f"{ATTENTION_NAME}, a, c"
    assert unseen.calls == [(cpu, torch.float32, 8)]
    assert attention_form(torch.nn.Linear(1, 1), cpu, torch.float32, 8) == "its own"


def test_dropout_and_windows_reach_each_example() -> None:
    heads = [random_heads(2)] * 3
    assert not by_segment(*heads, LENGTHS, 1.0, None, None).any()
    alone = by_segment(*heads, LENGTHS, 0.0, None, 1)
    torch.testing.assert_close(alone, heads[2].transpose(1, 2))
    assert module.window_mask(heads[0], None) is module.window_mask(heads[0], 18) is None
    mask = module.window_mask(heads[0], 17)
    assert mask is not None
    assert not mask[17, 0]
    assert mask.sum() == 18 * 19 / 2 - 1, "that is all"


@pytest.mark.parametrize(
    ("is_causal", "of_module", "is_refused"),
    [(None, True, False), (None, False, True), (True, False, False), (False, True, True)],
)
def test_attention_is_causal_by_the_call_or_else_by_the_layer(
    is_causal: bool | None, of_module: bool, is_refused: bool
) -> None:
    layer: Any = SimpleNamespace(is_causal=of_module)
    heads = random_heads(1)
    refused = pytest.raises(PackingUnsupportedError, match="packed_attention_is_causal")
    with refused if is_refused else contextlib.nullcontext():
        module.refuse_unsupported(layer, heads, heads, is_causal, {"softcap": None})
    with pytest.raises(PackingUnsupportedError, match="packed_attention_one_row"):
        module.refuse_unsupported(CAUSAL, heads, heads[:, :, 1:], True, {})  # type: ignore[arg-type]
    every = dict.fromkeys((*module.UNSUPPORTED_ARGUMENTS, "other"), 1)
    shown = r"arguments=softcap, position_bias, s_aux, head_mask\)"
    with pytest.raises(PackingUnsupportedError, match=shown):
        module.refuse_unsupported(layer, heads, heads, True, every)


def test_a_window_that_a_layer_does_not_name_is_shown_with_the_longest_example() -> None:
    layer: Any = SimpleNamespace(config=SimpleNamespace(sliding_window=8))
    assert sliding_window(layer, 8, {}) is None
    assert sliding_window(layer, 9, {"sliding_window": None}) is None, "this one has none"
    shown = r"example_exceeds_window\(max_length=9, name=sliding_window, limit=8\)"
    with pytest.raises(PackingUnsupportedError, match=shown):
        sliding_window(layer, 9, {})


def test_a_kernel_needs_windows_and_grouped_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    def whole(query: Any, *, window_size: Any, enable_gqa: Any, scale: Any) -> None: ...

    def partial(query: Any, *, window_size: Any, enable_gqa: Any) -> None: ...

    for kernel, expected in ((whole, whole), (partial, None)):
        there = SimpleNamespace(varlen_attn=kernel)
        monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", there)  # type: ignore[arg-type]
        assert module.varlen_kernel.__wrapped__() is expected


def test_a_batch_becomes_the_arguments_of_its_model() -> None:
    model = tiny_model("llama")
    ids = torch.ones(2, 3, dtype=torch.int64)
    named = {name: object() for name in ("attention_mask", "position_ids", "token_type_ids")}
    batch = {"input_ids": ids, **named, "labels": ids, "pictures": {"pixel_values": 1}}
    assert model_arguments(model, batch) == {"input_ids": ids, **named, "pixel_values": 1}
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    both = {"input_ids": ids, "attention_mask": mask, "is_bidirectional": True}
    assert model_arguments(model, both)["attention_mask"].shape == (2, 1, 3, 3)  # type: ignore[attr-defined]
    assert model_arguments(model, {**both, "is_bidirectional": False})["attention_mask"] is mask
    packed = {**pack_rows([torch.arange(3), torch.arange(5)]), "pictures": {"pixel_values": 1}}
    assert use_packed_attention(model)
    for step, given in ((1, packed), (4, {**packed, "length_step": 4})):
        arguments: Any = model_arguments(model, given)
        assert arguments.keys() == {"input_ids", "position_ids", "attention_mask", "pixel_values"}
        assert arguments["attention_mask"].shape == (1, step, 5, 3)
    with torch.device("meta"):
        llava = AutoModelForImageTextToText.from_config(llava_config(tiny_tokenizer("<image>")))
    assert model_arguments(llava, packed)["use_cache"] is False
