"""Each method trains, is killed, goes on by the same command, and comes to the same bits."""

import json
import math
import os
import shutil
import signal
from collections import defaultdict
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest
import torch

from benchmarks.family_models import save_language_model
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.schema import schema_of
from infrastructure.config.sections.model_config import LoraConfig, ModelConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.checksums import write_sums
from infrastructure.core.errors import CheckpointError, DamagedFileError
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.models.model_manager import ModelManager
from infrastructure.models.saved_model import ModelSource, SourceKind
from infrastructure.models.saving import save_model
from infrastructure.models.transformers_backend import LoadOptions
from infrastructure.monitoring.drawing.quantity_names import name_of
from infrastructure.monitoring.records.run_view import read_view
from infrastructure.run.directory import RunDirectory
from infrastructure.run.finalize import read_summary
from infrastructure.run.trained_rows import trained_rows
from infrastructure.training.hf_bridge.trainer_events import TrainerEvents
from infrastructure.training.methods import trl_training
from infrastructure.training.methods.check import Use, treatment_of
from infrastructure.training.methods.method_table import installed_method
from infrastructure.training.methods.trl_training import (
    Defaults,
    TrlTraining,
    _cut_by_own_length,
    arguments_of,
    carried_columns,
    defaults_of,
    training_rhythm,
    weigh_pairs,
)
from tests.config.field_values import other_value
from tests.conftest import save_tiny_llama
from tests.data.builders import byte_level_tokenizer
from tests.field.test_ends import CHATML, base_with_chatml
from tests.slow import slow, slow_but
from tests.training.methods.method_runs import (
    begin_anew,
    configuration,
    import_trl,
    in_fork,
    killed_at,
    methods_here,
    rows_of,
    run_folder,
    train,
    train_plainly,
    trained_weights,
    write_rows,
)

LORA = {"lora_config": {"r": 4, "dropout": 0.1}}


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    import_trl()


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("teacher"))


# One that writes answers, with a LoRA; one that compares answers is stopped below; the others are
# slow tests.
QUICK = ["grpo"]


@pytest.mark.parametrize("method", slow_but(QUICK, methods_here()))
def test_a_killed_training_goes_on_to_the_same_bits(
    tmp_path: Path, saved_llama: Path, teacher: Path, method: str
) -> None:
    """In a later epoch, which TRL's own sampler of prompts would begin as the first."""
    more: dict[str, Any] = {"training": {"checkpoint_frequency": 1}}
    num_steps = 8
    if method in ("dpo", "grpo"):
        more["model"] = {"name": str(saved_llama), **LORA}
    if method in ("grpo", "rloo"):  # six prompts in each step, two steps in an epoch
        num_steps = 4
        more["training"] |= {"batch_size": 8, "gradient_accumulation": 3, "max_steps": num_steps}
        more["training"] |= {"max_completion_length": 4}
    calm, disturbed = (
        configuration(method, begin_anew(tmp_path / name), saved_llama, teacher, **more)
        for name in ("calm", "disturbed")
    )
    if method in ("grpo", "rloo"):
        for config in (calm, disturbed):
            write_rows(Path(str(config.data.path)), rows_of("prompts", 13))
    assert in_fork(lambda: train(calm)) == 0
    assert killed_at(num_steps - 1, lambda: train(disturbed)) == signal.SIGKILL
    assert in_fork(lambda: train(disturbed)) == 0
    paths = [run_folder(config) for config in (calm, disturbed)]
    ours, theirs = (trained_weights(path / "final") for path in paths)
    assert torch.equal(ours, theirs)
    assert _evaluated_steps(paths[1]) == _evaluated_steps(paths[0])  # not again where it goes on
    _check_run(paths[1], method, num_steps)


def _evaluated_steps(path: Path) -> list[int]:
    """After which steps the held-out rows were measured."""
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [record["step"] for record in records if "eval_loss" in record]


def _check_run(path: Path, method: str, num_steps: int) -> None:
    """Same run directory, report and summary as any."""
    summary = read_summary(RunDirectory(path))
    assert (summary["status"], summary["steps"]) == ("finished", num_steps)
    assert "eval_loss" in summary["before"]
    assert "eval_loss" in (summary["after"] or {})
    assert not [key for key in summary["after"] or {} if "/" in name_of(key).title]
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records if "loss" in r] == list(range(1, num_steps + 1))
    assert RunDirectory(path).read_configuration().training.method == method
    view = read_view(path)
    assert method in view["title"].lower()
    assert view["config"]["training.method"][0] == method
    for name in ("report.html", "tokenizer", "quarantine.jsonl", "checkpoints"):
        assert (path / name).exists(), name


