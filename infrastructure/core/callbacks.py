"""The callback of somebody who does not listen."""


def do_nothing(*_: object) -> None:
    """Takes whatever a callback is given."""
