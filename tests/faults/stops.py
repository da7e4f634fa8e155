"""G10 in its long form: `python -m tests.faults.stops` prints one JSON line."""

import tempfile

from tests.faults.judge import Figures, print_figures, run_module
from tests.faults.stop_storm import MUTANTS

NUM_STOPS, NUM_MUTANT_STOPS = 60, 8


def storm(*arguments: str) -> Figures:
    with tempfile.TemporaryDirectory() as directory:
        return run_module("tests.faults.stop_storm", directory, *arguments)


def main() -> None:
    outcome = storm("--stops", str(NUM_STOPS))
    found = [storm("--stops", str(NUM_MUTANT_STOPS), "--mutant", name) for name in MUTANTS]
    caught = sum(bool(o["unsaved"] + o["slow"] + o["differing"] + o["failed"]) for o in found)
    print_figures("G10", {**outcome, "mutants": len(found), "mutants_caught": caught})


if __name__ == "__main__":
    main()
