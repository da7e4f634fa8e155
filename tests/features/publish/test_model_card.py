"""The card of a model has the facts of its run, and a program that loads the model."""

import json
from pathlib import Path
from typing import Any

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.checksums import write_record
from infrastructure.features.publish import model_card
from infrastructure.features.publish.model_card import (
    BEGIN,
    END,
    HERE,
    OF_ITS_AUTHOR,
    base_of_lora,
    card_of_repository,
    write_card,
    written_by,
)
from infrastructure.run.directory import RunDirectory
from tests.deployment.runs import small_settings

HUB = {"kind": "hub", "name": "me/base", "revision": "abc", "dtype": "bfloat16"}
TRAINING = {
    **{"batch_size": "auto", "gradient_accumulation": 2, "learning_rate": 0.25},
    **{"warmup_steps": 6, "scheduler_type": "linear", "seed": 5, "weight_decay": 0.1 + 0.2},
}
HISTORY: list[dict[str, Any]] = [
    {
        "step": 3,
        "changes": [
            {"name": "learning_rate", "was": 0.25, "is": 0.125, "effect": "changes"},
            {"name": "data", "was": "0123456789ab", "is": "ab0123456789", "effect": "changes"},
        ],
    }
]


def run_of(
    folder: Path,
    model: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    summary: dict[str, Any] | None = None,
    **record: Any,
) -> RunDirectory:
    """A run with these records, and without a model."""
    settings = small_settings(folder)
    settings["training"] = training or TRAINING
    if settings["training"].get("method"):
        settings["model"] = {"name": "me/base"}
    configuration = DeploymentConfig(**settings).to_dict()
    run = RunDirectory(folder / "run")
    run.path.mkdir()
    known = {
        "configuration": configuration,
        "model": HUB if model is None else model,
        "data": {"num_train": 1200, "num_evaluation": 34},
        "decided": {"training.batch_size": {"value": 7, "origin": "measured"}},
        **{"precision": "bf16", "created": "2026-01-02", "versions": {"torch": "2.9"}},
    }
    write_record(run.run_file, {**known, **record})
    if summary is not None:
        write_record(run.summary_file, summary)
    return run


def rows_in(card: str) -> dict[str, str]:
    """The rows of the table on the training."""
    rows = [line.strip("| ").split(" | ", 1) for line in card.splitlines() if line.count("|") == 3]
    return {row[0]: row[1] for row in rows[2:] if len(row) == 2}


def code_in(card: str) -> str:
    return card.partition("```python\n")[2].partition("\n```")[0]


def test_a_card_has_all_facts_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_card, "version", lambda name: f"1 of {name}")
    measured = {"eval_loss": 2.0, "exact_match": {"a|b": 0.25, "all": 0.5}}
    summary = {"total_steps": 10, "before": {"eval_loss": 4.0}, "after": measured}
    run = run_of(tmp_path, summary=summary, history=HISTORY)
    (tmp_path / "model").mkdir()
    assert written_by(run, "me/mine", tmp_path / "model", 10).splitlines() == [
        *("publish.card_training_heading()", "", "|  |  |", "| --- | --- |"),
        "| base model | publish.card_base_on_hub(hub=me/base, revision=abc) |",
        "| trained | deployment.trains_all() |",
        "| steps | 10 |",
        "| rows | publish.card_rows(num_train=1,200, num_held_out=34) |",
        "| settings | `batch_size` 7, `gradient_accumulation` 2,"
        " `learning_rate` 0.25 (steps 1 to 3), 0.125 (steps 4 to 10),"
        " `scheduler_type` linear, `warmup_steps` 5, `optimizer` adamw,"
        " `weight_decay` 0.3, `strategy` standard, `loss` cross_entropy, `seed` 5 |",
        "| precision | bf16 |",
        "| begun | 2026-01-02 |",
        "| made with | Temper 1 of temper-train, torch 2.9, transformers |",
        *("", "Changed during the run:", ""),
        "| after step | what changed | from | to | effect |",
        "| --- | --- | --- | --- | --- |",
        "| 3 | learning_rate | 0.25 | 0.125 | changes |",
        "| 3 | data | – | – | changes |",
        *("", "## Measured", ""),
        "| on held-out rows | before | after | change |",
        "| --- | --- | --- | --- |",
        "| held-out loss | 4 | 2 | -50.0% |",
        "| exact match | – | 50.0% |  |",
        "| a\\|b | – | 25.0% |  |",
        *("", "## Use it", "", "```python"),
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        'model = AutoModelForCausalLM.from_pretrained("me/mine")',
        'tokenizer = AutoTokenizer.from_pretrained("me/mine")',
        "```",
    ]


