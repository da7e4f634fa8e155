"""The encoding of rows in a separate process while this process loads PyTorch.

Loading PyTorch takes seconds, during which the other cores are idle. The tokenizer of the sample
tasks is known beforehand, so a separate process encodes their rows in the meantime. It writes them
to the cache of prepared data, where the run finds them or waits for them. Nothing depends on this
process: if it fails, the run encodes the rows itself.
"""

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from infrastructure.config.auto import trains_from_scratch
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import SFT
from infrastructure.core.hardware import processor
from infrastructure.core.helper_process import HelperProcess
from infrastructure.core.importing import do_without_torch, own_process
from infrastructure.core.stop_signals import interrupt_on_signals
from infrastructure.data.preparation.plan import plan_preparation
from infrastructure.data.preparation.prepared import open_prepared
from infrastructure.data.samples import known_tokenizer
from infrastructure.models.tokenizer import read_tokenizer

MODULE = "infrastructure.deployment.encoding_ahead"

log = logging.getLogger(__name__)


@contextmanager
def rows_encoded_ahead(config: DeploymentConfig) -> Iterator[None]:
    """Encode the rows of a run in another process while the body runs, if that saves time."""
    tokenizer = _tokenizer_of(config) if _saves_time() else None
    process = None if tokenizer is None else _start(config, tokenizer)
    try:
        yield
    finally:
        if process is not None:
            process.terminate()  # it ended long ago, unless the run was abandoned
            process.wait()


def _saves_time() -> bool:
    """Return whether encoding ahead saves time: PyTorch is not loaded yet, and another core is
    free.
    """
    return "torch" not in sys.modules and processor().num_cores > 1


def _tokenizer_of(config: DeploymentConfig) -> Path | None:
    """Return the tokenizer file of a new model; None if it is not known before the model is
    loaded.
    """
    is_usual = config.training.method == SFT and not config.training.hides_tokens
    if not is_usual or not trains_from_scratch(config.model):
        return None
    return known_tokenizer(config.data, config.model.embedded.vocab_size)


def _start(config: DeploymentConfig, tokenizer: Path) -> HelperProcess | None:
    """Start the encoding process, and send it the rows to encode. Return None if that fails."""
    sections = {"data": config.data, "cache": config.cache}
    text = json.dumps({name: each.model_dump(mode="json") for name, each in sections.items()})
    try:
        process = HelperProcess(MODULE, str(tokenizer), stdin=subprocess.PIPE)
    except OSError as error:  # no memory, or too many processes
        log.debug("no rows are encoded ahead: %s", error)
        return None
    threading.Thread(target=_note_end, args=(process,), daemon=True, name="temper-ahead").start()
    assert process.stdin is not None
    # If the process died, `_note_end` logs it.
    with suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(text.encode())
    return process


def _note_end(process: HelperProcess) -> None:
    """Wait for a process in the background, so that it does not become a zombie."""
    if process.wait() != 0:
        log.debug("no rows were encoded ahead: %s", process.fate())


def main() -> None:
    """Encode the rows described on standard input with the tokenizer named on the command line.

    If a signal arrives, unfinished files are deleted.
    """
    own_process()
    do_without_torch()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the run needs the other cores
    given = json.load(sys.stdin)
    data, cache = DataConfig(**given["data"]), CacheConfig(**given["cache"])
    with interrupt_on_signals():
        plan = plan_preparation(data, read_tokenizer(Path(sys.argv[1])))
        open_prepared(plan, data, cache).close()


if __name__ == "__main__":
    main()