def test_a_short_training_is_not_all_warm_up(tmp_path: Path, saved_llama: Path) -> None:
    """The default of 50 steps is more than all of these."""
    more = {
        "training": {"max_steps": 6, "warmup_steps": 50},
        "data": {"validation_split": 0.4},  # batches of four pairs, and a smaller one
        "backup": {"place": str(tmp_path / "place")},
    }
    config = configuration("dpo", tmp_path, saved_llama, **more)

    def trained() -> None:
        lines: list[str] = []
        TrainingDeployment(config, say=lines.append).run()
        assert "config.warmup_too_long" in "".join(lines)
        assert sum("data.model_without_chat_template" in line for line in lines) == 1
        assert sum("trainer.copies_go_to(" in line for line in lines) == 1
        assert sum("deployment.training_starts" in line for line in lines) == 1
        assert (
            sum("backup.status(" in line for line in lines) == 1
        )  # how they stand, at the end alone
        assert trained_rows(RunDirectory(run_folder(config))) is not None
        assert "pairs ranked correctly (higher is better)" in "".join(lines)
        assert sum(line.startswith("run.ranked_pairs") for line in lines) == 1

    assert in_fork(trained) == 0
    lines = (run_folder(config) / "metrics.jsonl").read_text().splitlines()
    rates = [json.loads(line).get("learning_rate") for line in lines]
    rates = [rate for rate in rates if rate is not None]
    assert max(rates) == pytest.approx(1e-2)  # the peak is reached
    assert rates[-1] < max(rates)  # and left again
    summary = read_summary(RunDirectory(run_folder(config)))
    after: Any = summary["after"]
    assert summary["num_pairs"] % 4
    ranked = after["eval_rewards/accuracies"] * summary["num_pairs"]
    assert ranked == pytest.approx(round(ranked))  # a whole number of pairs
    margin = after["eval_rewards/chosen"] - after["eval_rewards/rejected"]
    assert after["eval_rewards/margins"] == pytest.approx(margin, abs=1e-5)


@pytest.mark.parametrize("method", slow_but(["grpo"], methods_here()))  # it draws numbers
def test_temper_changes_no_bit_of_what_trl_trains(
    tmp_path: Path, saved_llama: Path, teacher: Path, method: str
) -> None:
    """Nor does its forecast, which does some of the steps beforehand. Evaluating draws random
    numbers where a method generates, so nothing is held out."""
    more = {"training": {"max_steps": 4}, "data": {"validation_split": 0}}
    config = configuration(method, begin_anew(tmp_path / method), saved_llama, teacher, **more)
    alone = begin_anew(tmp_path / f"{method}-alone")
    assert in_fork(lambda: train(config)) == 0
    assert in_fork(lambda: train_plainly(config, alone)) == 0
    run = run_folder(config)
    assert torch.equal(trained_weights(run / "final"), trained_weights(alone / "final"))
    forecast = json.loads((run / "forecast.json").read_text())
    assert forecast["num_steps"] == 4
    assert forecast["step_seconds"] > 0


@slow
def test_what_may_differ_is_named_by_a_flag(tmp_path: Path, saved_llama: Path) -> None:
    """In the words of the command line, and it goes on where it is accepted."""
    config = configuration("dpo", tmp_path, saved_llama)
    assert killed_at(5, lambda: train(config)) == signal.SIGKILL
    longer = configuration("dpo", tmp_path, saved_llama, training={"max_steps": 10})
    run = RunDirectory(run_folder(config))

    def refused() -> None:
        with pytest.raises(CheckpointError, match=r"max_steps: was 8, is 10.*accept=max_steps"):
            TrainingDeployment(longer, say=str).resume(run)

    def accepted() -> None:
        assert TrainingDeployment(longer, str, accept=["max_steps"]).resume(run)["steps"] == 10

    assert in_fork(refused) == 0
    assert in_fork(accepted) == 0


def test_a_lora_trains_on_and_is_what_it_is_compared_with(
    tmp_path: Path, saved_llama: Path
) -> None:
    """The usual way: answers first, by a LoRA, and then preferences."""
    from transformers import AutoModelForCausalLM

    from infrastructure.models.lora import apply_lora

    torch.manual_seed(1)
    model = apply_lora(AutoModelForCausalLM.from_pretrained(saved_llama), LoraConfig(r=4))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    model.save_pretrained(tmp_path / "lora")
    config = configuration("dpo", tmp_path, tmp_path / "lora", training={"max_steps": 2})
    assert in_fork(lambda: train(config)) == 0
    final = run_folder(config) / "final"
    assert not torch.equal(trained_weights(final), trained_weights(tmp_path / "lora"))
    assert not (final / "ref").exists()
    before = read_summary(RunDirectory(final.parent))["before"]
    assert before["eval_loss"] == pytest.approx(math.log(2))  # it begins at its reference

    (tmp_path / "run.json").write_text(json.dumps({"model": {"base_sha256": "of other weights"}}))
    other = configuration("dpo", begin_anew(tmp_path / "other"), tmp_path / "lora")

    def refused() -> None:
        with pytest.raises(ValueError, match=r"models\.lora_base_changed"):
            train(other)

    assert in_fork(refused) == 0


