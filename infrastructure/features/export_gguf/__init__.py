"""Exports as GGUF, for llama.cpp and Ollama."""
