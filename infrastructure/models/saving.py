"""Saving of trained models in the formats that transformers and PEFT read.

A directory is written completely or not at all, and its SHA256SUMS shows whether it is still
intact. Full model: `config.json` + `model.safetensors`. LoRA: `adapter_config.json` +
`adapter_model.safetensors`, a `README.md` that says how to load it with PEFT on another machine,
and the base model in `base/` if it exists nowhere else. Registered module: `temper_model.json` +
`model.safetensors`. The tokenizer is in the same directory. Nothing is pickled.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors.torch import load_model, save_file
from safetensors.torch import save_model as save_module

from infrastructure.core.checksums import write_sums
from infrastructure.core.errors import InputError
from infrastructure.core.files import whole_directory, write_json, write_text
from infrastructure.core.lookup import look_up
from infrastructure.core.messages import phrase
from infrastructure.models.added_modules import added_modules, is_added, save_added
from infrastructure.models.answer_end import GENERATION_FILE
from infrastructure.models.lora import count_parameters
from infrastructure.models.model_inputs import inner_model
from infrastructure.models.progress_bars import without_progress_bars
from infrastructure.models.registry import MODELS
from infrastructure.models.router_logits import (
    ROUTER_LOGITS,
    has_router_logits,
    router_logits_off,
)
from infrastructure.models.saved_model import (
    REGISTERED_MANIFEST,
    code_of_quantization,
    read_json,
    weight_files,
    words_of_quantization,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

WEIGHTS = "model.safetensors"
HOW_IT_WAS_LOADED = ("is_local", "local_files_only")  # transformers saves these, too
BASE = "base"
TRAINING_ONLY = "training_only"  # model attribute for what is never saved
SCORING = "AutoModelForSequenceClassification"
LORA_CARD = """\
---
library_name: peft
{front}tags: [lora]
---
{about}

