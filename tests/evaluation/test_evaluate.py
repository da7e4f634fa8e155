import json
import math
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.measures import F1
from infrastructure.config.merging.precedence import GivenValue, Layer, Source
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.config.sources.load import load_config
from infrastructure.core.console import Count
from infrastructure.core.features import fields_for
from infrastructure.data.data_pipeline import DataPipeline
from infrastructure.data.store.examples import GenerationPrompt
from infrastructure.evaluation import evaluate, evaluation_page, run_settings
from infrastructure.evaluation.comparison import MeasureDifference, compare
from infrastructure.evaluation.evaluate import (
    Evaluation,
    _notes_of,
    measure_model,
    set_aside,
)
from infrastructure.evaluation.evaluation_tables import difference_table, short_names
from infrastructure.evaluation.generation import Answer
from infrastructure.evaluation.intervals import Interval
from infrastructure.evaluation.request import OF_LEARNING, Request
from infrastructure.evaluation.row_losses import RowLoss
from infrastructure.evaluation.rows import MeasuredRow, ModelRows, Questions
from infrastructure.run.directory import RunDirectory
from infrastructure.run.trained_rows import record_trained_rows
from infrastructure.training.core import precision
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.trainer_factory import TrainerFactory

NO_USE = [
    "data.eval_path: held_out.jsonl",
    "data.validation_split: 0.2",
    "model.lora_config.r: 4",
    "model.embedded.num_layers: 2",
]


@pytest.mark.parametrize("setting", NO_USE)
def test_what_a_measurement_has_no_use_for_is_reported(setting: str, tmp_path: Path) -> None:
    key = setting.partition(":")[0]
    (tmp_path / "a.yaml").write_text(f"{setting}\n")
    config = load_config(tmp_path / "a.yaml", environment={})
    notes = set_aside(config)
    assert f"evaluation.setting_no_effect(key={key}, where=" in notes[-1]
    assert "a.yaml:1" in notes[-1]
    assert set_aside(DeploymentConfig(model_name="some/model")) == []
    config.model.name = "some/model"
    config.check_supported()


def test_a_batch_that_a_training_would_measure_is_an_ordinary_one_here() -> None:
    config = DeploymentConfig(model_name="some/model", batch_size="auto")
    assert set_aside(config) == []
    assert config.training.batch_size == 32


def test_settings_that_do_not_fit_are_refused_before_anything_is_loaded() -> None:
    config = DeploymentConfig(model_name="nowhere", data_path="nowhere.jsonl")
    config.training.enabled_extensions = ["multimodal"]
    with pytest.raises(ValueError, match=r"vision_tower\.not_set"):
        measure_model(config)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    lines = [
        {"prompt": f"Reverse {n}", "completion": str(n)[::-1], "task": "odd" if n % 2 else "even"}
        for n in range(10, 18)
    ]
    lines.append({"prompt": "Half of 84?", "completion": "half\n#### 42", "task": "even"})
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder / "rows.jsonl"


def measuring(model: Path, rows: Path, folder: Path, **training: Any) -> DeploymentConfig:
    return DeploymentConfig(
        model={"name": str(model)},
        data={"path": str(rows), "max_length": 64, "num_workers": 0, "task_column": "task"},
        training=training,
        cache={"directory": str(folder / "cache")},
        output_dir=str(folder / "runs"),
        device="cpu",
    )


