"""Where values come from: a YAML file, environment variables, flags."""
