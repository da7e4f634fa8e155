"""Checks of the user's input that do not need torch.

Loading torch takes seconds; these checks report a mistake in less than one second. All input is
checked again when it is used, because it may change in the meantime.
"""

import shlex
from collections.abc import Collection, Iterator
from pathlib import Path

from infrastructure.backup.backends import open_place, require_backend
from infrastructure.backup.run_backup import (
    last_place,
    place_options,
    refuse_unreachable_place,
)
from infrastructure.config.auto import attention_for, is_lora_folder
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.precedence import Layer
from infrastructure.config.methods import SFT
from infrastructure.config.process_wide import no_such_gpu, wants_gpus_by_number
from infrastructure.config.registries import ADAPTERS, REGISTERED_MODELS
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.core.errors import InputError
from infrastructure.core.features import all_of
from infrastructure.core.files import recover_directory
from infrastructure.core.gpu_presence import has_no_gpu
from infrastructure.core.messages import Setting, phrase
from infrastructure.data.defaults import num_positions
from infrastructure.data.preparation.plan import (
    look_at_pictures,
    look_at_rows,
    pictures_in,
    read_chat_template,
)
from infrastructure.data.readers.sources import (
    HUGGINGFACE,
    DataFile,
    discover,
    may_be_on_the_hub,
    refuse_unreachable,
)
from infrastructure.evaluation.run_settings import inherit_from_run
from infrastructure.models.model_path import (
    EMBEDDED,
    refuse_file,
    refuse_missing,
    refuse_missing_on_hub,
)
from infrastructure.models.refusals import (
    refuse_flash_attention,
    refuse_longer_examples,
    refuse_quantized_base,
    refuse_quantized_weights_that_train,
    refuse_without_effect,
)
from infrastructure.models.saved_model import (
    REGISTERED_MANIFEST,
    check_folder,
    is_quantized,
    is_there,
    look_into,
)
from infrastructure.monitoring.records.run_list import (
    FINAL,
    RUN_FILE,
    finished_model,
    naming_runs,
    run_named,
    runs_in,
    split_version,
)
from infrastructure.monitoring.watching.alert_sinks import check_alert_sinks
from infrastructure.run.configuration_judge import canonical_name
from infrastructure.run.directory import RunDirectory
from infrastructure.run.output_dir import no_empty_folder_left, writable
from infrastructure.run.restore import folder_of
from infrastructure.training.methods.check import check_method
from infrastructure.training.metrics.sinks import SINKS

PLAIN_ADAPTERS = ("standard", "auto")  # every other adapter has its own checks


def check_given(config: DeploymentConfig, accept: Collection[str] = ()) -> None:
    """Check a configuration: its paths can be read or written, and its input is valid.

    Args:
        accept: names of settings or data that may differ when a run resumes.

    Raises:
        ValueError, TemperError: if the configuration is invalid; the message says what is wrong,
            and what to do.
    """
    for name in accept:
        canonical_name(name)
    output_dir = Path(config.output_dir)
    with no_empty_folder_left(output_dir):
        writable(output_dir)
    if config.backup.place is not None:
        require_backend(config.backup.place)
        url = open_place(config.backup.place).url  # connects to nothing
        places = (last_place(RunDirectory(run).checkpoints) for run in runs_in(output_dir))
        # Otherwise that run may be finished, and is shown without the destination.
        if url not in places:
            refuse_unreachable_place(place_options(config))
    check_alert_sinks(config)
    SINKS.check_usable(config.training.metrics_sinks)
    if config.data.chat_template is not None:
        read_chat_template(config.data.chat_template)
    check_paths(config)


def check_device(config: DeploymentConfig) -> None:
    """Raise an error if settings need a GPU and this machine certainly has none.

    Raises:
        ValueError: if a setting needs a missing GPU; the message says what to use instead.
    """
    is_missing = has_no_gpu()
    if config.device.startswith("cuda") and is_missing:
        raise InputError("core.pytorch_sees_no_gpu", device=config.device)
    if is_missing and wants_gpus_by_number(config):
        raise InputError(no_such_gpu(config))
    if not (is_missing or config.device == "cpu"):
        return
    refuse_flash_attention(attention_for(config.model, config.training), has_gpu=False)
    needs = {
        "fp16": phrase("core.fp16_needs_gpu"),
        "fp8": phrase("core.fp8_needs_newer_gpu"),
    }
    if (sentence := needs.get(str(config.training.mixed_precision))) is not None:
        raise InputError(sentence)


def check_measured(config: DeploymentConfig, against: str | None = None) -> None:
    """Check that the models to evaluate exist, and that the data can be read.

    Args:
        against: a second model.

    Raises:
        ValueError: if a model or the data does not exist; the message says what exists instead.
    """
    check_device(config)
    with naming_runs(Path(config.output_dir)):
        for name in (*([] if against is None else [against]), config.model.name):
            check_model(name)
    measured = config.model_copy(deep=True)
    inherit_from_run(measured)  # the columns of the run, if the data has them
    try:
        _check_rows(_files_here(measured.data, "data"), measured)
    except ValueError as error:
        of_training = phrase("config.learns_from_pairs")
        if of_training not in str(error):
            raise
        instead = phrase("deployment.answers_are_measured")
        raise InputError(str(error).replace(of_training, instead)) from None


def check_model(name: str) -> None:
    """Check that `name` is an existing model or a finished run.

    Raises:
        ValueError: if it is neither; the message says what exists instead.
    """
    name = finished_model(name)
    path = Path(name).expanduser()
    if not path.exists():
        refuse_missing(name)
        refuse_missing_on_hub(name)
    elif (path / RUN_FILE).is_file() and not is_there(path / FINAL):
        look_into(path)  # its error says how to finish the run
    else:
        refuse_file(path)