def test_a_saved_model_is_measured_by_task(saved_llama: Path, rows: Path, tmp_path: Path) -> None:
    training = {"validation_prompts": 4, "batch_size": 3, "metrics": ["token_accuracy"]}
    config = measuring(saved_llama, rows, tmp_path, **training)
    evaluation, lines = measure_model(config)
    numbers = json.loads(Path(evaluation.file).read_text())
    assert set(numbers["exact_match"]) == {"all", "even", "odd"}
    assert numbers["num_questions"] == 4
    assert numbers["example"]["prompt"] == "Reverse 10"
    assert lines[-1] == f"evaluation.results_file(file={evaluation.file})"
    few = "evaluation.not_all_prompts_answered(num_answers=4, num_questions=9, "
    assert [note for note in evaluation.notes if note.startswith(few)]
    assert numbers["notes"] == evaluation.notes
    assert [f"note: {note}" for note in evaluation.notes] == lines[: len(evaluation.notes)]
    table = "\n".join(lines)
    assert "perplexity" in table
    [of_tasks] = [line for line in table.splitlines() if line.startswith("task ")]
    assert "loss per token" in of_tasks
    assert "perplexity" not in of_tasks  # it says the same, and a terminal is narrow
    assert "\ntoken accuracy " in table  # a metric that was chosen stands under what always is
    assert "eval_loss" not in table  # which is "loss per token"
    of_all = evaluation.scores["all"]
    assert of_all["loss"]["value"] == pytest.approx(evaluation.metrics["eval_loss"], rel=1e-5)
    assert of_all["perplexity"]["value"] == pytest.approx(math.exp(of_all["loss"]["value"]))
    assert of_all["loss"]["low"] < of_all["loss"]["value"] < of_all["loss"]["high"]
    assert of_all["loss"]["rows"] == 9
    assert evaluation.scores["odd"]["loss"]["rows"] == 4
    written = [json.loads(line) for line in Path(evaluation.answers).read_text().splitlines()]
    assert len(written) == 9
    assert sum(row["num_tokens"] for row in written if row["task"] == "odd") == sum(
        len(str(n)) + 1 for n in range(11, 18, 2)
    )
    assert "Reverse 10" in Path(evaluation.page).read_text()
    answered = [row for row in written if "written" in row]
    assert len(answered) == 4
    for row in answered:
        assert (
            row["expected"] == row["prompt"].removeprefix("Reverse ")[::-1]
            or "#" in row["expected"]
        )
        assert row["exact_match"] == (row["written"].strip() == row["expected"])
        assert row["is_cut"] in (True, False)
        assert row["model"] == str(saved_llama)
    assert (numbers["model"], numbers["data"]) == (str(saved_llama), str(rows))
    assert numbers["example"]["expected"] == "01"
    assert numbers["example"]["written"] == answered[0]["written"]


def test_a_mask_hides_what_a_row_loss_is_made_of(saved_llama: Path, tmp_path: Path) -> None:
    """Rows of one file and of each row alone have the same losses: none sees another one."""
    lines = [{"prompt": f"Reverse {n}", "completion": str(n)[::-1]} for n in (7, 12345, 88)]
    losses = []
    for number, chosen in enumerate([lines, *[[line] for line in lines]]):
        path = tmp_path / f"{number}.jsonl"
        path.write_text("\n".join(map(json.dumps, chosen)))
        config = measuring(saved_llama, path, tmp_path, validation_prompts=0)
        config.data.task_column = None
        written = Path(measure_model(config)[0].answers).read_text().splitlines()
        losses.append([json.loads(line)["loss_sum"] for line in written])
    together, *alone = losses
    assert together == pytest.approx([loss for of_one in alone for loss in of_one], rel=1e-4)


