"""Fixtures for all tests."""

import gc
import json
import logging
import os
import shlex
import shutil
import signal
import sys
import uuid
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from infrastructure.core.messages import CODES, WORDS
from tests import forks

# As `make test` does: a fork of a process whose OpenMP threads have worked would wait for them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests look for the codes of messages, and for what these are about: words are free to change.
os.environ.setdefault(WORDS, CODES)

_num_modules_frozen = len(sys.modules)
_looked_at: set[str] = set()  # modules that no test wrote
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MANY_OBJECTS = 50_000  # garbage is looked for among them in milliseconds

# Tests write and sync some hundred thousand small files; a disk takes milliseconds for each.
IN_MEMORY, LEAST_FREE_BYTES = Path("/dev/shm"), 4 << 30

TEXTS = ["What is 12 + 5? 17", "Reverse abc: cba", "The sky is blue and the grass is green."]


def pytest_configure(config: pytest.Config) -> None:
    """A shell starts a background job with SIGINT ignored, which what tests start would inherit.
    A torchvision that is there has to be usable before anything imports transformers."""
    if find_spec("torchvision"):
        from tests.training.usable_torchvision import has_torchvision

        has_torchvision()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # `temper watch` and the dashboard give way to all other processes, for good. Here they run in
    # the process of thousands of tests, which would take many times as long from then on.
    os.nice = lambda increment: 0
    # As the Makefile does: each Python that a test starts would compile PyTorch's sources anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free > LEAST_FREE_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))
    if hasattr(config, "workerinput"):  # one of several, of which one has to import what forks have
        forks.share_server(config.workerinput["testrunuid"])
        _send_what_is_shown(config)
    elif hasattr(config.option, "testrunuid"):
        config.option.testrunuid = config.option.testrunuid or uuid.uuid4().hex


def _send_what_is_shown(config: pytest.Config) -> None:
    """Half of what a worker sends of each test shows nowhere, and takes time at both ends: that it
    begins, that its fixtures passed at once and printed nothing."""
    if config.option.verbose >= 0 or config.option.xmlpath:
        return
    plugins = config.pluginmanager.get_plugins()
    (worker,) = (plugin for plugin in plugins if type(plugin).__name__ == "WorkerInteractor")
    send = worker.sendevent

    def send_what_is_shown(name: str, **content: Any) -> None:
        if name != "logstart" and not (name == "testreport" and is_silent(content["data"])):
            send(name, **content)

    worker.sendevent = send_what_is_shown


def is_silent(report: dict[str, Any]) -> bool:
    """Whether a report of a test's fixtures says nothing; `--durations` lists from 5 ms on."""
    is_plain = report["outcome"] == "passed" and not report["sections"]
    return is_plain and report["when"] != "call" and report["duration"] < 0.005


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Workers are forks of the process that has imported what they need, these tests included."""
    os.environ[forks.TESTS] = json.dumps(config.args)
    for spec in specs:
        command = [sys.executable, "-m", "tests.forked_worker", config.option.testrunuid]
        spec.python = shlex.join(command)


def pytest_collection_finish() -> None:
    _set_aside()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if len(sys.modules) > _num_modules_frozen + 200:
        _set_aside()


def _set_aside() -> None:
    """What was collected and imported: each training collects garbage several times, and would look
    at all of it, for half a second each time."""
    global _num_modules_frozen
    _num_modules_frozen = len(sys.modules)
    forks.freeze()
    _write_as_one_logger()


def _write_as_one_logger() -> None:
    """Let PyTorch's eighty loggers write by their parent's handler, which does the same. pytest
    attaches itself to each logger that does not propagate, six times a test."""
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("torch.") and isinstance(logger, logging.Logger):
            logger.handlers.clear()
            logger.propagate = True


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """A module that a test wrote is imported anew by the tests of the next file, which may write
    another one of that name."""
    if nextitem is not None and nextitem.path == item.path:
        return
    if len(gc.get_objects()) > MANY_OBJECTS:  # kept by the tests of a file, such as syntax trees
        _set_aside()
    written_below = str(item.config._tmp_path_factory.getbasetemp())  # type: ignore[attr-defined]
    for name in sys.modules.keys() - _looked_at:
        if str(_file_of(sys.modules[name])).startswith(written_below):
            del sys.modules[name]
    _looked_at.update(sys.modules)


def _file_of(module: object) -> object:
    """Not by `getattr`: some modules import what they are about when they are asked."""
    return getattr(module, "__dict__", {}).get("__file__")


def train_tiny_tokenizer(**special_tokens: str) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bytes_of_text = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = bytes_of_text
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 5, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special_tokens)


def save_tiny_llama(folder: Path) -> Path:
    """Write a tiny Llama (width 64, which 4 bits need on a CPU) and its tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
    train_tiny_tokenizer(pad_token="<pad>", bos_token="<s>", eos_token="</s>").save_pretrained(
        folder
    )
    return folder


@pytest.fixture(scope="session")
def saved_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny Llama and its tokenizer."""
    return save_tiny_llama(tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.fixture
def spawned_by_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `multiprocessing` starts is a fork: a new Python would import PyTorch anew."""
    monkeypatch.setattr("multiprocessing.util.spawnv_passfds", forks.spawned_by_fork)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Put logging, signals and streams back: a configuration that names a log level sets that of
    the process; a command sets up the root logger and what a hang-up does, as in its own."""
    signals = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    streams = sys.stdout, sys.stderr  # below `-s`, `monkeypatch` may leave those of `capsys` there
    ours, root = logging.getLogger("infrastructure"), logging.getLogger()
    levels = [(logger, logger.level) for logger in (ours, root)]
    handlers, disabled = list(root.handlers), root.manager.disable
    try:
        return (yield)
    finally:
        for logger, level in levels:
            if logger.level != level:  # to set it looks at every logger there is
                logger.setLevel(level)
        root.handlers[:] = handlers
        if root.manager.disable != disabled:
            logging.disable(disabled)  # each logger remembers what was disabled, else
        logging.captureWarnings(False)
        sys.stdout, sys.stderr = streams
        for number, handler in signals.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)