def test_a_stopped_one_goes_on_on_another_machine_and_a_finished_one_is_not_trained_again(
    tmp_path: Path, saved_llama: Path
) -> None:
    """Run the same command; the other machine has only the backup destination."""
    calm, here = (
        configuration("kto", tmp_path / name, saved_llama, training={"max_steps": 4}, **more)
        for name, more in (("calm", {}), ("here", {"backup": {"place": str(tmp_path / "place")}}))
    )
    assert in_fork(lambda: train(calm)) == 0

    def stopped() -> None:
        before = TrainerEvents.micro_batch_done

        def signalled(events: TrainerEvents) -> None:
            before(events)
            if events.state.step == 2:
                os.kill(os.getpid(), signal.SIGTERM)

        TrainerEvents.micro_batch_done = signalled  # type: ignore[method-assign]
        assert train(here)["status"] == "stopped"

    assert in_fork(stopped) == 0
    name = run_folder(here).name
    summary = read_summary(RunDirectory(run_folder(here)))
    assert (summary["status"], summary["signal"]) == ("stopped", "SIGTERM")
    shutil.rmtree(here.output_dir)
    assert in_fork(lambda: train(here)) == 0
    final = run_folder(here) / "final"
    assert final.parent.name == name
    assert torch.equal(trained_weights(final), trained_weights(run_folder(calm) / "final"))
    summary = read_summary(RunDirectory(final.parent))
    assert "problem" not in summary["backup"]
    assert "eval_loss" in (summary["after"] or {})
    trained_at = (final / "model.safetensors").stat().st_mtime_ns
    assert in_fork(lambda: train(here)) == 0
    assert (final / "model.safetensors").stat().st_mtime_ns == trained_at


@pytest.mark.parametrize("method", ["dpo", "reward"])
def test_a_lora_has_all_of_its_settings(method: str, tmp_path: Path, saved_llama: Path) -> None:
    """PEFT's own defaults are another LoRA."""
    model = {"lora_config": {"r": 4, "use_dora": True, "use_rslora": True}}
    config = configuration(method, tmp_path, saved_llama, model={"name": str(saved_llama), **model})
    trainer = TrlTraining(config, tmp_path).make_trainer(is_new=True)
    lora = trainer.model.peft_config["default"]
    assert (lora.use_dora, lora.use_rslora, lora.r) == (True, True, 4)
    assert lora.task_type == ("SEQ_CLS" if method == "reward" else "CAUSAL_LM")
    head = [p.requires_grad for n, p in trainer.model.named_parameters() if "score" in n]
    assert any(head) == (method == "reward")
    assert any("magnitude" in name for name, _ in trainer.model.named_parameters())


@pytest.mark.parametrize("method", ["dpo", "reward"])  # whose head is new, too
def test_new_weights_are_drawn_by_the_seed_and_by_nothing_else(
    method: str, tmp_path: Path, saved_llama: Path
) -> None:
    model = {"name": str(saved_llama), "lora_config": {"r": 4}}
    drawn = []
    for seed, before in ((3, 1), (3, 2), (4, 2)):
        config = configuration(method, tmp_path, saved_llama, model=model, training={"seed": seed})
        torch.manual_seed(before)
        trainer = TrlTraining(config, tmp_path).make_trainer(is_new=True)
        weights = [p.flatten() for p in trainer.model.parameters() if p.requires_grad]
        drawn.append(torch.cat(weights).detach())
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])


def loading(source: ModelSource, **options: Any) -> dict[str, Any]:
    """How a model is loaded for TRL."""
    chosen = LoadOptions(torch.device("cpu"), options.pop("dtype", torch.float32), **options)
    training: Any = SimpleNamespace(options=chosen, device=chosen.device, source=source)
    return TrlTraining.loading(training)


def test_the_model_is_loaded_by_its_settings(saved_llama: Path) -> None:
    folder = ModelSource(SourceKind.FOLDER, str(saved_llama))
    hub = ModelSource(SourceKind.HUB, "owner/name")
    plain = {"dtype": "float32", "use_safetensors": True, "device_map": None}
    assert loading(folder) == loading(folder, revision="v2") == plain
    assert loading(hub) == {**plain, "revision": "main"}
    assert loading(hub, revision="v2", trust_remote_code=True) == {
        **plain,
        "revision": "v2",
        "trust_remote_code": True,
    }
    eager = loading(folder, attention="eager", dtype=torch.bfloat16)
    assert eager == {**plain, "dtype": "bfloat16", "attn_implementation": "eager"}
    quantized = loading(folder, quantization="4bit")["quantization_config"]
    assert quantized.load_in_4bit
    assert quantized.bnb_4bit_compute_dtype is torch.float32


@pytest.mark.parametrize("method", ["dpo", "grpo"])
def test_questions_are_those_of_held_out_rows_as_they_are_trained_on(
    method: str, tmp_path: Path, saved_llama: Path
) -> None:
    base, end = base_with_chatml(saved_llama, tmp_path / "base")
    options = {"chat_template_kwargs": {"mood": "calm"}}
    template = "{{ mood }}" + CHATML
    more: dict[str, Any] = {"data": {"chat_template": template, "max_length": 128}}
    if method == "grpo":
        more["training"] = {"method_settings": options}
    config = configuration(method, tmp_path, base, **more)
    if method == "dpo":  # which reads those of each row
        rows = [row | options for row in rows_of("pairs")]
        write_rows(Path(str(config.data.path)), rows)
    training = TrlTraining(config, tmp_path)
    assert end in training.end_token_ids
    questions = training.questions(2)
    assert len(questions) == 2
    for question, row in zip(questions, training.data.held_out, strict=False):
        written = training.tokenizer.apply_chat_template(
            row["prompt"], tokenize=False, add_generation_prompt=True, mood="calm"
        )
        assert question.prompt == written
        ids = training.tokenizer(written, add_special_tokens=False)["input_ids"]
        assert [*question.prompt_ids] == ids
        assert question.expected_length == config.training.max_completion_length
    training.data.held_out = []
    assert training.questions(1)[0].prompt != questions[0].prompt