def check_paths(config: DeploymentConfig) -> None:
    """Check the GPU, the model and the data that the settings name.

    Model and data must exist, be readable and valid, and fit `training.method`.

    Raises:
        ValueError: if one of them does not exist or cannot be used; the message says what exists
            instead.
    """
    path = Path(config.model.name).expanduser()
    if not path.exists():
        recover_directory(path)  # a saved model whose replacement was killed midway
    if not path.is_dir():
        _refuse_checkpoint(config)
    if path.exists():
        refuse_file(path)
    else:
        refuse_missing(config.model.name)
        if config.model.adapter in ("auto", *ADAPTERS.built_in):  # custom ones may load differently
            _refuse_name_of_run(config)
            with naming_runs(Path(config.output_dir)):
                refuse_missing_on_hub(config.model.name, config.model.revision)
    _refuse_lora_without(config)
    sources = _files_here(config.data)
    check_method(config)
    check_device(config)
    if config.model.adapter in PLAIN_ADAPTERS:
        _check_settings(config, path)
    for check in all_of("check_files"):
        check(config)
    if config.training.method == SFT:  # other methods have checked their own rows
        _check_rows(sources, config)


def _refuse_lora_without(config: DeploymentConfig) -> None:
    """Raise an error if the model is a LoRA folder but LoRA is explicitly turned off."""
    model, key = config.model, "model.lora_config"
    is_given = config.source(key).layer is not Layer.DEFAULT
    if model.lora_config is None and is_given and is_lora_folder(model.name):
        raise InputError(
            "deployment.lora_despite_full_fine_tuning", key=Setting(key), model=model.name
        )


def _refuse_checkpoint(config: DeploymentConfig) -> None:
    """Raise an error if the model is a checkpoint of a run, because that is not a model folder."""
    name, version = split_version(config.model.name)
    if version is None:
        return
    run = next(_runs_called(str(folder_of(name)), Path(config.output_dir)), None)
    if run is not None:
        given = f"{run}@{version}" if "@" in Path(config.model.name).name else config.model.name
        raise InputError(
            "deployment.model_is_checkpoint",
            model=config.model.name,
            checkpoint=shlex.quote(given),
        )


def _refuse_name_of_run(config: DeploymentConfig) -> None:
    """Raise an error if a model name is also the name of a finished run, because it is
    ambiguous.
    """
    for run in _runs_called(config.model.name, Path(config.output_dir)):
        if (folder := run / FINAL).is_dir():
            model = config.model.name
            raise InputError("deployment.model_named_like_run", model=model, folder=folder)


def _runs_called(name: str, output_dir: Path) -> Iterator[Path]:
    """Yield the runs that `name` may refer to, by path, ID or run name."""
    places = (Path(name).expanduser(), output_dir / name, run_named(name, output_dir))
    yield from (run for run in places if run is not None and (run / RUN_FILE).is_file())


def _check_settings(config: DeploymentConfig, path: Path) -> None:
    """Raise an error for a folder without a model, and for settings that the model does not
    support.
    """
    model, is_lora = config.model, (path / "adapter_config.json").is_file()
    if path.is_dir():
        check_folder(path)
    if model.name == EMBEDDED and model.quantization is not None:
        refuse_without_effect("quantization", model.name, phrase("models.no_trained_weights"))
    if model.name not in REGISTERED_MODELS:
        is_lora = is_lora or (path / FINAL / "adapter_config.json").is_file()
        trains_lora = is_lora or model.lora_config is not None
        refuse_quantized_weights_that_train(model, trains_lora=trains_lora)
        if path.is_dir() and not trains_lora and is_quantized(path):
            refuse_quantized_base(model.name)
    positions = num_positions(config, may_fetch=True)
    if positions is not None:
        refuse_longer_examples(config.data.max_length, positions, model.name)


def _files_here(data: DataConfig, what: str = "training data") -> list[list[DataFile]]:
    """Return the local files of the training data and those of the held-out data.

    Args:
        what: how messages call the training data.

    Raises:
        ValueError: if the files do not exist, or the Hub cannot be reached.
    """
    places = ((data.path, what), (data.eval_path, "held-out data"))
    for place, _ in places:
        if place and may_be_on_the_hub(place):
            refuse_unreachable(place)
    return [
        discover(place, data.format, what, encoding=data.encoding)
        for place, what in places
        if place and data.format != HUGGINGFACE and not may_be_on_the_hub(place)
    ]


def _check_rows(sources: list[list[DataFile]], config: DeploymentConfig) -> None:
    """Raise an error for invalid rows in local files, if the model reads conversations or texts."""
    if not sources or not _reads_texts(config.model):
        return
    if config.model.adapter != "standard" and pictures_in(config.data):
        look_at_pictures(sources[0], config.data)
        return
    for files in sources:
        if all(file.format != HUGGINGFACE for file in files):
            look_at_rows(files, config.data)


def _reads_texts(model: ModelConfig) -> bool:
    """Return whether the model reads conversations or texts.

    A custom adapter or a registered model may read other rows.
    """
    folder = Path(finished_model(model.name)).expanduser()
    is_registered = any(
        (place / REGISTERED_MANIFEST).is_file() for place in (folder, folder / FINAL)
    )
    is_plain = model.name == "embedded" or folder.is_dir() or "/" in model.name
    return model.adapter in PLAIN_ADAPTERS and is_plain and not is_registered
