"""A change of a feature meets the model at each step of its loading, and is in its description."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infrastructure.config.sections.model_config import LoraConfig, ModelConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.models.model_change import ModelChange, Rounding, changes_of
from infrastructure.models.model_manager import ModelManager
from infrastructure.models.saved_model import SourceKind
from infrastructure.models.saving import save_model
from infrastructure.models.vocabulary import add_row

CPU = torch.device("cpu")
TINY = {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "intermediate_size": 48}
STEPS = ["check_source", "check_base", "check_layers", "apply"]


class Noted(ModelChange):
    """A change that wraps nothing and notes its calls."""

    def __init__(self, name: str = "one", **attributes: Any) -> None:
        self.name, self.calls = name, dict[str, Any]()
        self.notes = (f"note of {name}",)
        vars(self).update(attributes)

    def check_source(self, *given: Any) -> None:
        self.calls["check_source"] = given

    def check_base(self, *given: Any) -> None:
        self.calls["check_base"] = given

    def check_layers(self, *given: Any) -> None:
        self.calls["check_layers"] = given

    def before_building(self, tokenizer: Any) -> None:
        self.calls["before_building"] = tokenizer.add_tokens([f"<{self.name}>"])

    def processor(self, *given: Any) -> Any:
        assert self.calls["check_base"][:2] == given
        self.calls["processor"] = given
        return self.made

    def apply(self, model: Any, tokenizer: Any, options: Any, *, may_grow: bool) -> Any:
        drawn = torch.rand(1).item()
        self.calls["apply"] = SimpleNamespace(
            tokenizer=tokenizer, options=options, may_grow=may_grow, drawn=drawn
        )
        model.changed_by = [*getattr(model, "changed_by", []), self.name]
        return model

    def facts(self) -> Any:
        return {self.name: 1}


def manager(name: object, *changes: ModelChange, seed: int = 0, **settings: Any) -> ModelManager:
    texts = ["1 + 1 = 2", "2 + 2 = 4"]
    config = ModelConfig(name=str(name), **settings)
    made = ModelManager(config, device=CPU, seed=seed, tokenizer_texts=lambda: texts)
    made.changes = changes
    return made


def test_each_step_of_loading_calls_each_change(
    saved_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(saved_llama.parent)
    changes = one, two = Noted("one"), Noted("two")
    loaded = manager(saved_llama.name, *changes).load()
    assert loaded.model.changed_by == ["one", "two"]
    assert loaded.notes == ("note of one", "note of two")
    assert (loaded.description["one"], loaded.description["two"]) == (1, 1)
    for change in changes:
        assert [*change.calls] == STEPS
        source, name = change.calls["check_source"]
        assert (source.kind, source.folder) == (SourceKind.FOLDER, saved_llama)
        assert name == saved_llama.name
        assert change.calls["check_base"] == (source, change.calls["apply"].options, name)
        (layers,) = change.calls["check_layers"]
        assert type(layers) is type(loaded.model)
        assert all(parameter.is_meta for parameter in layers.parameters())
        assert change.calls["apply"].tokenizer is loaded.tokenizer
        assert change.calls["apply"].may_grow
    manager(saved_llama, other := Noted(), seed=1).load()
    drawn = [change.calls["apply"].drawn for change in (one, two, other)]
    assert drawn[0] == drawn[1] != drawn[2], "each draws from the seed"


def test_a_vocabulary_grows_only_if_its_weights_train_and_are_saved(
    saved_llama: Path, tmp_path: Path
) -> None:
    lora = LoraConfig(r=2, target_modules=["q_proj"])
    tuned = manager(saved_llama, change := Noted(), lora_config=lora).load()
    assert not change.calls["apply"].may_grow
    save_model(tuned.model, tuned.tokenizer, tmp_path / "lora")
    again = manager(tmp_path / "lora", change := Noted()).load()
    assert not change.calls["apply"].may_grow
    assert again.model.get_base_model().changed_by == ["one"]  # type: ignore[operator]
    assert change.calls["check_source"][0].kind is SourceKind.LORA_FOLDER
    base, _, name = change.calls["check_base"]
    assert (base.location, name) == (str(saved_llama), str(tmp_path / "lora"))


@pytest.mark.parametrize("lora", [None, LoraConfig(r=2, target_modules=["q_proj"])])
def test_a_new_model_is_built_for_the_changed_tokenizer(lora: LoraConfig | None) -> None:
    change = Noted(trains_in_full=("lm_head",))
    loaded = manager("embedded", change, embedded=TINY, lora_config=lora).load()
    assert [*change.calls] == ["check_source", "before_building", "apply"]
    assert change.calls["check_source"][0].kind is SourceKind.EMBEDDED
    assert change.calls["apply"].may_grow
    assert loaded.notes == ("note of one",)
    tokenizer: Any = loaded.tokenizer
    assert "<one>" in tokenizer.get_vocab()
    base = loaded.model if lora is None else loaded.model.get_base_model()  # type: ignore[operator]
    assert base.config.vocab_size == len(tokenizer)
    described: Any = loaded.description["lora"]
    assert described is None if lora is None else described["trains_in_full"] == ["lm_head"]


def test_a_change_that_makes_a_processor_brings_the_tokenizer(saved_llama: Path) -> None:
    tokenizer: Any = manager(saved_llama).load_tokenizer()
    tokenizer.add_tokens(["<image>"])
    size = len(tokenizer)
    made = SimpleNamespace(tokenizer=tokenizer)

    class Growing(Noted):
        def apply(self, model: Any, *given: Any, **named: Any) -> Any:
            add_row(model, tokenizer.convert_tokens_to_ids("<image>"))
            return super().apply(model, *given, **named)

    alone = manager(saved_llama, Noted("other"), Growing(makes_processor=True, made=made))
    alone.sees = True
    assert alone.load_tokenizer() is tokenizer
    change = Growing(makes_processor=True, made=made)
    whole = manager(saved_llama, Noted("other"), change, train_vision=True)
    whole.sees = True
    loaded = whole.load()
    assert whole.processor is made
    assert loaded.tokenizer is tokenizer
    assert loaded.model.get_input_embeddings().weight.shape[0] == size  # type: ignore[operator]
    assert [*change.calls] == ["check_source", "check_base", "processor", "apply"]
    assert not change.calls["processor"][1].sees, "what is loaded is a text model"
    shown = rf"vision_encoder_not_identified\(name={saved_llama}, class_name=LlamaForCausalLM\)"
    with pytest.raises(ValueError, match=shown):
        alone.load()
    lacking = manager(saved_llama, Noted(makes_processor=True, made=made))
    with pytest.raises(ValueError, match=r"tokenizer_larger_than_model\(.*largest=300, num_tokens"):
        lacking.load()


def test_settings_make_their_changes_anew_for_each_model() -> None:
    assert changes_of(ModelConfig(), TrainingConfig()) == []
    rounded = ModelConfig(quantization_aware="int4")
    (one,), (other,) = (changes_of(rounded, TrainingConfig()) for _ in range(2))
    assert one is not other
    assert one.rounding is not None
    assert one.facts() == {"rounding": one.rounding._asdict()}


def test_a_plain_change_changes_nothing() -> None:
    plain, model = ModelChange(), torch.nn.Linear(1, 1)
    given: Any = None
    assert plain.apply(model, given, given, may_grow=True) is model
    processor = SimpleNamespace(chat_template="its own")
    assert [plain.template(one, processor) for one in ("template", None)] == ["template", None]
    assert plain.facts() == {}
    plain.rounding = Rounding("int4", 4, "torchao")
    assert plain.facts() == {"rounding": {"kind": "int4", "bits": 4, "package": "torchao"}}