@pytest.fixture(scope="module")
def worse(saved_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model whose output layer leans to one token."""
    folder = tmp_path_factory.mktemp("worse") / "model"
    shutil.copytree(saved_llama, folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][5] += 3.0
    weights["model.norm.weight"] *= 3.0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "SHA256SUMS").unlink(missing_ok=True)
    return folder


def test_a_run_s_model_is_measured_in_the_number_format_of_the_run(
    saved_llama: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where this CPU has both, and another one would be the usual one."""
    final = tmp_path / "run/final"
    shutil.copytree(saved_llama, final)
    monkeypatch.setattr(precision, "best_precision", lambda _device: "bf16")
    seen: list[str] = []

    def measuring_rows(trainer: EnhancedTrainer, name: str, *_more: object) -> ModelRows:
        seen.append(trainer.precision.name)
        return ModelRows(name, {"eval_loss": 1.0}, [])

    monkeypatch.setattr(evaluate, "measure_rows", measuring_rows)
    for of_run in ("fp32", "bf16"):
        (tmp_path / "run/run.json").write_text(json.dumps({"precision": of_run}))
        measure_model(measuring(final, rows, tmp_path))
    measure_model(measuring(saved_llama, rows, tmp_path))
    assert seen == ["fp32", "bf16", "bf16"]


class Begun(Count):
    """Keeps what was begun."""

    def __init__(self) -> None:
        super().__init__("measuring", "answers")
        self.begun: list[str] = []

    def begin(self, what: str) -> None:
        super().begin(what)
        self.begun.append(what)


def test_two_models_are_compared_on_the_same_rows(
    saved_llama: Path, worse: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        run_settings, "inherit_from_run", lambda _: {"data.train_on": "last_answer"}
    )
    config = measuring(saved_llama, rows, tmp_path, validation_prompts=9)
    count = Begun()
    evaluation, lines = measure_model(config, Request(against=str(worse)), count=count)
    assert count.begun == [
        "evaluation.evaluating_first_of_two(name=tiny-llama)",
        "evaluation.evaluating_second_of_two(name=model)",
    ]
    differences = {one["measure"]: one for one in evaluation.against["differences"]["all"]}
    loss = differences["loss"]
    assert loss["num_rows"] == 9
    assert loss["verdict"] == "first is better"
    assert evaluation.against["model"] == str(worse)
    assert evaluation.against["metrics"]["eval_loss"] == pytest.approx(loss["second"], rel=1e-5)
    assert evaluation.against["scores"]["all"]["loss"]["value"] == pytest.approx(loss["second"])
    assert evaluation.scores["all"]["loss"]["value"] == pytest.approx(loss["first"])
    assert evaluation.metrics["eval_loss"] == pytest.approx(loss["first"], rel=1e-5)
    assert loss["difference"]["value"] == pytest.approx(loss["second"] - loss["first"])
    assert differences["final_answer"]["num_rows"] == 9
    assert differences["rouge2"]["num_rows"] == 1  # of single words there is none
    assert differences["exact_match"]["chance"] == 1.0
    [table] = [part for part in "\n\n".join(lines).split("\n\n") if "first is better" in part]
    assert table.startswith(
        f"evaluation.comparison_legend(first={saved_llama.name}, second={worse.name})"
    )
    of_all = [line for line in table.splitlines()[1:] if line[0] not in " ─"]
    assert max(len(line) for line in of_all) <= 105
    setting = "evaluation.setting_from_run(key=data.train_on, value=last_answer)"
    assert lines.count(f"note: {setting}") == 1  # both have it of their run
    page = Path(evaluation.page).read_text()
    assert "evaluation.comparison_heading" in page
    assert setting in page
    assert page.count(str(saved_llama)) == page.count(str(worse)) == 1  # then by their short names
    assert {"tiny-llama", "model"} <= {line.split("  ")[0] for line in "\n".join(lines).split("\n")}
    assert page.count("<h3>Expected</h3>") == 9


def test_what_decides_a_verdict_does_not_look_like_zero() -> None:
    surely = MeasureDifference(F1, 60, 0.0, 0.002, Interval(0.002, 0.00029, 0.004))
    perhaps = MeasureDifference(F1, 60, 0.0, 0.001, Interval(0.001, 0.0, 0.002))
    _, rows = difference_table({"all": [surely, perhaps]}, ("first", "second"))
    by_chance = replace(surely, chance=0.07)  # by McNemar's test
    assert by_chance.verdict == "no clear difference"
    assert replace(surely, chance=0.04).verdict == surely.verdict
    assert [row[5:] for row in rows] == [
        ["+0.03 to +0.4 points", "second is better"],
        ["+0.0 to +0.2 points", "no clear difference"],
    ]


def test_models_are_called_by_short_names_where_these_differ(tmp_path: Path) -> None:
    for name in ("one/final", "two/final", "again/one"):
        (tmp_path / name).mkdir(parents=True)
    one, two, again = (str(tmp_path / name) for name in ("one/final", "two/final", "again/one"))
    assert short_names([one, two]) == ["one", "two"]
    assert short_names([one, "org/model"]) == ["one", "org/model"]
    assert short_names([one, again]) == [one, again]
    runs = [
        tmp_path / f"2026112{n}-101112-mine-{end}" for n, end in ((1, "ab"), (2, "ab"), (2, "c"))
    ]
    for run in runs:
        run.mkdir()
    first, second, other = map(str, runs)
    assert short_names([first, other]) == ["mine-ab", "mine-c"]
    assert short_names([first, second]) == [run.name for run in runs[:2]]


def rows_of(model: str, *num_tokens: int) -> ModelRows:
    rows = [MeasuredRow(f"rows:{n}", loss=RowLoss(1.0, 0, m)) for n, m in enumerate(num_tokens)]
    return ModelRows(model, {}, rows)


def test_it_is_noted_what_of_two_models_cannot_be_compared() -> None:
    first = rows_of("first", 3, 4)
    assert _notes_of([first, rows_of("second", 3, 4)]) == []
    [tokens] = _notes_of([first, rows_of("second", 3, 5)])
    assert tokens.startswith("evaluation.trained_tokens_differ")
    [fewer] = _notes_of([first, rows_of("second", 3)])
    assert fewer == "evaluation.compared_on_common_rows(count=1, counts=2 and 1)"


def answered_row(
    number: int, is_right: bool, *, is_cut: bool = False, task: str = ""
) -> MeasuredRow:
    question = GenerationPrompt(f"prompt {number}", [1], "yes", 1, task, place=f"rows:{number}")
    answer = Answer(question, "yes" if is_right else "no", is_cut)
    scores = {"exact_match": float(is_right)}
    return MeasuredRow(f"rows:{number}", task, None, answer, scores)


def test_the_page_shows_first_where_the_answers_of_two_models_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evaluation_page, "MAX_SHOWN", 3)
    first = ModelRows("one", {}, [answered_row(n, True, task="odd" * (n % 2)) for n in range(5)])
    others = [answered_row(n, n != 3, is_cut=n == 3, task="odd" * (n % 2)) for n in range(5)]
    second = ModelRows("two", {}, [*others[:4], MeasuredRow("rows:4")])  # which answers no fifth
    page = evaluation_page.evaluation_page("rows.jsonl", [first, second], {}, ["a note"])
    cards = re.findall(r"<h3>(rows:\d[^<]*)</h3>", page)
    assert cards == ["rows:3 · odd", "rows:0", "rows:1 · odd"]
    assert "evaluation.more_answers_in_file(count=1)" in page
    verdicts = re.findall(r'<span class="(\w+)">([^<]*)</span>', page)
    right, wrong = ("good", "exact match 100%"), ("bad", "exact match 0% · cut")
    assert verdicts == [right, wrong, *[right] * 4]
    assert "<li>a note</li>" in page
    monkeypatch.undo()
    whole = evaluation_page.evaluation_page("rows.jsonl", [first], {})
    assert len(re.findall(r"<h3>rows:", whole)) == 5
    assert "more_answers_in_file" not in whole


