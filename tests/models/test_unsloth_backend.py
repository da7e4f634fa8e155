"""How Unsloth is called; slow tests: for real, on the CPU. Its import changes the whole process, so
it has its own, and takes ten seconds."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM

from infrastructure.config.sections.model_config import LoraConfig, ModelConfig
from infrastructure.core.errors import MissingPackageError
from infrastructure.core.optional import is_installed
from infrastructure.models import unsloth_backend
from infrastructure.models.saved_model import ModelSource, SourceKind
from infrastructure.models.transformers_backend import LoadOptions
from infrastructure.models.unsloth_backend import (
    apply_unsloth_lora,
    check_unsloth_lora,
    check_versions,
    load_unsloth,
    prepare_backend,
)
from tests.deployment.runs import small_settings
from tests.slow import slow

ROOT = Path(__file__).resolve().parents[2]
needs_unsloth = pytest.mark.skipif(not is_installed("unsloth"), reason="unsloth is not installed")

COMMON = """
import json, os, sys
from pathlib import Path
import torch
from infrastructure.config.sections.model_config import LoraConfig, ModelConfig
from infrastructure.models.model_manager import ModelManager, load_saved
from infrastructure.models.saving import save_model
from infrastructure.models.unsloth_backend import prepare_backend

folder, out = Path(sys.argv[1]), Path(sys.argv[2])
cpu = torch.device("cpu")
input_ids = torch.arange(3, 30).unsqueeze(0)
prepare_backend(ModelConfig(name=str(folder), backend="unsloth"), out / "cache")

def load(**settings):
    config = ModelConfig(**({"name": str(folder), "backend": "unsloth"} | settings))
    return ModelManager(config, device=cpu, seed=3, max_length=64).load()

