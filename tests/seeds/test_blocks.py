"""Every code block of the five specifications: it runs, or is refused in a sentence, or is no code.

What runs is executed: the block's own text where it can be, else each of its class's calls on our
object of that role. The last test says that no block is left out.
"""

import dataclasses
import functools
import importlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import infrastructure
from infrastructure import training as training_names
from infrastructure.commands.main import create_parser, main, with_full_names
from infrastructure.commands.parser import parse
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.resource_config import AlertThresholds
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.config.sources.flags import flags_given
from infrastructure.config.sources.load import load_config
from infrastructure.core.features import merged
from infrastructure.core.messages import WORDS, phrase
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.features.curriculum.curriculum_strategy import CurriculumStrategy
from infrastructure.features.quantum.config import config_of
from infrastructure.features.quantum.solving.quantum_step import quantum_solve
from infrastructure.features.stackwise.config import ProgressiveConfig
from infrastructure.features.tune.tuning import find_fastest
from infrastructure.models.added_modules import added_modules
from infrastructure.monitoring.training_monitor import TrainingMetrics, TrainingMonitor
from infrastructure.optimization.device_errors import is_device_fault, is_out_of_memory
from infrastructure.optimization.gpu_optimizer import create_gpu_optimizer
from infrastructure.optimization.memory_optimizer import MemoryOptimizer, create_memory_optimizer
from infrastructure.optimization.pipeline_optimizer import PipelineOptimizer
from infrastructure.training import (
    CheckpointManager,
    DataPipeline,
    ExtensionManager,
    MetricsLogger,
    ModelManager,
    StreamingDataset,
    TrainingContext,
    UnifiedTrainer,
    apply_quantum_solution,
    formulate_quantum_problem,
    initialize_training,
    should_checkpoint,
    should_optimize,
)
from infrastructure.training.checkpoints.checkpoint_manager import load_checkpoint
from infrastructure.training.extensions.extension_hooks import Extension
from infrastructure.training.extensions.extension_manager import EXTENSIONS
from infrastructure.training.strategies import STRATEGIES, TrainingStrategy
from infrastructure.training.strategies.standard_strategy import StandardTrainingStrategy
from infrastructure.training.trainer_factory import TrainerFactory
from tests.data.builders import CHATML
from tests.deployment.runs import deploy, runs_of, small_config, small_settings, write_rows
from tests.features.specification.test_context import configure
from tests.models.architectures import tiny_model
from tests.seeds.blocks import Block, all_blocks, num_fences
from tests.seeds.unsloth_loop import WITH_UNSLOTH
from tests.slow import slow
from tests.training.seeing_models import save_llava, save_text_model, save_tower, write_colours

ROOT = Path(infrastructure.__file__).parent
ELSEWHERE = merged("instead")
BLOCKS = all_blocks()
RUNS, REFUSED, PSEUDO_CODE = "runs", "refused", "pseudo-code"


@dataclass(frozen=True)
class Statement:
    """What becomes of a block: it runs, is refused with a sentence, or is no code, and why."""

    kind: str
    sentence: str = ""


STATED: dict[str, Statement] = {}
Test = Callable[..., None]


def state(name: str, kind: str, sentence: str = "") -> Block:
    assert name not in STATED, f"{name} is stated twice"
    STATED[name] = Statement(kind, sentence)
    return BLOCKS[name]


def runs(*names: str) -> Callable[[Test], Test]:
    """The test executes these blocks."""
    for name in names:
        state(name, RUNS)
    return lambda test: test


def refused(sentence: str, *names: str) -> Callable[[Test], Test]:
    """The test does what these blocks ask for, and gets an error with the sentence."""
    for name in names:
        state(name, REFUSED, sentence)

    def with_refusal(test: Test) -> Test:
        @functools.wraps(test)
        def refusing(*args: Any, **kwargs: Any) -> None:
            with pytest.raises((ValueError, ImportError), match=re.escape(sentence)):
                test(*args, **kwargs)

        return refusing

    return with_refusal


def elsewhere(name: str, *classes: str) -> Callable[[Test], Test]:
    """A class of the block is nobody's here: its import says what does it, and the test does it."""
    block = state(name, REFUSED, "; ".join(ELSEWHERE[one] for one in classes))

    def with_refusal(test: Test) -> Test:
        @functools.wraps(test)
        def refusing(*args: Any, **kwargs: Any) -> None:
            for one in classes:
                assert re.search(rf"\b{one}\b", block.text)
                with pytest.raises(ImportError, match=re.escape(ELSEWHERE[one])):
                    exec(f"from infrastructure.training import {one}", {})
            test(*args, **kwargs)

        return refusing

    return with_refusal


def text_of(name: str) -> str:
    """A block's text, with the package where it is here."""
    return BLOCKS[name].text.replace("from src.training", "from infrastructure.training")


def execute(name: str, names: dict[str, Any], *changes: tuple[str, str]) -> dict[str, Any]:
    """Run a block's text, but for `changes` as it stands, with the names that it takes as given."""
    text = text_of(name)
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    exec(compile(text, name, "exec"), names)
    return names


@pytest.fixture
def config(saved_llama: Path, tmp_path: Path) -> DeploymentConfig:
    config = configure(saved_llama, tmp_path, optimization_frequency=2, checkpoint_frequency=2)
    config.training.num_epochs = "auto"
    config.training.max_steps = 5
    config.quantum.problem, config.quantum.num_blocks = "block_selection", 1
    return config