def test_a_trainer_that_writes_ends_where_its_rows_do(tmp_path: Path, saved_llama: Path) -> None:
    base, end = base_with_chatml(saved_llama, tmp_path / "base")
    training = TrlTraining(
        configuration("grpo", tmp_path, base, data={"max_length": 100}), tmp_path
    )
    trainer = training.make_trainer(is_new=False)
    assert end in trainer.model.generation_config.eos_token_id
    assert end in trainer.generation_config.eos_token_id
    assert trainer.args.eval_on_start is False
    callbacks = {type(one).__name__ for one in trainer.callback_handler.callbacks}
    assert callbacks & {"PrinterCallback", "ProgressCallback", "TrainingRhythm"} == {
        "TrainingRhythm"
    }
    assert training._hashed is None  # of what is not new


def test_a_lora_keeps_its_own_tokenizer(tmp_path: Path, saved_llama: Path) -> None:
    config = ModelConfig(name=str(saved_llama), lora_config=LoraConfig(r=2))
    loaded = ModelManager(config, device=torch.device("cpu"), seed=0).load()
    assert loaded.tokenizer is not None
    loaded.tokenizer.chat_template = CHATML
    save_model(loaded.model, loaded.tokenizer, tmp_path / "lora")
    data = {"max_length": 100}
    training = TrlTraining(configuration("dpo", tmp_path, tmp_path / "lora", data=data), tmp_path)
    assert training.tokenizer.chat_template == CHATML
    for file in (tmp_path / "lora").glob("tokenizer*"):
        file.unlink()
    (tmp_path / "lora" / "SHA256SUMS").unlink()
    training = TrlTraining(configuration("dpo", tmp_path, tmp_path / "lora", data=data), tmp_path)
    assert training.tokenizer.chat_template is None  # its base's


def test_another_lora_than_the_one_that_goes_on_is_refused(
    tmp_path: Path, saved_llama: Path
) -> None:
    config = ModelConfig(name=str(saved_llama), lora_config=LoraConfig(r=2))
    loaded = ModelManager(config, device=torch.device("cpu"), seed=0).load()
    save_model(loaded.model, loaded.tokenizer, tmp_path / "lora")
    other = {"name": str(tmp_path / "lora"), "lora_config": {"r": 4}}
    training = TrlTraining(configuration("dpo", tmp_path, tmp_path / "lora", model=other), tmp_path)
    with pytest.raises(ValueError, match=r"models\.lora_settings_differ"):
        training.make_trainer(is_new=True)


def test_a_step_takes_whole_groups_of_answers_to_prompts_that_are_there(
    tmp_path: Path, saved_llama: Path
) -> None:
    groups = {"batch_size": 8, "gradient_accumulation": 3, "num_generations": 4}
    none_held_out = {"validation_split": 0.0}
    for num_rows, fits in ((6, True), (5, False)):
        config = configuration("grpo", tmp_path, saved_llama, training=groups, data=none_held_out)
        write_rows(Path(str(config.data.path)), rows_of("prompts", num_rows))
        if fits:
            assert len(TrlTraining(config, tmp_path).data.train) == num_rows
            continue
        with pytest.raises(ValueError, match=r"methods\.too_few_prompts.*count=5.*needed=6"):
            TrlTraining(config, tmp_path)
    config = configuration("grpo", tmp_path, saved_llama)
    config.training.num_generations, config.training.batch_size = "auto", 6
    with pytest.raises(
        ValueError, match=r"methods\.answers_not_whole_groups.*total=12.*group_size=8"
    ):
        TrlTraining(config, tmp_path)


def test_what_only_rewards_read_is_the_same_in_trained_and_held_out_rows(
    tmp_path: Path, saved_llama: Path
) -> None:
    """A column that is of one kind among the rows to train on, and of another one held out."""
    held_out = [{**row, "level": "x"} for row in rows_of("prompts", 4)]
    other = write_rows(tmp_path / "held_out.jsonl", held_out)
    config = configuration("grpo", tmp_path, saved_llama, data={"eval_path": str(other)})
    rows: list[dict[str, Any]] = [{**row, "level": 1} for row in rows_of("prompts")]
    write_rows(Path(str(config.data.path)), rows)
    assert "level" in TrlTraining(config, tmp_path).carried
    kinds: dict[str, list[Any]] = {
        "texts": ["a", "b"],
        "numbers": [1, 2],
        "truths": [True, False],
        "mixed": [1, True],
        "some": ["a", None],
        "lists": [[1], [2]],
        "prompt": [[1], "a"],
    }
    table = [{name: values[n] for name, values in kinds.items()} for n in range(2)]
    assert carried_columns(table) == {"mixed", "some", "lists"}