def train(model, num_steps=8, lr=1e-2):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)
    losses = []
    for _ in range(num_steps):
        logits = model(input_ids, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits[0, :-1].float(), input_ids[0, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses

def refused(**settings):
    try:
        load(**settings)
    except ValueError as error:
        return str(error)

@torch.no_grad()
def logits(model):
    return model.eval()(input_ids, use_cache=False).logits
"""


def run_python(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_TOKEN": "hf_secret"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


SCRIPT = (
    COMMON
    + """
found = {}
lora = LoraConfig(r=4, alpha=8, target_modules=["q_proj", "v_proj"])
before = torch.get_rng_state()
loaded = load(lora_config=lora)
found["random state untouched"] = torch.equal(torch.get_rng_state(), before)
found["description"] = loaded.description
found["losses"] = train(loaded.model)
found["positions asked for"] = list(
    loaded.model(input_ids, logits_to_keep=torch.tensor([1, 3]), use_cache=False).logits.shape
)
save_model(loaded.model, loaded.tokenizer, out / "lora")
again = load(name=str(out / "lora"))
found["goes on from the same"] = torch.equal(logits(again.model), logits(loaded.model))
found["goes on training"] = train(again.model, 1)[0] < found["losses"][0]

quantized = load(lora_config=LoraConfig(r=4, alpha=8), quantization="4bit")
layer = quantized.model.get_base_model().model.layers[0].mlp.up_proj.base_layer
found["4bit"] = type(layer).__name__
found["4bit losses"] = train(quantized.model)

from peft import AutoPeftModelForCausalLM
plain = AutoPeftModelForCausalLM.from_pretrained(out / "lora")
found["plain difference"] = float((logits(plain) - logits(loaded.model)).abs().max())
found["refused"] = [
    refused(lora_config=lora, quantization="8bit"),
    refused(lora_config=lora, attention="eager"),
    refused(lora_config=LoraConfig(target_modules=["wq"])),
]
found["statistics off"] = os.environ["UNSLOTH_DISABLE_STATISTICS"]
found["compiled"] = os.environ["UNSLOTH_COMPILE_LOCATION"]
from tests.seeds.unsloth_loop import train_as_written
found["loop of 000"] = train_as_written(json.loads(sys.argv[3]))
print(json.dumps(found))
"""
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("unsloth")


@pytest.fixture(scope="module")
def done(saved_llama: Path, folder: Path) -> "subprocess.CompletedProcess[str]":
    """One process, because its import takes most of the time: LoRA, 4 bits and a training loop."""
    settings = small_settings(folder, max_steps=3, checkpoint_frequency=2)
    settings["model"] = {"name": str(saved_llama), "lora_config": {"r": 4}}
    settings["training"]["num_epochs"] = "auto"
    completed = run_python(SCRIPT, saved_llama, folder, json.dumps(settings))
    assert completed.returncode == 0, completed.stderr[-3000:]
    return completed


@slow
@needs_unsloth
def test_lora_and_qlora_by_unsloth_in_plain_peft(
    done: "subprocess.CompletedProcess[str]", folder: Path
) -> None:
    """LoRA and 4-bit: trains, is saved, loads in plain PEFT, goes on; refusals; stdout is clean."""
    found = json.loads(done.stdout)
    assert found["random state untouched"]
    assert found["description"]["backend"] == "unsloth"
    assert found["description"]["lora"]["target_modules"] == ["q_proj", "v_proj"]
    assert found["description"]["num_trainable"] == 2 * 4 * ((64 + 64) + (64 + 32))
    assert found["losses"][-1] < found["losses"][0] - 0.1
    assert found["positions asked for"] == [1, 2, 300]
    assert found["goes on from the same"]
    assert found["goes on training"]
    assert found["4bit"] == "Linear4bit"
    assert found["4bit losses"][-1] < found["4bit losses"][0] - 0.3
    assert found["plain difference"] < 1e-5
    eight_bit, eager, target = found["refused"]
    assert "models.unsloth_8bit_on_cpu" in eight_bit
    assert "models.unsloth_chooses_attention" in eager
    assert "models.not_a_linear_layer(layer=wq)" in target
    assert found["statistics off"] == "1"
    assert found["compiled"] == str(folder / "cache" / "unsloth_compiled")
    assert "imported before unsloth" not in done.stderr
    assert "Unsloth" not in done.stderr
    assert not (ROOT / "unsloth_compiled_cache").exists()
    no_token = [p for p in folder.rglob("*") if p.is_file() and b"hf_secret" in p.read_bytes()]
    assert no_token == []


@slow
@needs_unsloth
def test_the_parts_of_000_are_made_of_one_configuration(
    done: "subprocess.CompletedProcess[str]",
) -> None:
    assert json.loads(done.stdout)["loop of 000"] == {
        "steps": 3,
        "saved": 2,
        "epochs": 1,
        "device": "cpu",
        "adapters": ["default"],
    }


@slow
@needs_unsloth
def test_full_training_by_unsloth_and_a_late_import(llama_folder: Path, tmp_path: Path) -> None:
    """All weights train, plain transformers loads the result; importing it too late is told."""
    script = (
        "import transformers\n"
        + COMMON
        + """
loaded = load()
losses = train(loaded.model, lr=1e-3)
save_model(loaded.model, loaded.tokenizer, out / "full")
from transformers import AutoModelForCausalLM
plain = AutoModelForCausalLM.from_pretrained(out / "full")
print(json.dumps({
    "losses": losses,
    "trainable": loaded.description["num_trainable"] == loaded.description["num_parameters"],
    "difference": float((logits(plain) - logits(loaded.model)).abs().max()),
}))
"""
    )
    done = run_python(script, llama_folder, tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["trainable"]
    assert found["losses"][-1] < found["losses"][0] - 0.3
    assert found["difference"] < 1e-5
    assert "models.unsloth_patches_incomplete" in done.stderr


class Unsloth:
    """Remembers what it is called with."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model, self.calls = model, list[tuple[tuple[Any, ...], dict[str, Any]]]()
        self.FastLanguageModel = self

    def from_pretrained(self, *given: Any, **named: Any) -> tuple[torch.nn.Module, str]:
        self.calls.append((given, named))
        return self.model, "tokenizer"

    def get_peft_model(self, *given: Any, **named: Any) -> torch.nn.Module:
        self.calls.append((given, named))
        return self.model


@pytest.fixture
def unsloth(monkeypatch: pytest.MonkeyPatch) -> Unsloth:
    made = Unsloth(torch.nn.Linear(2, 2))
    monkeypatch.setattr(unsloth_backend, "require", lambda *_: made)
    return made


@pytest.mark.parametrize(("max_length", "expected"), [(None, 2048), (77, 77)])
@pytest.mark.parametrize("is_on", [True, False])
def test_all_that_is_configured_reaches_unsloth(
    unsloth: Unsloth, is_on: bool, max_length: int | None, expected: int
) -> None:
    options = LoadOptions(
        torch.device("cpu"), torch.bfloat16, trust_remote_code=is_on, revision="v2"
    )
    source = ModelSource(SourceKind.HUB, "owner/name")
    load_unsloth(
        source, options, max_length=max_length, train_all=is_on, gradient_checkpointing=is_on
    )
    checkpointing = "unsloth" if is_on else False
    assert unsloth.calls == [
        (
            (),
            {
                "model_name": "owner/name",
                "max_seq_length": expected,
                "dtype": torch.bfloat16,
                "load_in_4bit": False,
                "load_in_8bit": False,
                "full_finetuning": is_on,
                "trust_remote_code": is_on,
                "revision": "v2",
                "use_exact_model_name": True,
                "use_gradient_checkpointing": checkpointing,
            },
        )
    ]


@pytest.mark.parametrize("is_on", [True, False])
def test_all_of_a_lora_reaches_unsloth(unsloth: Unsloth, is_on: bool) -> None:
    model = torch.nn.ModuleDict({name: torch.nn.Linear(2, 2) for name in ("q_proj", "v_proj")})
    lora = LoraConfig(r=3, alpha=5, dropout=0.25, target_modules=["v_proj", "q_proj"])
    apply_unsloth_lora(model, lora, seed=9, gradient_checkpointing=is_on)
    named = {
        "r": 3,
        "target_modules": ["q_proj", "v_proj"],
        "lora_alpha": 5,
        "lora_dropout": 0.25,
        "bias": "none",
        "use_gradient_checkpointing": "unsloth" if is_on else False,
        "random_state": 9,
    }
    assert unsloth.calls == [((model,), named)]


@pytest.mark.parametrize("kind", ["4bit", "8bit"])
def test_what_unsloth_has_not_quantised_is_refused(unsloth: Unsloth, kind: str) -> None:
    """On a GPU, where it could have both."""
    unsloth.model = torch.nn.Linear(2, 2, device="meta")
    options = LoadOptions(torch.device("meta"), torch.float32, quantization=kind)
    source = ModelSource(SourceKind.HUB, "owner/name")
    with pytest.raises(ValueError, match=r"models\.unsloth_not_quantized"):
        load_unsloth(source, options, max_length=9, train_all=False, gradient_checkpointing=False)
    (_, named) = unsloth.calls[0]
    assert (named["load_in_4bit"], named["load_in_8bit"]) == (kind == "4bit", kind == "8bit")


def test_another_backend_imports_nothing() -> None:
    before = set(sys.modules)
    prepare_backend(ModelConfig(backend="transformers"))
    prepare_backend(ModelConfig())
    assert not {"unsloth", "unsloth_zoo"} & (set(sys.modules) - before)


def test_not_installed_gives_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsloth_backend, "is_installed", lambda package: False)
    with pytest.raises(MissingPackageError, match=r"pip install --no-deps -r requirements-unsloth"):
        prepare_backend(ModelConfig(backend="unsloth"))


@needs_unsloth
@pytest.mark.parametrize(
    ("package", "version", "sentence"),
    [
        ("transformers", "6.0.0", r"package=transformers, installed=6\.0\.0, specifier=.*<=5"),
        ("trl", "2.0.0", r"models\.unsloth_incompatible\(.*package=trl, installed=2\.0\.0"),
        ("unsloth", "2026.10.8", r"models\.unsloth_too_old\(version=2026\.10\.8"),
    ],
)
def test_versions_outside_its_bounds(
    monkeypatch: pytest.MonkeyPatch, package: str, version: str, sentence: str
) -> None:
    import importlib.metadata

    check_versions()
    installed = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: version if name == package else installed(name)
    )
    with pytest.raises(ValueError, match=sentence):
        check_versions()


