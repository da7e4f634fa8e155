"""Prove that plain transformers answers as Temper measured: `make prove-results`.

Families of models × kinds of training, and bases with odd generation configurations. The reader
here is written against transformers and PEFT alone; what it answers is held against Temper's own
answers, with the ends; models that see are asked about pictures. Prints a table; exit code 1 if a
line does not hold.
"""

import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import PeftModel
from PIL import Image
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
    BitsAndBytesConfig,
    GenerationConfig,
)

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.deployment.export import export_model
from infrastructure.deployment.export_request import ExportRequest, Part
from infrastructure.evaluation.prompting import Answerer
from infrastructure.run.directory import RunDirectory
from tests.conftest import train_tiny_tokenizer
from tests.training.seeing_models import (
    TEXT,
    TOWER,
    picture,
    save_gemma3,
    save_idefics3,
    save_llava,
    save_qwen_vl,
    save_text_model,
    save_tower,
    widened,
    write_colours,
)
from tests.training.usable_torchvision import has_torchvision

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
END, BASE_END = "<|im_end|>", "</s>"
MARKS = {"additional_special_tokens": ["<|im_start|>", END]}
VOCABULARY = 320  # some tokenizers add tokens of their own
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
HEADS = {**SIZES, "head_dim": 16}
EXPERTS = {**HEADS, "num_local_experts": 4, "num_experts_per_tok": 2}
GPT2 = {
    **{"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128},
    **{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
}
# name: class of the configuration, its arguments
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", SIZES),
    "llama, tied": ("LlamaConfig", {**SIZES, "tie_word_embeddings": True}),
    "mistral": ("MistralConfig", {**SIZES, "sliding_window": 48}),
    "qwen2": ("Qwen2Config", SIZES),
    "qwen3": ("Qwen3Config", HEADS),
    "gemma": ("GemmaConfig", HEADS),
    "gemma2": ("Gemma2Config", {**HEADS, "sliding_window": 48}),
    "gemma3": ("Gemma3TextConfig", {**HEADS, "sliding_window": 48}),
    "phi3": ("Phi3Config", SIZES),
    "gpt2": ("GPT2Config", GPT2),
    "olmo2": ("Olmo2Config", SIZES),
    "smollm3": ("SmolLM3Config", SIZES),
    "mixtral, router logits": ("MixtralConfig", {**EXPERTS, "output_router_logits": True}),
    "qwen3 moe": (
        "Qwen3MoeConfig",
        {**HEADS, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
    ),
}
WIDTH = 64  # which 4 bits need on a CPU
WITH_TOWER = "llama and a tower"


def save_text_and_tower(folder: Path, width: int) -> Path:
    """A model of text, and beside it a tower that training puts before it."""
    save_tower(folder.parent / "tower", **widened(TOWER, width))
    return save_text_model(folder, **widened(TEXT, width))


# Those that see pictures: what saves one of a width.
SEEING: dict[str, Callable[[Path, int], Path]] = {
    "llava": save_llava,
    "qwen2-vl": save_qwen_vl,
    "idefics3": save_idefics3,
    "gemma3, pictures": save_gemma3,
    WITH_TOWER: save_text_and_tower,
}
KINDS = ("full", "lora", "qlora", "dpo", "dpo lora")
NOT_HERE = {("gpt2", "qlora"): "bitsandbytes has no Conv1D"}
if not has_torchvision():  # transformers names it where it loads such a processor
    reason = "its processor needs torchvision, which is not installed"
    NOT_HERE |= {(name, kind): reason for name in ("qwen2-vl", "idefics3") for kind in KINDS}
# What is refused before a step, and the words that say why.
REFUSED = {
    **{(n, kind): "methods.model_reads_images" for n in SEEING for kind in ("dpo", "dpo lora")},
    **{(WITH_TOWER, kind): "TRL_TRAINER" for kind in ("dpo", "dpo lora")},
    (WITH_TOWER, "qlora"): "NEEDS_WEIGHTS",
}

# Settings of generation: those that transformers does not write, and those that change answers.
ODD: dict[str, dict[str, Any]] = {
    "temperature, greedy": {"do_sample": False, "temperature": 0.6},
    "top_p, greedy": {"do_sample": False, "top_p": 0.8},
    "top_k, greedy": {"do_sample": False, "top_k": 20},
    "all of sampling, greedy": {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.1},
    "typical_p, greedy": {"do_sample": False, "typical_p": 0.9},
    "epsilon_cutoff, greedy": {"do_sample": False, "epsilon_cutoff": 3e-4},
    "eta_cutoff, greedy": {"do_sample": False, "eta_cutoff": 3e-4},
    "early_stopping without beams": {"early_stopping": True},
    "length_penalty without beams": {"length_penalty": 2.0},
    "many sequences, greedy": {"num_return_sequences": 3},
    "negative padding": {"pad_token_id": -1},
    "sampling": {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20},
    "repetition_penalty": {"repetition_penalty": 1.8},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 1},
    "suppress_tokens": {"suppress_tokens": [*range(60, 130)]},
    "begin_suppress_tokens": {"begin_suppress_tokens": [*range(60, 130)]},
    "bad_words_ids": {"bad_words_ids": [[number] for number in range(60, 130)]},
    "forced_eos_token_id": {"forced_eos_token_id": 2},
    "forced_bos_token_id": {"forced_bos_token_id": 5},
    "min_new_tokens": {"min_new_tokens": 20},
    "min_length": {"min_length": 60},
    "num_beams": {"num_beams": 3},
    "beam search": {"num_beams": 3, "early_stopping": True, "length_penalty": 0.5},
    "max_length": {"max_length": 21},
    "exponential_decay": {"exponential_decay_length_penalty": [2, 1.5]},
    "renormalised": {"renormalize_logits": True},
    "no end at all": {"eos_token_id": None},
    "several ends": {"eos_token_id": [2, 3]},
    "unknown setting": {"a_setting_of_somebody": 3},
    "scores without a dict": {"output_scores": True},
}
NEUTRAL = {
    **{"do_sample": False, "num_beams": 1, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0},
    **{"num_return_sequences": 1, "max_new_tokens": 12},
}
QUESTIONS = ("Is 4711 right?", "Is 12 wrong?", "Reverse 33", "Is it?")
# Of models that see: colours and sizes of the pictures, and the question about them.
Shown = tuple[tuple[str, tuple[int, int]], ...]
ABOUT_PICTURES: tuple[tuple[Shown, str], ...] = (
    ((("red", (20, 18)),), "Which colour is it?"),
    ((("green", (33, 21)),), "Which colour is it?"),
    ((("blue", (18, 40)),), "Which colour is it?"),
    ((("blue", (20, 18)), ("green", (30, 30))), "Which colour is it?"),
    ((), "Which colour?"),
)


def save_base(folder: Path, family: str, generation: dict[str, Any] | None = None) -> Path:
    """A tiny model whose tokenizer ends with </s>, and whose template ends answers otherwise."""
    kind, arguments = FAMILIES[family]
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**arguments)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer = train_tiny_tokenizer(pad_token="<pad>", bos_token="<s>", eos_token=BASE_END)
    tokenizer.add_special_tokens(MARKS)
    assert len(tokenizer) <= VOCABULARY
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder)
    file = folder / "generation_config.json"
    known = json.loads(file.read_text())
    file.write_text(json.dumps({**known, **(generation or {})}))
    return folder


