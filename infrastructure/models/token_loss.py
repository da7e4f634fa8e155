"""The sum of the losses of a language model's supervised tokens, computed efficiently.

The loss of a token is the cross-entropy, or the result of a user-defined function. Each target may
have a weight, as diffusion objectives need.

Most logits of a batch are not needed, and all of them together would often be the largest tensor of
a training step. So the decoder computes its last hidden states, those that predict a supervised
token are selected, and the output head processes them in chunks (`chunked_loss.py`).

That is only correct if the head's output is the logits. Some architectures transform it (Gemma 2
caps logits, Cohere and Granite scale them). `TokenLoss` therefore tests its model, and uses the
model's own logits if the test fails.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from infrastructure.core.errors import InputError
from infrastructure.models.chunked_loss import head_loss, loss_sum
from infrastructure.models.last_mlp import last_mlp, mlp_at
from infrastructure.models.model_inputs import (
    IGNORED_LABEL,
    PROBE_ERRORS,
    call_model,
    compute_dtype,
    inner_model,
    language_model,
    logits_of,
    probing,
    relative_difference,
    tolerance,
    within_forward,
)
from infrastructure.models.packed_attention import model_arguments
from infrastructure.models.packing_check import embeddings_cut
from infrastructure.models.token_functions import MetricSums, TokenFunction
from infrastructure.optimization.size_grid import SizeGrid

NUM_PROBE_TOKENS = 8


def supervised_targets(
    labels: torch.Tensor, cu_seq_lens: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the positions that predict a supervised token, and the tokens that they predict.

    Call this before the batch is moved to a GPU, because it would wait for the GPU.

    Args:
        labels: (B, L), aligned with the input IDs. -100 is not supervised. The first token of a
            row, and of each example of a packed row, is never predicted and does not count.
        cu_seq_lens: boundaries of a packed row, (B+1,).

    Returns:
        Positions in the flattened (B*L,) batch, (N,) int64; target IDs, (N,) int64.
    """
    following = labels.roll(-1, dims=1)
    following[:, -1] = IGNORED_LABEL
    if cu_seq_lens is not None:
        following[0, cu_seq_lens[1:].long() - 1] = IGNORED_LABEL
    following = following.flatten()
    positions = (following != IGNORED_LABEL).nonzero().squeeze(1)
    return positions, following[positions]


class TokenLoss:
    """The loss of one model, computed by the fastest method that is correct for the model.

    Attributes:
        method: "hidden states" (the fastest), "kept logits" (the model computes only the logits of
            supervised positions) or "all logits". None before `prepare`.
        balances: True if the model adds a loss of its own that is a mean over all tokens of a
            batch, including padding (a mixture of experts' balancing loss).
        narrows_last_mlp: True if the last layer's MLP may be computed only at positions with a
            target (`last_mlp.py`).

    Args:
        own: returns the loss of each supervised token, (N,). None: the cross-entropy.
    """

    def __init__(self, own: TokenFunction | None = None) -> None:
        self.own = own
        self.method: str | None = None
        self.balances = False
        self.narrows_last_mlp = False

    def prepare(self, model: torch.nn.Module) -> None:
        """Choose the method by testing the model. Later calls do nothing.

        Raises:
            ValueError: the model's forward returns no logits, so the loss cannot be computed.
        """
        if self.method is None:
            self.method = choose_method(model)
            self.balances = adds_balancing_loss(model)
            self.narrows_last_mlp = self.method == FASTEST and may_narrow_last_mlp(model)

    def last_mlp(self, model: torch.nn.Module) -> torch.nn.Module | None:
        """Return the MLP that may be computed at only the positions with a target; None if there is
        none.
        """
        return last_mlp(model) if self.narrows_last_mlp else None

    def __call__(
        self, model: torch.nn.Module, batch: Mapping[str, Any], grid: SizeGrid = SizeGrid.EXACT
    ) -> tuple[torch.Tensor, int]:
        """Return the sum of the losses (differentiable scalar, fp32), and the number of tokens.

        Args:
            batch: `input_ids` and `labels` (B, L), or instead of labels the result of
                `supervised_targets` as `target_positions` and `targets`, optionally with
                `target_weights`, (N,) fp32. `attention_mask` for padded rows; `position_ids`,
                `cu_seq_lens` and `max_length` for a packed row.
            grid: rounds the number of rows that the head computes, which does not change the sum.

        Raises:
            ValueError: the model's forward returns no logits, so the sum cannot be computed.
        """
        return self._sum(model, batch, grid, batch.get("target_weights"), self.own)

    def metric_sums(
        self,
        model: torch.nn.Module,
        batch: Mapping[str, object],
        metrics: Mapping[str, TokenFunction],
        grid: SizeGrid = SizeGrid.EXACT,
    ) -> dict[str, tuple[float, int]]:
        """Return, for each metric, its sum over the supervised tokens and the number of these
        tokens.

        All metrics together take one forward pass.
        """
        sums = MetricSums(metrics)
        with torch.no_grad():
            self._sum(model, batch, grid, None, sums)
        return {key: (total, sums.count) for key, total in sums.sums.items()}

    def _sum(
        self,
        model: torch.nn.Module,
        batch: Mapping[str, Any],
        grid: SizeGrid,
        weights: torch.Tensor | None,
        own: TokenFunction | None,
    ) -> tuple[torch.Tensor, int]:
        if "targets" in batch:
            positions, targets = batch["target_positions"], batch["targets"]
        else:
            positions, targets = supervised_targets(batch["labels"], batch.get("cu_seq_lens"))
        self.prepare(model)
        assert self.method is not None
        arguments = model_arguments(model, batch)
        given = (model, arguments, positions, targets, grid, weights, own)
        num_tokens = batch["input_ids"].numel()
        with mlp_at(self.last_mlp(model), positions, num_tokens, grid):
            return within_forward(model, METHODS[self.method], *given), targets.numel()