def test_each_answer_of_a_pair_is_cut_by_its_own_length() -> None:
    """TRL's ORPO would take from both what the longer one is too long by."""

    class Trainer:
        """What of ORPO's trainer cuts."""

        max_length = 4

        def build_tokenized_answer(self) -> None: ...

        def tokenize_row(self, row: dict[str, list[int]]) -> dict[str, list[int]]:
            over = max(map(len, row.values())) - self.max_length
            return {name: ids[: len(ids) - max(0, over)] for name, ids in row.items()}

    trainer = _cut_by_own_length(Trainer)()
    row = {"chosen": [1, 2], "rejected": [3, 4, 5, 6, 7, 8]}
    assert trainer.tokenize_row(row) == {"chosen": [1, 2], "rejected": [3, 4, 5, 6]}
    assert trainer.max_length == 4
    with pytest.raises(TypeError):
        trainer.tokenize_row(None, None)
    assert trainer.max_length == 4

    class Other:
        """One that cuts nothing."""

    assert _cut_by_own_length(Other) is Other


def test_a_lora_reaches_the_experts(tmp_path: Path) -> None:
    folder = save_language_model("mixtral", tmp_path / "model")
    model = {"name": str(folder), "lora_config": {"r": 4}}
    config = configuration("dpo", tmp_path, folder, model=model)
    trainer = TrlTraining(config, tmp_path).make_trainer(is_new=True)
    trained = [name for name, p in trainer.model.named_parameters() if p.requires_grad]
    assert any("q_proj.lora_A" in name for name in trained)
    assert any(".experts." in name for name in trained)


def test_what_keeps_a_model_from_being_saved_is_taken_out_and_named(
    tmp_path: Path, saved_llama: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(saved_llama, folder)
    path = folder / "generation_config.json"
    given = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**given, "do_sample": False, "temperature": 0.3}))
    lines: list[str] = []
    config = configuration("dpo", tmp_path, folder)
    trainer = TrlTraining(config, tmp_path).make_trainer(is_new=True, say=lines.append)
    assert any("temperature 0.3" in line for line in lines)
    assert trainer.model.generation_config.temperature != 0.3


def test_a_column_that_is_of_several_kinds_in_held_out_rows_alone_is_carried_as_text(
    tmp_path: Path, saved_llama: Path
) -> None:
    def rows(*levels: object) -> list[dict[str, object]]:
        return [{"prompt": f"{n} + 1 =", "level": x, "size": n} for n, x in enumerate(levels)]

    held_out = write_rows(tmp_path / "held_out.jsonl", rows(1, "hard", 2, 3))
    config = configuration("grpo", tmp_path, saved_llama, data={"eval_path": str(held_out)})
    write_rows(Path(str(config.data.path)), rows(*range(12)))
    training = TrlTraining(config, tmp_path)
    assert len(training.data.held_out) == 4
    assert training.carried == {"level"}
    write_rows(held_out, rows(1, 2, 3, 4))
    assert TrlTraining(config, tmp_path).carried == frozenset()


class Trainer:
    """What TRL's trainers do of it: a number of each batch, and their mean when it is logged."""

    def __init__(self, attribute: str) -> None:
        self.collected: Any = {"train": {"share": [0.5]}, "eval": defaultdict(list)}
        setattr(self, attribute, self.collected)
        self.logged: dict[str, float] = {}

    def prediction_step(self, model: object, inputs: dict[str, torch.Tensor]) -> None:
        ids = next(value for name, value in inputs.items() if name.endswith("input_ids"))
        self.collected["eval"]["share"].append(ids.float().mean().item())
        self.collected["eval"]["num_tokens"] = [7.0]

    def log(self, logs: dict[str, float]) -> None:
        means = {name: sum(each) / len(each) for name, each in self.collected["eval"].items()}
        self.logged = logs | means
        self.collected["eval"].clear()


@pytest.mark.parametrize(
    ("attribute", "ids"),
    [("_metrics", "input_ids"), ("_stored_metrics", "chosen_input_ids")],  # the latter: ORPO
)
@pytest.mark.parametrize("rounds", [1, 2])
def test_a_smaller_batch_weighs_less(rounds: int, attribute: str, ids: str) -> None:
    trainer = Trainer(attribute)
    weigh_pairs(trainer)
    for _ in range(rounds):  # nothing is left of the one before
        for batch in (torch.ones(8, 3), torch.zeros(6, 3)):
            trainer.prediction_step(None, {"labels": torch.ones(1), ids: batch})
        trainer.log({"loss": 1.0})
        assert trainer.logged == {"loss": 1.0, "share": pytest.approx(8 / 14), "num_tokens": 7.0}
        assert trainer.collected["train"] == {"share": [0.5]}


