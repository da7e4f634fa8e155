"""Temper: fine-tuning on machines that go away. The layers are described in README.md."""
