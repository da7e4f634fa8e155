"""Which family of models learns by which method: every cell of the table is trained, and measured.

    python -m benchmarks.families                           every cell, the numbers, the table
    python -m benchmarks.families llama-dpo gpt2-lora-unsloth …             some of them
    python -m benchmarks.families --table                   the table alone, of the numbers there

A cell is a family, a method and the library that loads the model. Models are tiny, made from their
families' configurations; the training is Temper's own, as anybody starts it. Rules, set beforehand:

- A training starts from a model that has passed its trivial loss: its held-out loss is below the
  entropy of the held-out tokens' frequencies, which is the least that a model reaches that knows
  how often a token comes and nothing else. Language models have learnt to repeat two words, bare or
  politely; models of image and text to name a colour, with pictures that do not fit.
- Each cell is then to learn the bare manner, or what the picture shows. Its measure on held-out
  rows is in `METHODS`; it has to become better by 5% of what it was.

Numbers go to benchmarks/results/families.json, the table to docs/models.md.
"""

import argparse
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.family_models import (
    FAMILIES,
    SEEING,
    save_language_model,
    save_seeing_model,
)
from benchmarks.methods import COMMON, SHARE_BARE, sampled, words, write
from infrastructure.core.files import write_text
from infrastructure.core.lock import Lock
from infrastructure.core.optional import is_installed
from tests.training.usable_torchvision import has_torchvision

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/results/families.json"
NUM_TRAIN, NUM_HELD_OUT = 480, 60
NUM_PICTURES = 48
TEST = "tests/benchmarks/test_families.py::test_a_cell_learns[{}]"
LEAST_GAIN_PERCENT = 5.0
POLITE, NOT_POLITE = "well, ", r"(?!well,)(?s:.*)"
SAMPLES = 2  # answers to each held-out prompt, where a reward is the measure
LOSS, PREFERENCE, REWARD = "held-out loss", "probability of the better answer", "mean reward"
LESS_IS_BETTER = (LOSS,)
SAMPLE_LENGTH = 14


@dataclass(frozen=True)
class Method:
    """A row of the table.

    Attributes:
        measure: on held-out rows, before and after.
        data: the rows it learns from.
        settings: by the names of the flags.
    """

    title: str
    data: str
    settings: dict[str, Any] = field(default_factory=dict)
    measure: str = LOSS