def write_rows(folder: Path, kind: str) -> Path:
    """Questions with one of two short answers, or with both."""
    rows = []
    for number in range(36):
        right, wrong = ("yes", "no, 7")[:: 1 if number % 3 else -1]
        words = ("right", "wrong")[number % 3 == 0]
        answers = {"chosen": right, "rejected": wrong} if "dpo" in kind else {"completion": right}
        rows.append({"prompt": f"Is {number} {words}?", **answers})
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def train(folder: Path, base: Path, kind: str, rows: Path | None = None, **training: Any) -> Path:
    """A short training; the run.

    Args:
        rows: others than those of `write_rows`.
    """
    lora = training.pop("lora", {"r": 4} if "lora" in kind else None)
    model: dict[str, Any] = {"name": str(base), "lora_config": lora}
    if kind == "qlora":
        model["quantization"] = "4bit"
    values: dict[str, Any] = {
        **{"batch_size": 4, "num_epochs": 1, "learning_rate": 1e-2, "warmup_steps": 1},
        **{"metrics_sinks": ["jsonl"], "mixed_precision": False, "seed": 5},
    }
    if "dpo" in kind:
        values |= {"method": "dpo"}
    else:
        values |= {"validation_prompts": 0, "num_epochs": 3}
    config = DeploymentConfig(
        model=model,
        data={"path": str(rows or write_rows(folder, kind)), "max_length": 64, "num_workers": 0},
        training={**values, **training},
        cache={"directory": str(folder / "cache")},
        output_dir=str(folder / "runs"),
        device="cpu",
        enable_testing=False,
        enable_monitoring=False,
    )
    summary = TrainingDeployment(config, say=lambda _line: None).run()
    return Path(summary["paths"]["run"])


