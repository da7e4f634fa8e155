"""The process that runs a sampler which does not observe a deadline itself.

It reads problems from standard input and writes answers to the original standard output. Everything
a sampler prints goes to standard error. The process ends with its parent: the lifeline is a pipe
that the parent holds open. When it closes, the kernel's SIGIO ends this process even while a
sampler's compiled code runs.
"""

import fcntl
import json
import os
import sys
from collections.abc import Callable, Mapping

import dimod
import numpy as np

from infrastructure.core.errors import InputError
from infrastructure.core.json_text import JsonObject, as_object, as_text
from infrastructure.core.lookup import look_up
from infrastructure.core.messages import phrase
from infrastructure.core.named_object import load_object
from infrastructure.core.redact import redact
from infrastructure.features.quantum.samplers import messages as wire
from infrastructure.features.quantum.samplers.azure_sampler import AzureQuantum
from infrastructure.features.quantum.samplers.bqm_arrays import from_arrays
from infrastructure.features.quantum.samplers.messages import Outgoing
from infrastructure.features.quantum.samplers.simulated_annealing import SimulatedAnnealing
from infrastructure.features.quantum.solving.arrays import Array

COMMON = ("num_reads", "seed", "time_limit")  # dropped if a sampler does not know them
DIRECT: dict[str, Callable[[], dimod.Sampler]] = {
    "simulated_annealing": SimulatedAnnealing,
    "azure_quantum": AzureQuantum,
}


def main(lifeline: int) -> None:
    """Answer the parent's messages until the input ends."""
    end_with_parent(lifeline)
    samplers: dict[str, dimod.Sampler] = {}
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    questions = sys.stdin.buffer
    while True:
        try:
            values, arrays = wire.receive(questions)
        except EOFError:
            return
        try:
            reply, reply_arrays = answer(samplers, values, arrays)
        except Exception as error:  # any error becomes the answer
            reply, reply_arrays = {"error": redact(f"{type(error).__name__}: {error}")}, {}
        wire.send(answers, reply, reply_arrays)


def end_with_parent(lifeline: int) -> None:
    """Make the kernel end this process when the parent's end of the pipe closes."""
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    try:
        is_closed = os.read(lifeline, 1) == b""  # closed before the line above: no signal
    except BlockingIOError:
        is_closed = False
    if is_closed:
        os._exit(1)


def answer(
    samplers: dict[str, dimod.Sampler], values: JsonObject, arrays: dict[str, Array]
) -> Outgoing:
    """Query the named sampler, which is created once, and return the reply.

    Raises:
        TypeError, ValueError: the sampler returned no sample set, or a sample set of other
            variables.
    """
    name = as_text(values["sampler"])
    if name not in samplers:
        samplers[name] = _created(name)
    sampler = samplers[name]
    bqm = from_arrays(as_object(values["model"]), arrays)
    known = sampler.parameters
    parameters = {
        name: value
        for name, value in as_object(values["parameters"]).items()
        if name in known or name not in COMMON
    }
    sample_set = sampler.sample(bqm, **parameters)
    if not isinstance(sample_set, dimod.SampleSet):
        raise TypeError(phrase("quantum.not_a_sample_set", type=type(sample_set).__name__))
    sample_set.resolve()
    return _packed(sample_set, bqm)


def _created(name: str) -> dimod.Sampler:
    """Create the sampler with a certain name, or a custom `module:Class`.

    Raises:
        ValueError: the name, module or class does not exist, or the class requires arguments.
    """
    make = load_object("sampler", name) if ":" in name else look_up("sampler", name, DIRECT)
    try:
        sampler: dimod.Sampler = make()
    except TypeError as error:
        raise InputError("quantum.sampler_not_created", name=name, error=error) from None
    if not callable(getattr(sampler, "sample", None)):
        raise InputError("quantum.not_a_dimod_sampler", name=name)
    return sampler


def _packed(sample_set: dimod.SampleSet, bqm: dimod.BinaryQuadraticModel) -> Outgoing:
    if set(sample_set.variables) != set(bqm.variables):
        raise InputError("quantum.answer_for_other_variables")
    columns = [sample_set.variables.index(v) for v in range(bqm.num_variables)]
    arrays: dict[str, Array] = {
        "samples": np.asarray(sample_set.record.sample)[:, columns],
        "energies": np.asarray(sample_set.record.energy, np.float64),
        "occurrences": np.asarray(sample_set.record.num_occurrences, np.int64),
    }
    return {"vartype": sample_set.vartype.name, "info": _plain(sample_set.info)}, arrays


def _plain(info: Mapping[object, object]) -> dict[str, object]:
    """Return the values in a sampler's info that JSON can represent."""
    kept: dict[str, object] = {}
    for name, value in dict(info).items():
        plain = value.item() if isinstance(value, np.generic) else value
        try:
            json.dumps(plain, allow_nan=False)
        except (TypeError, ValueError):
            continue
        kept[str(name)] = plain
    return kept


if __name__ == "__main__":
    main(int(sys.argv[1]))