@pytest.mark.parametrize(
    ("num_answers", "num_prompts", "codes"),
    [
        (5, 5, []),
        (3, 3, ["not_all_prompts_answered"]),  # as many as were configured
        (2, 3, ["not_all_prompts_answered", "answer_tokens_limit"]),
        (2, None, ["not_all_prompts_answered"]),
        (3, 99, ["not_all_prompts_answered", "answer_tokens_limit"]),
    ],
)
def test_the_reason_is_given_why_not_all_prompts_are_answered(
    num_answers: int, num_prompts: int | None, codes: list[str]
) -> None:
    rows = [answered_row(n, True) for n in range(num_answers)]
    notes = _notes_of([ModelRows("one", {}, rows, num_questions=5)], num_prompts)
    assert re.findall(r"evaluation\.(\w+)", " ".join(notes)) == codes


def test_cut_answers_and_measures_that_cannot_be_had_are_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [answered_row(n, True, is_cut=n < 2) for n in range(5)]
    monkeypatch.setattr(evaluate, "is_installed", lambda package: False)
    cut, missing = _notes_of([ModelRows("one", {}, rows, num_questions=5)])
    assert cut == "evaluation.answers_cut_off(name=one, num_cut=2, num_answers=5)"
    assert missing == "evaluation.torchmetrics_missing()"
    assert _notes_of([ModelRows("one", {}, [], num_questions=0)]) == []
    differing = [rows_of("first", 3, 4), rows_of("second", 3, 5)]
    assert "max_lengths_differ(lengths=64 and 32)" in _notes_of(differing, lengths=[64, 32])[0]
    assert "max_lengths_differ" not in _notes_of(differing, lengths=[64, 64])[0]


