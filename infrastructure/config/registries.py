"""What can be chosen by name and added to: in a script by `register`, or by an installed package's
entry point. The names are known here without the code behind them, so that a wrong one is told at
once; the module that is named registers what is built in.
"""

from typing import Any

from infrastructure.core.registry import Registry

# training.strategies
STRATEGIES: Registry[Any] = Registry(
    "training strategy", "temper.strategies", ("standard", "finetune", "progressive", "end_to_end")
)
# training.stackwise.masking
CORRUPTIONS: Registry[Any] = Registry("corruption", "temper.corruptions", ("mask", "uniform"))
# training.stackwise.quantized_trunk
QUANTIZATIONS: Registry[Any] = Registry(
    "quantization", "temper.quantizations", ("nf_fp8", "nf4", "fp16", "fp32")
)
# training.stackwise.activation_cache
CACHES: Registry[Any] = Registry("activation cache", "temper.activation_caches", ("disk",))