def train_seeing(folder: Path, family: str, kind: str, **training: Any) -> Path:
    """A training on pictures that alone answer the question; the run."""
    base = SEEING[family](folder / "base", WIDTH)
    if "lora" in kind and (family, kind) not in REFUSED and family != WITH_TOWER:
        (
            folder / "first"
        ).mkdir()  # of a model that sees: a few matrices beside chance learn little
        base = train_seeing(folder / "first", family, "full") / "final"
    rows = write_colours(folder / "rows", 36)
    more: dict[str, Any] = {"num_epochs": 1, "max_steps": 2} if "dpo" in kind else {"num_epochs": 8}
    if family == WITH_TOWER:
        tower = {"vision_tower": str(folder / "tower")}
        more |= {"enabled_extensions": ["multimodal"], "multimodal": tower}
    return train(folder, base, kind, rows, **{"learning_rate": 5e-3, **more, **training})


def read(folder: Path, *, is_quantized: bool = False) -> Any:
    """A saved model by transformers and PEFT alone, as the card of a LoRA says."""
    settings = folder / "adapter_config.json"
    if not settings.is_file():
        sees = "vision_config" in json.loads((folder / "config.json").read_text())
        auto = AutoModelForImageTextToText if sees else AutoModelForCausalLM
        return auto.from_pretrained(folder)
    options: dict[str, Any] = {}
    card = (folder / "README.md").read_text()
    auto = AutoModelForImageTextToText if "ImageTextToText" in card else AutoModelForCausalLM
    if "output_router_logits=False" in card:
        options["output_router_logits"] = False
    if is_quantized:
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.float32,
        )
    base = json.loads(settings.read_text())["base_model_name_or_path"]
    base = folder / base if base.startswith(".") else base
    plain = auto.from_pretrained(base, dtype=torch.float32, **options)
    with warnings.catch_warnings():  # PEFT's on a LoRA on a tied head
        warnings.simplefilter("ignore")
        model = PeftModel.from_pretrained(plain, str(folder))
    model.generation_config = GenerationConfig.from_pretrained(folder)
    return model


def read_greedy(folder: Path, **options: bool) -> tuple[Any, list[int]]:
    """The same without the base's taste, and the tokens that end its answers."""
    model = read(folder, **options).eval()
    own = model.generation_config
    ends = own.eos_token_id if isinstance(own.eos_token_id, list) else [own.eos_token_id]
    for name in dir(own):
        is_tokens = name in ("eos_token_id", "pad_token_id", "bos_token_id")
        if not name.startswith("_") and not is_tokens and name in own.to_dict():
            setattr(own, name, None)
    return model, ends


