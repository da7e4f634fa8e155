"""Integer arithmetic."""


def ceil_div(number: int, divisor: int) -> int:
    """Return `number / divisor`, rounded up to an integer."""
    return -(-number // divisor)
