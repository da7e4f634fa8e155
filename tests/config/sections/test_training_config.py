import pytest

from infrastructure.config.auto import num_epochs_for
from infrastructure.config.sections.model_config import LoraConfig, ModelConfig
from infrastructure.config.sections.training_config import TrainingConfig


def test_steps_switch_the_default_interval_off() -> None:
    training = TrainingConfig(checkpoint_frequency=100, validation_frequency=50)
    assert (training.checkpoint_interval, training.validation_interval) == (None, None)
    training = TrainingConfig()
    training.checkpoint_frequency = 10
    assert training.checkpoint_interval is None


@pytest.mark.parametrize("thing", ["checkpoint", "validation"])
def test_epochs_and_steps_for_one_thing_are_refused(thing: str) -> None:
    both = {f"{thing}_interval": 2, f"{thing}_frequency": 100}
    with pytest.raises(ValueError, match=r"config\.epochs_and_steps_given") as raised:
        TrainingConfig(**both)
    assert f"epochs_key=training.{thing}_interval, num_epochs=2" in str(raised.value)
    assert f"steps_key=training.{thing}_frequency, num_steps=100" in str(raised.value)


def test_a_refused_assignment_changes_nothing() -> None:
    training = TrainingConfig(checkpoint_interval=2)
    with pytest.raises(ValueError, match=r"config\.epochs_and_steps_given"):
        training.checkpoint_frequency = 100
    assert (training.checkpoint_interval, training.checkpoint_frequency) == (2, None)
    assert training.model_fields_set == {"checkpoint_interval"}
    training.checkpoint_interval = None
    training.checkpoint_frequency = 100


def test_the_last_checkpoint_alone_is_not_enough() -> None:
    with pytest.raises(ValueError, match=r"at least 2, in case the newest one is damaged"):
        TrainingConfig(keep_checkpoints=1)


@pytest.mark.parametrize(
    ("spelt", "value", "name", "held"),
    [
        ("accumulation_steps", 4, "gradient_accumulation", 4),
        ("learning_rate", "4e-5", "learning_rate", 4e-5),
        ("learning_rate", "auto", "learning_rate", "auto"),
        ("mixed_precision", "yes", "mixed_precision", True),
        ("mixed_precision", "bf16", "mixed_precision", "bf16"),
        ("compile_mode", "none", "compile_mode", None),
        ("metrics_sinks", "csv, jsonl", "metrics_sinks", ["csv", "jsonl"]),
        ("enabled_extensions", '["a", "b"]', "enabled_extensions", ["a", "b"]),
        ("time_step_mask_fractions", '{"0": 0.5}', "time_step_mask_fractions", {0: 0.5}),
    ],
)
def test_spellings_and_texts(spelt: str, value: object, name: str, held: object) -> None:
    assert getattr(TrainingConfig(**{spelt: value}), name) == held


# field: (values that are refused, what the message says that is allowed)
REFUSED = {
    "batch_size": (
        [0, -1, 1.5, True, "many", None, float("nan")],
        'at least 1, or "auto"',
    ),
    "num_epochs": ([0, False, "all"], 'at least 1, or "auto"'),
    "learning_rate": ([0, -1e-3, 11, True, float("inf"), "fast"], 'above 0 and at most 10, or "'),
    "weight_decay": ([-0.1, 1.1], "from 0 to 1"),
    "warmup_steps": ([-1, 2.5], "a whole number of at least 0"),
    "scheduler_type": (
        [1],
        "cosine, linear, constant, a name that you registered or your own code as module:function",
    ),
    "mixed_precision": (["fp64", 2], '"bf16", "fp16", "fp32" or "fp8"'),
    "gradient_checkpointing": (["maybe", 2, None], "true or false"),
    "gradient_checkpointing_mode": (["none", 2], '"all", "selective" or "offload"'),
    "compile_mode": (
        ["off", "fastest"],
        '"reduce-overhead", "max-autotune", "auto" or none',
    ),
    "seed": ([-1, 1 << 32], "at least 0 and below 4294967296"),
    "max_grad_norm": ([0, -1], "above 0, or none"),
    "layerwise_lr_decay": ([0, 1.5], "above 0 and at most 1"),
    "metrics_sinks": (["wandbs", ["csv", 1]], "a list of console, jsonl, csv"),
    "qlora_dropout": ([1], "at least 0 and below 1"),
    "time_step_mask_fractions": ([{0: 2}, "{", [1]], "a mapping from time step to a share"),
    "time_step_bins": (["a,b", [-1]], "a list of time steps"),
}
CASES = [(name, value, words) for name, (values, words) in REFUSED.items() for value in values]


@pytest.mark.parametrize(("name", "value", "words"), CASES)
def test_a_wrong_value_is_one_sentence(name: str, value: object, words: str) -> None:
    with pytest.raises(ValueError, match=r"^config\.wrong_value") as raised:
        TrainingConfig(**{name: value})
    about = str(raised.value).partition(f"setting=training.{name}, allowed=")[2]
    allowed, _, given = about.partition(", value=")
    assert words in allowed
    assert given
    assert "\n" not in str(raised.value)


def test_keys_of_another_section_are_sent_there() -> None:
    with pytest.raises(
        ValueError,
        match=r"config\.key_in_another_section.*prefix=training, given=num_workers, key=data",
    ):
        TrainingConfig(num_workers=2)


def test_two_spellings_as_keywords_must_agree() -> None:
    assert TrainingConfig(accumulation_steps=2, gradient_accumulation=2).gradient_accumulation == 2
    with pytest.raises(
        ValueError,
        match=r"config\.two_names_for_one_key.*first=accumulation_steps.*first_value=2.*second=gradient_accumulation.*second_value=4",
    ):
        TrainingConfig(accumulation_steps=2, gradient_accumulation=4)