def loss_from_hidden_states(
    model: torch.nn.Module,
    arguments: Mapping[str, object],
    positions: torch.Tensor,
    targets: torch.Tensor,
    grid: SizeGrid,
    weights: torch.Tensor | None = None,
    own: TokenFunction | None = None,
) -> torch.Tensor:
    """Run the decoder, and then the head in chunks at `positions` only; return the loss."""
    hidden = last_hidden_state(model, arguments).flatten(0, 1)[positions]
    head = output_head(model)
    assert head is not None
    return head_loss(head, hidden, targets, grid, weights, own)


def loss_from_kept_logits(
    model: torch.nn.Module,
    arguments: Mapping[str, Any],
    positions: torch.Tensor,
    targets: torch.Tensor,
    grid: SizeGrid,
    weights: torch.Tensor | None = None,
    own: TokenFunction | None = None,
) -> torch.Tensor:
    """Return the loss from the logits that the model computes for all positions with a target in
    any row.
    """
    length = arguments["input_ids"].shape[1]
    columns, column_of_target = (positions % length).unique(return_inverse=True)
    missing = grid.rows_up(len(columns)) - len(columns)
    columns = torch.cat([columns, columns[-1:].expand(missing)])  # computed, but not used
    logits = logits_of(call_model(model, {**arguments, "logits_to_keep": columns}))
    return loss_sum(logits[positions // length, column_of_target], targets, weights, own)


def loss_from_all_logits(
    model: torch.nn.Module,
    arguments: Mapping[str, Any],
    positions: torch.Tensor,
    targets: torch.Tensor,
    grid: SizeGrid,  # noqa: ARG001 (as the other ways take it, by name)
    weights: torch.Tensor | None = None,
    own: TokenFunction | None = None,
) -> torch.Tensor:
    """Return the loss from all of the model's own logits.

    A mixture of experts' balancing loss is added, multiplied by the number of targets.
    """
    output = call_model(model, arguments)
    logits = logits_of(output)
    if logits.shape[:2] != arguments["input_ids"].shape:
        raise InputError(
            "models.logits_shape_mismatch",
            logits_shape=tuple(logits.shape),
            input_shape=tuple(arguments["input_ids"].shape),
        )
    loss = loss_sum(logits.flatten(0, 1)[positions], targets, weights, own)
    balancing_loss = getattr(output, "aux_loss", None)
    if balancing_loss is None:
        return loss
    config = language_model(model).config
    num_items = targets.numel() if weights is None else weights.sum()
    return loss + config.router_aux_loss_coef * balancing_loss * num_items


FASTEST = "hidden states"
METHODS: dict[str, Callable[..., torch.Tensor]] = {
    FASTEST: loss_from_hidden_states,
    "kept logits": loss_from_kept_logits,
    "all logits": loss_from_all_logits,
}


def backbone(model: torch.nn.Module) -> torch.nn.Module | None:
    """Return the part of a transformers model that computes hidden states; None if there is
    none.
    """
    inner = inner_model(model)
    base_model = getattr(inner, "base_model", None)
    return (
        base_model if isinstance(base_model, torch.nn.Module) and base_model is not inner else None
    )


def output_head(model: torch.nn.Module) -> torch.nn.Linear | None:
    """Return the module that computes logits from hidden states; None if there is none."""
    inner = language_model(model)
    return inner.get_output_embeddings() if hasattr(inner, "get_output_embeddings") else None


def last_hidden_state(model: torch.nn.Module, arguments: Mapping[str, object]) -> torch.Tensor:
    """Return the decoder's output before the head, (B, L, H)."""
    decoder = backbone(model)
    assert decoder is not None
    return call_model(decoder, arguments)[0]


def choose_method(model: torch.nn.Module) -> str:
    """Return the fastest loss method that is correct for this model.

    Raises:
        ValueError: the model's forward returns no logits.
    """
    device = next(model.parameters()).device
    arguments = {"input_ids": torch.arange(NUM_PROBE_TOKENS, device=device).unsqueeze(0)}
    positions, targets = supervised_targets(arguments["input_ids"])
    with probing(model), torch.no_grad():
        given = (model, arguments, positions, targets, SizeGrid.EXACT)
        expected = loss_from_all_logits(*given)
        for method, compute in list(METHODS.items())[:-1]:
            try:
                if not fits(method, model, arguments):
                    continue
                actual = within_forward(model, compute, *given)
            except PROBE_ERRORS:
                continue
            if relative_difference(actual, expected) <= tolerance(compute_dtype(model)):
                return method
    return "all logits"


@torch.no_grad()
def adds_balancing_loss(model: torch.nn.Module) -> bool:
    """Return whether the model adds to the loss its own balancing loss, a mean over all tokens."""
    ids = torch.arange(NUM_PROBE_TOKENS, device=next(model.parameters()).device).unsqueeze(0)
    with probing(model):
        return getattr(call_model(model, {"input_ids": ids}), "aux_loss", None) is not None


def may_narrow_last_mlp(model: torch.nn.Module) -> bool:
    """Return whether the result stays correct if the last MLP is computed at only some positions.

    For every other position of a short row, loss and gradients with and without this optimization
    are compared.
    """
    mlp = last_mlp(model)
    if mlp is None:
        return False
    device = next(model.parameters()).device
    arguments = {"input_ids": torch.arange(NUM_PROBE_TOKENS, device=device).unsqueeze(0)}
    positions, targets = (some[::2] for some in supervised_targets(arguments["input_ids"]))
    given = (model, arguments, positions, targets, SizeGrid.EXACT)
    results = []
    with probing(model):
        for narrowed in (None, mlp):
            with mlp_at(narrowed, positions, NUM_PROBE_TOKENS, SizeGrid.EXACT):
                try:
                    results.append(loss_and_gradient(model, given))
                except PROBE_ERRORS:
                    return False
    limit = tolerance(compute_dtype(model))
    return all(relative_difference(*pair) <= limit for pair in zip(*results, strict=True))


def loss_and_gradient(
    model: torch.nn.Module, given: tuple[Any, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss from hidden states, and its gradient at the token embeddings, (B, L, H).

    No parameter's `.grad` is changed.
    """
    with embeddings_cut(model) as embedded, torch.enable_grad():
        loss = loss_from_hidden_states(*given)
        (gradient,) = torch.autograd.grad(loss, embedded[-1:])
    return loss.detach(), gradient


def fits(method: str, model: torch.nn.Module, arguments: Mapping[str, Any]) -> bool:
    """Return whether a method fits the model's structure."""
    if getattr(call_model(model, arguments), "aux_loss", None) is not None:
        return False
    if method == "kept logits":
        last = arguments["input_ids"].new_tensor([arguments["input_ids"].shape[1] - 1])
        kept = logits_of(call_model(model, {**arguments, "logits_to_keep": last}))
        return kept.shape[1] == 1
    has_parts = backbone(model) is not None and output_head(model) is not None
    return has_parts and gives_head_output(model, arguments)


def gives_head_output(model: torch.nn.Module, arguments: Mapping[str, object]) -> bool:
    """Return whether the logits are simply the head's output for the decoder's hidden states.

    The head's output is replaced by large numbers, which must come out unchanged. Comparing losses
    would not detect that a model caps its logits, because a cap does not affect the small logits of
    a new model.
    """
    inputs: list[torch.Tensor] = []
    outputs: list[torch.Tensor] = []

    def replace(
        _head: torch.nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor
    ) -> torch.Tensor:
        inputs.append(args[0])
        outputs.append(torch.linspace(-1e3, 1e3, output.numel()).to(output).view_as(output))
        return outputs[-1]

    head = output_head(model)
    assert head is not None
    handle = head.register_forward_hook(replace)
    try:
        logits = logits_of(call_model(model, arguments))
    finally:
        handle.remove()
    if len(outputs) != 1 or not torch.equal(logits.float(), outputs[0].float()):
        return False
    hidden = within_forward(model, last_hidden_state, model, arguments)
    return relative_difference(inputs[0], hidden) <= tolerance(compute_dtype(model))
