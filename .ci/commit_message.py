"""Read a commit message: a subject of at most 72 characters, an empty line, a body that says why.

commit_message.py FILE
"""

import sys
from pathlib import Path

LONGEST_SUBJECT = 72
WRITTEN_BY_GIT = ("Merge ", "Revert ", "fixup! ", "squash! ", "amend! ")
SCISSORS = "# ------------------------ >8 ------------------------"


def problems_of(message: str) -> list[str]:
    """A sentence for each thing that is wrong with a message."""
    text = message.partition(SCISSORS)[0]
    lines = [line.rstrip() for line in text.splitlines() if not line.startswith("#")]
    subject, *rest = "\n".join(lines).strip().split("\n")
    if subject.startswith(WRITTEN_BY_GIT):
        return []
    problems = []
    if not subject:
        return ["the message is empty: say what the commit does"]
    if len(subject) > LONGEST_SUBJECT:
        problems.append(
            f"the subject has {len(subject)} characters: at most {LONGEST_SUBJECT}, so that a log"
            " shows it whole"
        )
    if subject.endswith("."):
        problems.append("the subject ends with a full stop: leave it out")
    if rest and rest[0]:
        problems.append("the second line is not empty: tools take it for the subject")
    if not any(rest):
        problems.append("there is no body: say why, for whoever reads it in a year")
    return problems


def main() -> int:
    """Show what is wrong with the message in the file named first; 1 if anything is."""
    problems = problems_of(Path(sys.argv[1]).read_text(encoding="utf-8"))
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
