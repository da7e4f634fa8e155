"""Rounding the lengths of a batch changes its shapes, and no gradient: in every way that rows are
laid out, attended to and turned into a loss."""

import itertools
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from infrastructure.data.serving.collate import Batch, pack, pad
from infrastructure.data.store.examples import TokenizedExample
from infrastructure.features.cpu_kernels import short_attention
from infrastructure.models import packed_attention
from infrastructure.models.packed_attention import model_arguments, use_packed_attention
from infrastructure.models.packing_check import prepare_packing
from infrastructure.models.token_loss import TokenLoss
from infrastructure.optimization.size_grid import SEGMENT_STEP, SizeGrid
from tests.models.architectures import VOCAB_SIZE, gradients, tiny_model
from tests.models.operation_shapes import OperationShapes
from tests.slow import slow_but

LAYOUTS = {
    "one piece of padding": [12, 4, 9],
    "several": [3] * 43,
    "none": [16, 16],
}


def examples_of(lengths: list[int]) -> list[TokenizedExample]:
    random = np.random.default_rng(0)
    return [
        TokenizedExample(
            random.integers(3, VOCAB_SIZE, size=n).astype(np.int32),
            np.concatenate([[False], random.random(n - 1) < 0.7]),
        )
        for n in lengths
    ]


def packed(examples: list[TokenizedExample], grid: SizeGrid) -> Batch:
    return pack(examples, grid)


def padded(examples: list[TokenizedExample], grid: SizeGrid) -> Batch:
    return pad(examples, 0, grid)


def assert_same(
    model: torch.nn.Module,
    lengths: list[int],
    rows: Callable[[list[TokenizedExample], SizeGrid], Batch],
    token_loss: TokenLoss | None = None,
) -> None:
    """Loss, items and gradients with exact and with rounded lengths; fp32."""
    examples, token_loss = examples_of(lengths), token_loss or TokenLoss()
    batches = {grid: rows(examples, grid) for grid in SizeGrid}
    sizes = {grid: batch["input_ids"].numel() for grid, batch in batches.items()}
    assert sizes[SizeGrid.EIGHTHS] >= sizes[SizeGrid.SIXTEENTHS] >= sizes[SizeGrid.EXACT]
    losses, found = {}, {}
    for grid, batch in batches.items():
        losses[grid] = token_loss(model, batch, grid)
        losses[grid][0].backward()
        found[grid] = gradients(model)
    exact, expected = losses.pop(SizeGrid.EXACT), found.pop(SizeGrid.EXACT)
    for grid, rounded in losses.items():
        assert rounded[1] == exact[1]
        assert float(rounded[0].detach()) == pytest.approx(float(exact[0].detach()), rel=1e-6)
        assert found[grid].keys() == expected.keys()
        for name, gradient in expected.items():
            scale = gradient.abs().max().clamp_min(1e-3)
            assert (found[grid][name] - gradient).abs().max() <= 5e-6 * scale, name


def packing_model(architecture: str, checkpointing: bool) -> torch.nn.Module:
    model = tiny_model(architecture)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    assert use_packed_attention(model)
    return model


ONE_PIECE = "one piece of padding"
PACKING = ["llama", "mistral", "gemma3", "gpt2", "qwen3_moe"]


@pytest.mark.parametrize(
    ("architecture", "layout"),
    slow_but(
        [*product(["llama"], LAYOUTS), *product(PACKING[1:], [ONE_PIECE])],
        [*product(PACKING, LAYOUTS)],
    ),
)
def test_packed_rows(architecture: str, layout: str) -> None:
    model = tiny_model(architecture)
    assert use_packed_attention(model)
    assert_same(model, LAYOUTS[layout], packed)


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "granite", "phi", "bloom", "lfm2"])
def test_padded_rows(architecture: str) -> None:
    """Their losses come from hidden states, kept logits, and heads with a bias."""
    assert_same(tiny_model(architecture), LAYOUTS["one piece of padding"], padded)


