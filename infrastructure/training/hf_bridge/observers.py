"""The observers of a run that trains with a Trainer of transformers."""

import shlex
from collections.abc import Iterable
from functools import partial
from typing import NoReturn

from infrastructure.config.merging.declared_settings import declare_settings
from infrastructure.config.sections.multimodal_config import MULTIMODAL
from infrastructure.core.errors import InputError
from infrastructure.core.features import extensions_with
from infrastructure.monitoring.records.run_view import from_here
from infrastructure.training.core.precision import Precision
from infrastructure.training.extensions.extension_hooks import Extension, Hook, HookRunner
from infrastructure.training.extensions.extension_manager import (
    ExtensionFactory,
    create_extensions,
    own_extensions,
)
from infrastructure.training.hf_bridge.trainer_run import TrainerRun, precision_name
from infrastructure.training.hf_bridge.trainer_state import TrainerParts
from infrastructure.training.metrics.metrics_logger import MetricsLogger
from infrastructure.training.metrics.progress import Progress
from infrastructure.training.metrics.sinks import sinks_of_run
from infrastructure.training.observers.monitoring_setup import check_watching, monitoring_hooks
from infrastructure.training.observers.run_observers import (
    CheckpointLines,
    CopiesObserver,
    ErrorsObserver,
    MetricsObserver,
    ProgressObserver,
    ReportObserver,
)
from infrastructure.training.observers.standstill import Standstill

CONSOLE = "console"  # a Trainer prints its numbers itself


def _refuse_own_loop(name: str, _parts: object = None) -> NoReturn:
    raise InputError("trainer.extension_needs_own_loop", name=name)


def _refuse_added_weights(name: str, _parts: object = None) -> NoReturn:
    raise InputError("trainer.added_weights_not_saved", name=name)


def hooks_of(run: TrainerRun, parts: TrainerParts, others: Iterable[Hook]) -> HookRunner:
    """Return the hooks of a training run, in order.

    Args:
        others: hooks of the user, in addition to `training.enabled_extensions`.

    Raises:
        ValueError: an extension, a sink or an alert's webhook does not exist.
    """
    config, directory, copies = run.config, run.directory, run.copies
    check_watching(config)
    precision = Precision(precision_name(parts.args), parts.device.type)
    names: list[str] = config.training.enabled_extensions
    brought: dict[str, ExtensionFactory] = {
        **{n: partial(_refuse_added_weights, n) for n in extensions_with("adds_weights")},
        MULTIMODAL: partial(_refuse_added_weights, MULTIMODAL),
        **{n: partial(_refuse_own_loop, n) for n in extensions_with("needs_own_loop")},
    }
    declare_settings(config.training, own_extensions(names, brought))
    sinks = [name for name in config.training.metrics_sinks if name != CONSOLE]
    extensions = create_extensions(names, parts, brought)
    for extension in extensions:
        if isinstance(extension, Extension) and extension.adds_weights:
            _refuse_added_weights(extension.name)
    hooks: list[Hook] = [
        *extensions,
        *others,
        *monitoring_hooks(config, directory, None, precision, run.report, copies.probes()),
        MetricsObserver(MetricsLogger(sinks_of_run(sinks, directory))),
        CheckpointLines(run.report, run=shlex.quote(from_here(directory))),
        ErrorsObserver(directory),
        Standstill(),
        ReportObserver(directory),
    ]
    if copies.has_place:
        hooks.append(CopiesObserver(copies.backup))
    if parts.args.disable_tqdm:  # otherwise the Trainer draws its own bar
        hooks.append(ProgressObserver(lambda total, step: Progress(total, step, note=copies.short)))
    return HookRunner(hooks)
