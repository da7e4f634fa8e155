"""Does `memory_limit` hold? A stream of twenty times the limit, and a training on such a stream.

    python -m benchmarks.memory_limit --limit 64MB
    python -m benchmarks.memory_limit --limit 1GB --whole

Without `--whole`, the limit is one of the data alone (`data.memory_limit`, with a buffer of any
number of rows): a process that reads the stream twice, once for its index, may grow by no more than
the limit. With `--whole` it is one of the whole process (`memory.cpu_memory_limit`), imports and
model included: a real training whose data is twenty times that size. The peak is the kernel's own
(VmHWM), of a new process. Prints one JSON line.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.types import parse_size
from infrastructure.core.process_memory import peak_resident_bytes, resident_bytes
from infrastructure.data.serving.streaming_dataset import StreamingDataset
from infrastructure.training.trainer_factory import TrainerFactory

TIMES = 20
ROW_CHARACTERS = 2000
ROW_COUNT_IN_BLOCK = 1000
UNBOUNDED_ROWS = 10**9


def write_rows(path: Path, num_bytes: int) -> int:
    """Rows of about 2 kB until the file has the size; their number."""
    words = " ".join(f"word{n % 97}" for n in range(ROW_CHARACTERS // 7))
    count = 0
    with path.open("w") as file:
        while file.tell() < num_bytes:
            for _ in range(ROW_COUNT_IN_BLOCK):
                row = {"prompt": f"Say {count}", "completion": f"{count} {words}"}
                file.write(json.dumps(row) + "\n")
                count += 1
    return count


def stream(path: Path, limit_bytes: int) -> dict[str, Any]:
    """Read the whole stream once, in its shuffled order."""
    before = resident_bytes()
    data = StreamingDataset(path, buffer_size=UNBOUNDED_ROWS, memory_limit=limit_bytes)
    rows = sum(1 for _ in data.iterate(epoch=0))
    peak = peak_resident_bytes()
    return {"rows": rows, "before_bytes": before, "peak_bytes": peak, "taken_bytes": peak - before}


def train(path: Path, limit_bytes: int) -> dict[str, Any]:
    """A few hundred steps of the embedded model on the stream."""
    with tempfile.TemporaryDirectory() as cache:
        config = DeploymentConfig(
            **{
                "device": "cpu",
                "data.path": str(path),
                "data.streaming": True,
                "data.max_length": 512,
                "data.over_length": "truncate",
                "data.memory_limit": "64MB",
                "data.buffer_size": UNBOUNDED_ROWS // 1000,
                "cache.directory": cache,
                "memory.cpu_memory_limit": f"{limit_bytes}B",
                "training.max_steps": 20,
                "training.batch_size": 8,
            }
        )
        trainer = TrainerFactory().for_run(config)
        state = trainer.train()
    peak = peak_resident_bytes()
    return {"steps": state.step, "loss": state.loss, "peak_bytes": peak, "taken_bytes": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--limit", default="64MB")
    parser.add_argument("--whole", action="store_true", help="limit the whole training")
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)  # in the measured process
    arguments = parser.parse_args()
    limit = parse_size(arguments.limit)
    if arguments.file is not None:
        measured = train if arguments.whole else stream
        print(json.dumps(measured(arguments.file, limit)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        rows = write_rows(path, TIMES * limit)
        started = time.perf_counter()
        again = ["-m", "benchmarks.memory_limit", *sys.argv[1:], "--file", str(path)]
        done = subprocess.run([sys.executable, *again], check=True, capture_output=True, text=True)
        result = json.loads(done.stdout.splitlines()[-1])
        figures = {
            "limit_bytes": limit,
            "data_bytes": path.stat().st_size,
            "rows_written": rows,
            **result,
            "holds": result["taken_bytes"] <= limit,
            "seconds": round(time.perf_counter() - started, 1),
        }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
