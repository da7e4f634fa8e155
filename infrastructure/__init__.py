"""Temper: fine-tuning on machines that can disappear. README.md describes the layers."""
