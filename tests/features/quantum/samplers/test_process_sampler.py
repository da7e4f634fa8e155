"""Whatever a sampler does in its process, here is an answer or a sentence, in time."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dimod
import numpy as np
import psutil
import pytest

from infrastructure.core.errors import SamplerError
from infrastructure.core.helper_process import HelperProcess
from infrastructure.features.quantum.samplers import process_sampler
from infrastructure.features.quantum.samplers.deadline import Deadline
from infrastructure.features.quantum.samplers.process_sampler import (
    Child,
    ProcessSampler,
    _checked,
    _end,
)
from tests.features.quantum.samplers.questions import least_energy, random_model

MODULE = "tests.features.quantum.samplers.misbehaving"
ROOT = Path(__file__).resolve().parents[3]
MOST_SECONDS = 60.0  # of a busy machine; who hangs does so for ten minutes


@pytest.fixture
def bqm() -> dimod.BinaryQuadraticModel:
    return random_model(6, 0, "SPIN")


@pytest.fixture(scope="module")
def answering() -> Iterator[ProcessSampler]:
    sampler = ProcessSampler(f"{MODULE}:Answering")
    yield sampler
    sampler.close()


def misbehaving(how: str) -> ProcessSampler:
    return ProcessSampler(f"{MODULE}:{how}")


@pytest.fixture(scope="module")
def wrong() -> Iterator[ProcessSampler]:
    """Answers by an error or by nonsense; its process lives on, unless that ends it."""
    sampler = misbehaving("")
    yield sampler
    sampler.close()


def test_it_is_a_sampler_as_dimod_wants_it(answering: ProcessSampler) -> None:
    dimod.testing.assert_sampler_api(answering)


def test_answers_come_with_labels_energies_and_info(
    answering: ProcessSampler, bqm: dimod.BinaryQuadraticModel
) -> None:
    found = answering.sample(bqm, seed=3, flavour="sweet")
    dimod.testing.assert_response_energies(found, bqm)
    assert found.first.energy == pytest.approx(least_energy(bqm))
    assert found.info["given"] == {"seed": 3, "flavour": "sweet"}
    assert "raw" not in found.info  # what JSON cannot say stays there


def test_the_process_is_kept_for_the_next_question(
    answering: ProcessSampler, bqm: dimod.BinaryQuadraticModel
) -> None:
    first, second = (answering.sample(bqm).info["process"] for _ in range(2))
    assert first == second != os.getpid()
    began = time.monotonic()
    answering.sample(bqm, time_limit=2 * MOST_SECONDS)
    assert time.monotonic() - began < MOST_SECONDS


def test_common_keywords_that_a_sampler_does_not_know_are_not_given_to_it(
    answering: ProcessSampler, bqm: dimod.BinaryQuadraticModel
) -> None:
    assert answering.sample(bqm, num_reads=4, seed=1, time_limit=30).info["given"] == {"seed": 1}


@pytest.mark.parametrize("how", ["hang", "busy", "hang_with_a_child"])
def test_one_that_hangs_is_ended_at_the_deadline(how: str, bqm: dimod.BinaryQuadraticModel) -> None:
    sampler = misbehaving(how)
    sampler.start()
    child = psutil.Process(sampler._child.process.pid)  # type: ignore[union-attr]
    began = time.monotonic()
    with pytest.raises(SamplerError, match=r"quantum\.sampler_timed_out.*seconds=1"):
        sampler.sample(bqm, time_limit=1)
    assert time.monotonic() - began < MOST_SECONDS
    assert not child.is_running()


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("fail", r"quantum\.sampler_failed.*RuntimeError: solver offline for token=\*\*\*"),
        ("die", "quantum.sampler_process_died"),
        ("give_text", r"quantum\.sampler_failed.*quantum\.not_a_sample_set.*type=str"),
        ("give_nothing", "quantum.sampler_returned_nothing"),
        ("give_other_variables", "quantum.answer_for_other_variables"),
        ("give_other_values", r"quantum\.sampler_returned_invalid_values\(.*vartype=SPIN\)"),
        ("give_wrong_energies", "quantum.sampler_energies_wrong"),
        ("give_no_energies", "quantum.sampler_energies_wrong"),
        ("fail_when_looked_at", r"sampler_failed\(.*ConnectionError: the network is away"),
    ],
)
def test_nonsense_is_an_error_with_its_reason(
    how: str, code: str, bqm: dimod.BinaryQuadraticModel, wrong: ProcessSampler
) -> None:
    wrong.name = f"{MODULE}:{how}"
    with pytest.raises(SamplerError, match=code):
        wrong.sample(bqm, time_limit=60)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("no_such_module_anywhere:Sampler", r"core\.plugin_module_not_found.*module=no_such"),
        (f"{MODULE}:Lacking", r"sampler_failed.*core\.plugin_attribute_missing.*=Lacking"),
        (f"{MODULE}:NoSampler", r"quantum\.not_a_dimod_sampler.*name=.*NoSampler"),
        (f"{MODULE}:Misbehaving", r"sampler_failed.*quantum\.sampler_not_created.*'how'"),
        ("azure", r"quantum\.sampler_failed.*hint=core\.did_you_mean\(meant=azure_quantum\)"),
    ],
)
def test_wrong_names_are_an_error_with_its_reason(
    name: str, code: str, bqm: dimod.BinaryQuadraticModel, wrong: ProcessSampler
) -> None:
    wrong.name = name
    with pytest.raises(SamplerError, match=code):
        wrong.sample(bqm, time_limit=60)


def test_it_answers_again_after_its_process_was_killed(
    answering: ProcessSampler, bqm: dimod.BinaryQuadraticModel
) -> None:
    os.kill(answering.sample(bqm).info["process"], signal.SIGKILL)
    with contextlib.suppress(SamplerError):  # where the signal comes after the question
        answering.sample(bqm)
    assert answering.sample(bqm).first.energy == pytest.approx(least_energy(bqm))


def test_labels_may_be_anything_hashable(answering: ProcessSampler) -> None:
    bqm = dimod.BinaryQuadraticModel({("a", 1): 1.0, frozenset("b"): -1.0}, {}, "BINARY")
    found = answering.sample(bqm)
    assert dict(found.first.sample) == {("a", 1): 0, frozenset("b"): 1}


PARENT = f"""
import sys, threading, time
from infrastructure.features.quantum.samplers.process_sampler import ProcessSampler, _checked
from tests.features.quantum.samplers.questions import random_model
sampler = ProcessSampler("{MODULE}:busy")
sampler.start()
print(sampler._child.process.pid, flush=True)
sampler.sample(random_model(5, 0))
"""


def test_it_does_not_outlive_its_parent() -> None:
    """Even where the sampler holds the interpreter in a loop, and nobody closes anything."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    while child.cpu_times().user + child.cpu_times().system < 1.5:  # it is busy with the question
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    gone, alive = psutil.wait_procs([child], timeout=MOST_SECONDS)
    assert gone
    assert not alive