def plain_answers(folder: Path, **options: bool) -> list[tuple[str, bool]]:
    """What a reader of the folder gets, and whether it has ended by itself."""
    model, ends = read_greedy(folder, **options)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    answers = []
    for question in QUESTIONS:
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        written = model.generate(**ids, **NEUTRAL)[0, ids["input_ids"].shape[1] :].tolist()
        has_ended = bool(written) and written[-1] in ends
        answers.append((tokenizer.decode(written, skip_special_tokens=True).strip(), has_ended))
    return answers


def write_pictures(folder: Path) -> list[tuple[list[Path], str]]:
    """The files of the pictures of each question, and the question."""
    written = []
    for shown, question in ABOUT_PICTURES:
        files = [folder / f"{colour}-{width}x{height}.png" for colour, (width, height) in shown]
        for file, (colour, size) in zip(files, shown, strict=True):
            picture(colour, 99, size).save(file)
        written.append((files, question))
    return written


def plain_answers_to_pictures(
    folder: Path, questions: list[tuple[list[Path], str]], **options: bool
) -> list[tuple[str, bool]]:
    """What a reader of the folder gets who shows pictures by the folder's own processor."""
    model, ends = read_greedy(folder, **options)
    processor = AutoProcessor.from_pretrained(folder)
    answers = []
    for files, question in questions:
        content: list[dict[str, Any]] = [
            {"type": "image", "image": Image.open(file)} for file in files
        ]
        content += [{"type": "text", "text": question}]
        given = processor.apply_chat_template(
            [{"role": "user", "content": content}],
            add_generation_prompt=True,
            tokenize=True,
            return_tensors="pt",
            return_dict=True,
        )
        written = model.generate(**given, **NEUTRAL)[0, given["input_ids"].shape[1] :].tolist()
        has_ended = bool(written) and written[-1] in ends
        answers.append((processor.decode(written, skip_special_tokens=True).strip(), has_ended))
    return answers


def tempers_answers_to_pictures(
    model: Path, questions: list[tuple[list[Path], str]]
) -> list[tuple[str, bool]]:
    """What `temper ask --image` writes."""
    answers = []
    for files, question in questions:
        [answer] = Answerer(model, max_tokens=12, device="cpu", images=files).answers([question])
        answers.append((answer.text.strip(), not answer.is_cut))
    return answers


def tempers_answers(model: Path) -> list[tuple[str, bool]]:
    """What `temper ask` writes."""
    answers = Answerer(model, max_tokens=12, device="cpu").answers(QUESTIONS)
    return [(answer.text.strip(), not answer.is_cut) for answer in answers]


@dataclass(frozen=True)
class Line:
    """One line of the table."""

    base: str
    kind: str
    holds: bool
    what: str


def result(folder: Path, family: str, kind: str) -> Line:
    """Train a family in one way, and read what is saved and exported."""
    if (family, kind) in NOT_HERE:
        return Line(family, kind, True, NOT_HERE[family, kind])
    if (family, kind) in REFUSED:
        return _refused(folder, family, kind)
    if family in SEEING:
        return _seeing_result(folder, family, kind)
    base = save_base(folder / "base", family)
    if "dpo" in kind:  # of a model that answers and ends
        (folder / "first").mkdir()
        base = train(folder / "first", base, "full") / "final"
    run = train(folder, base, kind)
    return _compared(folder, run, family, kind, tempers_answers(run), plain_answers)


