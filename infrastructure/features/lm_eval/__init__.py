"""Evaluation on tasks of lm-evaluation-harness: `temper eval MODEL --tasks gsm8k`."""
