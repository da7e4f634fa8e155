"""Sources of values: a YAML file, environment variables, flags."""
