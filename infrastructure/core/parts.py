"""The parts that are still to come, in words for people: none."""

PARTS: dict[str, str] = {}
