"""Memory: predicted, and running out for real."""

import torch

from benchmarks.gpu_check.bench import Bench, Watched, largest_difference
from benchmarks.gpu_check.numerics import Figures
from infrastructure.optimization.peak_memory import PeakMemory

SHARE_LEFT = 0.6  # of what the training needs
LARGEST_ERROR = {"cuda": 0.10, "cpu": 0.15}


def out_of_memory_is_recovered(bench: Bench) -> Figures:
    """A GPU that is too small for the batch: the same steps, in smaller pieces."""
    bench.require_gpu()
    options = {"batch_size": 64, "mixed_precision": False}
    expected = bench.losses(**options)  # type: ignore[arg-type]
    needed = torch.cuda.max_memory_reserved()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(SHARE_LEFT * needed / total)
    watched = Watched()
    trainer = bench.trainer(watched=watched, **options)  # type: ignore[arg-type]
    trainer.train()
    kinds = [record["kind"] for record in trainer.state.recoveries]
    difference = largest_difference(watched.losses, expected)
    return {
        "passed": "out_of_memory" in kinds and difference < 1e-3,
        "recoveries": len(kinds),
        "micro_batch": trainer.state.micro_batch_size,
        "difference": difference,
    }


def memory_is_predicted(bench: Bench) -> Figures:
    """The peak of a training, from a few of its micro-batches, beside what it then was."""
    trainer = bench.trainer(batch_size=64, max_steps=3)
    fit = trainer.cost_measurement()
    predicted = fit.costs(trainer.batch_plan(), total_steps=3).peak_bytes
    peak = PeakMemory(trainer.device)
    peak.start()
    trainer.train()
    real = peak.read()
    peak.close()
    error = predicted / real - 1
    return {
        "passed": abs(error) <= LARGEST_ERROR[bench.device],
        "error": round(error, 3),
        "predicted_megabytes": predicted // 10**6,
        "real_megabytes": real // 10**6,
    }
