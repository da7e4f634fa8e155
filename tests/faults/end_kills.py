"""`end_storm` in its long form: `python -m tests.faults.end_kills` prints one JSON line."""

from concurrent.futures import ThreadPoolExecutor

from tests.faults.end_storm import MUTANTS
from tests.faults.judge import Figures, complaints, print_figures
from tests.faults.run_kills import in_a_folder, sums

NUM_STORMS, NUM_KILLS_EACH, NUM_MUTANT_KILLS = 2, 160, 12


def whole_storm(seed: int) -> Figures:
    arguments = ("--kills", str(NUM_KILLS_EACH), "--seed", str(seed))
    return in_a_folder("tests.faults.end_storm", *arguments)


def storm_with_defect(name: str) -> Figures:
    arguments = ("--kills", str(NUM_MUTANT_KILLS), "--only", "full", "--mutant", name)
    return in_a_folder("tests.faults.end_storm", *arguments)


def main() -> None:
    with ThreadPoolExecutor(NUM_STORMS) as beside_each_other:
        outcome = sums(beside_each_other.map(whole_storm, range(NUM_STORMS)))
        found = list(beside_each_other.map(storm_with_defect, MUTANTS))
    caught = sum(bool(complaints("", figures)) for figures in found)
    print_figures("G1 ends", {**outcome, "mutants": len(found), "mutants_caught": caught})


if __name__ == "__main__":
    main()