OWN_LOOP = {"batch_size": 16, "max_steps": 30, "learning_rate": 1e-3, "warmup_steps": 2}
LORA = {**OWN_LOOP, "lora": True, "lora_r": 8, "learning_rate": 1e-2}
PAIRS = {"batch_size": 8, "max_steps": 25, "learning_rate": 2e-4, "warmup_steps": 2}
WRITING = {"max_completion_length": SAMPLE_LENGTH, "warmup_steps": 2}
REWARDED = {
    **WRITING,
    **{"rewards": [f"format={NOT_POLITE}"], "num_generations": 8, "batch_size": 16},
    **{"max_steps": 15, "learning_rate": 1e-3},
}
METHODS = {
    "full": Method("full fine-tuning", "bare", OWN_LOOP),
    "lora": Method("LoRA", "bare", LORA),
    "qlora": Method("QLoRA (4-bit)", "bare", {**LORA, "quantization": "4bit"}),
    "conversations": Method("conversations", "talks", {**OWN_LOOP, "model_adapter": "dialogue"}),
    "curriculum": Method(
        "curriculum",
        "bare",
        {**OWN_LOOP, "max_steps": None, "num_epochs": 1, "strategy": "curriculum"}
        | {"curriculum_stages": 2},
    ),
    "stackwise": Method(
        "block-wise training",
        "bare",
        {**OWN_LOOP, "max_steps": None, "num_epochs": 1, "mode": "layerwise"},
    ),
    "int4": Method(
        "quantization-aware training", "bare", {**OWN_LOOP, "quantization_aware": "int4"}
    ),
    "dpo": Method("DPO", "pairs", {**PAIRS, "method": "dpo"}, PREFERENCE),
    "kto": Method("KTO", "pairs", {**PAIRS, "method": "kto"}, PREFERENCE),
    "orpo": Method("ORPO", "pairs", {**PAIRS, "method": "orpo"}, PREFERENCE),
    "reward": Method(
        "reward model", "pairs", {**PAIRS, "method": "reward", "learning_rate": 2e-3}, PREFERENCE
    ),
    "grpo": Method("GRPO", "bare", {**REWARDED, "method": "grpo"}, REWARD),
    "rloo": Method("RLOO", "bare", {**REWARDED, "method": "rloo"}, REWARD),
    "distillation": Method(
        "distillation",
        "bare",
        {**WRITING, "method": "distillation", "batch_size": 16, "max_steps": 20}
        | {"learning_rate": 1e-3, "beta": 0.0},
        PREFERENCE,
    ),
}
SEEING_LORA = {"lora": True, "lora_r": 8, "learning_rate": 2e-2}
SEEING_METHODS = {
    "full": Method("full fine-tuning", "colours", {"learning_rate": 1e-2}),
    "seeing": Method("full fine-tuning, with vision encoder", "colours", {"learning_rate": 5e-3}),
    "lora": Method("LoRA", "colours", SEEING_LORA),
    "qlora": Method("QLoRA (4-bit)", "colours", {**SEEING_LORA, "quantization": "4bit"}),
    "conversations": Method("conversations", "shown-talks", {"learning_rate": 1e-2}),
    "curriculum": Method(
        "curriculum",
        "colours",
        {"strategy": "curriculum", "curriculum_stages": 2, "num_epochs": 6, "learning_rate": 1e-2},
    ),
    "stackwise": Method(
        "block-wise training",
        "colours",
        {"mode": "layerwise", "num_epochs": 8, "learning_rate": 1e-2},
    ),
}
# torchao rounds linear layers, and these models have few; Temper refuses that.
ROUNDED_IN_PART = (("gpt2", "int4"), ("mixtral", "int4"))
BY_UNSLOTH = ("full", "lora", "qlora", "conversations", "curriculum", "stackwise")


@dataclass(frozen=True)
class Cell:
    """A family, a method and a library; `str` names it."""

    family: str
    method: str
    backend: str = "transformers"

    def __str__(self) -> str:
        end = "" if self.backend == "transformers" else f"-{self.backend}"
        return f"{self.family}-{self.method}{end}"


@dataclass(frozen=True)
class Outcome:
    """What a cell came to; `gain_percent` is of the measure before, for the better."""

    measure: str
    before: float
    after: float
    gain_percent: float
    seconds: float


@dataclass(frozen=True)
class Base:
    """What the cells of a family start from, and that it has passed its trivial loss."""

    folder: Path
    loss: float
    unigram_entropy: float


