"""A callback that does nothing."""


def do_nothing(*_: object) -> None:
    """Ignore all arguments."""