def test_ones_own_settings_are_read_as_ours_are_and_go_into_a_place_of_their_own() -> None:
    config = TrainingConfig(settings='{"stages": 3, "names": ["a"]}')
    assert (config.stages, config.names, config.settings["stages"]) == (3, ["a"], 3)
    assert config.model_copy(deep=True).stages == 3
    assert not hasattr(config, "stage")
    with pytest.raises(AttributeError, match=r"no_such_attribute.*name=stage, own=.*stages.*names"):
        config.stage  # noqa: B018
    with pytest.raises(ValueError, match=r"config\.unknown_key_in_list.*key=stages.*own_settings"):
        TrainingConfig(stages=3)
    for taken in ("batch_size", "qlora", "strategy_for"):
        with pytest.raises(ValueError, match=rf"own_setting_name_taken.*name={taken}\)"):
            TrainingConfig(settings={taken: 1})


@pytest.mark.parametrize(
    "setting", ["strategy", "loss", "corruption", "optimizer", "scheduler_type"]
)
def test_an_address_is_a_name_and_a_wrong_name_mentions_addresses(setting: str) -> None:
    assert getattr(TrainingConfig(**{setting: "my_module:mine"}), setting) == "my_module:mine"
    with pytest.raises(ValueError, match=r"core\.unknown_plugin") as raised:
        TrainingConfig(**{setting: "my_module"})
    assert f"setting=training.{setting}, " in str(raised.value)
    assert "name=my_module," in str(raised.value)


def test_a_wrong_name_in_a_list_gets_the_nearest() -> None:
    assert TrainingConfig(metrics_sinks="csv,my:Sink").metrics_sinks == ["csv", "my:Sink"]
    with pytest.raises(
        ValueError, match=r"metrics_sinks.*value=jsonnl.*did_you_mean\(meant=jsonl\)"
    ):
        TrainingConfig(metrics_sinks=["jsonnl"])


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"=training\.optimizer.*did_you_mean\(meant=adamw\)"):
        TrainingConfig(optimizer="adam")  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"unknown_key_in_meant.*key=warmup_step, .*meant=warmup_steps"
    ):
        TrainingConfig(warmup_step=1)
    with pytest.raises(
        ValueError, match=r"unknown_key_in_meant.*key=qlora_rang, .*meant=qlora_rank"
    ):
        TrainingConfig(qlora={"rang": 1})


@pytest.mark.parametrize(
    ("training", "lora", "strategy"),
    [
        ({}, False, "standard"),
        ({}, True, "finetune"),
        ({"layerwise_lr_decay": 0.9}, False, "finetune"),
        ({"strategy": "standard"}, True, "standard"),
        ({"strategy": "end_to_end"}, False, "end_to_end"),
    ],
)
def test_the_strategy_that_auto_means(
    training: dict[str, object], lora: bool, strategy: str
) -> None:
    model = ModelConfig(lora_config=LoraConfig() if lora else None)
    assert TrainingConfig(**training).strategy_for(model) == strategy


@pytest.mark.parametrize(
    ("max_steps", "num_phases", "epochs"),
    [(40, 1, 7), (40, 4, 1), (48, 4, 2), (47, 4, 1), (20, 4, 1), (2000, 4, 83)],
)
def test_epochs_for_a_number_of_steps(max_steps: int, num_phases: int, epochs: int) -> None:
    """Six steps are an epoch."""
    training = TrainingConfig(max_steps=max_steps)
    assert num_epochs_for(training, True, 6, num_phases) == epochs


@pytest.mark.parametrize(
    ("metric", "is_greater", "needs_answers", "tokens"),
    [
        ("loss", False, False, ["own:metric"]),
        ("perplexity", False, False, ["own:metric"]),
        ("token_accuracy", True, False, ["own:metric", "token_accuracy"]),
        ("exact_match", True, True, ["own:metric"]),
        ("final_answer", True, True, ["own:metric"]),
        ("f1", True, True, ["own:metric"]),
        ("rouge1", True, True, ["own:metric"]),
        ("rouge2", True, True, ["own:metric"]),
        ("rougeL", True, True, ["own:metric"]),
        ("own:metric", False, False, ["own:metric"]),
    ],
)
def test_what_the_best_is_chosen_by(
    metric: str, is_greater: bool, needs_answers: bool, tokens: list[str]
) -> None:
    training = TrainingConfig(best_metric=metric, metrics=["own:metric"])
    assert (training.best_is_greater, training.best_needs_answers) == (is_greater, needs_answers)
    assert training.token_metrics == tokens
    assert training.best_metric_key == f"eval_{metric.removeprefix('own:')}"
    assert training.ends_with_best is (metric != "loss")
    by_mode = TrainingConfig(best_metric=metric, best_metric_mode="max")
    assert by_mode.best_is_greater is (is_greater or metric == "own:metric")


@pytest.mark.parametrize(
    ("settings", "ends_with_best", "num_kept"),
    [
        ({}, False, 1),
        ({"keep_best": 0}, False, 0),
        ({"keep_best": 0, "early_stopping_patience": 2}, True, 1),
        ({"keep_best": 0, "best_metric": "f1"}, True, 1),
        ({"keep_best": 3, "best_metric": "f1"}, True, 3),
    ],
)
def test_a_run_that_ends_with_its_best_keeps_one(
    settings: dict[str, object], ends_with_best: bool, num_kept: int
) -> None:
    training = TrainingConfig(**settings)
    assert (training.ends_with_best, training.num_best_kept) == (ends_with_best, num_kept)
