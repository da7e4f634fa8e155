"""TRL's methods in Temper's runs: kills that change nothing, and models that get better.

    python -m benchmarks.methods kills [--kills 10]      each method, killed and gone on with
    python -m benchmarks.methods quality [--seeds 3]     against an SFT start, on held-out prompts

Prints one JSON line. `kills`: every training is killed (SIGKILL) at steps drawn by chance, and goes
on by the same command; `temper` and `plain` say whether its last weights are those of an
undisturbed training, bit for bit: with Temper, and with TRL's trainer alone, killed at the same
steps, that saves as often and goes on with `resume_from_checkpoint=True`.

`quality`: a small Llama from scratch first learns to repeat words, in two manners by turns: bare
("kiwi stone") and polite ("well, kiwi stone"). Then each method is to bring it to the bare manner.
The measure, named before anything was trained: of four answers to each held-out prompt, sampled at
temperature 1, the share that is exactly the bare one. The interval is Student's t over the seeds.
"""

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch

import temper
from infrastructure.config.registries import METHODS
from tests.conftest import save_tiny_llama
from tests.training.methods.method_runs import (
    configuration,
    import_trl,
    in_fork,
    killed_at,
    run_folder,
    train,
    train_plainly,
    trained_weights,
)

NUM_STEPS = 12
NUM_TRAIN, NUM_HELD_OUT = 600, 64
SAMPLES = 4
# Words of the sample tasks, which the embedded model's tokenizer knows.
WORDS = (
    "Athens Berlin Cairo Dublin Florence Geneva Hanoi Istanbul Jakarta Kyoto "
    "Lisbon Madrid Nairobi Oslo Paris Rome Seoul Tokyo Vienna Warsaw "
    "tea coffee milk juice water lemonade cocoa cider beer wine "
    "dog cat horse cow sheep rabbit tiger fox apple pear plum cherry banana grape lemon melon "
    "hammer saw drill shovel rake axe ladder brush red blue green yellow black white brown pink "
    "car bus train plane boat truck bicycle tram "
    "baker teacher nurse pilot farmer lawyer painter driver singer tailor"
)
SHARE_BARE = 0.4  # of the answers that the start has learnt
# 95%, by the number of seeds
STUDENT_T = {
    2: 12.706,
    3: 4.303,
    4: 3.182,
    5: 2.776,
    6: 2.571,
    7: 2.447,
    8: 2.365,
    9: 2.306,
    10: 2.262,
}
MODEL = {
    "name": "embedded",
    "embedded": {
        "hidden_size": 64,
        "num_layers": 2,
        "num_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 512,
        "max_positions": 128,
    },
}
COMMON: dict[str, Any] = {
    "device": "cpu",
    "enable_monitoring": False,
    "metrics_sinks": ["jsonl"],
    "checkpoint_seconds": None,
    "validation_prompts": 0,
    "mixed_precision": False,
    "warmup_steps": 5,
}


def kills(num_kills: int) -> dict[str, object]:
    """Every method, killed so often; see the module."""
    import_trl()
    with tempfile.TemporaryDirectory() as folder:
        model = save_tiny_llama(Path(folder) / "llama")
        teacher = save_tiny_llama(Path(folder) / "teacher")
        return {
            name: _killed(name, Path(folder) / name, model, teacher, num_kills)
            for name in METHODS.built_in
        }


def _killed(
    name: str, folder: Path, model: Path, teacher: Path, num_kills: int
) -> dict[str, object]:
    more: dict[str, Any] = {
        "training": {"max_steps": NUM_STEPS},
        "data": {"validation_split": 0},  # to measure draws random numbers where TRL generates
    }
    if name in ("grpo", "rloo"):  # six prompts in each of four steps of an epoch
        more["training"] |= {"batch_size": 8, "gradient_accumulation": 3}
    calm = configuration(name, folder / "calm", model, teacher, **more)
    disturbed = configuration(name, folder / "disturbed", model, teacher, **more)
    plain, plain_disturbed = folder / "plain", folder / "plain-disturbed"
    for one in (plain, plain_disturbed):
        one.mkdir(parents=True)
    _require(in_fork(lambda: train(calm)), name)
    _require(in_fork(lambda: train_plainly(calm, plain)), name)
    draw, counts = random.Random(name), {"kills": 0, "rounds": 0}
    result: dict[str, object] = {"temper": True, "plain": True}
    while counts["kills"] < num_kills:
        counts["rounds"] += 1
        steps = sorted(draw.sample(range(2, NUM_STEPS), 3))
        for step in steps:
            counts["kills"] += killed_at(step, partial(train, disturbed)) != 0
            in_fork(lambda step=step: train_plainly(calm, plain_disturbed, step))
        _require(in_fork(lambda: train(disturbed)), name)
        _require(in_fork(lambda: train_plainly(calm, plain_disturbed)), name)
        ours = trained_weights(run_folder(disturbed) / "final")
        theirs = trained_weights(plain_disturbed / "final")
        result["temper"] &= torch.equal(ours, trained_weights(run_folder(calm) / "final"))
        result["plain"] &= torch.equal(theirs, trained_weights(plain / "final"))
        for one in (Path(disturbed.output_dir), plain_disturbed):
            _empty(one)
    return {**result, **counts}


