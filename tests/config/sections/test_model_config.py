import pytest

from infrastructure.config.sections.model_config import EmbeddedModelConfig, LoraConfig, ModelConfig


def test_nested_sections_from_mappings() -> None:
    model = ModelConfig(lora_config={"r": 8, "target_modules": "q_proj,v_proj"})
    assert model.lora_config == LoraConfig(r=8, target_modules=["q_proj", "v_proj"])
    assert model.embedded == EmbeddedModelConfig()


def test_a_wrong_value_deep_inside_is_one_sentence() -> None:
    with pytest.raises(
        ValueError,
        match=r"^config\.wrong_value\(setting=model\.lora_config\.r, .*at least.*value=0",
    ):
        ModelConfig(lora_config={"r": 0})
    with pytest.raises(
        ValueError,
        match=r"config\.unknown_key_in\(key=rank, section=LoraConfig.*model\.lora_config\.r\b",
    ):
        ModelConfig(lora_config={"rank": 8})


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        ({"hidden_size": 100}, "config.hidden_size_not_divisible(hidden_size=100, num_heads="),
        ({"hidden_size": 6}, "config.hidden_size_not_divisible(hidden_size=6, num_heads="),
        (
            {"num_layers": 0},
            "setting=model.embedded.num_layers, allowed=a whole number of at least 1",
        ),
    ],
)
def test_shapes_that_cannot_be_built(shape: dict[str, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=r"^config\.") as raised:
        EmbeddedModelConfig(**shape)
    assert sentence in str(raised.value)


def test_a_shape_that_cannot_be_built_inside_its_section() -> None:
    with pytest.raises(ValueError, match=r"config\.hidden_size_not_divisible.*hidden_size=100"):
        ModelConfig(embedded={"hidden_size": 100})


def test_a_shape_that_differs_in_several_fields() -> None:
    shape = EmbeddedModelConfig(hidden_size=32, num_heads=4)
    with pytest.raises(ValueError, match=r"config\.hidden_size_not_divisible"):
        shape.num_heads = 3
    assert shape.num_heads == 4


@pytest.mark.parametrize(
    ("field", "value"),
    [("quantization", "2bit"), ("quantization", 4), ("backend", "vllm"), ("dtype", "fp8")],
)
def test_wrong_choices(field: str, value: object) -> None:
    with pytest.raises(
        ValueError,
        match=rf'^config\.wrong_value\(setting=model\.{field}, allowed="\w+"(, "\w+")* or ',
    ):
        ModelConfig(**{field: value})


def test_home_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert ModelConfig(name="~/models/a").name == "/home/someone/models/a"
    with pytest.raises(ValueError, match=r'setting=model\.name, allowed=a path .*value=""'):
        ModelConfig(name="")
