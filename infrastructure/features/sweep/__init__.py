"""Hyperparameter search with Optuna; README.md describes the modules."""
