"""Loss of an output head, computed in chunks, so that the logits are never all in memory.

The head processes the hidden states in chunks. For a plain linear head, the gradient is computed
together with the loss of each chunk, and the chunk's logits are freed.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from infrastructure.models.model_inputs import IN_FORWARD, within_forward
from infrastructure.models.token_functions import TokenFunction, cross_entropy
from infrastructure.optimization.size_grid import SizeGrid

# Logits held at a time, and at least as many rows as keep a matrix product efficient. On a CPU 16
# MB, which the allocator reuses. Larger blocks are returned to the system and cause page faults
# when they are allocated again.
CPU_CHUNK_BYTES = 1 << 24
GPU_CHUNK_LOGITS = 1 << 25
MIN_CHUNK_ROWS = 256
CPU_PIECE_LOGITS = 1 << 19  # 2 MB in fp32, which fits a core's cache
LEAST_PIECE_ROWS = 16


def loss_sum(
    logits: torch.Tensor,
    targets: torch.Tensor,
    weights: torch.Tensor | None = None,
    own: TokenFunction | None = None,
) -> torch.Tensor:
    """Return the sum of the losses of (N, V) logits and (N,) targets.

    Args:
        weights: (N,) fp32, one per target. None: all are 1.
        own: returns a loss in fp32 for each target, (N,). None: the cross-entropy.
    """
    with torch.autocast(logits.device.type, enabled=False):
        if own is None and weights is None:
            return F.cross_entropy(logits.float(), targets, reduction="sum")
        losses = (own or cross_entropy)(logits.float(), targets)
        return (losses if weights is None else weights * losses).sum()


def head_loss(
    head: torch.nn.Module,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    grid: SizeGrid = SizeGrid.EXACT,
    weights: torch.Tensor | None = None,
    own: TokenFunction | None = None,
) -> torch.Tensor:
    """Return the sum of the losses of `head(hidden)`, computed in chunks.

    `grid` rounds the number of rows per chunk up; the added rows are zeros and do not count. A head
    with more than a weight matrix (LoRA, quantized, offloaded) is called a second time, in the
    backward pass. For other heads, `LinearCrossEntropy` avoids that.

    Args:
        weights: (N,) fp32, one per target, without a gradient. None: all are 1.
        own: as in `loss_sum`.
    """
    return within_forward(head, _head_loss, head, hidden, targets, grid, weights, own)


def _head_loss(
    head: torch.nn.Module,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    grid: SizeGrid,
    weights: torch.Tensor | None,
    own: TokenFunction | None,
) -> torch.Tensor:
    if own is None and is_plain_linear(head):
        weight: torch.Tensor = head.weight  # type: ignore[assignment]
        return linear_cross_entropy_sum(hidden, weight, targets, grid, weights)
    given: Any = head
    size = getattr(given, "out_features", given.weight.shape[0])
    num_rows = chunk_rows(size, hidden.device)

    def loss_of(
        part: torch.Tensor, part_targets: torch.Tensor, part_weights: torch.Tensor | None
    ) -> torch.Tensor:
        rows = with_rows(part, min(num_rows, grid.rows_up(len(part))))
        return loss_sum(head(rows)[: len(part)], part_targets, part_weights, own)

    losses = [hidden.new_zeros((), dtype=torch.float32)]
    for start in range(0, len(hidden), num_rows):
        rows = slice(start, start + num_rows)
        part_weights = None if weights is None else weights[rows]
        part = hidden[rows], targets[rows], part_weights
        losses.append(checkpoint(loss_of, *part, use_reentrant=False))
    return torch.stack(losses).sum()


def with_rows(part: torch.Tensor, num_rows: int) -> torch.Tensor:
    """Append rows of zeros to `part` (n, H) until its shape is (num_rows, H)."""
    missing = num_rows - len(part)
    return part if not missing else torch.cat([part, part.new_zeros(missing, part.shape[1])])


def is_plain_linear(head: torch.nn.Module) -> bool:
    """Return whether the head computes exactly `hidden @ weight.T`.

    It does if it is a linear layer without bias, LoRA, quantization or hooks. A sharded head has
    been checked before sharding.
    """
    if hasattr(head, IN_FORWARD):
        return type(head.weight) is torch.nn.Parameter
    return (
        type(head) is torch.nn.Linear
        and head.bias is None
        and type(head.weight) is torch.nn.Parameter
        and head.weight.is_floating_point()
        and not head._forward_hooks
        and not head._forward_pre_hooks
        and "forward" not in vars(head)
    )


def chunk_rows(vocab_size: int, device: torch.device, dtype: torch.dtype = torch.float32) -> int:
    """Return the number of rows of logits per chunk.

    On a GPU, the number does not depend on `dtype`, because the logits are also converted to fp32.
    """
    if device.type != "cpu":
        return max(MIN_CHUNK_ROWS, GPU_CHUNK_LOGITS // vocab_size)
    return max(MIN_CHUNK_ROWS, CPU_CHUNK_BYTES // dtype.itemsize // vocab_size)


def linear_cross_entropy_sum(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    grid: SizeGrid = SizeGrid.EXACT,
    target_weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the sum of cross-entropies of `hidden @ weight.T`, computed in chunks.

    Matrix products use autocast's dtype if it is on. Log-sum-exp and sums are in fp32.

    Args:
        hidden: (N, H).
        weight: (V, H).
        targets: (N,) int64.
        grid: rounds the number of rows per chunk.
        target_weights: (N,) fp32, one per target, without a gradient. None: all are 1.
    """
    kind = hidden.device.type
    if torch.is_autocast_enabled(kind):
        compute_dtype = torch.get_autocast_dtype(kind)
    else:
        compute_dtype = torch.promote_types(hidden.dtype, weight.dtype)
    with torch.autocast(kind, enabled=False):
        return LinearCrossEntropy.apply(
            hidden, weight, targets, compute_dtype, torch.is_grad_enabled(), grid, target_weights
        )


