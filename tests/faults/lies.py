"""G5 in its long form: `python -m tests.faults.lies` prints one JSON line."""

from tests.faults.failing_files import LyingFiles
from tests.faults.judge import print_figures
from tests.faults.store_history import step_that_loads
from tests.faults.test_failing_disk import TWO_VERSIONS, error_of


def main() -> None:
    trials = believed = lost = 0
    for lie in ("nothing", "zeros", "one bit"):
        for lie_at in range(4):
            lying = LyingFiles(TWO_VERSIONS, lie_at, lie)
            trials += 1
            believed += error_of(lying) is None
            lost += step_that_loads(lying) < 2
    print_figures("G5", {"trials": trials, "believed": believed, "lost": lost})


if __name__ == "__main__":
    main()
