"""Words of other tools get what the same thing is called here, which is there."""

from pathlib import Path

import pytest

from infrastructure.commands.main import create_parser
from infrastructure.commands.parser import known_flags, parse
from infrastructure.commands.unknown_words import COMMANDS_ELSEWHERE
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.elsewhere import ABSENT, SAME
from infrastructure.config.schema import schema_of
from infrastructure.config.sources.flags import ALIASES, as_flag, flag_names
from infrastructure.config.sources.load import load_config
from infrastructure.core.messages import spelled_by

FIELDS = schema_of(DeploymentConfig).fields
PARSER = create_parser()


def refusal(*arguments: str) -> str:
    with pytest.raises(ValueError, match=r"^commands\.unknown_") as raised:
        parse(PARSER, arguments)
    return str(raised.value)


def flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def test_what_is_named_is_there_and_takes_the_value() -> None:
    flags = known_flags(PARSER, "train")
    for name in SAME:
        for setting in SAME[name]:
            key, _, value = setting.partition("=")
            assert key in FIELDS, name
            if value:
                load_config(environment={}, flags={flag_names(key)[0]: value})
        if flag_of(name) in flags:
            key = SAME[name][0]
            assert flag_of(name) in (*flag_names(key), *ALIASES.get(key, ())), (
                "it means something else"
            )


def test_it_is_named_for_a_flag_a_key_and_a_field() -> None:
    flags = known_flags(PARSER, "train")
    for name in (*SAME, *ABSENT):
        pairs = (setting.partition("=") for setting in SAME.get(name, ()))
        typed = " and ".join(as_flag(key, value) for key, _, value in pairs)
        if flag_of(name) not in flags:
            with spelled_by(as_flag):
                assert advice(name, typed) in refusal("train", flag_of(name)), name
        sections = ["model"] if name == "qlora" else ["training", "model"]  # that of stacks
        for section in [each for each in sections if f"{each}.{name}" not in FIELDS]:
            with pytest.raises(
                ValueError, match=r"config\.(key_of_another_tool|unknown_key)"
            ) as raised:
                load_config(environment={}, keywords={section: {name: 1}})
            assert advice(name, " and ".join(SAME.get(name, ()))) in str(raised.value), name


def advice(name: str, spelled: str) -> str:
    return f"{ABSENT[name]}()" if name in ABSENT else f"config.called_here(settings={spelled})"


def test_a_command_without_the_flag_does_not_name_it() -> None:
    assert "'--lr'commands.see_its_help(command=temper doctor)" in refusal("doctor", "--lr", "3")


@pytest.mark.parametrize(
    ("flag", "hint"),
    [
        ("--batchsize", "did_you_mean(meant=--batch-size)"),
        ("--learnig-rate", "did_you_mean(meant=--learning-rate)"),
        ("--checkpoint-freq", "did_you_mean(meant=--checkpoint-frequency)"),
        ("--qlora", "called_here(settings=--lora and --quantization 4bit)"),
        ("--fsdp", "called_here(settings=--shard yes)"),
        ("--tensor-parallel", "config.no_model_parallel"),
        ("--tp-size", "config.no_model_parallel"),
        ("--context-parallel", "config.no_context_parallel"),
        ("--qat", "called_here(settings=--quantization-aware)"),
        ("--wandb", "called_here(settings=--metrics-sinks wandb)"),
        ("--mlflow", "config.no_such_tracker"),
        ("--warmup-ratio", "config.warmup_in_steps"),
        ("--gpu", "called_here(settings=--cuda-visible-devices)"),
        ("--val-split", "called_here(settings=--validation-split)"),
        ("--quantize", "called_here(settings=--quantization)"),
        ("--load-in-4bit", "called_here(settings=--quantization 4bit)"),
        *(
            (f"--{name}", f"called_here(settings={settings})")
            for name, settings in {
                "load-in-8bit": "--quantization 8bit",
                "int8": "--quantization 8bit",
                "nf4": "--quantization 4bit",
                "bf16": "--mixed-precision bf16",
                "fp16": "--mixed-precision fp16",
                "fp32": "--mixed-precision fp32",
                "amp": "--mixed-precision true",
                "sdp-attention": "--attention sdpa",
                "flash-attn": "--attention flash_attention_2",
                "use-dora": "--lora-use-dora",
                "use-rslora": "--lora-use-rslora",
                "saves-per-epoch": "--save-epochs",
                "eval-every": "--eval-steps",
                "evals-per-epoch": "--eval-epochs",
                "save-total-limit": "--keep-checkpoints",
                "global-batch-size": "--batch-size and --gradient-accumulation",
                "greater-is-better": "--best-metric-mode max",
                "mask-history": "--train-on last_answer",
                "train-on-inputs": "--train-on all",
                "truncation": "--over-length truncate",
                "activation-offloading": "--gradient-checkpointing-mode offload",
                "test-data": "--eval-data",
                "train-file": "--data-path",
                "use-unsloth": "--backend unsloth",
                "no-cuda": "--device cpu",
                "world-size": "--num-processes",
                "time-limit": "--deadline",
                "grpo": "--method grpo",
                "kl-coef": "--beta",
            }.items()
        ),
        *(
            (f"--{name}", f"config.{code}()")
            for name, code in {
                "sequence-parallel": "no_context_parallel",
                "pipeline-parallel": "no_model_parallel",
                "ppo": "no_ppo",
                "gguf": "gguf_is_exported",
                "shuffle": "always_shuffled",
                "adam-beta1": "adam_is_fixed",
                "eval-batch-size": "one_batch_size",
                "do-train": "commands_not_switches",
                "merge-lora": "lora_is_merged_by_export",
                "push-to-hub": "push_by_export",
                "hf-token": "token_in_environment",
                "resume": "resume_command",
                "resume-from-checkpoint": "resume_checkpoint",
                "load-best-model-at-end": "best_is_kept",
            }.items()
        ),
        ("--horoscope", "see_its_help(command=temper train)"),
        ("--beam-search", "see_its_help(command=temper train)"),
    ],
)
def test_a_hint_is_right_or_there_is_none(flag: str, hint: str) -> None:
    with spelled_by(as_flag):
        assert f"'{flag}'" in refusal("train", flag)
        assert hint in refusal("train", flag)