def _require(status: int, name: str) -> None:
    if status:
        raise RuntimeError(f"{name}: a training that nobody killed has failed")


def _empty(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def words(seed: int, count: int) -> list[str]:
    """So many different texts of two words."""
    pool = WORDS.split()
    draw, texts = random.Random(seed), set()
    while len(texts) < count:
        texts.add(" ".join(draw.sample(pool, 2)))
    return sorted(texts, key=lambda text: random.Random(f"{seed}{text}").random())


def write(path: Path, rows: list[dict[str, object]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def one_seed(seed: int, folder: Path) -> dict[str, float]:
    """The measure of the start, of the teacher, and after each method."""
    texts = words(seed, NUM_TRAIN + NUM_HELD_OUT)
    held_out, texts = texts[:NUM_HELD_OUT], texts[NUM_HELD_OUT:]
    draw = random.Random(seed)
    mixed = [
        _row(t, t if draw.random() < SHARE_BARE else _polite(t)) for t in texts for _ in (1, 2)
    ]
    pairs = [{"prompt": _prompt(t), "chosen": t, "rejected": _polite(t)} for t in texts]
    files = {
        "mixed": write(folder / "mixed.jsonl", mixed),
        "bare": write(folder / "bare.jsonl", [_row(t, t) for t in texts]),
        "pairs": write(folder / "pairs.jsonl", pairs),
    }
    options = {**COMMON, "seed": seed, "cache_directory": str(folder / "cache")}

    def trained(name: str, data: str, model: object, **settings: Any) -> Path:
        runs = str(folder / name)
        summary = temper.train(files[data], model, output_dir=runs, **{**options, **settings})
        return Path(summary["paths"]["model"])

    start = trained("start", "mixed", MODEL, num_epochs=8, batch_size=16, max_length=64)
    teacher = trained(
        "teacher",
        "bare",
        str(start),
        num_epochs=1,
        batch_size=16,
        max_length=64,
        learning_rate=5e-4,
    )
    by_pairs = {"batch_size": 8, "max_steps": 60, "learning_rate": 1e-4, "max_length": 64}
    by_writing = {"max_completion_length": 24, "max_length": 64}
    models = {
        "start": start,
        "teacher": teacher,
        "dpo": trained("dpo", "pairs", str(start), method="dpo", **by_pairs),
        "kto": trained("kto", "pairs", str(start), method="kto", **by_pairs),
        "grpo": trained(
            *("grpo", "bare", str(start)),
            **{"method": "grpo", "rewards": ["exact_answer"], "num_generations": 8},
            **{"batch_size": 32, "max_steps": 40, "learning_rate": 3e-4, **by_writing},
        ),
        "distillation": trained(
            *("distillation", "bare", str(start)),
            **{"method": "distillation", "teacher": str(teacher), "beta": 0.5},
            **{"batch_size": 16, "max_steps": 60, "learning_rate": 5e-4, **by_writing},
        ),
    }
    return {name: measured(model, held_out) for name, model in models.items()}


def _prompt(text: str) -> str:
    return f"Repeat: {text}"


def _polite(text: str) -> str:
    return f"well, {text}"


def _row(text: str, answer: str) -> dict[str, object]:
    return {"prompt": _prompt(text), "completion": answer}


def sampled(
    model: Any, tokenizer: Any, questions: list[str], num_each: int, max_tokens: int
) -> list[str]:
    """So many answers to each question, sampled at temperature 1, always by the same seed."""
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
        )
        for question in questions
    ]
    batch = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        written = model.generate(
            **{name: batch[name] for name in ("input_ids", "attention_mask")},
            do_sample=True,
            temperature=1.0,
            top_k=0,
            num_return_sequences=num_each,
            max_new_tokens=max_tokens,
            pad_token_id=tokenizer.pad_token_id,
        )
    answers: list[str] = tokenizer.batch_decode(
        written[:, batch["input_ids"].shape[1] :], skip_special_tokens=True
    )
    return answers


def measured(folder: Path, texts: list[str]) -> float:
    """The share of sampled answers that are exactly the bare one; see the module."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    answers = sampled(model, tokenizer, [_prompt(text) for text in texts], SAMPLES, 24)
    wanted = [text for text in texts for _ in range(SAMPLES)]
    return statistics.mean(a.strip() == w for a, w in zip(answers, wanted, strict=True))


def quality(num_seeds: int) -> dict[str, object]:
    """Each method's gain over the start, over the seeds; see the module."""
    torch.set_num_threads(1)
    runs = []
    for seed in range(num_seeds):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(one_seed(seed, Path(folder)))
        print(runs[-1], file=sys.stderr, flush=True)
    result: dict[str, object] = {"runs": runs}
    for name in runs[0]:
        if name in ("start", "teacher"):
            continue
        gains = [run[name] - run["start"] for run in runs]
        spread = statistics.stdev(gains) * STUDENT_T[num_seeds] / math.sqrt(num_seeds)
        mean = statistics.mean(gains)
        result[name] = {"gain": mean, "interval": [mean - spread, mean + spread]}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("kills", "quality"))
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    result = kills(options.kills) if options.what == "kills" else quality(options.seeds)
    print(json.dumps({options.what: result}), flush=True)


if __name__ == "__main__":
    main()