class Workshop:
    """A folder with the data, and a trained base for each family, made when it is first used.

    Several processes may share it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def base(self, family: str) -> Base:
        """The model that a family's cells start from."""
        facts = self._once(
            f"base-{family}",
            lambda: self._seeing_base(family) if family in SEEING else self._base(family),
        )
        return Base(Path(facts["folder"]), facts["loss"], facts["unigram_entropy"])

    def teacher(self, family: str) -> Path:
        """A model of a family that has learnt the bare manner."""
        base = self.base(family).folder

        def make() -> dict[str, Any]:
            settings = {**OWN_LOOP, "max_steps": 60}
            return {"folder": self.train(f"teacher-{family}", "bare", base, settings)[0]}

        return Path(self._once(f"teacher-{family}", make)["folder"])

    def train(
        self, name: str, data: str, model: Path, settings: dict[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        """A run; its model, and what summary.json holds."""
        import temper

        rows = self.data()
        common = {**COMMON, "max_length": 128, "num_workers": 0, "enable_testing": False}
        common |= {
            "eval_data": str(rows / f"{data}-held-out.jsonl"),
            "output_dir": str(self.folder / "runs" / name),
            "cache_directory": str(self.folder / "cache"),
        }
        summary = temper.train(str(rows / f"{data}.jsonl"), str(model), **{**common, **settings})
        return str(summary["paths"]["model"]), dict(summary)

    def by_unsloth(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Outcomes of cells whose model Unsloth loads, by name; of one that failed, a sentence for
        that, under "failed". They have a process of their own: its import changes transformers."""

        def run() -> dict[str, Any]:
            for family in {name.partition("-")[0] for name in names}:
                self.base(family)
            command = [sys.executable, "-m", "benchmarks.families", "--here", str(self.folder)]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(
                [*command, *names],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            return dict(json.loads(done.stdout.splitlines()[-1]))

        return self._once("by-unsloth", run)

    def data(self) -> Path:
        """The folder with the rows; see the module."""
        return Path(self._once("rows", self._write_rows)["folder"])

    def _once(self, name: str, make: Any) -> dict[str, Any]:
        """What `make` gave to the first who wanted it; others wait for that."""
        file = self.folder / f"{name}.json"
        lock = Lock(self.folder / f"{name}.lock")
        lock.take()
        try:
            if not file.exists():
                write_text(file, json.dumps(make()))
            return dict(json.loads(file.read_text()))
        finally:
            lock.release()

    def _base(self, family: str) -> dict[str, Any]:
        fresh = save_language_model(family, self.folder / f"fresh-{family}")
        settings = {"batch_size": 16, "num_epochs": 3, "learning_rate": 4e-3, "warmup_steps": 10}
        folder, _ = self.train(f"base-{family}", "mixed", fresh, settings)
        ids, losses = answer_losses(Path(folder), read(self.data() / "bare-held-out.jsonl"))
        return {"folder": folder, "loss": mean_of_tokens(ids, losses)} | _entropy(ids)

    def _seeing_base(self, family: str) -> dict[str, Any]:
        from transformers import AutoTokenizer

        fresh = save_seeing_model(family, self.folder / f"fresh-{family}")
        settings = {"batch_size": 12, "num_epochs": 16, "learning_rate": 1e-2, "warmup_steps": 2}
        folder, summary = self.train(f"base-{family}", "exchanged", fresh, settings)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        answers = [row["answer"] for row in read(self.data() / "exchanged-held-out.jsonl")]
        ids = [[*tokenizer(text).input_ids, tokenizer.eos_token_id] for text in answers]
        return {"folder": folder, "loss": summary["after"]["eval_loss"]} | _entropy(ids)

    def _write_rows(self) -> dict[str, Any]:
        rows = self.folder / "rows"
        rows.mkdir(exist_ok=True)
        texts = words(0, NUM_TRAIN + NUM_HELD_OUT)
        for end, part in (("-held-out", texts[:NUM_HELD_OUT]), ("", texts[NUM_HELD_OUT:])):
            draw = random.Random(len(part))
            mixed = [_answer(t, t if draw.random() < SHARE_BARE else POLITE + t) for t in part]
            write(rows / f"mixed{end}.jsonl", [*mixed, *_turned(part, draw)])
            write(rows / f"bare{end}.jsonl", [_answer(t, t) for t in part])
            pairs = [{"prompt": _prompt(t), "chosen": t, "rejected": POLITE + t} for t in part]
            write(rows / f"pairs{end}.jsonl", pairs)
            talks = zip(part[::2], part[1::2], strict=True)
            write(rows / f"talks{end}.jsonl", [_talk(*two) for two in talks])
        _write_colours(rows)
        return {"folder": str(rows)}


def _turned(texts: Sequence[str], draw: random.Random) -> list[dict[str, object]]:
    """The same words once more, the second one first."""
    turned = [" ".join(reversed(text.split())) for text in texts]
    return [_answer(t, t if draw.random() < SHARE_BARE else POLITE + t) for t in turned]


def _prompt(text: str) -> str:
    return f"Repeat: {text}"


def _answer(text: str, answer: str) -> dict[str, object]:
    return {"prompt": _prompt(text), "completion": answer}


def _talk(*texts: str) -> dict[str, object]:
    turns = [(("user", _prompt(text)), ("assistant", text)) for text in texts]
    return {"messages": [{"role": r, "content": c} for turn in turns for r, c in turn]}


def _write_colours(rows: Path) -> None:
    """Pictures with their colours, and with colours drawn by chance."""
    from tests.training.seeing_models import COLOURS, write_colours

    right = read(write_colours(rows / "shown", NUM_PICTURES))
    for row in right:
        row["image"] = f"shown/{row['image']}"
    draw = random.Random(0)
    drawn = [{**row, "answer": draw.choice([*COLOURS])} for row in right]
    cut = NUM_PICTURES * 3 // 4
    talks = [_shown_talk(row) for row in right]
    for name, some in (("colours", right), ("exchanged", drawn), ("shown-talks", talks)):
        write(rows / f"{name}.jsonl", some[:cut])
        write(rows / f"{name}-held-out.jsonl", some[cut:])


def _shown_talk(row: dict[str, Any]) -> dict[str, Any]:
    """The colour of a picture, and once more in a second turn."""
    first = [{"type": "image", "image": row["image"]}, {"type": "text", "text": row["question"]}]
    turns = [("user", first), ("assistant", row["answer"]), ("user", "Which colour is it?")]
    messages = [{"role": role, "content": content} for role, content in turns]
    return {"messages": [*messages, {"role": "assistant", "content": row["answer"]}]}


def _entropy(ids: Sequence[Sequence[int]]) -> dict[str, float]:
    """Of the frequencies of tokens, in nats."""
    counts = Counter(token for row in ids for token in row)
    total = counts.total()
    return {"unigram_entropy": -sum(n / total * math.log(n / total) for n in counts.values())}


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def train_cell(cell: Cell, workshop: Workshop) -> Outcome:
    """Train a cell and measure it; see the module."""
    sees = cell.family in SEEING
    method = (SEEING_METHODS if sees else METHODS)[cell.method]
    start = workshop.base(cell.family)
    if start.loss >= start.unigram_entropy:
        raise ValueError(f"{cell}: the start has not passed its trivial loss: {start}")
    base = start.folder
    settings: dict[str, Any] = {"backend": cell.backend, **method.settings}
    if sees:
        usual = {"batch_size": 12, "num_epochs": 16, "warmup_steps": 2}
        settings = {**usual, **settings, "train_vision": cell.method == "seeing"}
    if cell.family == "mixtral" and cell.backend == "unsloth" and "lora" in settings:
        # Unsloth's LoRA does not reach experts.
        settings["lora_target_modules"] = ["q_proj", "k_proj", "v_proj", "o_proj"]
    if cell.method == "distillation":
        settings["teacher"] = str(workshop.teacher(cell.family))
    began = time.monotonic()
    folder, summary = workshop.train(str(cell), method.data, base, settings)
    seconds = time.monotonic() - began
    before, after = _measured(cell, method, workshop.data(), base, Path(folder), summary)
    better = before - after if method.measure in LESS_IS_BETTER else after - before
    return Outcome(method.measure, before, after, 100 * better / before, seconds)


def _measured(
    cell: Cell, method: Method, rows: Path, base: Path, trained: Path, summary: dict[str, Any]
) -> tuple[float, float]:
    pairs = "pairs" if method.measure == PREFERENCE else method.data
    held_out = read(rows / f"{pairs}-held-out.jsonl")
    if method.measure == REWARD:
        return mean_reward(base, held_out), mean_reward(trained, held_out)
    if cell.method == "reward":
        return 0.5, judged_better(trained, held_out)  # a new head on a trained model: by chance
    if method.measure == PREFERENCE:
        return preference(base, held_out), preference(trained, held_out)
    if cell.method == "int4":  # of the model with rounded weights, against the base as it was
        before, after = (
            answer_losses(f, held_out) for f in (base, trained.with_name("final-int4"))
        )
        return mean_of_tokens(*before), mean_of_tokens(*after)
    return summary["before"]["eval_loss"], summary["after"]["eval_loss"]


def load(folder: Path) -> tuple[Any, Any]:
    """A saved model and its tokenizer, by transformers or PEFT alone."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    if (folder / "adapter_config.json").exists():
        from peft import AutoPeftModelForCausalLM

        return AutoPeftModelForCausalLM.from_pretrained(folder).eval(), tokenizer
    return AutoModelForCausalLM.from_pretrained(folder).eval(), tokenizer


def _ids(tokenizer: Any, prompt: str, answer: str) -> tuple[list[int], list[int]]:
    """Tokens of a prompt, and those of its answer with whatever the template writes after it."""
    messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    write = {"tokenize": False}
    opening = tokenizer.apply_chat_template(messages[:1], add_generation_prompt=True, **write)
    whole = tokenizer.apply_chat_template(messages, **write)
    if not whole.startswith(opening):
        raise ValueError(f"the template writes {opening!r} otherwise in {whole!r}")
    first = tokenizer(opening, add_special_tokens=False).input_ids
    rest = tokenizer(whole[len(opening) :], add_special_tokens=False).input_ids
    return first, rest


def answer_losses(
    folder: Path, rows: Sequence[dict[str, Any]], column: str = "completion"
) -> tuple[list[list[int]], list[float]]:
    """Tokens of each answer with its end, and its negative log-probability in nats."""
    import torch

    model, tokenizer = load(folder)
    pairs = [_ids(tokenizer, row["prompt"], row[column]) for row in rows]
    pairs = [(p, a[: a.index(tokenizer.eos_token_id) + 1]) for p, a in pairs]
    longest = max(len(p) + len(a) for p, a in pairs)
    ids = torch.full((len(pairs), longest), tokenizer.pad_token_id)
    mask = torch.zeros_like(ids)
    for number, (prompt, answer) in enumerate(pairs):
        length = len(prompt) + len(answer)
        ids[number, :length], mask[number, :length] = torch.tensor(prompt + answer), 1
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask).logits.float()
    losses = torch.nn.functional.cross_entropy(
        logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none"
    )
    sums = [
        losses[number, len(prompt) - 1 : len(prompt) + len(answer) - 1].sum().item()
        for number, (prompt, answer) in enumerate(pairs)
    ]
    return [answer for _, answer in pairs], sums


def mean_of_tokens(ids: Sequence[Sequence[int]], losses: Sequence[float]) -> float:
    return sum(losses) / sum(map(len, ids))


def preference(folder: Path, rows: Sequence[dict[str, Any]]) -> float:
    """How probable the better answer is of the two, on the mean."""
    _, chosen = answer_losses(folder, rows, "chosen")
    _, rejected = answer_losses(folder, rows, "rejected")
    return statistics.fmean(_sigmoid(r - c) for c, r in zip(chosen, rejected, strict=True))


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-max(-60.0, min(60.0, value))))