def test_of_the_time_that_there_is_the_sampler_gets_a_little_less(
    monkeypatch: pytest.MonkeyPatch, bqm: dimod.BinaryQuadraticModel
) -> None:
    """So that its answer has time to come; without a limit it is told none."""
    limits: list[Any] = []

    def exchange(question: Any, arrays: Any, deadline: Deadline) -> Any:
        limits.append(question["parameters"])
        return {}, {}

    sampler = ProcessSampler(f"{MODULE}:Answering")
    monkeypatch.setattr(sampler, "start", lambda: None)
    monkeypatch.setattr(sampler, "_child", SimpleNamespace(exchange=exchange))
    sampler._query(bqm, Deadline(10), {"seed": 3})
    sampler._query(bqm, Deadline(None), {"seed": 3})
    sampler._child = None
    timed, endless = limits
    assert 5 < timed["time_limit"] < 10
    assert endless == {"seed": 3}


def test_questions_of_two_threads_are_put_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, bqm: dimod.BinaryQuadraticModel
) -> None:
    """There is one process, and one pipe for all answers."""
    sampler = ProcessSampler(f"{MODULE}:Answering")
    first_is_solving, another_begins = threading.Event(), threading.Event()

    def exchange(question: Any, arrays: Any, deadline: Deadline) -> Any:
        if first_is_solving.is_set():
            another_begins.set()
            raise EOFError
        first_is_solving.set()
        overlaps.append(another_begins.wait(0.2))
        raise EOFError

    def ask() -> None:
        with contextlib.suppress(SamplerError):
            sampler.sample(bqm)

    overlaps: list[bool] = []
    child = SimpleNamespace(exchange=exchange, end=lambda: None)
    monkeypatch.setattr(sampler, "start", lambda: setattr(sampler, "_child", child))
    first = threading.Thread(target=ask)
    first.start()
    assert first_is_solving.wait(60)
    ask()
    first.join()
    assert (overlaps, another_begins.is_set()) == ([False], True)


