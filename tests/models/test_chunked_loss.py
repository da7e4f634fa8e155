"""The chunked loss is the cross-entropy, value and gradient, and never holds all logits."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from infrastructure.models import chunked_loss
from infrastructure.models.chunked_loss import head_loss, linear_cross_entropy_sum
from infrastructure.optimization.size_grid import SizeGrid
from tests.models.operation_shapes import OperationShapes

NUM_ROWS, WIDTH, VOCAB = 37, 16, 50


@pytest.fixture(autouse=True)
def chunks_of_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several chunks and a short last one; several pieces in each, and a short last one."""
    monkeypatch.setattr(chunked_loss, "CPU_CHUNK_BYTES", 8 * VOCAB * 4)
    monkeypatch.setattr(chunked_loss, "MIN_CHUNK_ROWS", 1)
    monkeypatch.setattr(chunked_loss, "CPU_PIECE_LOGITS", 3 * VOCAB)
    monkeypatch.setattr(chunked_loss, "LEAST_PIECE_ROWS", 1)


def example(
    num_rows: int = NUM_ROWS, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(num_rows, WIDTH, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(VOCAB, WIDTH, generator=generator).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(VOCAB, (num_rows,), generator=generator)


def reference(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Loss and both gradients in double precision."""
    hidden, weight = (t.detach().double().requires_grad_() for t in (hidden, weight))
    loss = F.cross_entropy(F.linear(hidden, weight), targets, reduction="sum")
    return (loss.detach(), *torch.autograd.grad(loss, (hidden, weight)))


def assert_near(actual: torch.Tensor, expected: torch.Tensor, relative: float) -> None:
    error = (actual.double() - expected).abs().max() / expected.abs().max()
    assert error <= relative, f"relative error {error:.2g}"


def test_bf16_losses_are_not_summed_in_bf16() -> None:
    hidden, weight, targets = example(num_rows=1000, dtype=torch.bfloat16)
    logits = F.linear(hidden, weight).double()
    expected = F.cross_entropy(logits, targets, reduction="sum")
    actual = linear_cross_entropy_sum(hidden, weight, targets)
    actual.backward()
    assert_near(actual, expected, 1e-5)
    assert hidden.grad.dtype == weight.grad.dtype == torch.bfloat16


def test_a_frozen_head_costs_no_gradient() -> None:
    hidden, weight, targets = example()
    expected = reference(hidden, weight, targets)[1]
    weight.requires_grad_(False)
    linear_cross_entropy_sum(hidden, weight, targets).backward()
    assert weight.grad is None
    assert_near(hidden.grad, expected, 1e-6)  # type: ignore[arg-type]


def test_evaluation_computes_the_value_alone() -> None:
    hidden, weight, targets = example()
    with torch.no_grad():
        actual = linear_cross_entropy_sum(hidden, weight, targets)
    assert not actual.requires_grad
    assert_near(actual, reference(hidden, weight, targets)[0], 1e-6)


def test_a_second_backward_is_refused() -> None:
    hidden, weight, targets = example()
    loss = linear_cross_entropy_sum(hidden, weight, targets)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="already taken backwards"):
        loss.backward()


def create_head(kind: str) -> torch.nn.Module:
    head = torch.nn.Linear(WIDTH, VOCAB, bias=kind == "bias")
    if kind == "hook":
        head.register_forward_hook(lambda module, args, output: output * 2)
    return head


@pytest.mark.parametrize("kind", ["plain", "bias"])
def test_a_head_computes_few_shapes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of targets; and what was added has no gradient, bit for bit."""
    monkeypatch.setattr(chunked_loss, "CPU_CHUNK_BYTES", 1 << 24)
    head = create_head(kind)
    shapes = set()
    for num_rows in range(1, 129, 2):
        hidden, _, targets = example(num_rows)
        with OperationShapes("mm") as products:
            head_loss(head, hidden, targets, SizeGrid.SIXTEENTHS).backward()
        shapes |= products.shapes
        head.zero_grad()
    assert 16 <= len(shapes) <= 4 * 16


class LargestTensor(TorchDispatchMode):
    """Remembers the number of elements of the largest tensor that any operation gave."""

    num_elements = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        output = function(*args, **(kwargs or {}))
        if isinstance(output, torch.Tensor):
            self.num_elements = max(self.num_elements, output.numel())
        return output


@pytest.mark.parametrize("kind", ["plain", "bias"])
def test_all_logits_never_exist(kind: str) -> None:
    hidden, _, targets = example(num_rows=200)
    with LargestTensor() as largest:
        head_loss(create_head(kind), hidden, targets).backward()
    assert largest.num_elements <= hidden.numel() < 200 * VOCAB


@pytest.mark.parametrize("vocabulary", [32_000, 131_072, 256_000])
def test_on_a_gpu_no_more_than_128_mib_of_logits_are_held_at_a_time(vocabulary: int) -> None:
    held_bytes = chunked_loss.chunk_rows(vocabulary, torch.device("cuda")) * vocabulary * 4
    assert 120 * 1024**2 < held_bytes <= 128 * 1024**2


def weights_of(num_rows: int) -> torch.Tensor:
    """Some of them 0, as 1 / share is up to 6 or more."""
    weights = 7 * torch.rand(num_rows, generator=torch.Generator().manual_seed(1))
    weights[::5] = 0.0
    return weights


@pytest.mark.parametrize("weights", [None, weights_of(NUM_ROWS)], ids=["plain", "weighted"])
@pytest.mark.parametrize("kind", ["plain", "bias", "hook"])
def test_any_head_gives_its_own_loss(kind: str, weights: torch.Tensor | None) -> None:
    """Value and gradients of every kind of head are autograd's, whatever rows are added."""
    hidden, _, targets = example()
    head = create_head(kind)
    losses = F.cross_entropy(head(hidden), targets, reduction="none")
    expected = (losses if weights is None else weights * losses).sum()
    inputs = (hidden, *head.parameters())
    expected_gradients = torch.autograd.grad(expected * 3 / 7, inputs)
    for grid in SizeGrid:
        actual = head_loss(head, hidden, targets, grid, weights)
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=0)
        actual_gradients = torch.autograd.grad(actual * 3 / 7, inputs)
        torch.testing.assert_close(actual_gradients, expected_gradients, rtol=1e-5, atol=1e-5)


def test_weights_of_one_change_no_bit() -> None:
    found = []
    for weights in (None, torch.ones(NUM_ROWS)):
        hidden, weight, targets = example()
        loss = linear_cross_entropy_sum(hidden, weight, targets, target_weights=weights)
        loss.backward()
        found.append((loss.detach(), hidden.grad, weight.grad))
    for plain, weighted in zip(*found, strict=True):
        assert plain is not None
        assert weighted is not None
        assert torch.equal(plain, weighted)


@pytest.mark.parametrize("weights", [torch.ones(NUM_ROWS), weights_of(NUM_ROWS)])
@pytest.mark.parametrize("autocast_dtype", [torch.bfloat16, torch.float16])
def test_autocast_keeps_fp32_sums_and_gradients(
    autocast_dtype: torch.dtype, weights: torch.Tensor
) -> None:
    hidden, weight, targets = example()
    losses = F.cross_entropy(F.linear(hidden, weight), targets, reduction="none")
    expected = torch.autograd.grad((weights * losses).sum(), (hidden, weight))
    with torch.autocast("cpu", dtype=autocast_dtype):
        actual = linear_cross_entropy_sum(hidden, weight, targets, target_weights=weights)
    actual.backward()
    assert actual.dtype == hidden.grad.dtype == weight.grad.dtype == torch.float32  # type: ignore[union-attr]
    assert_near(actual, (weights * losses).sum().double(), 2e-2)
    assert_near(hidden.grad, expected[0].double(), 2e-2)  # type: ignore[arg-type]
    assert_near(weight.grad, expected[1].double(), 2e-2)  # type: ignore[arg-type]


def test_only_a_gradient_that_is_needed_is_computed() -> None:
    hidden, weight, targets = example()
    expected = reference(hidden, weight, targets)[2]
    linear_cross_entropy_sum(hidden.detach(), weight, targets).backward()
    assert_near(weight.grad, expected, 1e-6)  # type: ignore[arg-type]


def test_gradients_in_bf16_are_summed_in_fp32() -> None:
    hidden, weight, targets = example(num_rows=200, dtype=torch.bfloat16)
    expected = reference(hidden, weight, targets)
    linear_cross_entropy_sum(hidden, weight, targets).backward()
    assert_near(hidden.grad, expected[1], 2e-2)  # type: ignore[arg-type]
    assert_near(weight.grad, expected[2], 2e-2)  # type: ignore[arg-type]


def test_a_function_of_ones_own_gets_fp32_and_the_weights() -> None:
    hidden, _, targets = example()
    seen: list[torch.Tensor] = []

    def own(logits: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        seen.append(logits)
        return logits.gather(1, given[:, None]).squeeze(1)

    weights = weights_of(NUM_ROWS)
    head = create_head("plain").bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for given in (None, weights):
            found = head_loss(head, hidden, targets, SizeGrid.EIGHTHS, given, own)
            chosen = head(hidden).float().gather(1, targets[:, None]).squeeze(1)
            expected = (chosen if given is None else given * chosen).sum()
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert {logits.dtype for logits in seen} == {torch.float32}
    assert sum(len(logits) for logits in seen[: len(seen) // 2]) == NUM_ROWS


@pytest.mark.parametrize(
    ("change", "is_plain"),
    [
        (lambda head: None, True),
        (lambda head: head.register_forward_hook(lambda *_: None), False),
        (lambda head: head.register_forward_pre_hook(lambda *_: None), False),
        (lambda head: setattr(head, "forward", head.forward), False),
        (lambda head: setattr(head, "bias", torch.nn.Parameter(torch.ones(2))), False),
        (lambda head: setattr(head, "__class__", type("Own", (torch.nn.Linear,), {})), False),
        (
            lambda head: setattr(
                head, "weight", torch.nn.Parameter(torch.ones(2, 2, dtype=torch.uint8), False)
            ),
            False,
        ),
    ],
)
def test_a_plain_head_is_one_product(change: Any, is_plain: bool) -> None:
    head: Any = torch.nn.Linear(2, 2, bias=False)
    change(head)
    assert chunked_loss.is_plain_linear(head) is is_plain
    head.in_forward = lambda compute, *given: compute(*given)
    assert chunked_loss.is_plain_linear(head), "it was checked before it was sharded"
    head._parameters["weight"] = type("Own", (torch.nn.Parameter,), {})(torch.ones(2, 2))
    assert not chunked_loss.is_plain_linear(head)


def test_chunks_and_pieces_have_a_size_and_a_least_number_of_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    rows = chunked_loss.chunk_rows
    assert (rows(1 << 13, cpu), rows(1 << 13, cpu, torch.bfloat16)) == (512, 1024)
    assert (rows(1 << 15, cpu), rows(1 << 14, cpu)) == (256, 256)
    assert rows(1 << 16, gpu) == rows(1 << 16, gpu, torch.bfloat16) == 512
    assert (rows(1 << 17, gpu), rows(1 << 18, gpu)) == (256, 256)
    pieces = [chunked_loss.piece_rows(torch.empty(9, size)) for size in (1 << 14, 1 << 15, 1 << 16)]
    assert pieces == [32, 16, 16]
    assert chunked_loss.piece_rows(torch.empty(9, 1 << 14, device="meta")) == 9
