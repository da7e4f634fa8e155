"""Preparing a million rows: Temper's pipeline, and `datasets` with TRL's tokenising.

    python -m benchmarks.data_preparation --data gsm8k/train.jsonl [--rows 1000000] [--write FILE]

Rows are GSM8K's, again and again, each with a number of its own, as questions with answers; both
are given the same file, tokenizer, longest row and two cores, learn from the answers alone, and
keep what they have prepared on the disk. Each prepares in processes of its own. Rows a second are
of the time from after the imports until training could begin; memory is the largest sum of what
all its processes hold for themselves (their proportional set size), read ten times a second. What
the first process holds after its imports is told apart: of few rows they are most of it.

Prints a page, and fails where Temper has less than 1.5 times the rows a second, or more than half
the memory.
"""

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

MAX_LENGTH = 512
NUM_PROCESSES = 2
LEAST_SPEED, MOST_MEMORY = 1.5, 0.5
IMPORTED = "imported"  # what each process says first


@dataclass(frozen=True)
class Figures:
    """What one system took.

    Attributes:
        import_bytes: what its process held after the imports.
        memory_bytes: the most that all of its processes held, imports included.
        tokens_of_first: in the first batch; it shows that there was one.
    """

    seconds: float
    tokens_of_first: int
    import_bytes: int
    memory_bytes: int


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
    from infrastructure.data.data_pipeline import DataPipeline

    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    config = DataConfig(
        path=str(folder / "rows.jsonl"),
        max_length=MAX_LENGTH,
        validation_split=0.0,
        train_on="answers",
        num_workers=NUM_PROCESSES,
    )
    began = _began()
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
    began = _began()
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


def _began() -> float:
    print(IMPORTED, flush=True)
    return time.perf_counter()


def measured(name: str, folder: Path) -> Figures:
    """Prepare in a process of its own, watched from outside.

    Raises:
        RuntimeError: it failed.
    """
    command = [sys.executable, "-m", "benchmarks.data_preparation", "--one", name, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == IMPORTED:
            break
    import_bytes, peak = _held_bytes(psutil.Process(process.pid)), [0]
    watcher = threading.Thread(target=_watch, args=(psutil.Process(process.pid), peak))
    watcher.start()
    output, _ = process.communicate()
    watcher.join()
    if process.returncode:
        raise RuntimeError(f"{name} ended with {process.returncode}")
    return Figures(
        **json.loads(output.splitlines()[-1]), import_bytes=import_bytes, memory_bytes=peak[0]
    )


def _watch(process: psutil.Process, peak: list[int]) -> None:
    while True:
        try:
            family = [process, *process.children(recursive=True)]
            has_ended = process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return
        peak[0] = max(peak[0], sum(map(_held_bytes, family)))
        if has_ended:
            return
        time.sleep(0.1)


def _held_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0


def compare(data: Path, folder: Path, rows: int) -> dict[str, Figures]:
    """Each system once, on the same `rows` rows."""
    from benchmarks.throughput.workbench import MODEL, save_model, train_tokenizer

    texts = [
        f"{row['question']}\n{row['answer']}"
        for row in map(json.loads, data.read_text().splitlines()[:640])
    ]
    save_model(folder / "model", MODEL, train_tokenizer(texts))
    write_rows(data, folder / "rows.jsonl", rows)
    return {name: measured(name, folder) for name in SYSTEMS}


def ratios(figures: dict[str, Figures]) -> tuple[float, float, float]:
    """Temper's of TRL's: rows a second, memory, and memory above the imports."""
    temper, trl = figures["temper"], figures["trl"]
    above = [each.memory_bytes - each.import_bytes for each in (temper, trl)]
    return (
        trl.seconds / temper.seconds,
        temper.memory_bytes / trl.memory_bytes,
        above[0] / above[1],
    )


def page(figures: dict[str, Figures], num_rows: int) -> str:
    from benchmarks.machine import environment, sentence, table  # torch, which no worker needs

    faster, memory, above = ratios(figures)
    head = ("", "rows a second", "memory", "of that, after the imports", "seconds")
    names = {"temper": "Temper", "trl": "`datasets` with TRL's tokenising"}
    rows = [
        (
            names[name],
            f"{num_rows / each.seconds:,.0f}",
            f"{each.memory_bytes / 1e6:,.0f} MB",
            f"{each.import_bytes / 1e6:,.0f} MB",
            f"{each.seconds:,.0f}",
        )
        for name, each in figures.items()
    ]
    return (
        "# Preparing rows\n\n"
        f"`python -m benchmarks.data_preparation`: {num_rows:,} rows, two processes. Temper does"
        f" {faster:.2f} times the rows a second (at least {LEAST_SPEED}) with {memory:.2f} of the"
        f" memory (at most {MOST_MEMORY}), {above:.2f} of it above the imports."
        f" {sentence(environment())}\n\n{table(head, rows)}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--data", type=Path, help="GSM8K's train.jsonl")
    parser.add_argument("--rows", type=int, default=10**6)
    parser.add_argument("--one", nargs=2, metavar=("SYSTEM", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path, metavar="FILE", help="keep the page")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    if arguments.one:
        name, folder = arguments.one
        print(json.dumps(SYSTEMS[name](Path(folder))))
        return 0
    if arguments.data is None:
        parser.error("--data is needed: GSM8K's train.jsonl")
    with tempfile.TemporaryDirectory() as folder:
        figures = compare(arguments.data, Path(folder), arguments.rows)
    from benchmarks.machine import publish

    publish(page(figures, arguments.rows), arguments.write)
    faster, memory, _ = ratios(figures)
    return int(faster < LEAST_SPEED or memory > MOST_MEMORY)


if __name__ == "__main__":
    sys.exit(main())
