"""A helper that speaks, and ends: started by test_helper_process."""

import os
import sys
import time
from pathlib import Path

how = sys.argv[1]
if how == "speak":
    print("much\n" * 10_000, file=sys.stderr)
    print("RuntimeError: no way to the place, token=abcdefgh123\n", file=sys.stderr)
    sys.exit(3)
if how == "read":
    sys.stdin.read()
if how == "sleep":
    time.sleep(600)
if how == "outlive":
    while os.getppid() == int(sys.argv[3]):
        time.sleep(0.05)
    print("much\n" * 10_000, file=sys.stderr)
    Path(sys.argv[2]).write_text("it said it")
