"""The merge of layers and presets into one configuration, and the checks of the result."""
