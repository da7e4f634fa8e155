"""Which value holds: layers and presets become one configuration, and are checked."""
