"""Questions to the user at a terminal; without a terminal, the answer is no."""

import sys


def confirmed(question: str) -> bool:
    """Ask the user at the terminal, and return whether the answer is yes."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    try:
        answer = input(f"{question} [y/N] ")
    except EOFError:
        return False
    return answer.strip().lower() in ("y", "yes")