def test_closing_ends_the_process_whoever_else_knows_it() -> None:
    ended: list[bool] = []
    sampler = ProcessSampler(f"{MODULE}:Answering")
    known: Any = SimpleNamespace(end=lambda: ended.append(True))
    sampler._child = known
    sampler.close()
    sampler.close()
    assert (sampler._child, ended) == (None, [True])


def test_what_a_sampler_writes_to_standard_error_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: dict[str, Any] = {}

    def started(*arguments: Any, **options: Any) -> Any:
        given.update(options)
        return SimpleNamespace()

    monkeypatch.setattr(process_sampler, "HelperProcess", started)
    monkeypatch.setattr(process_sampler, "_end", lambda process, held: os.close(held))
    Child().end()
    assert given["shows_words"]


def test_a_process_that_cannot_be_started_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    pipe = os.pipe

    def noted_pipe() -> tuple[int, int]:
        made.extend(pipe())
        return made[0], made[1]

    def refused(*arguments: Any, **options: Any) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(process_sampler, "HelperProcess", refused)
    monkeypatch.setattr(os, "pipe", noted_pipe)
    with pytest.raises(OSError, match="no more processes"):
        Child()
    assert len(made) == 2
    for descriptor in made:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


@pytest.mark.parametrize(("given", "answered"), [("SPIN", "BINARY"), ("BINARY", "SPIN")])
def test_an_answer_in_the_other_kind_of_variable_is_that_of_the_question(
    given: str, answered: str
) -> None:
    bqm = random_model(3, 0, given)
    other = bqm.change_vartype(answered, inplace=False)
    low, high = sorted(dimod.as_vartype(answered).value)
    samples = np.array([[low, high, low], [high, high, low]], dtype=np.int8)
    energies = other.energies((samples, list(other.variables)))
    arrays = {"samples": samples, "energies": energies, "occurrences": np.array([1, 0])}
    found = _checked("it", bqm, {"vartype": answered, "info": {}}, arrays)
    below, above = sorted(dimod.as_vartype(given).value)
    expected = [[below, above, below], [above, above, below]]
    assert found.vartype is bqm.vartype
    assert found.record.sample.tolist() == expected
    assert found.record.num_occurrences.tolist() == [1, 1]


def test_a_process_that_is_ended_takes_nothing_more_and_nobody_minds() -> None:
    """What was still to be written to it is lost with it."""
    held, writing = os.pipe()
    pipe = subprocess.PIPE
    process = HelperProcess("tests.core.speaking_helper", "sleep", stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"a question that lies in the buffer")
    try:
        _end(process, held)
    finally:
        os.close(writing)
    assert process.returncode == -signal.SIGKILL
    assert process.stdin.closed
    assert process.stdout.closed


@pytest.mark.parametrize(("error", "is_refused"), [(0.5e-4, False), (1.5e-4, True)])
def test_energies_may_be_rounded_as_single_precision_does(error: float, is_refused: bool) -> None:
    bqm = dimod.BinaryQuadraticModel({"a": 600.0}, {("a", "b"): 400.0}, 0.0, "SPIN")
    samples = np.array([[1, 1]], dtype=np.int8)
    energies = bqm.energies((samples, ["a", "b"])) + error * 1000.0
    arrays = {"samples": samples, "energies": energies, "occurrences": np.array([1])}
    refused = pytest.raises(SamplerError, match=r"quantum\.sampler_energies_wrong")
    with refused if is_refused else contextlib.nullcontext():
        _checked("it", bqm, {"vartype": "SPIN", "info": {}}, arrays)
