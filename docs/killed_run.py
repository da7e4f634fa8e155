"""Draw images/killed-run.svg from a real run that is killed twice, beside one that is not.

    python docs/killed_run.py

Trains the embedded model on the sample tasks, in a folder that is removed again. Two minutes.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt

IMAGE = Path(__file__).parent / "images/killed-run.svg"
STEPS, EVERY, KILLS = 120, 20, (43, 87)
COMMAND = (
    *(sys.executable, "-m", "infrastructure", "train", "--max-steps", str(STEPS)),
    *("--batch-size", "16", "--save-steps", str(EVERY), "--validation-prompts", "0"),
    *("--enabled-extensions", "", "--no-testing", "--warmup-steps", "10"),
)
COLORS = ("#1a6fb0", "#c4622d", "#2d8a57")
Losses = dict[int, float]


def losses_of(run: Path) -> Losses:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
    return {one["step"]: one["loss"] for one in records if "loss" in one}


def newest_run(folder: Path) -> Path | None:
    return max((path.parent for path in folder.glob("runs/*/metrics.jsonl")), default=None)


def train(folder: Path, kill_at: int | None = None) -> Losses:
    """What is logged when a process has ended, or was killed as soon as it logged a step."""
    folder.mkdir(exist_ok=True)
    process = subprocess.Popen(COMMAND, cwd=folder, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        time.sleep(0.02)
        run = newest_run(folder)
        if kill_at is not None and run is not None and max(losses_of(run), default=0) >= kill_at:
            process.kill()
            process.wait()
    run = newest_run(folder)
    assert run is not None
    return losses_of(run)


def weights_hash(folder: Path) -> str:
    run = newest_run(folder)
    assert run is not None
    return hashlib.sha256((run / "final/model.safetensors").read_bytes()).hexdigest()[:12]


def draw(undisturbed: Losses, parts: list[Losses], digest: str) -> None:
    figure, axes = plt.subplots(figsize=(7.2, 2.9), layout="constrained")
    axes.plot(list(undisturbed), list(undisturbed.values()), color="#c9ced6", linewidth=6)
    axes.plot([], [], color="#c9ced6", linewidth=6, label="an uninterrupted run")
    begins_at = 1
    for number, (part, color) in enumerate(zip(parts, COLORS, strict=True), 1):
        steps = [step for step in part if step >= begins_at]
        losses = [part[step] for step in steps]
        name = f"process {number} {'starts' if number == 1 else 'resumes'}"
        axes.plot(steps, losses, color=color, linewidth=1.6, label=name)
        if number < len(parts):
            last = steps[-1]
            axes.axvline(last, color=color, linestyle=":", linewidth=1)
            axes.text(
                last + 1, max(undisturbed.values()) * 0.95, "kill -9", fontsize=8, color=color
            )
            begins_at = last // EVERY * EVERY + 1
    axes.set(xlabel="step", ylabel="loss")
    axes.set_title(f"Killed twice, the same weights at the end (sha256 {digest}…)", fontsize=10)
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    IMAGE.parent.mkdir(exist_ok=True)
    figure.savefig(IMAGE, metadata={"Date": None})


def main() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        undisturbed = train(folder / "undisturbed")
        parts = [train(folder / "killed", kill) for kill in (*KILLS, None)]
        hashes = {weights_hash(folder / one) for one in ("undisturbed", "killed")}
    if len(hashes) != 1:
        raise SystemExit(f"the weights differ: {hashes}")
    draw(undisturbed, parts, hashes.pop())
    print(IMAGE)


if __name__ == "__main__":
    main()
