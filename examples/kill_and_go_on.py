"""Kill a run in the middle; the same call resumes it, and nothing is lost.

python examples/kill_and_go_on.py
"""

import multiprocessing
import time
from pathlib import Path

import temper

SETTINGS = {"max_steps": 12, "batch_size": 16, "checkpoint_frequency": 2}


def train():
    summary = temper.train(**SETTINGS)
    print("finished at step", summary["steps"], "in", summary["paths"]["model"])


if __name__ == "__main__":
    killed = multiprocessing.get_context("spawn").Process(target=train)
    killed.start()
    while killed.is_alive() and len([*Path("runs").glob("*/checkpoints/versions/*.json")]) < 2:
        time.sleep(0.05)
    killed.kill()
    killed.join()
    print("killed; what is saved:", *Path("runs").glob("*/checkpoints/versions/*.json"))
    train()
