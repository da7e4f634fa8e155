"""Arithmetic of whole numbers."""


def ceil_div(number: int, divisor: int) -> int:
    """How many pieces of `divisor` hold `number`: the quotient, rounded up."""
    return -(-number // divisor)
