from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.describe import describe
from infrastructure.config.schema import schema_of
from infrastructure.config.sources.load import load_config


def lines_of(config: DeploymentConfig) -> dict[str, str]:
    return {line.split(" = ")[0]: line for line in describe(config).splitlines()}


def test_every_key_has_a_line_with_its_source() -> None:
    config = load_config(
        environment={"BATCH_SIZE": "8"}, flags={"--lora-r": "4", "--no-packing": False}
    )
    lines = {key: " ".join(line.split()) for key, line in lines_of(config).items()}
    assert set(lines) == set(schema_of(DeploymentConfig).fields)
    assert lines["training.batch_size"] == "training.batch_size = 8 (environment BATCH_SIZE)"
    assert lines["data.packing"] == "data.packing = false (--no-packing)"
    assert lines["training.max_steps"] == "training.max_steps = none (default)"
    sinks = "training.metrics_sinks = console,jsonl,csv,tensorboard (default)"
    assert lines["training.metrics_sinks"] == sinks


def test_inside_an_absent_section_there_is_nothing() -> None:
    lines = lines_of(DeploymentConfig())
    assert "model.lora_config = false" in lines["model.lora_config"]
    assert "model.lora_config.r" not in lines


def test_texts_that_would_not_show_are_quoted() -> None:
    config = DeploymentConfig(cuda_visible_devices="", data={"chat_template": "a\nb"})
    assert "cuda_visible_devices = ''" in describe(config)
    assert r"data.chat_template = 'a\nb'" in describe(config)


def test_secrets_are_masked() -> None:
    config = DeploymentConfig(data_path="https://me:letmein99@example.org/rows.jsonl")
    assert "https://***@example.org/rows.jsonl" in describe(config)
    assert "letmein99" not in describe(config)


def test_only_what_differs_from_the_defaults_is_shown() -> None:
    given = {"--batch-size": "8", "--max-steps": "none", "--lora": True, "--epochs": "auto"}
    config = load_config(environment={}, flags=given)
    lines = [" ".join(line.split()) for line in describe(config, only_changed=True).splitlines()]
    assert lines == ["model.lora_config = true (--lora)", "training.batch_size = 8 (--batch-size)"]
    nothing = describe(DeploymentConfig(), only_changed=True)
    assert nothing == "config.all_settings_at_default()"
