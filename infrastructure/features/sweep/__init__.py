"""The search for the best hyperparameters with Optuna; README.md is the map."""
