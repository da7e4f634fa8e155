"""A callback that does nothing."""


def do_nothing(*_: object) -> None:
    """Do nothing, whatever the arguments are."""
