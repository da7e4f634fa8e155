"""Registries of masking, quantization and cache types, by name, without loading their code.

The comment above each registry names the module that provides its built-in entries.
"""

from typing import Any

from infrastructure.core.registry import Registry

# masking
CORRUPTIONS: Registry[Any] = Registry(
    "corruption", "temper.corruptions", ("mask", "uniform"), decides=True
)
# quantized_trunk
QUANTIZATIONS: Registry[Any] = Registry(
    "quantization", "temper.quantizations", ("nf_fp8", "fp16", "fp32"), decides=True
)
# activation_cache
CACHES: Registry[Any] = Registry("activation cache", "temper.activation_caches", ("disk",))