def test_a_setting_of_training_is_used_or_has_no_effect_on_an_evaluation() -> None:
    """These load the model as it was trained, or say what of it is measured and how."""
    used = {"strategy", "batch_size", "mixed_precision", "compile_mode", "seed", "recovery"}
    used |= {"memory_efficient_attention", "enabled_extensions", "validation_prompts", "loss"}
    used |= {"metrics", "settings"}
    of_features = {name for kind in fields_for("training") for name in kind.model_fields}
    own = TrainingConfig.model_fields.keys() - of_features
    assert own - {*OF_LEARNING} == used


def test_what_cannot_be_measured_is_refused_at_once(saved_llama: Path, rows: Path) -> None:
    with pytest.raises(ValueError, match=r"what=measure, name=exakt_match,.*meant=exact_match\)"):
        Request(measures=("exakt_match",))
    with pytest.raises(ValueError, match=r"evaluation\.max_tokens_too_small\(max_tokens=0\)"):
        Request(max_tokens=0)
    config = DeploymentConfig(model_name=str(saved_llama), data_path=str(rows))
    with pytest.raises(ValueError, match=r"evaluation\.compared_with_itself\(name=.*tiny-llama"):
        measure_model(config, Request(against=str(saved_llama)))


def test_rows_that_were_trained_on_are_named_in_whatever_file(
    saved_llama: Path, tmp_path: Path
) -> None:
    """Three rows of four, in another order and as CSV."""
    final = tmp_path / "run/final"
    shutil.copytree(saved_llama, final)
    (tmp_path / "run/run.json").write_text("{}")
    rows = [("Reverse 10", "01"), ("Reverse 11", "11"), ("Reverse 12", "21"), ("Reverse 13", "31")]
    trained, measured = tmp_path / "trained.jsonl", tmp_path / "measured.csv"
    trained.write_text("\n".join(json.dumps({"prompt": p, "completion": c}) for p, c in rows))
    pipeline = DataPipeline(
        DataConfig(path=str(trained), max_length=64, num_workers=0, validation_split=0),
        AutoTokenizer.from_pretrained(saved_llama),
        cache_config=CacheConfig(directory=str(tmp_path / "cache")),
    )
    run, contents = RunDirectory(tmp_path / "run"), pipeline.contents(held_out=False)
    assert contents is not None
    record_trained_rows(run, contents[:2])
    record_trained_rows(run, contents[2:])  # it goes on with other data

    def notes_of(some: Sequence[tuple[str, str]], model: Path = final) -> list[str]:
        measured.write_text("prompt,completion\n" + "".join(f"{p},{c}\n" for p, c in some))
        config = measuring(model, measured, tmp_path, validation_prompts=0)
        config.data.task_column = None
        notes = measure_model(config)[0].notes
        return [note for note in notes if "evaluation.rows_were_trained_on" in note]

    other = ("Reverse 99", "99")
    [note] = notes_of([rows[2], other, rows[0], rows[1]])
    assert "which=3 of the, num_rows=4," in note
    [note] = notes_of(rows[:2])
    assert "which=all, num_rows=2," in note
    assert notes_of([other]) == []
    assert notes_of(rows, saved_llama) == []  # it lies in no run
    (tmp_path / "run/trained_rows.json").write_text("{broken")
    assert notes_of(rows) == []


