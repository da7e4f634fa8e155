"""Hyperparameter search with Optuna, where each trial is a run."""

from infrastructure.core.features import Command, Feature

FEATURE = Feature(
    name="sweep",
    commands={
        "sweep": Command(
            "infrastructure.features.sweep.command",
            "search for the hyperparameters with the best held-out loss",
            "Train",
            resuming=("sweep",),
        )
    },
)
