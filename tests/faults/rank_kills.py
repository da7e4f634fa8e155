"""G1 on several processes in its long form: `python -m tests.faults.rank_kills` prints one JSON
line: many kills, and planted defects, which have to be noticed."""

from tests.faults.judge import print_figures
from tests.faults.rank_storm import MUTANTS
from tests.faults.run_kills import in_a_folder

NUM_KILLS, NUM_MUTANT_KILLS = 60, 4
MODULE = "tests.faults.rank_storm"


def main() -> None:
    outcome = in_a_folder(MODULE, "--kills", str(NUM_KILLS))
    found = [
        in_a_folder(MODULE, "--kills", str(NUM_MUTANT_KILLS), "--mutant", name) for name in MUTANTS
    ]
    caught = sum(bool(o["lost"] + o["damaged"] + o["differing"] + o["failed"]) for o in found)
    print_figures("G1 ranks", {**outcome, "mutants": len(found), "mutants_caught": caught})


if __name__ == "__main__":
    main()