def due(training: TrainingConfig, *, holds_out: bool = True) -> list[tuple[int, str]]:
    """What is due in a training of ten steps in epochs of four."""
    rhythm, wanted = training_rhythm(training, holds_out=holds_out), []
    for step in range(1, 11):
        control = SimpleNamespace(should_evaluate=False, should_save=False)
        state: Any = SimpleNamespace(global_step=step, max_steps=10, epoch=step / 4)
        rhythm.on_step_end(None, state, control)
        if step % 4 == 0:
            rhythm.on_epoch_end(None, state, control)
        wanted += [(step, "evaluate")] * control.should_evaluate + [
            (step, "save")
        ] * control.should_save
    return wanted


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [(4, "evaluate"), (4, "save"), (8, "evaluate"), (8, "save"), (10, "evaluate")]),
        (
            {"validation_interval": 2, "checkpoint_interval": None},
            [(8, "evaluate"), (10, "evaluate")],
        ),
        ({"validation_interval": None, "checkpoint_interval": 2}, [(8, "save"), (10, "evaluate")]),
        (
            {"validation_frequency": 6, "checkpoint_frequency": 5},
            [(5, "save"), (6, "evaluate"), (10, "evaluate"), (10, "save")],
        ),
    ],
)
def test_epochs_steps_and_the_end(
    settings: dict[str, Any], expected: list[tuple[int, str]]
) -> None:
    assert due(TrainingConfig(**settings)) == expected
    saves = [one for one in expected if one[1] == "save"]
    assert due(TrainingConfig(**settings), holds_out=False) == saves


FIELDS = schema_of(DeploymentConfig).fields
ARGUMENTS = [
    key
    for key in FIELDS
    if (treatment := treatment_of(key)) is not None and treatment.use is Use.ARGUMENT
]
DEFAULTS = Defaults(learning_rate=1e-6, num_epochs=3.0, num_generations=8)
VALUES: dict[str, object] = {
    "training.optimizer": "paged_adamw_8bit",
    "training.mixed_precision": "bf16",
    "training.method_settings": {"loss_type": "dapo"},
}
NEED_A_GPU = {"device": "use_cpu", "enable_gpu_optimization": "tf32"}


def arguments(*, device: str = "cpu", **sections: Any) -> dict[str, object]:
    training = {"method": "grpo", **sections.pop("training", {})}
    config = DeploymentConfig(training=training, **sections)
    return arguments_of(config, torch.device(device), DEFAULTS, Path("runs/a"))


@pytest.mark.parametrize("key", [key for key in ARGUMENTS if key not in NEED_A_GPU])
def test_a_setting_becomes_the_argument(key: str) -> None:
    treatment, (section, _, name) = treatment_of(key), key.rpartition(".")
    assert treatment is not None
    value = VALUES.get(key, other_value(FIELDS[key]))
    before, after = arguments(), arguments(**{section: {name: value}})
    changed = {k for k in {*before, *after} if before.get(k) != after.get(k)}
    named = treatment.words if key != "training.method_settings" else "loss_type"
    if key == "training.mixed_precision":
        before = arguments(training={"mixed_precision": "fp32"})
        assert (before["bf16"], after["bf16"]) == (False, True)
        return
    allowed = {named, "data_seed"} if named == "seed" else {named}
    if named in ("per_device_train_batch_size", "num_generations"):
        allowed = allowed | {"per_device_eval_batch_size"}
    assert named in changed <= allowed


def test_the_device_decides_where() -> None:
    assert arguments()["use_cpu"] is True
    assert arguments()["tf32"] is None


@pytest.mark.parametrize(
    ("setting", "value", "argument", "expected"),
    [
        ("optimizer", "adamw", "optim", "adamw_torch"),
        ("optimizer", "adamw_8bit", "optim", "adamw_bnb_8bit"),
        ("optimizer", "paged_adamw", "optim", "paged_adamw_32bit"),
        ("optimizer", "paged_adamw_8bit", "optim", "paged_adamw_8bit"),
        ("optimizer", "sgd", "optim", "sgd"),
        ("scheduler_type", "cosine", "lr_scheduler_type", "cosine"),
        ("scheduler_type", "linear", "lr_scheduler_type", "linear"),
        ("scheduler_type", "constant", "lr_scheduler_type", "constant_with_warmup"),
        ("max_grad_norm", None, "max_grad_norm", 0.0),
        ("max_grad_norm", 0.5, "max_grad_norm", 0.5),
        ("max_steps", None, "max_steps", -1),
        ("seed", 7, "seed", 7),
        ("seed", 7, "data_seed", 7),
        ("learning_rate", 0.25, "learning_rate", 0.25),
        ("num_epochs", 2, "num_train_epochs", 2.0),
        ("mixed_precision", "bf16", "fp16", False),
        ("mixed_precision", "fp32", "fp16", False),
        ("method_settings", {"logging_steps": 3}, "logging_steps", 3),
    ],
)
def test_a_value_is_the_one_that_trl_means(
    setting: str, value: object, argument: str, expected: object
) -> None:
    assert arguments(training={setting: value})[argument] == expected