OPTIMIZER = {"name": "optimizer", "was": "adamw", "is": "sgd", "effect": "changes the result"}
ROUNDED = HUB | {"rounding": {"kind": "int4", "bits": 4}}
QUANTIZED = DeploymentConfig(
    model={"name": "me/base", "lora_config": {"r": 2}, "quantization": "4bit"}
).to_dict()
DONE: dict[str, Any] = {"total_steps": 10, "after": {"eval_loss": 2.0}}


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (
            {"model": {"kind": "embedded", "architecture": "llama", "num_parameters": 7}},
            {"base model": "publish.card_base_from_scratch(architecture=llama, size=7)"},
        ),
        (
            {"model": {"kind": "folder", "name": "/home/me/mine"}},
            {"base model": "publish.card_base_local_folder(name=mine)"},
        ),
        (
            {"model": ROUNDED | {"lora": {"r": 4}, "extensions": {"a": 1, "b": 2}}},
            {
                "trained": "publish.card_trained_with_extension("
                "trained=publish.card_trained_lora(rank=4)publish.card_rounded(kind=int4)"
                ", added=a, b)"
            },
        ),
        ({"model": HUB | {"quantization": "8bit"}}, {"base": "8-bit LLM.int8()"}),
        ({"configuration": QUANTIZED}, {"base": "4-bit NF4"}),
        (
            {"history": [{**HISTORY[0], "step": 0}]},
            {
                "settings": "`batch_size` 7, `gradient_accumulation` 2, `learning_rate` 0.25,"
                " `scheduler_type` linear, `warmup_steps` 6, `optimizer` adamw,"
                " `weight_decay` 0.3, `strategy` standard, `loss` cross_entropy, `seed` 5",
            },
        ),
        ({"summary": {"total_steps": 1200}}, {"steps": "10 of 1,200"}),
        ({"summary": {"total_steps": 8, "after": {"eval_loss": 2.0}}}, {"steps": "10 of 8"}),
        ({"data": {"num_train": "many"}}, {"rows": "publish.card_rows(num_train="
          "publish.card_unknown_number(), num_held_out=publish.card_unknown_number())"}),
        (
            {"training": {"method": "dpo"}, "data": {"num_examples": 1300}, "config": {
                "trainer.seed": {"value": 3, "source": ""},
                "trainer.learning_rate": {"value": 0.1 + 0.2, "source": ""},
                "trainer.optim": {"value": "sgd", "source": ""},
                "training.loss": {"value": "x", "source": ""},
            }, "history": [{"step": 3, "changes": [OPTIMIZER]}]},
            {
                "method": "DPO of TRL",
                "rows": "publish.card_rows_of_trainer(num_train=1,300)",
                "settings": "`learning_rate` 0.3, `optim` adamw (steps 1 to 3),"
                " sgd (steps 4 to 10), `seed` 3",
            },
        ),
        (
            {"decided": {}, "training": {"batch_size": 8}, "summary": {"total_steps": None}},
            {
                "steps": "10",
                "settings": "`batch_size` 8, `gradient_accumulation` 1, `learning_rate` 0.006,"
                " `scheduler_type` cosine, `warmup_steps` 50, `optimizer` adamw,"
                " `weight_decay` 0.01, `strategy` standard, `loss` cross_entropy, `seed` 0",
            },
        ),
        (
            {"model": HUB | {"second_base": "x"}, "summary": DONE},
            {
                "settings": "`batch_size` 7, `gradient_accumulation` 2, `learning_rate` 0.25,"
                " `scheduler_type` linear, `warmup_steps` 6, `optimizer` adamw,"
                " `weight_decay` 0.3, `strategy` standard, `loss` cross_entropy, `seed` 5",
            },
        ),
        ({"precision": None, "created": None}, {"precision": "–", "begun": "–"}),
    ],
)  # fmt: skip
def test_a_row_of_the_card(given: dict[str, Any], shown: dict[str, str], tmp_path: Path) -> None:
    dropped = [name for name, value in given.items() if value is None]
    run = run_of(tmp_path, **given)
    record = json.loads(run.run_file.read_text())
    record.pop("checksum", None)
    write_record(run.run_file, {k: v for k, v in record.items() if k not in dropped})
    rows = rows_in(written_by(run, "me/mine", tmp_path, 10))
    assert {name: rows.get(name) for name in shown} == shown
    for name in ("base", "method"):
        assert (name in rows) == (name in shown)