@pytest.fixture
def context(config: DeploymentConfig) -> TrainingContext:
    return initialize_training(config)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, whose configuration file is a small training."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".config").mkdir()
    settings = json.dumps(small_settings(tmp_path, max_steps=2))
    (tmp_path / ".config/training_config.yaml").write_text(settings)
    return tmp_path


# 000


@runs("000 Training Loop", "000 Optimization Integration")
def test_the_loop_of_000_runs_as_written(config: DeploymentConfig) -> None:
    context = initialize_training(config)
    names = {
        "config": config,
        "should_optimize": should_optimize,
        "should_checkpoint": should_checkpoint,
        "formulate_quantum_problem": formulate_quantum_problem,
        "quantum_solve": quantum_solve,
        "apply_quantum_solution": apply_quantum_solution,
    }
    execute("000 Optimization Integration", names)
    execute("000 Training Loop", names)
    names["training_loop"](context)
    assert context.state.step == 5
    assert config.training.num_epochs == "auto"
    assert config.num_epochs == context.num_epochs == 1
    assert context.trainer.checkpoints is not None
    assert len(context.trainer.checkpoints.checkpoints()) == 2  # of steps 2, 4 and 5, two are kept


# With Unsloth, whose import changes a process: that of test_unsloth_backend.py executes them.
for name in WITH_UNSLOTH:
    state(name, RUNS)


@runs("000 Implementation 2")
def test_the_data_pipeline_of_000(config: DeploymentConfig) -> None:
    pipeline = DataPipeline(config)
    assert pipeline.tokenizer("a b")["input_ids"]
    batches = list(pipeline.dataloader)
    assert sum(map(len, batches)) == pipeline.num_examples == 20
    assert [len(batch) for batch in pipeline] == [len(batch) for batch in batches]
    assert len(pipeline.dataset.example(0).input_ids) > 2
    assert pipeline.cache.is_dir()
    made = pipeline.process_batch(batches[0])
    assert made["input_ids"].shape == made["labels"].shape == made["attention_mask"].shape
    assert len(made["input_ids"]) == 4
    texts = pipeline.process_batch(["What is it?", "It."])
    assert texts["attention_mask"].sum(1).tolist()[0] > texts["attention_mask"].sum(1).tolist()[1]
    pipeline.close()


def test_the_data_of_the_embedded_model_needs_no_tokenizer_either(tmp_path: Path) -> None:
    pipeline = DataPipeline(small_config(tmp_path))
    batch = next(iter(pipeline))
    assert pipeline.tokenizer.decode(batch[0].input_ids).count("<|user|>") == 1
    pipeline.close()