DECLARED = [
    "transformers<=5.5,>=4.51",
    "trl>=0.18; extra == 'huggingface'",
    "peft>=99; extra == 'other'",  # of what is not used
    "bitsandbytes!=0.46.0",
    "tyro>=99",  # not patched
]
INSTALLED = {
    **{"unsloth": unsloth_backend.MIN_VERSION, "transformers": "5.5.0", "trl": "0.18.0"},
    **{"bitsandbytes": "0.47.0.dev1", "peft": "0.1"},
}


@pytest.mark.parametrize(
    ("package", "version", "refusal"),
    [
        (None, None, None),
        ("unsloth_zoo", None, "models.unsloth_package_missing(package=unsloth_zoo,"),
        ("unsloth", None, "models.unsloth_package_missing(package=unsloth,"),
        ("unsloth", "2026.10.8", "models.unsloth_too_old(version=2026.10.8,"),
        ("unsloth", "2026.10.10", None),
        ("transformers", "5.5.1", "package=transformers, installed=5.5.1, specifier=<=5.5,>=4.51)"),
        ("transformers", "5.0.0.dev0", None),  # of a commit
        ("trl", "0.17", "package=trl, installed=0.17, specifier=>=0.18)"),
        ("bitsandbytes", "0.46.0", "package=bitsandbytes, installed=0.46.0, specifier=!=0.46.0)"),
    ],
)
def test_what_unsloth_declares_holds_for_what_it_patches(
    monkeypatch: pytest.MonkeyPatch, package: str | None, version: str | None, refusal: str | None
) -> None:
    there: dict[str, str | None] = {**INSTALLED, "unsloth_zoo": "1"}
    there |= {} if package is None else {package: version}
    monkeypatch.setattr(unsloth_backend, "is_installed", lambda name: there[name] is not None)
    monkeypatch.setattr("importlib.metadata.requires", lambda _: DECLARED)
    monkeypatch.setattr("importlib.metadata.version", there.__getitem__)
    if refusal is None:
        check_versions()
        return
    with pytest.raises((ValueError, MissingPackageError)) as refused:
        check_versions()
    assert refusal in str(refused.value)


