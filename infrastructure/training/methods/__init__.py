"""TRL's training methods: its own trainers, built from one configuration and run by the bridge."""
