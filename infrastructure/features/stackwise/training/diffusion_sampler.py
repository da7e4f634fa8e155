"""Text generation with a model trained to predict masked tokens: masks are removed step by step.

Source: LLaDA (Nie et al. 2025, arXiv 2502.09992), low-confidence remasking. The answer begins as
mask tokens. Each step predicts all masked tokens, keeps the most confident predictions, and masks
the others again. The sampler is for the `mask` corruption. An answer has exactly the requested
number of tokens, including its end token.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from infrastructure.core.errors import InputError
from infrastructure.models.model_inputs import call_model, logits_of, probing
from infrastructure.models.packed_attention import model_arguments

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@torch.no_grad()
def generate_masked(
    model: torch.nn.Module,
    tokenizer: "PreTrainedTokenizerBase",
    prompts: Sequence[Sequence[int]],
    num_new_tokens: int,
    num_steps: int | None = None,
    *,
    block_length: int | None = None,
    temperature: float = 0.0,
    seed: int = 0,
) -> list[list[int]]:
    """Generate an answer of exactly `num_new_tokens` tokens for each prompt.

    Args:
        model: a model that attends in both directions if it gets `bidirectional_mask`.
        tokenizer: has `mask_token_id` and `pad_token_id`.
        prompts: token ids.
        num_new_tokens: number of tokens in each answer.
        num_steps: number of forward passes, at least one for each block; None: one for each token.
        block_length: number of tokens in a block; blocks are finished from left to right, with
            about the same number of steps each. None: the answer is one block.
        temperature: 0 takes the most likely token; above 0, tokens are sampled.
        seed: seed of sampled tokens; each prompt has its own generator, by its number.

    Raises:
        ValueError: there is no mask token, or an argument is out of its range; the message names
            it.
    """
    _check(tokenizer, num_new_tokens, num_steps, block_length, temperature)
    if not prompts:
        return []
    mask_id = tokenizer.mask_token_id
    ids, is_real, starts = _canvas(model, tokenizer, prompts, num_new_tokens)
    length = min(block_length or num_new_tokens, num_new_tokens)
    blocks = [
        range(start, min(start + length, num_new_tokens))
        for start in range(0, num_new_tokens, length)
    ]
    shares = _even_shares(min(num_steps or num_new_tokens, num_new_tokens), len(blocks))
    generators = [_generator(seed, row) for row in range(len(prompts))]
    batch = {"input_ids": ids, "attention_mask": is_real, "is_bidirectional": True}
    with probing(model):
        for block, steps in zip(blocks, shares, strict=True):
            places = starts[:, None] + torch.tensor(list(block), device=ids.device)
            for num_kept in _even_shares(len(block), min(max(1, steps), len(block))):
                logits = logits_of(call_model(model, model_arguments(model, batch)))
                at = logits.gather(1, places[..., None].expand(-1, -1, logits.shape[-1])).float()
                at[..., mask_id] = -torch.inf
                chosen = _choose(at, temperature, generators)
                sureness = at.softmax(dim=-1).gather(2, chosen[..., None]).squeeze(2)
                is_hidden = ids.gather(1, places) == mask_id
                sureness = sureness.masked_fill(~is_hidden, -1.0)
                kept = sureness.topk(num_kept, dim=1).indices
                ids.scatter_(1, places.gather(1, kept), chosen.gather(1, kept))
    return [
        row[start : start + num_new_tokens].tolist()
        for row, start in zip(ids, starts.tolist(), strict=True)
    ]


def _check(
    tokenizer: "PreTrainedTokenizerBase",
    num_new_tokens: int,
    num_steps: int | None,
    block_length: int | None,
    temperature: float,
) -> None:
    if tokenizer.mask_token_id is None:
        raise InputError("stackwise.sampler_without_mask_token")
    numbers = {"num_new_tokens": num_new_tokens, "num_steps": num_steps}
    for name, value in {**numbers, "block_length": block_length}.items():
        if value is not None and value < 1:
            raise InputError("stackwise.count_below_one", name=name, value=value)
    if not temperature >= 0:
        raise InputError("stackwise.negative_temperature", temperature=temperature)


def _canvas(
    model: torch.nn.Module,
    tokenizer: "PreTrainedTokenizerBase",
    prompts: Sequence[Sequence[int]],
    num_new_tokens: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a batch of prompts, each followed by mask tokens for its answer and right-padded.

    Returns:
        Ids and attention mask, (B, L), and the start of each answer, (B,).
    """
    lengths = [len(prompt) for prompt in prompts]
    shape = len(prompts), max(lengths, default=0) + num_new_tokens
    ids = torch.full(shape, int(tokenizer.pad_token_id or 0))
    for row, prompt in enumerate(prompts):
        answer = [tokenizer.mask_token_id] * num_new_tokens
        ids[row, : len(prompt) + num_new_tokens] = torch.tensor([*prompt, *answer])
    starts = torch.tensor(lengths)
    is_real = (torch.arange(shape[1]) < starts[:, None] + num_new_tokens).long()
    device = next(model.parameters()).device
    return ids.to(device), is_real.to(device), starts.to(device)


def _generator(seed: int, row: int) -> torch.Generator:
    """Create the random generator of one prompt.

    Seed and row are hashed, because torch reads only the lower 32 bits of a seed.
    """
    mixed = np.random.SeedSequence([seed, row]).generate_state(1)
    return torch.Generator().manual_seed(int(mixed[0]))


def _even_shares(total: int, num_parts: int) -> list[int]:
    """Split `total` into `num_parts` parts that differ by at most 1, the larger ones first."""
    whole, rest = divmod(total, num_parts)
    return [whole + (part < rest) for part in range(num_parts)]


def _choose(
    logits: torch.Tensor, temperature: float, generators: Sequence[torch.Generator]
) -> torch.Tensor:
    """Choose the most likely tokens (B, k) of logits (B, k, V), or sample them.

    With a temperature above 0, tokens are sampled from the softmax by the Gumbel-max trick.
    """
    if temperature == 0:
        return logits.argmax(dim=-1)
    uniform = torch.stack([torch.rand(logits.shape[1:], generator=g) for g in generators])
    noise = -torch.log(-torch.log(uniform.clamp(1e-20, 1 - 1e-7))).to(logits.device)
    return (logits / temperature + noise).argmax(dim=-1)