@pytest.mark.parametrize(
    ("architecture", "layout", "checkpointing"),
    slow_but(
        [
            *product(["llama"], LAYOUTS, [False]),
            *product(["gemma3", "gpt2"], [ONE_PIECE], [True]),
            ("mistral", "several", False),
        ],
        [*product(PACKING[:4], LAYOUTS, [False, True])],
    ),
)
def test_examples_whose_attention_is_rounded(
    architecture: str, layout: str, checkpointing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for half precision on a CPU; here in fp32, so that it can be compared."""
    monkeypatch.setattr(packed_attention, "added_ways", lambda: ())
    made: list[Any] = []
    make = packed_attention._make_layout

    def count(*given: Any) -> Any:
        made.append(make(*given))
        return made[-1]

    monkeypatch.setattr(packed_attention, "compiles_kernels", lambda query: True)
    monkeypatch.setattr(packed_attention, "_make_layout", count)
    assert_same(packing_model(architecture, checkpointing), LAYOUTS[layout], packed)
    num_batches = len(SizeGrid) - 1
    assert len(made) == num_batches, "once a batch, for all layers; never for exact lengths"
    assert all(length % SEGMENT_STEP == 0 for length in made[0].lengths)


@pytest.mark.parametrize(("limit", "operation"), [(512, "bmm"), (0, "attention")])
def test_few_shapes_of_half_precision(
    limit: int, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of examples of any length up to 200 tokens, short ones and longer ones."""
    monkeypatch.setattr(short_attention, "MAX_LENGTH", limit)
    model = tiny_model("llama").bfloat16()
    assert use_packed_attention(model)
    shapes: set[Any] = set()
    for start in range(1, 200, 25):
        batch = pack(examples_of(list(range(start, start + 25))), SizeGrid.EIGHTHS)
        with OperationShapes(operation) as attentions:
            model(**model_arguments(model, batch))
        shapes |= attentions.shapes
    kinds = {shape[0] for shape in shapes}
    assert 10 * len(kinds) <= len(shapes) <= 30 * len(kinds)


def test_rows_separated_by_their_positions_alone() -> None:
    model = tiny_model("llama", attention="eager")
    assert not prepare_packing(model, 64)
    assert not use_packed_attention(model)
    for lengths in LAYOUTS.values():
        assert_same(model, lengths, packed)


def test_a_window_that_no_example_fills(monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding that is longer than the window must not be refused as a long example is."""
    model = tiny_model("mistral")
    assert use_packed_attention(model)
    given: list[int] = []
    masked_attention = packed_attention.sliding_window

    def window(module: torch.nn.Module, max_length: int, arguments: Any) -> int | None:
        given.append(max_length)
        return masked_attention(module, max_length, arguments)

    monkeypatch.setattr(packed_attention, "sliding_window", window)
    assert_same(model, [3] * 43, packed)
    assert set(given) == {3}


def kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    boundaries: torch.Tensor,
    _: torch.Tensor,
    max_length: int,
    *__: int,
    enable_gqa: bool,
    **___: Any,
) -> torch.Tensor:
    """A variable-length kernel: what no example covers stays as it was found, and no example is
    longer than was said."""
    output = torch.full_like(query, torch.nan)
    ends = boundaries.tolist()
    assert np.diff(ends).max() <= max_length
    for start, end in itertools.pairwise(ends):
        part = [tensor[start:end].transpose(0, 1)[None] for tensor in (query, key, value)]
        attended = F.scaled_dot_product_attention(*part, is_causal=True, enable_gqa=enable_gqa)
        output = output.index_copy(0, torch.arange(start, end), attended[0].transpose(0, 1))
    return output


@pytest.mark.parametrize("lengths", LAYOUTS.values(), ids=LAYOUTS)
def test_a_variable_length_kernel_covers_the_padding(
    lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_attention, "has_varlen_kernel", lambda *_: True)
    monkeypatch.setattr(packed_attention, "varlen_kernel", lambda: kernel)
    model = tiny_model("llama")
    assert use_packed_attention(model)
    assert_same(model, lengths, packed)


def test_with_a_lora_on_the_head() -> None:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    config = LoraConfig(r=2, target_modules=["q_proj", "lm_head"], init_lora_weights=False)
    model = get_peft_model(tiny_model("llama"), config)
    assert_same(model, LAYOUTS["one piece of padding"], padded)


def test_a_balancing_loss_is_a_mean_over_padding_too() -> None:
    """So the lengths of such a model's batches are left as they are."""
    for architecture, balances in (("qwen3_moe_balanced", True), ("qwen3_moe", False)):
        token_loss = TokenLoss()
        token_loss.prepare(tiny_model(architecture))
        assert token_loss.balances is balances
