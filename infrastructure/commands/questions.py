"""Questions to a person at a terminal; where nobody sits there, the answer is no."""

import sys


def confirmed(question: str) -> bool:
    """Whether a person at the terminal answers with yes."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    try:
        answer = input(f"{question} [y/N] ")
    except EOFError:
        return False
    return answer.strip().lower() in ("y", "yes")