@pytest.mark.parametrize("is_late", [False, True])
def test_it_is_imported_with_its_own_settings_beside_those_that_are_there(
    is_late: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name in ("UNSLOTH_DISABLE_STATISTICS", "UNSLOTH_COMPILE_LOCATION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("UNSLOTH_RETURN_LOGITS", raising=False)
    if not is_late:
        monkeypatch.setenv("UNSLOTH_RETURN_LOGITS", "0")  # as the user has it
    there: list[object] = []

    def imported(*given: object) -> None:
        there.append({n: v for n, v in os.environ.items() if n.startswith("UNSLOTH_")})
        print(" Unsloth: hello ")

    monkeypatch.setattr(unsloth_backend, "check_versions", lambda: None)
    monkeypatch.setattr(unsloth_backend, "require", imported)
    monkeypatch.delitem(sys.modules, "unsloth", raising=False)
    if is_late:
        monkeypatch.setitem(sys.modules, "transformers", ModuleType("transformers"))
    else:
        monkeypatch.delitem(sys.modules, "transformers", raising=False)
    with caplog.at_level("DEBUG", logger=unsloth_backend.__name__):
        prepare_backend(ModelConfig(backend="unsloth", attention="sdpa"), tmp_path)
    assert there == [
        {
            "UNSLOTH_DISABLE_STATISTICS": "1",
            "UNSLOTH_COMPILE_LOCATION": str(tmp_path / "unsloth_compiled"),
            "UNSLOTH_RETURN_LOGITS": "1" if is_late else "0",
        }
    ]
    assert "Unsloth: hello" in caplog.messages
    assert ("models.unsloth_patches_incomplete()" in caplog.messages) is is_late
    with pytest.raises(ValueError, match=r"models\.unsloth_chooses_attention\(attention=eager\)"):
        prepare_backend(ModelConfig(backend="unsloth", attention="eager"))


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"quantization": "8bit"}, "models.unsloth_8bit_on_cpu()"),
        ({"attention": "eager"}, "models.unsloth_chooses_attention(attention=eager)"),
        (
            {"device": torch.device("meta")},
            "models.unsloth_device_differs(device=meta, actual=cpu)",
        ),
        ({"attention": "sdpa"}, None),
    ],
)
def test_what_unsloth_would_ignore_is_refused(
    unsloth: Unsloth, options: dict[str, Any], refusal: str | None
) -> None:
    given = LoadOptions(**{"device": torch.device("cpu"), "dtype": torch.float32, **options})
    source = ModelSource(SourceKind.HUB, "owner/name")

    def load() -> None:
        load_unsloth(source, given, max_length=9, train_all=False, gradient_checkpointing=False)

    if refusal is None:
        load()
        return
    with pytest.raises(ValueError, match="unsloth") as refused:
        load()
    assert str(refused.value) == refusal


def test_what_unsloth_cannot_load_is_refused_in_one_line(
    unsloth: Unsloth, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise NotImplementedError(f"no\n  kernels {'x' * 400}")

    monkeypatch.setattr(unsloth, "from_pretrained", fail)
    options = LoadOptions(torch.device("cpu"), torch.float32)
    source = ModelSource(SourceKind.HUB, "owner/name")
    shown = rf"location=owner/name, reason=no kernels x{{{300 - len('no kernels ')}}}\)$"
    with pytest.raises(ValueError, match=rf"^models\.unsloth_cannot_load\({shown}"):
        load_unsloth(source, options, max_length=9, train_all=True, gradient_checkpointing=False)


def test_experts_get_no_lora_by_unsloth() -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    with torch.device("meta"):
        mixtral = MixtralForCausalLM(MixtralConfig(vocab_size=40, num_attention_heads=2, **sizes))
    for targets in ("all-linear", ["q_proj", "down_proj"]):
        with pytest.raises(ValueError, match=r"lora_on_experts\(name=MixtralForCausalLM\)"):
            check_unsloth_lora(mixtral, LoraConfig(target_modules=targets))
    check_unsloth_lora(mixtral, LoraConfig(target_modules=["q_proj"]))
    with pytest.raises(ValueError, match=r"models\.not_a_linear_layer\(layer=w_proj\)"):
        check_unsloth_lora(mixtral, LoraConfig(target_modules=["w_proj"]))
