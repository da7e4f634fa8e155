"""Preparing a million rows: Temper's pipeline, and `datasets` with TRL's tokenising.

    python -m benchmarks.data_preparation --data gsm8k/train.jsonl [--rows 1000000]

Rows are GSM8K's, again and again, each with a number of its own, as questions with answers; both
are given the same file, tokenizer, longest row and two cores, learn from the answers alone, and
keep what they have prepared on the disk. Each prepares in processes of its own. Rows a second are
of the time from after the imports until training could begin; memory is the largest sum of what
all its processes hold for themselves (their proportional set size), read ten times a second.

Prints one JSON line; `missed` is 1 where Temper has less than 1.5 times the rows a second, or more
than half the memory.
"""

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

MAX_LENGTH = 512
NUM_PROCESSES = 2
LEAST_SPEED, MOST_MEMORY = 1.5, 0.5


def write_rows(data: Path, rows: Path, count: int) -> None:
    """`count` rows with a prompt and a completion, no two alike."""
    given = [json.loads(line) for line in data.read_text().splitlines()]
    with rows.open("w") as file:
        for number in range(count):
            row = given[number % len(given)]
            prompt = f"{number}. {row['question']}"
            file.write(json.dumps({"prompt": prompt, "completion": row["answer"]}) + "\n")


def prepare_by_temper(folder: Path) -> dict[str, Any]:
    from transformers import AutoTokenizer

    from infrastructure.config.sections.data_config import DataConfig
    from infrastructure.config.sections.resource_config import CacheConfig
    from infrastructure.training.data.data_pipeline import DataPipeline

    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    config = DataConfig(
        path=str(folder / "rows.jsonl"),
        max_length=MAX_LENGTH,
        validation_split=0.0,
        train_on="answers",
        num_workers=NUM_PROCESSES,
    )
    began = time.perf_counter()
    pipeline = DataPipeline(
        config, tokenizer, cache_config=CacheConfig(directory=str(folder / "cache"))
    )
    pipeline.prepare()
    first = next(iter(pipeline.train_batches(epoch=0, start_example=0, batch_size=8)))
    return {"seconds": time.perf_counter() - began, "tokens_of_first": len(first[0].input_ids)}


def prepare_by_trl(folder: Path) -> dict[str, Any]:
    import datasets
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    datasets.disable_progress_bars()
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    config = SFTConfig(
        output_dir=str(folder / "trl"),
        max_length=MAX_LENGTH,
        completion_only_loss=True,
        dataset_num_proc=NUM_PROCESSES,
        report_to="none",
        use_cpu=True,
        bf16=False,
    )
    began = time.perf_counter()
    rows = datasets.load_dataset(
        "json",
        data_files=str(folder / "rows.jsonl"),
        cache_dir=str(folder / "datasets"),
        split="train",
    )
    trainer = SFTTrainer(model=model, args=config, train_dataset=rows, processing_class=tokenizer)
    first = next(iter(trainer.get_train_dataloader()))
    return {"seconds": time.perf_counter() - began, "tokens_of_first": first["input_ids"].shape[1]}


SYSTEMS = {"temper": prepare_by_temper, "trl": prepare_by_trl}


def measured(name: str, folder: Path) -> dict[str, Any]:
    """Prepare in a process of its own, watched from outside."""
    command = [sys.executable, "-m", "benchmarks.data_preparation", "--one", name, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peak = [0]
    watcher = threading.Thread(target=_watch, args=(psutil.Process(process.pid), peak))
    watcher.start()
    output, _ = process.communicate()
    watcher.join()
    if process.returncode:
        raise RuntimeError(f"{name} ended with {process.returncode}")
    return {**json.loads(output.splitlines()[-1]), "memory_bytes": peak[0]}


def _watch(process: psutil.Process, peak: list[int]) -> None:
    while True:
        try:
            family = [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        peak[0] = max(peak[0], sum(map(_held_bytes, family)))
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.1)


def _held_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0


def compare(data: Path, folder: Path, rows: int) -> dict[str, Any]:
    from benchmarks.throughput.workbench import MODEL, save_model, train_tokenizer

    texts = [
        f"{row['question']}\n{row['answer']}"
        for row in map(json.loads, data.read_text().splitlines()[:640])
    ]
    save_model(folder / "model", MODEL, train_tokenizer(texts))
    write_rows(data, folder / "rows.jsonl", rows)
    figures = {name: measured(name, folder) for name in SYSTEMS}
    speeds = {name: rows / figure["seconds"] for name, figure in figures.items()}
    memory = {name: figure["memory_bytes"] for name, figure in figures.items()}
    faster = speeds["temper"] / speeds["trl"]
    smaller = memory["temper"] / memory["trl"]
    return {
        "rows": rows,
        "rows_per_second": {name: round(speed) for name, speed in speeds.items()},
        "memory_megabytes": {name: round(held / 10**6) for name, held in memory.items()},
        "times_as_fast": round(faster, 2),
        "memory_ratio": round(smaller, 2),
        "missed": int(faster < LEAST_SPEED or smaller > MOST_MEMORY),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--data", type=Path, help="GSM8K's train.jsonl")
    parser.add_argument("--rows", type=int, default=10**6)
    parser.add_argument("--one", nargs=2, metavar=("SYSTEM", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    if arguments.one:
        name, folder = arguments.one
        print(json.dumps(SYSTEMS[name](Path(folder))))
        return
    with tempfile.TemporaryDirectory() as folder:
        figures = compare(arguments.data, Path(folder), arguments.rows)
    print(json.dumps({"data preparation": figures}))


if __name__ == "__main__":
    main()