@pytest.mark.parametrize(
    ("model", "summary", "step", "measured"),
    [
        (HUB, None, 10, ["publish.card_checkpoint_not_measured()"]),
        (HUB, {"total_steps": 10}, 10, ["publish.card_checkpoint_not_measured()"]),
        (HUB, DONE, 9, ["publish.card_checkpoint_not_measured()"]),
        (HUB, {"total_steps": 10, "after": {"note": "x"}}, 10, ["publish.card_nothing_measured()"]),
        (HUB, DONE | {"loss_function": "focal"}, 10, ["| held-out loss (focal) | – | 2 |  |"]),
        (
            *(ROUNDED, DONE, 10),
            [
                *("| held-out loss | – | 2 |  |", ""),
                "publish.card_measured_rounded(kind=int4, bits=4)",
            ],
        ),
    ],
)
def test_what_was_measured_is_on_the_card(
    model: dict[str, Any],
    summary: dict[str, Any] | None,
    step: int,
    measured: list[str],
    tmp_path: Path,
) -> None:
    run = run_of(tmp_path, model, summary=summary)
    card = written_by(run, "me/mine", tmp_path, step)
    part = card.partition("## Measured\n\n")[2].partition("\n\n## Use it")[0].splitlines()
    assert part[-len(measured) :] == measured
    assert "Changed" not in card
    rounded = {"quantization_config": {"quant_method": "torchao"}}
    (tmp_path / "config.json").write_text(json.dumps(rounded))
    card = written_by(run, "me/mine", tmp_path, step)
    assert "publish.card_measured_rounded" not in card
    assert code_in(card).startswith("# pip install torchao\nfrom transformers")


BITS = """    "me/base",
    dtype="bfloat16",
    quantization_config=BitsAndBytesConfig(
        load_in_8bit=True,
    ),
)"""
TEMPLATE = {"tokenizer_config.json": {"chat_template": "x"}}
ANSWERS = "written = model.generate(**inputs, max_new_tokens=256, do_sample=False)"
SYSTEM = """{"role": "system", "content": 'Be "kind".'}, {"role": "user","""


@pytest.mark.parametrize(
    ("given", "files", "has", "has_not"),
    [
        ({}, {"temper_model.json": {}}, ["publish.card_load_own_module()"], ["import"]),
        (
            {"model": HUB | {"extensions": {"a": 1, "b": 2}}},
            {},
            ["publish.card_load_extensions(names=a, b)"],
            ["import"],
        ),
        (
            {},
            {"adapter_config.json": {"base_model_name_or_path": "me/base"}},
            [
                "from peft import PeftModel\nfrom transformers import AutoModelForCausalLM, "
                "AutoTokenizer\n",
                'base = AutoModelForCausalLM.from_pretrained("me/base")\n'
                'model = PeftModel.from_pretrained(base, "me/mine")\n'
                'tokenizer = AutoTokenizer.from_pretrained("me/mine")',
            ],
            [],
        ),
        (
            {"model": HUB | {"quantization": "8bit"}},
            {
                "adapter_config.json": {"base_model_name_or_path": "me/base"},
                "generation_config.json": {},
            },
            [
                "AutoModelForCausalLM, AutoTokenizer, GenerationConfig, BitsAndBytesConfig\n",
                BITS,
                '\nmodel.generation_config = GenerationConfig.from_pretrained("me/mine")\n',
            ],
            [],
        ),
        (
            {"model": HUB | {"quantization": "8bit"}},
            {"generation_config.json": {}},
            ["import AutoModelForCausalLM, AutoTokenizer\n"],
            ["Config"],
        ),
        (
            {"model": HUB | {"sees": True}},
            TEMPLATE,
            [
                "from transformers import AutoModelForImageTextToText, AutoProcessor\n",
                'processor = AutoProcessor.from_pretrained("me/mine")',
            ],
            ["generate"],
        ),
        ({"training": {"method": "dpo"}}, {"tokenizer_config.json": {}}, [], ["generate"]),
        (
            {"training": {"method": "dpo"}, "config": {}},
            TEMPLATE,
            ["messages = [{", ANSWERS],
            [],
        ),
        (
            {"training": {"method": "reward"}, "config": {}},
            TEMPLATE,
            [
                "AutoModelForSequenceClassification, AutoTokenizer",
                "publish.card_use_reward_model()",
            ],
            ["generate"],
        ),
        (
            {"training": {"method": "reward"}},
            {"tokenizer_config.json": {}},
            ["AutoModelForSequenceClassification"],
            ["publish.card_use_reward_model()"],
        ),
        (
            {},
            {"tokenizer_config.json": {}},
            ['tokenizer("your question\\n"', ANSWERS],
            ["messages"],
        ),
        (
            {"summary": {"system_prompt": 'Be "kind".'}},
            {"tokenizer_config.json": {}, "chat_template.jinja": {}},
            [SYSTEM, ANSWERS],
            [],
        ),
        ({}, TEMPLATE, ['messages = [{"role": "user", "content": "your question"}]'], ["system"]),
        (
            {"data": {"shape": "text", "num_train": 1}},
            TEMPLATE,
            ["publish.card_use_text_model()\n" + ANSWERS],
            ["messages"],
        ),
    ],
)
def test_the_program_on_a_card_loads_and_prompts_what_was_trained(
    given: dict[str, Any],
    files: dict[str, object],
    has: list[str],
    has_not: list[str],
    tmp_path: Path,
) -> None:
    run = run_of(tmp_path, **{"config": {}, **given})
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    code = code_in(written_by(run, "me/mine", tmp_path, 10))
    assert [text for text in has if text not in code] == []
    assert [text for text in has_not if text in code] == []


