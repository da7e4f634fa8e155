"""The `temper` command: one file a command, each with `add_arguments` and `run`."""