def _compared(
    folder: Path,
    run: Path,
    family: str,
    kind: str,
    expected: list[tuple[str, bool]],
    reader: Callable[..., list[tuple[str, bool]]],
) -> Line:
    """What is saved and what is exported, as a reader of each gets it."""
    is_quantized = kind == "qlora"
    parts = {"export": Part.LORA if "lora" in kind else Part.AUTO}
    if "lora" in kind:
        parts["merged"] = Part.MERGED
    read_back = {"final": reader(run / "final", is_quantized=is_quantized)}
    for name, part in parts.items():
        export_model(RunDirectory(run), None, folder / name, ExportRequest(part=part))
        read_back[name] = reader(folder / name, is_quantized=is_quantized and part is Part.LORA)
    wrong = [name for name, answers in read_back.items() if answers != expected]
    num_ended = sum(has_ended for _, has_ended in expected)
    what = f"{num_ended} of {len(expected)} answers end; {', '.join(read_back)} the same"
    return Line(family, kind, not wrong, what if not wrong else f"{wrong}: {read_back}, {expected}")


def _seeing_result(folder: Path, family: str, kind: str) -> Line:
    """The same, asked about pictures; the answers have to depend on them."""
    run = train_seeing(folder, family, kind)
    questions = write_pictures(folder)
    expected = tempers_answers_to_pictures(run, questions)
    line = _compared(
        folder,
        run,
        family,
        kind,
        expected,
        lambda model, **options: plain_answers_to_pictures(model, questions, **options),
    )
    colours = [shown[0][0] for shown, _ in ABOUT_PICTURES if len(shown) == 1]
    num_right = sum(text == colour for (text, _), colour in zip(expected, colours, strict=False))
    is_seen = len({text for text, _ in expected[: len(colours)]}) == len(colours)
    what = f"{line.what}; {num_right} of {len(colours)} colours right"
    return replace(line, holds=line.holds and is_seen, what=what)


def _refused(folder: Path, family: str, kind: str) -> Line:
    """What cannot be trained is refused before a step."""
    words = REFUSED[family, kind]
    try:
        train_seeing(folder, family, kind)
    except ValueError as error:
        steps = [*folder.glob("runs/*/checkpoints/versions/*.json")]
        holds = words in str(error) and not steps
        return Line(family, kind, holds, f"refused: {str(error) if not holds else words}")
    return Line(family, kind, False, "not refused")


def odd(folder: Path, name: str) -> Line:
    """Train a base with an odd generation configuration: right, or refused before a step."""
    base = save_base(folder / "base", "llama", ODD[name])
    try:
        run = train(folder, base, "full")
    except ValueError as error:
        steps = [*folder.glob("runs/*/checkpoints/versions/*.json")]
        return Line(name, "refused", not steps, str(error)[:60])
    end = AutoTokenizer.from_pretrained(base).convert_tokens_to_ids(END)
    ends = json.loads((run / "final" / "generation_config.json").read_text())["eos_token_id"]
    expected, answers = tempers_answers(run), plain_answers(run / "final")
    same = answers == expected and end in (ends if isinstance(ends, list) else [ends])
    num_ended = sum(has_ended for _, has_ended in expected)
    what = f"{num_ended} of {len(expected)} answers end"
    return Line(name, "right", same, what if same else f"{answers} {expected} {ends}")


def lines(only: Callable[[str], bool] = lambda _name: True) -> Iterator[Line]:
    """All lines of the table."""
    todo: list[tuple[str, str]] = [(name, "") for name in ODD if only(name)]
    families = [*FAMILIES, *SEEING]
    todo += [(family, kind) for kind in KINDS for family in families if only(family)]
    for name, kind in todo:
        with tempfile.TemporaryDirectory() as folder:
            try:
                yield result(Path(folder), name, kind) if kind else odd(Path(folder), name)
            except Exception as error:  # the lines after it tell something, too
                yield Line(name, kind, False, f"{type(error).__name__}: {error}")


def main(arguments: list[str]) -> int:
    """Print the table."""
    warnings.simplefilter("ignore")
    num_wrong = 0
    for line in lines(lambda name: not arguments or name in arguments):
        print(f"{line.base:30} {line.kind:10} {'holds' if line.holds else 'WRONG':6} {line.what}")
        sys.stdout.flush()
        num_wrong += not line.holds
    print(json.dumps({"wrong": num_wrong}))
    return int(num_wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