OF_TOOLS = {
    "Axolotl": "base_model: model.name, load_in_4bit: model.quantization=4bit, sequence_len: "
    "data.max_length, datasets: data.path, val_set_size: data.validation_split, lora_r: "
    "model.lora_config.r, lora_alpha: model.lora_config.alpha, lora_dropout: "
    "model.lora_config.dropout, lora_target_modules: model.lora_config.target_modules, "
    "lora_target_linear: model.lora_config.target_modules, lora_model_dir: model.name, "
    "peft_use_dora: model.lora_config.use_dora=true, micro_batch_size: training.batch_size, "
    "gradient_accumulation_steps: training.gradient_accumulation, lr_scheduler: "
    "training.scheduler_type, train_on_inputs: data.train_on=all, sample_packing: data.packing, "
    "flash_attention: model.attention=flash_attention_2, saves_per_epoch: "
    "training.checkpoint_interval, wandb_name: run_name, fsdp_config: training.shard=yes",
    "LLaMA-Factory": "model_name_or_path: model.name, adapter_name_or_path: model.name, "
    "finetuning_type: model.lora_config, lora_rank: model.lora_config.r, lora_target: "
    "model.lora_config.target_modules, quantization_bit: model.quantization, cutoff_len: "
    "data.max_length, dataset: data.path, template: data.chat_template, "
    "per_device_train_batch_size: training.batch_size, num_train_epochs: training.num_epochs, "
    "train_on_prompt: data.train_on=all, neat_packing: data.packing, pref_beta: training.beta",
    "Unsloth": "max_seq_length: data.max_length, r: model.lora_config.r, lora_alpha: "
    "model.lora_config.alpha, target_modules: model.lora_config.target_modules, "
    "use_gradient_checkpointing: training.gradient_checkpointing, random_state: training.seed",
    "TRL": "dataset_name: data.path, lora_r: model.lora_config.r, use_peft: model.lora_config, "
    "peft_config: model.lora_config, attn_implementation: model.attention, eval_strategy: "
    "training.validation_interval, save_steps: training.checkpoint_frequency, optim: "
    "training.optimizer, teacher_model_name_or_path: training.teacher, num_warmup_steps: "
    "training.warmup_steps",
}


@pytest.mark.parametrize("tool", OF_TOOLS)
def test_the_keys_of_another_tool_s_file_lead_to_ours(tool: str, tmp_path: Path) -> None:
    expected = dict(pair.split(": ") for pair in OF_TOOLS[tool].split(", "))
    file = tmp_path / "theirs.yaml"
    file.write_text("".join(f"{name}: 3\n" for name in expected))
    with pytest.raises(ValueError, match=r"config\.key_of_another_tool") as raised:
        load_config(file, environment={})
    assert [line.partition(" (")[0] for line in str(raised.value).splitlines()] == [
        f"config.key_of_another_tool(key={name}, advice=config.called_here(settings={ours}))"
        for name, ours in expected.items()
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["search"], "unknown_command(word=search, known=train, resume, "),
        (["trian"], "unknown_command_meant(word=trian, meant=temper train)"),
        (["continue"], "unknown_command_meant(word=continue, meant=temper resume)"),
        (["resum"], "unknown_command_meant(word=resum, meant=temper resume)"),
        (["backup", "lst"], "unknown_command_meant(word=lst, meant=temper backup list)"),
        (["ppo"], "unknown_command_advice(word=ppo, advice=config.no_ppo())"),
        (["report"], "unknown_command_advice(word=report, advice=commands.report_is_a_file())"),
    ],
)
def test_a_word_that_is_no_command(words: list[str], message: str) -> None:
    assert refusal(*words).startswith(f"commands.{message}")
    assert "train-detached" not in refusal(*words), "it is for no person"


def test_commands_of_other_tools_stand_for_commands_of_ours() -> None:
    there = refusal("no-such-command")
    assert all(command in there for command in COMMANDS_ELSEWHERE.values())
    assert not any(f" {word}," in there for word in COMMANDS_ELSEWHERE)


def test_the_program_s_name_is_printed_once() -> None:
    with pytest.raises(ValueError, match="required") as raised:
        parse(create_parser(), ["export"])
    assert str(raised.value).startswith("commands.wrong_arguments(command=export, ")
    assert str(raised.value).endswith("required: RUN, prog=temper export)")
