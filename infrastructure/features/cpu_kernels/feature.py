"""Registration of the attention for short packed examples in bf16 on a CPU."""

from infrastructure.core.features import Feature

FEATURE = Feature(
    name="cpu_kernels",
    plugins={
        "temper.attention": {
            "products": "infrastructure.features.cpu_kernels.short_attention:PRODUCTS"
        }
    },
)
