"""Layer 7: the `temper` command, one file a command.

`main.py` has the table of their names. The file of a command has `add_arguments(parser)`, what it
takes, and `run(options) -> ExitCode`, what it does; both are loaded when that command is called,
and what needs torch is imported by what `run` calls, once the input is known to be right.
"""