def test_fp16_is_computed_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    given = arguments(device="cuda", training={"mixed_precision": "fp16"})
    assert (given["fp16"], given["bf16"], given["use_cpu"], given["tf32"]) == (
        True,
        False,
        False,
        None,
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    for is_on in (True, False):
        given = arguments(device="cuda", enable_gpu_optimization=is_on)
        assert given["tf32"] is is_on


def test_versions_evaluation_and_reports_are_left_to_temper() -> None:
    kept = ("output_dir", "save_strategy", "eval_strategy", "logging_strategy", "report_to")
    given = arguments()
    assert [given[name] for name in kept] == ["runs/a", "no", "no", "steps", []]


def test_auto_is_what_trl_takes_and_ten_times_that_for_lora() -> None:
    assert arguments()["learning_rate"] == 1e-6
    lora = {"lora_config": True}
    assert arguments(model=lora)["learning_rate"] == pytest.approx(1e-5)
    assert arguments(model=lora, training={"learning_rate": 0.25})["learning_rate"] == 0.25
    assert arguments()["num_train_epochs"] == 3
    assert arguments()["num_generations"] == 8
    assert "beta" not in arguments()


def test_lengths_are_those_that_a_method_has() -> None:
    for method in ("dpo", "kto", "orpo", "reward"):
        pairs = arguments(training={"method": method}, data={"max_length": 99})
        assert pairs["max_length"] == 99
        assert not {"max_completion_length", "temperature"} & pairs.keys()
    for method in ("grpo", "rloo", "distillation"):
        written = arguments(training={"method": method, "max_completion_length": 9})
        assert written["max_completion_length"] == 9
        assert "max_length" not in written
    assert arguments()["per_device_eval_batch_size"] == 32
    assert arguments(training={"batch_size": 12})["per_device_eval_batch_size"] == 8
    assert arguments(training={"batch_size": 7})["per_device_eval_batch_size"] == 8


def test_the_defaults_are_those_of_trl_s_configuration() -> None:
    @dataclass
    class Config:
        learning_rate: float = 5e-5
        num_train_epochs: float = 3.0
        num_generations: int = 6

    @dataclass
    class Other:
        learning_rate: float = 1e-4
        num_train_epochs: int = 1

    assert defaults_of(Config) == Defaults(5e-5, 3.0, 6)
    assert defaults_of(Other) == Defaults(1e-4, 1.0, None)


def test_a_training_that_trl_cannot_do_here_is_refused_before_a_model_loads(
    tmp_path: Path, saved_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configuration("dpo", tmp_path, saved_llama)
    training = TrlTraining(config, tmp_path)
    known = dict(training.config_class.__dataclass_fields__)
    older = {name: one for name, one in known.items() if name not in ("max_length", "tf32")}
    training.config_class = type("DPOConfig", (), {"__dataclass_fields__": older})
    with pytest.raises(ValueError, match=r"trl_arguments_missing\(.*names=max_length, tf32,"):
        training._checked_arguments()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    TrlTraining(config, tmp_path)  # on a CPU
    device = torch.device("cuda")
    monkeypatch.setattr(trl_training, "training_device", lambda _: device)
    with pytest.raises(ValueError, match=r"several_gpus_visible\(method=dpo, count=2\)"):
        TrlTraining(config, tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)

    def stopped(_: TrlTraining, name: str) -> None:
        raise LookupError(name)

    monkeypatch.setattr(TrlTraining, "find", stopped)
    with pytest.raises(LookupError, match=saved_llama.name):  # one GPU is enough
        TrlTraining(config, tmp_path)


def bare(method: str = "grpo", **training: Any) -> TrlTraining:
    """A training with its settings alone."""
    made = TrlTraining.__new__(TrlTraining)
    made.config = DeploymentConfig(training={"method": method, **training})
    made.device = torch.device("cpu")
    made.options = LoadOptions(made.device, torch.float32)
    made.arguments = {"bf16": True, "fp16": False}
    made.source = ModelSource(SourceKind.FOLDER, "m")
    return made


@pytest.mark.parametrize(
    ("method", "batch_size", "accumulation", "num_rows"),
    [("grpo", 8, 3, 3), ("grpo", 8, 1, 1), ("grpo", 4, 1, 1), ("dpo", 8, 2, 1)],
)
def test_a_step_needs_a_row_for_each_eight_answers(
    method: str, batch_size: int, accumulation: int, num_rows: int
) -> None:
    training = bare(method, batch_size=batch_size)
    training.config.training.gradient_accumulation = accumulation
    training.installed = installed_method(method)
    training.defaults = defaults_of(training.installed.classes()[1])
    assert training._rows_of_a_step() == num_rows


@pytest.mark.parametrize(
    ("settings", "argument"),
    [
        ({}, ""),
        ({"num_iterations": 1}, ""),
        *(({name: 2}, name) for name in trl_training.REUSING),
        ({"generation_batch_size": 8, "steps_per_generation": 4}, "steps_per_generation"),
    ],
)
def test_steps_that_share_what_is_written_are_named_after_the_rows(
    settings: dict[str, int], argument: str
) -> None:
    training = bare(method_settings=settings)
    training.data = SimpleNamespace(lines=lambda: ["rows"])  # type: ignore[assignment]
    training.tokenizer = byte_level_tokenizer()
    rows, template, *shared = training.lines()
    assert (rows, template[:34]) == ("rows", "data.model_without_chat_template(e")
    assert shared == [f"methods.steps_share_generations(argument={argument})"] * bool(argument)


@pytest.mark.parametrize(
    ("changes", "is_open"),
    [
        ({}, True),
        ({"mixed_precision": "bf16"}, False),
        ({"method_settings": {"bf16": True}}, False),
        ({"device": torch.device("cuda")}, False),
        ({"arguments": {"bf16": False, "fp16": True}}, False),
    ],
)
def test_a_slow_product_decides_a_precision_that_is_open(
    changes: dict[str, Any], is_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {name: changes.pop(name) for name in ("device", "arguments") if name in changes}
    slow_bf16: Any = object()
    for measured, kept in ((slow_bf16, "fp32"), (None, "bf16")):
        monkeypatch.setattr(trl_training, "measured_choice", lambda found=measured: found)
        choices: tuple[Any, ...] = (
            TrlTraining.choose_by_product,
            lambda one, name=kept: one.keep_precision(name),
        )
        for decide in choices:
            training = bare(**{"mixed_precision": True, **changes})
            vars(training).update({name: copy(value) for name, value in own.items()})
            before = training.precision.name
            found = decide(training)
            assert found is None or (found is measured and is_open)
            is_changed = is_open and measured is not None
            assert training.precision.name == ("fp32" if is_changed else before)
    assert before == ("fp16" if "arguments" in own else "bf16")
    for options in ({"dtype": torch.bfloat16}, {"quantization": "4bit"}):
        training = bare(mixed_precision=True)
        training.options = replace(training.options, **options)
        assert training.choose_by_product() is None
        assert training.precision.name == "bf16"


def test_rows_come_out_of_their_table_as_they_were_put_in() -> None:
    training = bare()
    training.carried = frozenset({"level"})
    called = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    user = {"role": "user", "content": "?"}
    rows = [{"prompt": [user], "level": [1]}, {"prompt": [user, called], "level": "x"}]
    texts = [{**row, "level": json.dumps(row["level"])} for row in rows]
    assert [*training._dataset(datasets, rows)] == texts
    assert training._dataset(datasets, []) is None

    def without_json(rows: list[Any], **more: Any) -> list[Any]:
        if more:
            raise TypeError("on_mixed_types")
        return [{**row, "empty": None} for row in rows]

    older = SimpleNamespace(Dataset=SimpleNamespace(from_list=without_json))
    wanted = rf"methods\.datasets_too_old\(version={datasets.__version__}\)"
    with pytest.raises(ValueError, match=wanted):
        training._dataset(older, rows)


def test_progress_bars_are_as_they_were_when_the_trainer_is_made() -> None:
    for is_on in (True, False):
        (datasets.enable_progress_bars if is_on else datasets.disable_progress_bars)()

        def fails() -> None:
            with trl_training._quiet():
                assert not datasets.is_progress_bar_enabled()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fails()
        assert datasets.is_progress_bar_enabled() is is_on
    datasets.enable_progress_bars()


def test_a_model_is_checked_before_it_is_loaded(tmp_path: Path, saved_llama: Path) -> None:
    config = configuration("dpo", tmp_path, saved_llama, data={"max_length": 129})
    with pytest.raises(ValueError, match=rf"max_length=129, .*{saved_llama}"):
        TrlTraining(config, tmp_path)
    config = configuration("dpo", tmp_path, saved_llama)
    shutil.copytree(saved_llama, tmp_path / "model")
    config.model.name = str(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"vocab_size": 299}))
    with pytest.raises(ValueError, match=r"models\.tokenizer_larger_than_model\(.*num_tokens=299"):
        TrlTraining(config, tmp_path)
    write_sums(tmp_path / "model")
    path.write_text(path.read_text() + " ")
    with pytest.raises(DamagedFileError, match=r"config\.json"):
        TrlTraining(config, tmp_path)


def test_a_model_is_loaded_by_the_options_of_its_settings() -> None:
    training = bare(memory_efficient_attention=False)
    assert training._options() == LoadOptions(training.device, torch.float32, "eager")
    model = {"dtype": "bf16", "quantization": "4bit", "lora_config": {}}
    more = {"trust_remote_code": True, "revision": "v2", "attention": "sdpa"}
    training.config = DeploymentConfig(model={**model, **more}, training={"method": "dpo"})
    expected = (training.device, torch.bfloat16, "sdpa", "4bit", True, "v2")
    assert training._options() == LoadOptions(*expected)


def test_the_record_of_a_model_holds_what_it_began_with(monkeypatch: pytest.MonkeyPatch) -> None:
    training, model = bare(), torch.nn.Linear(1, 1)
    monkeypatch.setattr(trl_training, "describe", lambda model, config: {"described": config.name})
    monkeypatch.setattr(trl_training, "hash_while_loading", lambda source: "hashed later")
    monkeypatch.setattr(trl_training, "weights_begun_with", lambda *given: {"begun": given})
    for hashed, found in ((None, "hashed later"), ("hashed before", "hashed before")):
        training._hashed = hashed  # type: ignore[assignment]
        begun = {"begun": (training.source, model, found)}
        described = {"kind": str(SourceKind.FOLDER), "described": training.config.model.name}
        assert training.describe_model(model) == described | begun


def test_what_the_run_is_about_is_shown_beforehand() -> None:
    model = torch.nn.Linear(1000, 500, bias=False)
    model.extra = torch.nn.Parameter(torch.zeros(500_000), requires_grad=False)
    args = SimpleNamespace(learning_rate=0.25, bf16=False, fp16=True)
    training = bare()
    training.installed = installed_method("grpo")
    line = training.described(SimpleNamespace(model=model, args=args))
    assert line.startswith("methods.trl_run_described(method=GRPO, version=")
    assert "total=1.0, trained=0.5, learning_rate=0.25, precision=fp16, device=cpu)" in line
