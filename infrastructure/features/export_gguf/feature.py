"""Exports as GGUF, for llama.cpp and Ollama."""

from infrastructure.core.features import Feature

FEATURE = Feature(
    name="export_gguf",
    plugins={
        "temper.export_formats": {
            "gguf": "infrastructure.features.export_gguf.gguf_format:GgufFormat",
        }
    },
)