@runs("000 Implementation 3")
def test_the_model_manager_of_000(config: DeploymentConfig) -> None:
    manager = ModelManager(config)
    model = manager.base_model
    assert model is manager.base_model
    assert manager.adapters == []
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    state = {"step": 3, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    path = manager.save_checkpoint(state)
    assert path.is_relative_to(manager.checkpoint_dir)
    with torch.no_grad():
        next(model.parameters()).zero_()
    found = manager.load_checkpoint(path)
    assert found["step"] == 3
    optimizer.load_state_dict(found["optimizer"])
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_parts_of_different_configurations_are_refused(
    context: TrainingContext, tmp_path: Path, config: DeploymentConfig
) -> None:
    other = config.changed([])
    other.data.max_length = 32
    with pytest.raises(ValueError, match=r"specification\.pipeline_of_other_data"):
        TrainingContext(context.trainer, DataPipeline(other))
    with pytest.raises(ValueError, match=r"specification\.manager_of_other_model"):
        TrainingContext(context.trainer, None, ModelManager(small_config(tmp_path)))


def test_without_a_context_it_must_be_clear_which_is_meant(config: DeploymentConfig) -> None:
    with pytest.raises(ValueError, match=r"training\.own_loop_ambiguous"):
        should_checkpoint()
    one, other = initialize_training(config), initialize_training(config.changed([]))
    with pytest.raises(ValueError, match=r"training\.own_loop_ambiguous"):
        should_optimize()
    assert should_optimize(one) is should_checkpoint(other) is False


@elsewhere("000 Memory Management", "MemoryManager", "GPUMemoryAllocator", "CPUCache")
def test_memory_management(context: TrainingContext) -> None:
    optimizer = create_memory_optimizer(gradient_checkpointing=True)
    model = optimizer.optimize_for_training(context.state.model)
    assert getattr(model, "is_gradient_checkpointing")  # noqa: B009
    assert optimizer.optimize() >= 0


@elsewhere("000 Compute Allocation", "ComputeManager", "GPUManager", "QuantumResourceManager")
def test_compute_allocation(context: TrainingContext) -> None:
    context.trainer.train_step(next(iter(context.pipeline)))
    problem = formulate_quantum_problem(context.trainer.gradients, context.trainer.parameters)
    assert quantum_solve(problem, config_of(context.trainer), seed=0).decision
    assert create_gpu_optimizer(device_ids=[0]).device.type in ("cpu", "cuda")


@slow  # tests/features/tune/test_command.py has a quick one
@elsewhere("000 Training Optimization", "TrainingOptimizer")
def test_training_optimization(config: DeploymentConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("mixed_precision", "gradient_checkpointing"):  # given, so nobody tries another
        setattr(config.training, key, getattr(config.training, key))
    config.training.batch_size = "auto"
    config.enable_gpu_optimization = True
    monkeypatch.setattr(
        "infrastructure.features.tune.tuning.alternatives",
        lambda config, trainer: {"training.gradient_checkpointing": [True]},
    )
    monkeypatch.setattr("infrastructure.features.tune.tuning.worker_counts", lambda: [0])
    found = find_fastest(config, with_learning_rate=True, report=lambda line: None)
    assert "training.batch_size" in found["settings"]
    assert "learning_rate" in found


@runs("000 Pipeline Optimization")
def test_pipeline_optimization(context: TrainingContext, config: DeploymentConfig) -> None:
    optimizer = PipelineOptimizer()
    epoch = [example.input_ids.tolist() for batch in context.pipeline for example in batch]
    found = optimizer.optimize_pipeline(context.pipeline)
    assert config.data.prefetch_factor == found.get("data.prefetch_factor", 2)
    assert len(optimizer.tried) == 4
    assert all(tried.measured.tokens_per_second > 0 for tried in optimizer.tried)
    again = [example.input_ids.tolist() for batch in context.pipeline for example in batch]
    assert again == epoch
    with pytest.raises(ValueError, match=r"optimization\.pipeline_measure_not_given"):
        optimizer.measure({})


@elsewhere("000 Performance Monitoring", "PerformanceMonitor", "MetricsCollector", "Profiler")
def test_performance_monitoring_of_000(context: TrainingContext) -> None:
    context.trainer.train_step(next(iter(context.pipeline)))
    numbers = context.state.metrics
    monitor = TrainingMonitor()
    monitor.log_training_metrics(
        TrainingMetrics(time.time(), 0, 1, numbers["loss"], numbers["learning_rate"], 4)
    )
    assert monitor.get_performance_summary()["training"]["loss"]["last"] == numbers["loss"]
    with MemoryOptimizer().memory_profiler("a step") as profile:
        context.trainer.train_step(next(iter(context.pipeline)))
    assert profile.lines()


@elsewhere("000 Resource Monitoring", "ResourceMonitor")
def test_resource_monitoring_of_000() -> None:
    monitor = TrainingMonitor(thresholds={"memory_percent": 0.001})
    monitor.start_monitoring()
    monitor.sample()
    monitor.stop_monitoring()
    assert monitor.get_performance_summary()["alerts"]["raised"]["memory_percent"] == 1


@elsewhere("000 Training Errors", "TrainingErrorHandler")
def test_training_errors(context: TrainingContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of memory once: the same step is done in smaller pieces, and the training goes on."""
    compute, failures = context.manager.compute_loss, [torch.OutOfMemoryError("CUDA out of memory")]

    def fail_once(model: Any, batch: Any) -> Any:
        if failures:
            raise failures.pop()
        return compute(model, batch)

    assert is_out_of_memory(failures[0])
    monkeypatch.setattr(context.trainer.strategy, "compute_loss", fail_once)
    assert np.isfinite(context.trainer.train_step(next(iter(context.pipeline))))
    assert context.state.micro_batch_size == 2
    assert context.state.recoveries[0]["kind"] == "out_of_memory"


@elsewhere("000 Resource Errors", "ResourceErrorHandler")
def test_resource_errors(context: TrainingContext) -> None:
    """A sampler that fails is followed by the next."""
    assert is_device_fault(RuntimeError("CUDA error: device-side assert triggered"))
    context.trainer.train_step(next(iter(context.pipeline)))
    problem = formulate_quantum_problem(context.trainer.gradients, context.trainer.parameters)
    resources = config_of(context.trainer).copy_with(
        solver="tests.features.quantum.training.bad_samplers:Failing", fallback=["exact"]
    )
    found = quantum_solve(problem, resources, seed=0)
    assert found.answered_by == "exact"


# 001


@runs("001 File Structure")
def test_the_files_of_001_are_there() -> None:
    named = re.findall(r"(\w+\.py|\w+/)\s+#", text_of("001 File Structure"))
    there = {path.name for path in (ROOT / "training").rglob("*.py")}
    folders = {f"{path.name}/" for path in (ROOT / "training").iterdir() if path.is_dir()}
    assert [name for name in named if name not in there | folders] == []
    for line in (
        "from infrastructure.training.model_adapters import MultimodalModelAdapter",
        "from infrastructure.training.model_adapters import DialogueModelAdapter",
        "from infrastructure.training.checkpoints import CheckpointManager",
        "from infrastructure.training.metrics import MetricsLogger",
        "from infrastructure.training.extensions import ExtensionManager",
    ):
        exec(line, {})


def sections(config: DeploymentConfig) -> dict[str, Any]:
    return {
        "model_config": config.model,
        "training_config": config.training.copy_with(optimization_frequency=None),
        "data_config": config.data,
        "device": "cpu",
    }


@runs("001 For Users", "001 For Developers")
def test_the_trainers_of_001(config: DeploymentConfig) -> None:
    for name in ("001 For Users", "001 For Developers"):
        trainer = execute(name, sections(config))["trainer"]
        assert isinstance(trainer.hooks, ExtensionManager)
        assert trainer.train().step == 5


def message_of(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


@pytest.mark.parametrize(
    ("adapter", "strategy"),
    [("dialogue", "finetuning"), ("multimodal", "standard"), ("standard", "curriculum")],
)
def test_the_other_adapters_and_strategies_of_001(
    adapter: str, strategy: str, config: DeploymentConfig, tmp_path: Path
) -> None:
    """The sample for developers with the other names that its text has."""
    config.training.optimization_frequency = None
    if adapter == "dialogue":
        rows = [json.loads(line) for line in Path(str(config.data.path)).read_text().splitlines()]
        talks = [
            {
                "messages": [
                    message_of("user", r["prompt"]),
                    message_of("assistant", r["completion"]),
                ]
            }
            for r in rows
        ]
        config.data.path = str(tmp_path / "talks.jsonl")
        Path(config.data.path).write_text("\n".join(map(json.dumps, talks)))
        config.data.max_length, config.data.chat_template = 128, CHATML
    if adapter == "multimodal":
        config.data.path = str(write_colours(tmp_path / "rows"))
        config.data.max_length = 256
        config.model.name = str(save_llava(tmp_path / "llava"))
    chosen = strategy.replace("tuning", "tune")
    config.training.strategy = chosen
    config.training.max_steps = 7
    if chosen == "curriculum":
        config.training.curriculum_stages = 2
    changes = [
        (f'{kind}("standard"', f'{kind}("{name}"')
        for kind, name in (("get_model_adapter", adapter), ("get_training_strategy", chosen))
    ]
    trainer = execute("001 For Developers", sections(config), *changes)["trainer"]
    assert adapter in type(trainer.adapter).__name__.lower()
    assert strategy in type(trainer.strategy).__name__.lower()
    model = trainer.initialize_model()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    assert trainer.train().step == 7
    assert any(not torch.equal(before[name], p) for name, p in model.named_parameters())


@runs(
    "001 Example: Adding a New Training Strategy", "001 Example: Adding a New Training Strategy 2"
)
def test_a_strategy_as_001_adds_it(config: DeploymentConfig) -> None:
    """The sample leaves the step's logic out ("..."): here it is the standard one."""

    names = execute(
        "001 Example: Adding a New Training Strategy", {"TrainingStrategy": TrainingStrategy}
    )
    strategy = names["CurriculumStrategy"]
    strategy.train_step = StandardTrainingStrategy.train_step
    with STRATEGIES.registered("curriculum", strategy):
        wanted = sections(config)
        wanted["training_config"] = TrainingConfig(
            strategy="curriculum", curriculum_stages=3, max_steps=2, batch_size=4
        )
        made = execute("001 Example: Adding a New Training Strategy 2", dict(wanted))["strategy"]
        assert (made.curriculum_stages, made.current_stage) == (3, 0)
        assert execute("001 For Users", wanted)["trainer"].train().step == 2


def test_the_curriculum_of_001_that_is_there(config: DeploymentConfig) -> None:
    wanted = {"training_config": TrainingConfig(curriculum_stages=2)}
    strategy = execute("001 Example: Adding a New Training Strategy 2", wanted)["strategy"]
    assert type(strategy) is CurriculumStrategy
    assert (strategy.curriculum_stages, strategy.current_stage) == (2, 0)


@runs("001 Example: Using Model Extensions")
def test_the_extensions_of_001(config: DeploymentConfig) -> None:
    wanted = sections(config) | {"EnhancedTrainer": training_names.EnhancedTrainer}
    names = execute("001 Example: Using Model Extensions", wanted)
    assert [one.name for one in names["trainer"].hooks.extensions] == ["memory", "quantum"]
    assert added_modules(names["model"]).keys() == {"memory"}


def test_the_extensions_of_001_train_together(config: DeploymentConfig, tmp_path: Path) -> None:
    """All three that its text names; what two of them learn is in the checkpoint."""
    config.model.name = str(save_text_model(tmp_path / "text"))
    config.data.path, config.data.max_length = str(write_colours(tmp_path / "rows")), 256
    config.training.multimodal.vision_tower = str(save_tower(tmp_path / "tower"))
    config.training.max_steps, config.training.checkpoint_frequency = 8, 4
    wanted = sections(config) | {
        "EnhancedTrainer": functools.partial(
            training_names.EnhancedTrainer, checkpoint_directory=tmp_path / "checkpoints"
        )
    }
    wanted["training_config"].strategy = "standard"
    changes = [('["memory", "quantum"]', '["memory", "multimodal", "quantum"]')]
    names = execute("001 Example: Using Model Extensions", wanted, *changes)
    trainer, model = names["trainer"], names["model"]
    kinds = [type(one).__name__ for one in trainer.hooks.extensions]
    assert kinds == ["KeyValueMemoryExtension", "MultimodalExtension", "QuantumExtension"]
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    assert trainer.train().step == 8
    now = dict(model.named_parameters())
    moved = {name for name in now if not torch.equal(now[name], before[name])}
    assert added_modules(model)["memory"].num_stored > 0  # rows with pictures are told apart, too
    newest = CheckpointManager(tmp_path / "checkpoints").newest()
    saved = load_checkpoint(newest).tensors["model"]
    for kind in ("memory", "projector"):
        learnt = [name for name in moved if kind in name]
        assert learnt
        assert all(torch.equal(saved[name], now[name]) for name in learnt)


def test_the_same_as_it_stands_with_a_memory_of_ones_own(config: DeploymentConfig) -> None:
    class Memory(Extension):
        def __init__(self, trainer: Any) -> None:
            self.trainer = trainer

    wanted = sections(config) | {"EnhancedTrainer": training_names.EnhancedTrainer}
    with EXTENSIONS.registered("memory", Memory):
        names = execute("001 Example: Using Model Extensions", wanted)
    assert [one.name for one in names["trainer"].hooks.extensions] == ["Memory", "quantum"]


def test_the_same_with_the_extension_that_is_there(config: DeploymentConfig) -> None:
    wanted = sections(config) | {"EnhancedTrainer": training_names.EnhancedTrainer}
    names = execute("001 Example: Using Model Extensions", wanted, ('"memory", ', ""))
    assert isinstance(names["model"], torch.nn.Module)
    assert [one.name for one in names["trainer"].hooks.extensions] == ["quantum"]


# 002


@runs("002 Architecture")
def test_the_files_of_002_are_there() -> None:
    block = text_of("002 Architecture")
    folder = ""
    for name in re.findall(r"([\w.]+(?:/|\.py|\.sh|\.md))\s+#", block):
        if name.endswith("/"):
            folder = name
            assert (ROOT / folder).is_dir()
        else:
            assert (ROOT / folder / name).is_file() or (ROOT / name).is_file()


@runs("002 Basic Usage")
def test_the_commands_of_002() -> None:
    """The script itself is run by tests/deployment/test_launch_training.py."""
    lines = re.findall(r"^\./launch_training\.sh(.*)$", text_of("002 Basic Usage"), re.MULTILINE)
    options = [parse(create_parser(), ["train", *line.split()]) for line in lines]
    plain, custom = (load_config(environment={}, flags=flags_given(one)) for one in options)
    assert plain.to_dict() == DeploymentConfig().to_dict()
    assert (custom.model_name, custom.batch_size, custom.num_epochs) == ("my_model", 64, 50)
    assert (ROOT / "deployment/launch_training.sh").is_file()


@runs("002 Python API Usage")
def test_the_python_sample_of_002(tmp_path: Path) -> None:
    """Two steps of the hundred epochs."""
    text = text_of("002 Python API Usage")
    assert text.rstrip().endswith("deployment.run()")
    shorter = 'config.training.max_steps = 2\nconfig.output_dir = folder\nconfig.device = "cpu"\n'
    names = execute(
        "002 Python API Usage",
        {"folder": str(tmp_path / "runs")},
        ("# Create and run deployment\n", shorter),
    )
    assert names["config"].model_name == "tactical_mappo"
    (run,) = runs_of(tmp_path)
    assert json.loads((run / "summary.json").read_text())["status"] == "finished"


@runs("002 Training Monitor", "002 Alert Thresholds")
def test_the_monitor_of_002() -> None:
    names = {"TrainingMetrics": TrainingMetrics, "time": time}
    execute("002 Training Monitor", names)
    names["monitor"].stop_monitoring()
    assert names["summary"]["training"]["loss"]["last"] == 0.5
    thresholds = execute("002 Alert Thresholds", {})["thresholds"]
    assert AlertThresholds(**thresholds) == AlertThresholds()
    monitor = TrainingMonitor(thresholds=thresholds)
    monitor.log_training_metrics(TrainingMetrics(time.time(), 1, 2, 0.5, 1e-3, 32, 1e6))
    monitor.sample()
    assert monitor.get_performance_summary()["alerts"]["raised"]["gradient_norm"] == 1
    monitor.stop_monitoring()
    with pytest.raises(ValueError, match=r"gpu_temprature, .*meant=gpu_temperature"):
        TrainingMonitor(thresholds={"gpu_temprature": 3})


@runs("002 GPU Optimizer", "002 GPU Monitoring")
def test_the_gpu_optimizer_of_002() -> None:
    names: dict[str, Any] = {"model": torch.nn.Linear(4, 2)}
    execute("002 GPU Optimizer", names, ("compile_model=True", "compile_model=False"))
    assert names["optimized_model"](torch.ones(1, 4)).shape == (1, 2)
    assert isinstance(names["scaler"], torch.amp.GradScaler)
    execute("002 GPU Monitoring", names, ("60.0", "0.1"))


@runs("002 Memory Optimizer", "002 Performance Profiling", "002 Memory Analysis")
def test_the_memory_optimizer_of_002() -> None:
    model = torch.nn.Linear(4, 2)
    dataset = torch.utils.data.TensorDataset(torch.ones(8, 4))
    names: dict[str, Any] = {"model": model, "dataset": dataset}
    execute("002 Memory Optimizer", names)
    assert names["optimized_model"] is model
    assert len(list(names["dataloader"])) == 1
    # a comment is no body of a block: one is added
    execute("002 Performance Profiling", names, ("# Code to profile", "pass"))
    assert [one.name for one in names["optimizer"].profiles] == ["training_step", "operation"]
    execute("002 Memory Analysis", names)
    assert names["memory_info"].total_bytes > 0


@runs("002 Backup System")
def test_the_backups_of_002(here: Path) -> None:
    model = torch.nn.Linear(4, 2)
    names: dict[str, Any] = {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}
    execute("002 Backup System", names)
    assert names["checkpoint_path"].is_file()
    assert names["training_state"]["step"] == 1000


@runs("002 Testing Pipeline")
def test_the_testing_pipeline_of_002(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All its groups are run by tests/testing/test_test_pipeline.py; here the quick one."""
    monkeypatch.setattr("infrastructure.testing.test_pipeline.GROUPS", ("unit",))
    names = execute("002 Testing Pipeline", {})
    assert list(names["results"]) == ["unit"]
    assert names["report"]["passed"] is True


@runs("002 Deployment Configuration")
def test_the_configuration_class_of_002() -> None:
    """Its fields are ours; where a default differs, ours is told in config/README.md."""
    given = execute("002 Deployment Configuration", {"dataclass": dataclasses.dataclass})
    fields = {field.name: field.default for field in dataclasses.fields(given["DeploymentConfig"])}
    config = DeploymentConfig(**fields)
    assert {name: getattr(config, name) for name in fields} == fields
    for name, value in fields.items():
        setattr(config, name, value)


@runs("002 Environment Variables")
def test_the_environment_of_002() -> None:
    lines = re.findall(r"^export (\w+)=(.*)$", text_of("002 Environment Variables"), re.MULTILINE)
    environment = {name: value.strip('"') for name, value in lines}
    assert len(environment) == 11
    config = load_config(environment=environment)
    assert config.model_name == "tactical_mappo"
    assert config.cuda_visible_devices == "0,1"
    assert config.enable_backups is True
    assert config.environment_notes == []


# 003


@runs("003 Quick Start")
def test_the_make_targets_of_003(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What `make` types (tests/test_makefile.py) is typed here, on a run of two steps."""
    block = text_of("003 Quick Start")
    assert "CHECKPOINT=output/training/checkpoint-1000" in block
    assert "MODEL=output/training/final DATA=data/eval/test.jsonl" in block
    rows = here / "rows.jsonl"
    assert main(["train", str(rows), "--output", "output/training"]) == 0
    (run,) = (here / "output/training").glob("*/run.json")
    capsys.readouterr()
    assert main(["train-resume", "output/training/checkpoint-1", "--run-name", "x"]) == 0
    assert "deployment.resuming_from_step" in capsys.readouterr().out
    assert main(["train-resume", "output/training/checkpoint-1000"]) == 2
    assert "run.no_such_checkpoint" in capsys.readouterr().err
    assert main(["train-resume", "elsewhere/training/checkpoint-1000"]) == 2
    assert "run.checkpoint_folder_missing" in capsys.readouterr().err
    assert main(["train-eval", "output/training/final", str(rows)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (heading,) = (line for line in lines if "95% interval" in line)
    assert run.parent.name.endswith(heading.split()[0])  # the table is of the model that was named
    assert f"Measured on {rows}" in lines
    assert main(["train-eval", "elsewhere/training/final", str(rows)]) == 2
    assert "models.hint_run_model_folder" in capsys.readouterr().err


@runs("003 CLI Commands")
def test_the_command_line_of_003() -> None:
    block = text_of("003 CLI Commands")
    flags = re.findall(r"^(--[\w-]+)", block, re.MULTILINE)
    assert flags == ["--model", "--output", "--config", "--eval-data"]
    given = [part for flag in flags if flag != "--config" for part in (flag, "x")]
    for command in re.findall(r"^llamahome (\S+)", block, re.MULTILINE):
        words = ["a", "b"] if command == "train-eval" else ["a"]
        line = with_full_names([command, *words, *given, "--config", "c.yaml"])
        options = parse(create_parser(), line)
        config = load_config(environment={}, flags=flags_given(options))
        assert (config.model_name, config.output_dir, config.data.eval_path) == ("x", "x", "x")
        assert options.config == "c.yaml"


YAML = [name for name, block in BLOCKS.items() if block.language == "yaml"]


@runs(*YAML)
@pytest.mark.parametrize("name", YAML)
def test_a_configuration_file(name: str, tmp_path: Path) -> None:
    """What each key comes to is in tests/config/test_seed_samples.py, of the same texts."""
    samples = (ROOT.parent / "tests/config/samples").glob("*.yaml")
    assert any(text_of(name).split() == sample.read_text().split() for sample in samples)
    path = tmp_path / "config.yaml"
    path.write_text(text_of(name))
    config = load_config(path, environment={})
    assert all("config.yaml" in config.source(key).place for key in config._settings)


@runs("003 Streaming Dataset", "003 Data Management")
def test_streaming_of_003(tmp_path: Path, config: DeploymentConfig) -> None:
    with pytest.raises(ImportError, match=re.escape(ELSEWHERE["DataManager"])):
        exec("from infrastructure.training import DataManager", {})
    dataset = StreamingDataset(tmp_path / "rows.jsonl", buffer_size=8, memory_limit=10_000)
    assert (dataset.buffer_size, dataset.memory_limit) == (8, 10_000)
    loader = torch.utils.data.DataLoader(dataset, batch_size=4)
    assert sum(len(batch["prompt"]) for batch in loader) == 20
    config.data.streaming, config.data.buffer_size = True, 8
    pipeline = DataPipeline(config)
    assert sum(map(len, pipeline)) == 20
    pipeline.close()


@elsewhere("003 Batch Processing", "BatchProcessor")
def test_batch_processing_of_003(config: DeploymentConfig) -> None:
    config.training.batch_size = "auto"
    pipeline = DataPipeline(config)
    assert "input_ids" in pipeline.process_batch(next(iter(pipeline)))
    plan = initialize_training(config).trainer.batch_plan()
    assert isinstance(plan.micro_batch_size, int)
    pipeline.close()


@runs("003 Training Loop")
def test_the_training_loop_of_003(context: TrainingContext) -> None:
    """`TrainingLoop` is ours: an epoch at a time in one's own loop, or all of it."""
    losses = [context.trainer.train_step(batch) for batch in context.pipeline]
    context.end_epoch()
    assert len(losses) == 5
    assert context.state.metrics["tokens"] > 0
    assert type(context.pipeline.loop) is training_names.TrainingLoop


@elsewhere("003 Memory Monitor", "MemoryMonitor")
def test_the_memory_monitor_of_003() -> None:
    sample = TrainingMonitor().sample()
    assert sample["memory_percent"] > 0
    assert isinstance(sample["gpus"], list)
    assert MemoryOptimizer().get_memory_info().process_bytes > 0


@elsewhere("003 Resource Manager", "ResourceManager")
def test_the_resource_manager_of_003() -> None:
    assert MemoryOptimizer().optimize() >= 0


@runs("003 Memory Optimization")
def test_the_memory_optimizer_of_003() -> None:
    optimizer = training_names.MemoryOptimizer()
    assert optimizer.optimize() >= 0
    assert optimizer.release_if_needed() in (True, False)


@elsewhere("003 Training Optimization", "TrainingOptimizer")
def test_training_optimization_of_003(saved_llama: Path, tmp_path: Path) -> None:
    config = configure(
        saved_llama, tmp_path, gradient_checkpointing=True, memory_efficient_attention=True
    )
    trainer = initialize_training(config).trainer
    assert trainer.precision.name in ("bf16", "fp32")
    assert trainer.model.is_gradient_checkpointing
    assert trainer.model_config.attention == "auto"
    assert trainer.training_config.memory_efficient_attention is True


@elsewhere("003 Training Metrics", "MetricsCollector")
def test_the_metrics_of_003(context: TrainingContext) -> None:
    context.trainer.train_step(next(iter(context.pipeline)))
    assert {"loss", "memory_bytes", "tokens_per_second"} <= context.state.metrics.keys()


@elsewhere("003 Performance Tracking", "PerformanceTracker")
def test_performance_tracking_of_003(context: TrainingContext) -> None:
    written: list[Any] = []

    class Remembering:
        name = "remembering"
        write = staticmethod(written.append)

    context.trainer.train_step(next(iter(context.pipeline)))
    MetricsLogger([Remembering()]).log({"step": 1, **context.state.metrics})  # type: ignore[list-item]
    assert written[0]["loss"] == context.state.loss


@elsewhere("003 OOM Handler", "OOMHandler")
def test_out_of_memory_of_003() -> None:
    """That the loop does the batch again in smaller pieces is shown with 000's error handler."""
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_out_of_memory(RuntimeError("another"))
    assert TrainingConfig().recovery.out_of_memory == "smaller"


@slow  # tests/deployment/test_resuming.py has quick ones
@elsewhere("003 Resource Recovery", "ResourceRecovery")
def test_resource_recovery_of_003(tmp_path: Path) -> None:
    run, _ = deploy(small_config(tmp_path, max_steps=2))
    for file in ("summary.json", "final/model.safetensors"):
        (run / file).unlink()
    newest = CheckpointManager(run / "checkpoints").store.versions()[0]
    (run / "checkpoints/versions" / f"{newest}.json").unlink()
    lines: list[str] = []
    TrainingDeployment(small_config(tmp_path, max_steps=2), say=lines.append).run()
    assert any("deployment.resuming_from_step" in line for line in lines)


@elsewhere("003 Resource Monitoring", "ResourceMonitor")
def test_resource_monitoring_of_003() -> None:
    monitor = TrainingMonitor(thresholds={"cpu_percent": 100.0})
    assert {"cpu_percent", "memory_percent"} <= monitor.sample().keys()


@elsewhere("003 Performance Monitoring", "PerformanceMonitor")
def test_performance_monitoring_of_003() -> None:
    monitor = TrainingMonitor()
    numbers = TrainingMetrics(time.time(), 0, 1, 0.5, 1e-3, 4, tokens_per_second=7.0)
    monitor.log_training_metrics(numbers)
    assert monitor.get_performance_summary()["training"]["tokens_per_second"]["mean"] == 7.0


# 004


def batches_and_layers() -> dict[str, Any]:
    """Three batches of token ids, and a Llama of eight layers."""
    ids = torch.Generator().manual_seed(0)
    batches = [torch.randint(3, 90, (4, 12), generator=ids) for _ in range(3)]
    return {
        "dataloader": [{"input_ids": rows, "labels": rows} for rows in batches],
        "model_layers": tiny_model("llama", num_hidden_layers=8),
    }


@runs("004 Quick Start")
def test_the_quick_start_of_004() -> None:
    """In two blocks, each in three epochs; masks are of the first and of the last time step."""
    names = execute("004 Quick Start", batches_and_layers())
    training = names["trainer"].trainer
    assert [phase.name for phase in training.prepare().planned.phases] == [
        "layers 1 to 4 of 8, time step 0",
        "layers 5 to 8 of 8, time step 9",
    ]
    assert training.state.step == 2 * 3 * 3


TRAININGS_OF_004 = [
    "004 Progressive Training",
    "004 End-to-End Stack-wise Training",
    "004 End-to-End Rack-wise Training",
    "004 Time-Step-Based Masking",
    "004 Quantization and QLoRA",
]


@pytest.mark.parametrize("name", TRAININGS_OF_004)
@runs(*TRAININGS_OF_004)
def test_a_training_of_004(name: str, tmp_path: Path) -> None:
    """As written, on a model of eight layers and a few rows: of a run, and layers that one has."""
    names = {"TrainingConfig": TrainingConfig, "ProgressiveConfig": ProgressiveConfig}
    training = execute(name, names)["config"]
    training.num_epochs, training.batch_size = 1, 4
    phases = {"004 Progressive Training": 8, "004 Time-Step-Based Masking": 4}.get(name, 1)
    made = batches_and_layers()
    state = UnifiedTrainer(training).train_all_layers(made["dataloader"], made["model_layers"])
    assert state.step == phases * 3
    write_rows(tmp_path / "rows.jsonl", 100, 106)
    settings = small_settings(tmp_path)
    settings["model"]["embedded"]["num_layers"] = 8
    config = DeploymentConfig(**{**settings, "training": training})
    state = TrainerFactory().for_run(config).train()
    # masks alone divide no model of a run; six rows are two steps
    assert state.step == (1 if name == "004 Time-Step-Based Masking" else phases) * 2


@refused(ELSEWHERE["BlockTrainer"], "004 Architecture")
def test_the_parts_of_004() -> None:
    """Its trainers are one; what it has folders for are modules."""
    tree = text_of("004 Architecture")
    assert re.findall(r"(\w+)_trainer\.py", tree) == ["unified", "block", "fusion"]
    folders = re.findall(r"── (masking|quantization|caching)/", tree)
    assert folders == ["masking", "quantization", "caching"]
    for module in ("masking", "quantized_trunk", "activation_cache"):
        importlib.import_module(f"infrastructure.features.stackwise.training.{module}")
    exec("from infrastructure.training import BlockTrainer", {})


# pictures

state("001 Architecture", PSEUDO_CODE, "a picture of the components; each is imported above")
state("003 Directory Structure", PSEUDO_CODE, "a tree of the user's own data folders")
state("003 Architecture Overview", PSEUDO_CODE, "a picture of the components; each is used above")


def test_every_block_is_stated() -> None:
    assert 2 * len(BLOCKS) == num_fences()
    assert STATED.keys() == BLOCKS.keys()
    assert all(one.sentence for one in STATED.values() if one.kind != RUNS)


# Of the sample itself, of PyTorch, or imported from another place that the sample names.
NOT_OURS = {"CurriculumStrategy", "DataLoader", "Path", "TrainingDeployment", "TrainingMetrics"}


def test_every_class_of_the_documents_is_ours_or_named_with_its_place() -> None:
    """None ends in an AttributeError."""
    python = "\n".join(block.text for block in BLOCKS.values() if block.language == "python")
    text_of_004 = Path(__file__).with_name("004.txt").read_text()
    hierarchy = re.search(r"Hierarchical Trainers\*\*: (.*)", text_of_004)
    assert hierarchy
    used = set(re.findall(r"\b([A-Z]\w+)\(|^class (\w+)", python, re.MULTILINE))
    names = {name for pair in used for name in pair if name} - NOT_OURS
    names |= set(hierarchy[1].split(" → "))
    missing = {name for name in names if name not in training_names.__all__}
    assert missing == ELSEWHERE.keys()
    for name in missing:
        with pytest.raises(ImportError, match=name):
            getattr(training_names, name)


CLASSES = {
    "DataPipeline": DataPipeline,
    "MemoryOptimizer": MemoryOptimizer,
    "TrainingDeployment": TrainingDeployment,
    "TrainingMonitor": TrainingMonitor,
    "UnifiedTrainer": UnifiedTrainer,
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_a_name_of_elsewhere_points_to_is_there(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call in its sentence can be found, each setting is one of the schema."""
    monkeypatch.delenv(WORDS)  # the calls are in the words
    sentence = phrase(ELSEWHERE[name])
    modules = re.findall(r"infrastructure(?:\.\w+)+", sentence)
    known = [training_names, *map(importlib.import_module, modules), *CLASSES.values()]
    for call in re.findall(r"(?<![.\w])([A-Za-z_]+)\(", sentence):
        assert call in CLASSES or any(hasattr(one, call) for one in known), call
    for owner, method in re.findall(r"(\w+)\([^)]*\)\.(\w+)", sentence):
        assert hasattr(CLASSES[owner], method)
    without_modules = re.sub(r"infrastructure(?:\.\w+)+", "", sentence)
    settings = set(re.findall(r"(?<![\w.])[a-z]+\.[a-z_]+(?:\.[a-z_]+)?", without_modules))
    there = DeploymentConfig().model_dump()
    for key in settings - {"context.state"} - {"context.state.metrics"}:
        value = there
        for part in key.split("."):
            value = value[part]


def test_the_table_of_names_is_in_the_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WORDS)
    page = (ROOT / "features/specification/README.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.MULTILINE))
    assert rows == {name: phrase(code) for name, code in ELSEWHERE.items()}
