"""Integer arithmetic."""


def ceil_div(number: int, divisor: int) -> int:
    """Return how many pieces of size `divisor` hold `number`: the quotient, rounded up."""
    return -(-number // divisor)