def test_the_base_of_a_lora_is_where_it_can_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert base_of_lora("me/mine", tmp_path) is None

    def base(where: str) -> list[str | None]:
        settings = {"base_model_name_or_path": where}
        (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
        return [base_of_lora(name, tmp_path) for name in ("me/mine", HERE)]

    assert base("me/base") == ['"me/base"', '"me/base"']
    assert base("a/b/c") == [OF_ITS_AUTHOR, f'"{tmp_path}/a/b/c"']
    (tmp_path / "me/base").mkdir(parents=True)
    assert base("me/base") == [OF_ITS_AUTHOR, f'"{tmp_path}/me/base"']
    (tmp_path / "base").mkdir()
    assert base("me/base") == ['"me/mine", subfolder="base"', '".", subfolder="base"']


def test_the_card_of_a_folder_keeps_what_stood_there(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    write_card(run, tmp_path, "mine", 10, ["read back", "as trained"])
    facts = written_by(run, HERE, tmp_path, 10)
    assert "publish.card_in_this_folder()```python" in facts
    exported = "\n\n## Exported\n\n- read back\n- as trained\n"
    card = tmp_path / "README.md"
    begin = "---\ntags: [temper]\n---\n# mine\n"
    assert card.read_text() == f"{begin}\n{BEGIN}\n{facts}\n{END}{exported}"
    card.write_text("# PEFT\nmine\n```python\nold")
    write_card(run, tmp_path, "mine", 10, ["read back", "as trained"])
    assert card.read_text() == f"# PEFT\nmine\n{BEGIN}\n{facts}\n{END}{exported}"


@pytest.mark.parametrize(
    ("model", "is_lora", "front"),
    [
        (HUB, True, ("me/base", "peft", "text-generation")),
        (HUB | {"sees": True}, False, ("me/base", "transformers", "image-text-to-text")),
        ({"kind": "folder", "name": "x/y"}, False, (None, "transformers", "text-generation")),
    ],
)
def test_the_card_of_a_repository_has_its_front_matter_and_keeps_the_rest(
    model: dict[str, Any], is_lora: bool, front: tuple[str | None, ...], tmp_path: Path
) -> None:
    cards = pytest.importorskip("huggingface_hub")
    run = run_of(tmp_path, model)
    if is_lora:
        settings = {"base_model_name_or_path": "me/base"}
        (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    facts = f"{BEGIN}\n{written_by(run, 'me/mine', tmp_path, 10)}\n{END}"
    new = cards.ModelCard(card_of_repository("", "me/mine", tmp_path, run, 10))
    data = new.data
    assert (data.base_model, data.library_name, data.pipeline_tag, data.tags) == (
        *front,
        ["temper"],
    )
    assert new.text.strip() == f"# me/mine\n\n{facts}"
    was = f"---\nlicense: mit\n---\nMine\n{BEGIN}old{END} \nand mine"
    again = cards.ModelCard(card_of_repository(was, "me/mine", tmp_path, run, 10))
    assert (again.data.license, again.text.strip()) == ("mit", f"Mine\n{facts} \nand mine")
    own = "---\nlicense: mit\n---\nMine\n"
    again = cards.ModelCard(card_of_repository(own, "me/mine", tmp_path, run, 10))
    assert again.text.strip() == f"Mine\n\n{facts}"
    broken = r"publish\.model_card_unreadable\(card=README\.md, repository=me/mine, reason=.+\)"
    with pytest.raises(ValueError, match=f"(?s){broken}"):
        card_of_repository("---\n[\n---\n", "me/mine", tmp_path, run, 10)


def test_facts_are_put_into_a_card_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path)
    monkeypatch.setattr(model_card, "written_by", lambda *_: r"a template with \1 and \d+")
    was = f"Mine\n{BEGIN}old{END}\nand mine"
    text = card_of_repository(was, "me/mine", tmp_path, run, 10)
    assert text.endswith(f"Mine\n{BEGIN}\na template with \\1 and \\d+\n{END}\nand mine")