def test_the_second_model_answers_the_rows_of_the_first_by_rules_of_its_own(
    saved_llama: Path, worse: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Any, ...]] = []

    def measuring_rows(
        trainer: EnhancedTrainer, name: str, measures: Any, which: Questions, count: object
    ) -> ModelRows:
        data = trainer.data_config
        split = (data.eval_path, data.validation_split, trainer.model_config.lora_config)
        seen.append((name, measures, which, *split))
        question = GenerationPrompt("q", [1], "x", 1, place="rows:3")
        row = MeasuredRow("rows:3", loss=RowLoss(1.0, 0, 1), answer=Answer(question, "x"))
        return ModelRows(name, {"eval_loss": 1.0}, [row, MeasuredRow("rows:4")], 2)

    monkeypatch.setattr(evaluate, "measure_rows", measuring_rows)
    request = Request(against=str(worse), measures=("exact_match",), max_tokens=7)
    measure_model(measuring(saved_llama, rows, tmp_path), request)
    usual = TrainingConfig().validation_prompts
    of_both = (str(rows), 0, None)
    assert seen == [
        (str(saved_llama), ("exact_match",), Questions(usual, True, None, 7), *of_both),
        (str(worse), ("exact_match",), Questions(usual, True, {"rows:3"}, 7), *of_both),
    ]
    seen.clear()
    measure_model(measuring(saved_llama, rows, tmp_path, validation_prompts=3))
    [(_, measures, which, *_)] = seen
    assert (measures, which) == (None, Questions(3, False, None, None))


