"""`stackwise_kills` in its long form: `python -m tests.faults.stackwise_run`; one JSON line."""

from tests.faults.judge import print_figures
from tests.faults.run_kills import in_a_folder

NUM_KILLS = 100


def main() -> None:
    print_figures(
        "G1 stackwise", in_a_folder("tests.faults.stackwise_kills", "--kills", str(NUM_KILLS))
    )


if __name__ == "__main__":
    main()
