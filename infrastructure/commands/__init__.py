"""Layer 7: the `temper` command, with one file for each of its commands.

`main.py` has the table of commands. The file of a command has `add_arguments(parser)`, which adds
its arguments, and `run(options) -> ExitCode`, which runs the command. Python imports that file only
when the command is called. Modules that need torch are imported inside `run`, after the input was
checked.
"""