def test_a_base_that_the_run_quantised_is_quantised_unless_another_is_given(
    saved_llama: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: list[object] = []

    def for_run(self: TrainerFactory, config: DeploymentConfig, began_with: object) -> None:
        kinds.append(config.model.quantization)
        raise ValueError("far enough")

    monkeypatch.setattr(TrainerFactory, "for_run", for_run)
    monkeypatch.setattr(evaluate, "quantization_of_run", lambda path: "4bit")
    for more in ({}, {"model.quantization": None}, {"model.quantization": "8bit"}):
        config = measuring(saved_llama, rows, tmp_path)
        settings = [GivenValue(key, value, Source(Layer.FLAG, "a")) for key, value in more.items()]
        with pytest.raises(ValueError, match="far enough"):
            measure_model(config.changed(settings))
    assert kinds == ["4bit", None, "8bit"]


def two_models() -> list[ModelRows]:
    question = GenerationPrompt("prompt 1", [1], "yes", 1, "odd", place="rows:1")
    loss = RowLoss(3.0, 1, 2)
    right, wrong = (Answer(question, text, text == "no") for text in ("yes", "no"))
    first = [
        MeasuredRow("rows:1", "odd", loss, right, {"exact_match": 1.0}),
        MeasuredRow("rows:2", "", RowLoss(1.0, 3, 6)),
    ]
    second = [MeasuredRow("rows:1", "odd", loss, wrong, {"exact_match": 0.0})]
    metrics = {"eval_loss": 0.5, "eval_token_accuracy": 0.25, "eval_own": 2.0}
    return [ModelRows("one", metrics, first, 2), ModelRows("two", {"eval_loss": 1.5}, second, 1)]


def test_the_numbers_of_two_models_are_kept_with_their_differences() -> None:
    models = two_models()
    alone = evaluate._evaluation(models[:1], {})
    assert (alone.metrics, alone.num_questions) == (models[0].metrics, 1)
    assert alone.exact_match == {"all": 1.0, "odd": 1.0}
    assert alone.example == {"prompt": "prompt 1", "expected": "yes", "written": "yes"}
    assert alone.against == {}
    assert alone.scores["all"]["loss"]["value"] == 0.5
    assert alone.scores["odd"]["loss"] == {
        **{"value": 1.5, "low": pytest.approx(math.nan, nan_ok=True)},
        **{"high": pytest.approx(math.nan, nan_ok=True), "rows": 1},
    }
    compared = compare(*models)
    against = evaluate._evaluation(models, compared).against
    assert (against["model"], against["metrics"]) == ("two", {"eval_loss": 1.5})
    assert against["scores"]["odd"]["exact_match"]["value"] == 0.0
    [loss, *_, exact] = against["differences"]["all"]
    assert (loss["measure"], loss["num_rows"], loss["first"]) == ("loss", 1, 1.5)
    assert (exact["measure"], exact["only_first"], exact["verdict"]) == (
        *("exact_match", 1, "no clear difference"),
    )
    nothing = evaluate._evaluation([ModelRows("one", {}, [])], {})
    assert (nothing.example, nothing.exact_match, nothing.num_questions) == ({}, {}, 0)


def test_the_lines_of_an_evaluation_are_its_notes_tables_and_files() -> None:
    models = two_models()
    config = DeploymentConfig(data_path="rows.jsonl")
    evaluation = Evaluation({}, {}, 7, notes=["a note"], page="page.html", file="file.json")
    lines = evaluate._lines(config, evaluation, models, compare(*models))
    tables = lines.pop(2).split("\n\n")
    assert lines == [
        *("note: a note", "Measured on rows.jsonl", "(7 prompts answered)"),
        "evaluation.answers_page(page=page.html)",
        "evaluation.results_file(file=file.json)",
    ]
    heads = [table.splitlines()[0].split()[0] for table in tables[:4]]
    assert heads == ["one", "task", "two", "task"]
    of_one = tables[0].splitlines()
    assert of_one[2].split() == ["loss", "per", "token", "0.5000", "0.1667", "to", "1.500", "2"]
    assert of_one[-1].split() == ["eval_own", "2"]
    assert "held-out loss" not in tables[0]
    legend = "evaluation.comparison_legend(first=one, second=two)"
    assert tables[4].startswith(f"{legend}\nmeasure ")
    assert len(tables) == 5
    evaluation.page = ""
    without_loss = [ModelRows("one", {"eval_loss": 0.25}, [MeasuredRow("rows:1")])]
    lines = evaluate._lines(config, evaluation, without_loss, {})
    assert lines[2].splitlines()[2].split()[-1] == "0.2500"
    assert lines[2].splitlines()[2].startswith("held-out loss")
    assert not any("answers_page" in line for line in lines)
    nan = evaluate._lines(config, evaluation, [ModelRows("one", {}, [])], {})
    assert nan[2].splitlines()[2].split()[-1] == "NaN"


def test_each_row_of_an_evaluation_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = SimpleNamespace(strftime=lambda form: f"at {form}")
    monkeypatch.setattr(evaluate, "time", now)
    config = DeploymentConfig(
        data_path="rows.jsonl", model_name="org/model", output_dir=str(tmp_path)
    )
    models = two_models()
    models[1].rows.append(MeasuredRow("rows:9", loss=RowLoss(math.nan, 0, 1)))
    evaluation = evaluate._evaluation(models, {})
    evaluate._write(config, evaluation, models, "<html>")
    stem = tmp_path / "evaluations/at %Y%m%d-%H%M%S-model"
    files = (evaluation.file, evaluation.answers, evaluation.page)
    assert files == (f"{stem}.json", f"{stem}.jsonl", f"{stem}.html")
    assert Path(evaluation.page).read_text() == "<html>"
    numbers = json.loads(Path(evaluation.file).read_text())
    assert (numbers["model"], numbers["data"], numbers["page"]) == (
        *("org/model", "rows.jsonl", evaluation.page),
    )
    answered = {"prompt": "prompt 1", "expected": "yes"}
    loss = {"loss_sum": 3.0, "num_right": 1, "num_tokens": 2}
    assert [json.loads(line) for line in Path(evaluation.answers).read_text().splitlines()] == [
        {
            **{"model": "one", "row": "rows:1", "task": "odd", **loss, **answered},
            **{"written": "yes", "is_cut": False, "exact_match": 1.0},
        },
        {
            **{"model": "one", "row": "rows:2", "task": ""},
            **{"loss_sum": 1.0, "num_right": 3, "num_tokens": 6},
        },
        {
            **{"model": "two", "row": "rows:1", "task": "odd", **loss, **answered},
            **{"written": "no", "is_cut": True, "exact_match": 0.0},
        },
        {
            **{"model": "two", "row": "rows:9", "task": ""},
            **{"loss_sum": "NaN", "num_right": 0, "num_tokens": 1},
        },
    ]
