"""The search for the best hyperparameters: one run per trial, chosen by Optuna."""

from infrastructure.core.features import Command, Feature

FEATURE = Feature(
    name="sweep",
    commands={
        "sweep": Command(
            "infrastructure.features.sweep.command",
            "search for the hyperparameters with the best held-out loss (or --best-metric)",
            "Train",
            resuming=("sweep",),
        )
    },
)
