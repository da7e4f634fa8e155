"""Tiny models of many architectures, real but for their size; each call gives the same weights."""

from typing import Any

import torch

VOCAB_SIZE = 97
WINDOW = 6
CHUNK = 20

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2_DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
GPT2_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    **dict.fromkeys(GPT2_DROPOUTS, 0.0),
}
BLOOM_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "n_layer": 2,
    "n_head": 4,
    "pad_token_id": 0,
}
EXPERTS: dict[str, Any] = {
    **SIZES,
    "head_dim": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}
HEAD_DIM = {**SIZES, "head_dim": 8}

# name: (class of the configuration in transformers, its arguments)
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", SIZES),
    "mistral": ("MistralConfig", {**SIZES, "sliding_window": WINDOW}),
    "qwen2": ("Qwen2Config", SIZES),
    "qwen3": ("Qwen3Config", HEAD_DIM),
    "gemma2": ("Gemma2Config", {**HEAD_DIM, "sliding_window": WINDOW}),
    "gemma3": (
        "Gemma3TextConfig",
        {
            **HEAD_DIM,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "gpt2": ("GPT2Config", GPT2_SIZES),
    "phi": ("PhiConfig", SIZES),  # its head has a bias
    "granite": ("GraniteConfig", {**SIZES, "logits_scaling": 8.0}),
    "cohere": ("CohereConfig", SIZES),
    "qwen3_moe": ("Qwen3MoeConfig", EXPERTS),
    "qwen3_moe_balanced": ("Qwen3MoeConfig", {**EXPERTS, "output_router_logits": True}),
    "bloom": ("BloomConfig", BLOOM_SIZES),
    "llama4": (
        "Llama4TextConfig",
        {
            **HEAD_DIM,
            "intermediate_size_mlp": 48,
            "num_local_experts": 2,
            "attention_chunk_size": CHUNK,
            "no_rope_layers": [1, 0],
        },
    ),
    "lfm2": ("Lfm2Config", {**SIZES, "layer_types": ["conv", "full_attention"]}),
}


def tiny_model(
    architecture: str,
    dtype: torch.dtype = torch.float32,
    attention: str | None = None,
    **sizes: Any,
) -> Any:
    """The model in training mode, with weights large enough for every layer to matter."""
    import transformers

    config_class, arguments = ARCHITECTURES[architecture]
    config = getattr(transformers, config_class)(**{**arguments, **sizes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation=attention
        )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3.0)
    return model.train()


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A copy of every gradient, by name; the model forgets them."""
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found
