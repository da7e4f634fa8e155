"""Training methods by TRL: its own trainers, built from one configuration and run by the bridge."""
