"""The fields of the configuration, one file per section, with their descriptions and checks."""
