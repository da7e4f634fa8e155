"""G1 on whole runs in its long form: `python -m tests.faults.run_kills` prints one JSON line."""

import tempfile

from tests.faults.judge import Figures, run_module, tell
from tests.faults.run_storm import MUTANTS

NUM_KILLS, NUM_MUTANT_KILLS = 200, 4


def storm(*arguments: str) -> Figures:
    with tempfile.TemporaryDirectory() as directory:
        return run_module("tests.faults.run_storm", directory, *arguments)


def main() -> None:
    outcome = storm("--kills", str(NUM_KILLS))
    found = [storm("--kills", str(NUM_MUTANT_KILLS), "--mutant", name) for name in MUTANTS]
    caught = sum(bool(o["lost"] + o["damaged"] + o["differing"] + o["failed"]) for o in found)
    tell("G1 runs", {**outcome, "mutants": len(found), "mutants_caught": caught})


if __name__ == "__main__":
    main()
