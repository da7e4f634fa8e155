"""A test process that writes records and kills itself: `killed_sink SUITE DIRECTORY COUNT`."""

import os
import signal
import sys
from pathlib import Path

from infrastructure.testing.suites.sink import suite_at, write_records


def main() -> None:
    """Write records, then die by SIGKILL, so that Python's buffers are not flushed."""
    address, directory, count = sys.argv[1:]
    write_records(suite_at(address), Path(directory), int(count))
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