```python
from peft import PeftModel
from transformers import {auto}{generation}{quantized}

folder = "."  # the folder of this file
base = {place}
model = {auto}.from_pretrained(base{loading})
model = PeftModel.from_pretrained(model, folder)
{ends}```
"""


def save_model(
    model: torch.nn.Module,
    tokenizer: "PreTrainedTokenizerBase | None",
    directory: Path,
    *,
    registered_name: str | None = None,
    processor: Any = None,
) -> None:
    """Save the model and its tokenizer (if any) to `directory`, replacing it if it exists.

    Args:
        model: a transformers or PEFT model, compiled or not, or a registered module.
        registered_name: the name under which the module is registered. Only for registered modules.
        processor: the processor of a vision-language model, with the same tokenizer.

    Raises:
        ValueError: the module is of no known kind and has no `registered_name`.
    """
    with whole_directory(directory.resolve()) as part:
        write_model(model, tokenizer, part, registered_name=registered_name, processor=processor)
        write_sums(part)


def write_model(
    model: torch.nn.Module,
    tokenizer: "PreTrainedTokenizerBase | None",
    part: Path,
    *,
    registered_name: str | None = None,
    processor: Any = None,
) -> None:
    """Write the files of `save_model` to a temporary folder of the caller."""
    model = getattr(model, "_orig_mod", model)
    if registered_name is not None:
        _save_registered(model, part, registered_name)
    elif hasattr(model, "peft_config"):
        _save_lora(model, tokenizer, part, processor)
    elif hasattr(model, "save_pretrained"):
        _save_pretrained(model, part)
    else:
        raise InputError("models.not_a_transformers_model", name=type(model).__name__)
    save_added(model, part)
    if tokenizer is not None:
        save_tokenizer(tokenizer, part, processor)


def write_description(model: torch.nn.Module, folder: Path) -> None:
    """Write the files next to the weights of a transformers or PEFT model, as `save_model` does."""
    inner: Any = inner_model(model)
    if hasattr(model, "peft_config"):
        for config in cast(Any, model).peft_config.values():
            config.save_pretrained(folder)
        write_generation_config(model, folder)
    else:
        _save_pretrained(inner, folder, state_dict={})


def write_generation_config(model: torch.nn.Module, folder: Path) -> None:
    """Write `generation_config.json` with the end tokens, which PEFT does not save with a LoRA."""
    generation: Any = getattr(inner_model(model), "generation_config", None)
    if generation is not None:
        generation.save_pretrained(folder)


def save_whole(
    model: torch.nn.Module,
    tokenizer: "PreTrainedTokenizerBase | None",
    directory: Path,
    state: dict[str, torch.Tensor],
) -> None:
    """Save a model with the weights `state` to `directory`, replacing it if it exists.

    The format is the one that transformers reads, or `model.safetensors` for any other module.

    Args:
        model: the model without wrappers around it.
        state: the weights by the names of the plain model; none is quantized.
    """
    directory = directory.resolve()
    with whole_directory(directory) as part:
        if hasattr(model, "save_pretrained"):
            _save_pretrained(model, part, state_dict=state)
        else:
            save_file({n: t.contiguous() for n, t in state.items()}, part / WEIGHTS)
        if tokenizer is not None and hasattr(tokenizer, "save_pretrained"):  # may be a custom one
            save_tokenizer(tokenizer, part)
        write_sums(part)


def save_tokenizer(
    tokenizer: "PreTrainedTokenizerBase", directory: Path, processor: Any = None
) -> None:
    """Save a tokenizer, and its processor, in the same form wherever it was loaded from.

    So a resumed run, which loads its tokenizer from the checkpoint, writes the same files as an
    uninterrupted run.
    """
    loaded = {k: tokenizer.init_kwargs[k] for k in HOW_IT_WAS_LOADED if k in tokenizer.init_kwargs}
    for name in loaded:
        del tokenizer.init_kwargs[name]
    try:
        (tokenizer if processor is None else processor).save_pretrained(directory)
    finally:
        tokenizer.init_kwargs.update(loaded)


def _save_pretrained(
    model: Any, directory: Path, state_dict: dict[str, torch.Tensor] | None = None
) -> None:
    arguments: dict[str, object] = {} if state_dict is None else {"state_dict": state_dict}
    if hasattr(model, TRAINING_ONLY) or added_modules(model):
        state = model.state_dict() if state_dict is None else state_dict
        arguments["state_dict"] = {
            name: tensor
            for name, tensor in state.items()
            if f".{TRAINING_ONLY}." not in f".{name}" and not is_added(name)
        }
    with without_progress_bars(), router_logits_off(model):
        model.save_pretrained(directory, **arguments)


def _save_lora(
    model: Any, tokenizer: "PreTrainedTokenizerBase | None", part: Path, processor: Any
) -> None:
    # "auto" would ask the Hub whether the vocabulary has grown, which never happens here
    model.save_pretrained(part, save_embedding_layers=False)
    base = model.get_base_model()
    write_generation_config(model, part)
    if not base.name_or_path:
        _save_pretrained(base, part / BASE, state_dict=_without_lora(base))
        if tokenizer is not None:
            save_tokenizer(tokenizer, part / BASE, processor)
        config = read_json(part / "adapter_config.json")
        config["base_model_name_or_path"] = f"./{BASE}"  # relative; not a Hub name
        write_json(part / "adapter_config.json", config)
    write_lora_card(part, base, sees=processor is not None)


def write_lora_card(folder: Path, model: torch.nn.Module, sees: bool = False) -> None:
    """Write README.md next to a LoRA: how to load it with PEFT on any machine.

    It replaces PEFT's empty template.

    Args:
        model: the LoRA, or its base.
    """
    base = str(read_json(folder / "adapter_config.json").get("base_model_name_or_path") or "?")
    is_path = base.startswith((".", "~", "?")) or Path(base).is_absolute() or Path(base).is_dir()
    is_of_hub = not is_path
    if (folder / BASE / "config.json").is_file():
        where, place = phrase("models.card_base_in_folder", base=BASE), f'f"{{folder}}/{BASE}"'
    elif is_of_hub:
        where, place = phrase("models.card_base_on_hub", base=base), f'"{base}"'
    else:
        where = phrase("models.card_base_elsewhere", base=base)
        path = str(Path(base).absolute()) if Path(base).is_dir() else base
        place = f"{json.dumps(path)}  # {phrase('models.card_base_path')}"
    auto = "AutoModelForImageTextToText" if sees else "AutoModelForCausalLM"
    front = f"base_model: {base}\n" if is_of_hub else ""
    knows_ends = (folder / GENERATION_FILE).is_file()
    ends = "model.generation_config = GenerationConfig.from_pretrained(folder)\n"
    kind, dtype = _quantization_of(model)
    code = code_of_quantization(kind, dtype)
    if kind is not None:
        where += phrase("models.card_base_quantized", form=words_of_quantization(kind))
    loading = f", {ROUTER_LOGITS}=False" if has_router_logits(model) else ""
    inner: Any = inner_model(model)
    if is_scoring(inner):
        auto = SCORING
        loading += f", num_labels={inner.config.num_labels}"
    text = LORA_CARD.format(
        front=front,
        about=phrase("models.lora_card", where=where),
        place=place,
        auto=auto,
        loading=f"{loading},\n    {code}\n" if code else loading,
        quantized=", BitsAndBytesConfig" if code else "",
        generation=", GenerationConfig" if knows_ends else "",
        ends=ends if knows_ends else "",
    )
    write_text(folder / "README.md", text)


def is_scoring(model: torch.nn.Module) -> bool:
    """Return whether a model scores texts, as a reward model does."""
    return type(model).__name__.endswith("ForSequenceClassification")


def _quantization_of(model: torch.nn.Module) -> tuple[str | None, str]:
    """Return the quantization of a LoRA's base model ("4bit", "8bit" or None), and the name of its
    dtype.
    """
    form = getattr(getattr(model, "config", None), "quantization_config", None)
    kind = next((k for k in ("4bit", "8bit") if getattr(form, f"load_in_{k}", False)), None)
    dtypes = (p.dtype for p in model.parameters() if p.is_floating_point())
    return kind, str(next(dtypes, torch.float32)).removeprefix("torch.")


def _without_lora(base: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the base model's weights by their original names, without LoRA."""
    return {
        name.replace(".base_layer", "").replace(".original_module", ""): tensor
        for name, tensor in base.state_dict().items()
        if "lora_" not in name and ".modules_to_save." not in name
    }


def _save_registered(model: torch.nn.Module, directory: Path, name: str) -> None:
    save_module(model, str(directory / WEIGHTS))
    manifest = {"model": name, "num_parameters": count_parameters(model).total}
    write_json(directory / REGISTERED_MANIFEST, manifest)


def load_registered(directory: Path) -> tuple[str, torch.nn.Module]:
    """Load the registered module saved in `directory`; return its name and the module.

    Raises:
        ValueError: its name is not registered here, or the weights are missing, damaged or of
            another version of the module.
    """
    name = str(read_json(directory / REGISTERED_MANIFEST).get("model"))
    model = look_up("registered model", name, MODELS).build()
    [file] = weight_files(directory)
    try:
        load_model(model, file)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise InputError(
            "models.registered_code_mismatch", directory=directory, name=name, reason=reason
        ) from error
    return name, model