class LinearCrossEntropy(torch.autograd.Function):
    """An autograd function for the sum of cross-entropies, with gradients computed chunk by chunk.

    Method: Hsu et al. 2024 (arXiv 2410.10989). Later operations can only scale the gradient of a
    sum, so the gradient is computed in the forward pass, and scaled in the backward pass. torch's
    own `linear_cross_entropy` does the same at the same speed, but it sums bf16 losses in bf16 and
    is missing in Colab's torch.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        compute_dtype: torch.dtype,
        with_gradients: bool,
        grid: SizeGrid,
        target_weights: torch.Tensor | None,
    ) -> torch.Tensor:
        wants_hidden, wants_weight = (with_gradients and n for n in ctx.needs_input_grad[:2])
        compute_weight = weight.to(compute_dtype)
        num_rows = chunk_rows(weight.shape[0], weight.device, compute_dtype)
        most_rows = min(num_rows, grid.rows_up(len(hidden)))
        buffer = hidden.new_empty(most_rows, len(weight), dtype=compute_dtype)
        loss = hidden.new_zeros((), dtype=torch.float32)
        hidden_gradient = torch.empty_like(hidden) if wants_hidden else None
        weight_gradient: torch.Tensor | None = None
        for start in range(0, len(hidden), num_rows):
            rows = slice(start, start + num_rows)
            size = len(targets[rows])
            part = with_rows(hidden[rows].to(compute_dtype), min(num_rows, grid.rows_up(size)))
            logits = torch.mm(part, compute_weight.t(), out=buffer[: len(part)])
            part_weights = None if target_weights is None else target_weights[rows]
            loss += to_errors(logits, targets[rows], part_weights, wants_hidden or wants_weight)
            if hidden_gradient is not None:
                hidden_gradient[rows] = (logits @ compute_weight)[:size]
            if wants_weight:
                weight_gradient = add_product(weight_gradient, logits, part)
        if wants_weight and weight_gradient is None:  # there were no targets
            weight_gradient = torch.zeros_like(weight)
        if weight_gradient is not None:
            weight_gradient = weight_gradient.to(weight.dtype)
        ctx.gradients = [hidden_gradient, weight_gradient]
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("the loss was already taken backwards, and its gradients are gone")
        gradients, ctx.gradients = ctx.gradients, None
        scaled = [None if g is None else g.mul_(grad_output) for g in gradients]
        return (*scaled, None, None, None, None, None)


def to_errors(
    logits: torch.Tensor,
    targets: torch.Tensor,
    weights: torch.Tensor | None,
    wants_errors: bool,
) -> torch.Tensor:
    """Return the cross-entropy sum of a chunk; if wanted, replace its logits by their gradients.

    On a CPU this runs in pieces that stay in its cache, which saves a fifth of the time of the
    whole loss. Rows beyond the targets do not count and get no gradient.

    Args:
        logits: (n, V), changed in place.
        targets: (m,), m <= n.
        weights: (m,) fp32, one per target. None: all are 1.
        wants_errors: replace the logits by gradients.
    """
    loss = logits.new_zeros((), dtype=torch.float32)
    size, num_rows = len(targets), piece_rows(logits)
    logits[size:] = 0
    for start in range(0, size, num_rows):
        rows = slice(start, min(size, start + num_rows))
        part_targets = targets[rows].unsqueeze(1)
        log_probs = torch.log_softmax(logits[rows].float(), dim=-1)
        chosen = log_probs.gather(1, part_targets)
        part_weights = None if weights is None else weights[rows].unsqueeze(1)
        loss -= (chosen if part_weights is None else part_weights * chosen).sum()
        if not wants_errors:
            continue
        errors = log_probs.exp_()
        errors.scatter_add_(1, part_targets, errors.new_full(part_targets.shape, -1.0))
        logits[rows] = errors if part_weights is None else errors.mul_(part_weights)
    return loss


def piece_rows(logits: torch.Tensor) -> int:
    """Return the number of rows of logits that `to_errors` processes at a time."""
    if logits.device.type != "cpu":
        return len(logits)
    return max(LEAST_PIECE_ROWS, CPU_PIECE_LOGITS // logits.shape[1])


def add_product(
    total: torch.Tensor | None, error: torch.Tensor, hidden: torch.Tensor
) -> torch.Tensor:
    """Return `total + error.T @ hidden` in fp32, possibly by changing `total` in place."""
    if total is None:
        return (error.t() @ hidden).float()
    if error.dtype == total.dtype:
        return total.addmm_(error.t(), hidden)
    return total.add_(error.t() @ hidden)