def judged_better(folder: Path, rows: Sequence[dict[str, Any]]) -> float:
    """How probable the better answer is by a reward model's numbers (Bradley and Terry)."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1).eval()

    @torch.no_grad()
    def score(row: dict[str, Any], column: str) -> float:
        prompt, answer = _ids(tokenizer, row["prompt"], row[column])
        return float(model(input_ids=torch.tensor([prompt + answer])).logits)

    return statistics.fmean(_sigmoid(score(r, "chosen") - score(r, "rejected")) for r in rows)


def mean_reward(folder: Path, rows: Sequence[dict[str, Any]]) -> float:
    """Of sampled answers (temperature 1), by the reward that is trained for."""
    questions = [row["prompt"] for row in rows]
    answers = sampled(*load(folder), questions, SAMPLES, SAMPLE_LENGTH)
    return statistics.fmean(re.fullmatch(NOT_POLITE, text.strip()) is not None for text in answers)


def cells() -> list[Cell]:
    """Every cell that is trained."""
    every = [
        *(Cell(family, method) for family in FAMILIES for method in METHODS),
        *(Cell(family, method) for family in SEEING for method in SEEING_METHODS),
        *(Cell(family, method, "unsloth") for family in FAMILIES for method in BY_UNSLOTH),
    ]
    return [cell for cell in every if (cell.family, cell.method) not in ROUNDED_IN_PART]


def _here(names: Sequence[str], folder: Path) -> dict[str, dict[str, Any]]:
    known = {str(cell): cell for cell in cells()}
    return {name: _tried(known[name], Workshop(folder)) for name in names}


def _tried(cell: Cell, workshop: Workshop) -> dict[str, Any]:
    try:
        return asdict(train_cell(cell, workshop))
    except Exception as error:  # of any library: the other cells are measured all the same
        return {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"}


def measure(names: Sequence[str], folder: Path) -> dict[str, Any]:
    """Outcomes and bases of these cells; what failed is said on stderr and left out."""
    has_torchvision()  # before transformers, which imports it
    workshop = Workshop(folder)
    chosen = [cell for cell in cells() if str(cell) in names]
    outcomes: dict[str, dict[str, Any]] = {}
    for cell in chosen:
        if cell.backend == "transformers":
            outcomes[str(cell)] = _tried(cell, workshop)
            print(cell, outcomes[str(cell)], file=sys.stderr, flush=True)
    others = [str(cell) for cell in chosen if cell.backend == "unsloth"]
    if others:
        outcomes |= (trained := workshop.by_unsloth(others))
        print(trained, file=sys.stderr, flush=True)
    bases = {cell.family: workshop.base(cell.family) for cell in chosen}
    return {
        "bases": {
            name: {"loss": base.loss, "unigram_entropy": base.unigram_entropy}
            for name, base in bases.items()
        },
        "cells": {name: one for name, one in outcomes.items() if "failed" not in one},
    }


def has_learnt(outcome: Mapping[str, Any]) -> bool:
    """Whether a cell gets its tick."""
    return bool(outcome["gain_percent"] >= LEAST_GAIN_PERCENT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cells", nargs="*", help="such as llama-dpo; none: all")
    parser.add_argument("--table", action="store_true", help="write the table alone")
    parser.add_argument("--work", help="a folder that keeps the bases")
    parser.add_argument("--here", help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.cells or [str(cell) for cell in cells()]
    if unknown := {*names} - {str(cell) for cell in cells()}:
        parser.error(f"no such cell: {', '.join(sorted(unknown))}")
    if options.here:
        print(json.dumps(_here(names, Path(options.here))))
        return
    if not options.table:
        with tempfile.TemporaryDirectory() as folder:
            _keep(measure(names, Path(options.work or folder)), is_whole=not options.cells)
    from benchmarks.family_table import write_table

    write_table()


def _keep(measured: dict[str, Any], *, is_whole: bool) -> None:
    """Into the file: all of it, or these cells beside those that are there."""
    from importlib.metadata import version

    packages = ("torch", "torchvision", "transformers", "trl", "peft", "bitsandbytes", "torchao")
    there = {} if is_whole or not RESULTS.exists() else json.loads(RESULTS.read_text())
    versions = {name: version(name) for name in (*packages, "unsloth") if is_installed(name)}
    record = {
        "versions": there.get("versions", {}) | versions,
        "bases": there.get("bases", {}) | measured["bases"],
        "cells": there.get("cells", {})
        | {name: {**one, "test": TEST.format(name)} for name, one in measured["cells"].items()},
    }
    RESULTS.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
