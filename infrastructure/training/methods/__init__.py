"""TRL's training methods: TRL trainers built from Temper's configuration."""
