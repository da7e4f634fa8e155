"""C: what ten viewers of the live page cost the training beside it.

    python -m benchmarks.dashboard_viewers [--viewers 10] [--rounds 30] [--seconds 4]

A training does steps on all cores of this machine and writes its metrics; the dashboard is a
process of its own, and so are its viewers, each of which asks as the page's script does. In turns
both are stopped and let go (SIGSTOP, SIGCONT), and the time of a step with them is divided by the
time of a step without them in the same round. The viewers' own work is counted too, although they
sit at other machines as a rule. Whatever else runs here moves single rounds, so the interval is
told too. Prints one JSON line; `missed` is 1 where the whole 95% interval lies above 1.01, or
where the dashboard takes more than 1% of the machine.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.checkpoint_drag import make_step
from benchmarks.turns import interval
from infrastructure.core.line_file import LineFile
from infrastructure.monitoring.drawing.metrics_file import encode_record

MOST = 1.01
PAST_STEPS = 5000  # as after some hours: the curves are as long as they get
VIEWERS = """
import sys, threading, time, urllib.error, urllib.request, gzip, json
def view(url):
    version, wait = "", 2.0
    while True:
        headers = {"Accept-Encoding": "gzip", "If-None-Match": version}
        asked = urllib.request.Request(url, headers=headers)
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                version = answer.headers["ETag"]
                wait = json.loads(gzip.decompress(answer.read()))["next_seconds"]
        except urllib.error.HTTPError as error:
            error.close()
        time.sleep(wait)
for _ in range(int(sys.argv[2])):
    threading.Thread(target=view, args=(sys.argv[1],), daemon=True).start()
    time.sleep(0.1)
time.sleep(1e6)
"""


class Training:
    """Steps of a small network, each written down as a training writes it."""

    def __init__(self, folder: Path) -> None:
        self.run = folder / "20260101-benchmark"
        self.run.mkdir()
        (self.run / "run.json").write_text(json.dumps({"run_id": self.run.name}))
        total = {"status": "running", "total_steps": 10**6}
        (self.run / "summary.json").write_text(json.dumps(total))
        self.file = LineFile(self.run / "metrics.jsonl")
        self.step = make_step()
        self.num_steps = 0
        for _ in range(PAST_STEPS):
            self._write(0.05)

    def seconds_per_step(self, for_seconds: float) -> float:
        """Train for that long; the mean time of a step."""
        started, num_steps = time.perf_counter(), 0
        while time.perf_counter() - started < for_seconds:
            began = time.perf_counter()
            self.step()
            self._write(time.perf_counter() - began)
            num_steps += 1
        return (time.perf_counter() - started) / num_steps

    def _write(self, seconds: float) -> None:
        self.num_steps += 1
        record = {"step": self.num_steps, "loss": 2.0 + random.random(), "seconds": seconds}
        more = {"learning_rate": 1e-4, "grad_norm": random.random(), "tokens_per_second": 900.0}
        self.file.append(encode_record({**record, **more, "memory_bytes": 3e8}))


def start(training: Training, num_viewers: int) -> tuple[psutil.Popen, psutil.Popen]:
    """The dashboard of the training's folder, and its viewers."""
    command = [sys.executable, "-m", "infrastructure", "dashboard", "--json", "--port", "0"]
    server = psutil.Popen(
        [*command, "--output", str(training.run.parent)], stdout=subprocess.PIPE, text=True
    )
    url = json.loads(server.stdout.readline())["url"]
    viewers = psutil.Popen([sys.executable, "-c", VIEWERS, f"{url}look", str(num_viewers)])
    return server, viewers


def cpu_seconds(process: psutil.Popen) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def measure(num_viewers: int, rounds: int, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        training = Training(Path(folder))
        beside = start(training, num_viewers)
        try:
            training.seconds_per_step(2 * seconds)
            return {"viewers": num_viewers, **compare(training, beside, rounds, seconds)}
        finally:
            for process in beside:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.communicate()
            training.file.close()


def compare(
    training: Training, beside: Sequence[psutil.Popen], rounds: int, seconds: float
) -> dict[str, Any]:
    """Ratios of neighbouring turns, and how much of a core the others took while they were on."""

    def turn(is_on: bool) -> float:
        for process in beside:
            process.send_signal(signal.SIGCONT if is_on else signal.SIGSTOP)
        return training.seconds_per_step(seconds)

    before = [cpu_seconds(process) for process in beside]
    ratios, alone = [], []
    for _ in range(rounds):
        first_is_on = random.random() < 0.5
        times = {is_on: turn(is_on) for is_on in (first_is_on, not first_is_on)}
        ratios.append(times[True] / times[False])
        alone.append(times[False])
    taken = [cpu_seconds(p) - b for p, b in zip(beside, before, strict=True)]
    share = taken[0] / (rounds * seconds) / len(os.sched_getaffinity(0))
    low, high = interval(ratios, median)
    return {
        "step_ratio": round(median(ratios), 4),
        "interval_95": [round(low, 4), round(high, 4)],
        "step_ms_alone": round(1000 * median(alone), 1),
        "server_share_of_machine": round(share, 4),
        "viewers_core_share": round(taken[1] / (rounds * seconds), 4),
        "missed": int(low > MOST or share > MOST - 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--viewers", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=4.0)
    arguments = parser.parse_args()
    figures = measure(arguments.viewers, arguments.rounds, arguments.seconds)
    print(json.dumps({"dashboard viewers": figures}))


if __name__ == "__main__":
    main()
