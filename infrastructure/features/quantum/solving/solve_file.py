"""The solution of a binary quadratic model in a file. Nothing in a file is executed or unpickled.

=======  =========================================================================================
ending   content
=======  =========================================================================================
`.bqm`   dimod's own format, as written by `BinaryQuadraticModel.to_file`
`.npz`   numpy arrays for the energy x·Q·x + linear·x + offset: `quadratic` (Q, shape (n, n), both
         halves counted) or `rows`, `columns`, `quadratic` (shape (m,); variables are numbered
         from 0), and optionally `linear` (n,), `offset`, `vartype` ("BINARY" or "SPIN", default
         BINARY), `variables` (n labels, default 0 to n-1)
`.json`  dimod's `to_serializable`, or the plain form `{"vartype": "BINARY", "linear": {"a": 1.5},
         "quadratic": [["a", "b", -2.0]], "offset": 0}`
=======  =========================================================================================
"""

import json
import struct
import zipfile
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, TypedDict

import dimod
import numpy as np

from infrastructure.core.errors import InputError
from infrastructure.core.json_text import as_list, as_object, parse_json
from infrastructure.core.messages import phrase
from infrastructure.features.quantum.sampler_needs import check_sampler
from infrastructure.features.quantum.samplers.bqm_arrays import coefficient_sum, vectors_of
from infrastructure.features.quantum.samplers.deadline import Deadline
from infrastructure.features.quantum.samplers.sampler_factory import close_sampler, create_sampler

VARTYPES = ("BINARY", "SPIN")
# The errors that numpy, json and dimod raise on a damaged file.
NO_MODEL = (
    *(ValueError, TypeError, LookupError, AttributeError),
    *(EOFError, struct.error, zipfile.BadZipFile),
)


class SolvedFile(TypedDict):
    """The best answer to a model; `values` are in the order of `variables`."""

    file: str
    num_variables: int
    num_interactions: int
    energy: float
    seconds: float
    sampler: str
    reason: str
    variables: list[Hashable]
    values: list[int]


def solve_file(
    file: Path, sampler_name: str = "auto", limit_seconds: float = 300.0, seed: int = 0
) -> SolvedFile:
    """Solve the model in `file` and report how the answer was found.

    Args:
        sampler_name: a name, or a custom `module:Class`.
        limit_seconds: time limit, reading included.
        seed: seed for a sampler that takes one.

    Raises:
        ValueError: the file contains no model, or the sampler is unknown.
        SamplerError: the sampler failed, or had no answer in time.
    """
    deadline = Deadline(limit_seconds)
    check_sampler(sampler_name)
    bqm = read_model(file)
    sampler = create_sampler(sampler_name)
    given: dict[str, object] = {"seed": seed, "time_limit": max(0.0, deadline.seconds_left)}
    try:
        samples = sampler.sample(
            bqm, **{key: value for key, value in given.items() if key in sampler.parameters}
        )
    finally:
        close_sampler(sampler)
    labels = list(bqm.variables)
    return {
        "file": str(file),
        "num_variables": bqm.num_variables,
        "num_interactions": bqm.num_interactions,
        "energy": float(samples.first.energy),
        "seconds": round(deadline.elapsed_seconds, 3),
        "sampler": samples.info.get("sampler", sampler_name),
        "reason": samples.info.get("reason", phrase("quantum.sampler_requested")),
        "variables": labels,
        "values": [int(samples.first.sample[label]) for label in labels],
    }


def read_model(path: Path) -> dimod.BinaryQuadraticModel:
    """Read the model in a file.

    Raises:
        ValueError: the ending is unknown, or the content does not match it. The message is one
            sentence that names the file.
        OSError: the file cannot be read.
    """
    read = READERS.get(path.suffix.lower())
    if read is None:
        raise InputError("quantum.unknown_model_file_ending", path=path, endings=", ".join(READERS))
    if not path.is_file():
        raise InputError("quantum.model_file_missing", path=path)
    try:
        bqm = read(path)
        if not np.isfinite(coefficient_sum(vectors_of(bqm))):
            raise InputError("quantum.coefficient_not_finite")
    except NO_MODEL as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            "quantum.unreadable_model_file", path=path, suffix=path.suffix, reason=text
        ) from error
    return bqm


def _read_bqm(path: Path) -> dimod.BinaryQuadraticModel:
    with path.open("rb") as file:
        if file.read(8) != b"DIMODBQM":
            raise InputError("quantum.not_a_dimod_file")
        file.seek(0)
        return dimod.BinaryQuadraticModel.from_file(file)


def _read_npz(path: Path) -> dimod.BinaryQuadraticModel:
    if not zipfile.is_zipfile(path):
        raise InputError("quantum.not_a_numpy_archive")
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    known = {"linear", "quadratic", "rows", "columns", "offset", "vartype", "variables"}
    if unknown := sorted(arrays.keys() - known):
        raise InputError("quantum.unknown_array", array=unknown[0], known=", ".join(sorted(known)))
    quadratic = np.asarray(arrays["quadratic"], float)
    if quadratic.ndim == 2 and quadratic.shape[0] == quadratic.shape[1]:
        rows, columns = np.nonzero(quadratic)
        biases, least = quadratic[rows, columns], len(quadratic)
    elif quadratic.ndim == 1:
        rows, columns = (np.asarray(arrays[name]) for name in ("rows", "columns"))
        biases, least = quadratic, int(max(rows.max(initial=-1), columns.max(initial=-1))) + 1
        _check_places(rows, columns, biases)
    else:
        raise InputError("quantum.quadratic_wrong_shape", shape=quadratic.shape)
    linear = np.zeros(least) if "linear" not in arrays else np.asarray(arrays["linear"], float)
    if linear.ndim != 1 or len(linear) < least or (quadratic.ndim == 2 and len(linear) > least):
        raise InputError("quantum.linear_wrong_shape", shape=linear.shape, count=least)
    labels = arrays.get("variables", np.arange(len(linear))).tolist()
    if len(set(labels)) != len(linear):
        raise InputError(
            "quantum.labels_do_not_match_variables",
            num_labels=len(set(labels)),
            num_variables=len(linear),
        )
    vartype = _vartype(str(arrays.get("vartype", np.array("BINARY"))))
    return _assembled(
        linear, (rows, columns, biases), float(arrays.get("offset", 0.0)), vartype, labels
    )


def _check_places(rows: Any, columns: Any, biases: Any) -> None:
    if not (rows.shape == columns.shape == biases.shape):
        raise InputError("quantum.quadratic_lengths_differ")
    if rows.dtype.kind not in "iu" or columns.dtype.kind not in "iu":
        raise InputError("quantum.indices_not_whole_numbers")
    if len(rows) and min(rows.min(), columns.min()) < 0:
        raise InputError("quantum.negative_variable_index")


def _assembled(
    linear: Any, quadratic: tuple[Any, Any, Any], offset: float, vartype: str, labels: list[Any]
) -> dimod.BinaryQuadraticModel:
    """Build the model. A diagonal entry is a linear term for bits and a constant for spins."""
    rows, columns, biases = quadratic
    diagonal = rows == columns
    if vartype == "BINARY":
        linear = linear + np.bincount(rows[diagonal], biases[diagonal], len(linear))
    else:
        offset += float(biases[diagonal].sum())
    kept = (rows[~diagonal], columns[~diagonal], biases[~diagonal])
    return dimod.BinaryQuadraticModel.from_numpy_vectors(
        linear, kept, offset, dimod.Vartype[vartype], variable_order=labels
    )


def _read_json(path: Path) -> dimod.BinaryQuadraticModel:
    values = parse_json(path.read_text(encoding="utf-8"))
    if not isinstance(values, dict):
        raise InputError("quantum.not_a_json_object")
    if "type" in values:
        return dimod.BinaryQuadraticModel.from_serializable(values)
    known = {"vartype", "linear", "quadratic", "offset"}
    if unknown := sorted(values.keys() - known):
        raise InputError("quantum.unknown_key", key=unknown[0], known=", ".join(sorted(known)))
    linear = values.get("linear", {})
    biases = dict(enumerate(linear)) if isinstance(linear, list) else as_object(linear)
    bqm = dimod.BinaryQuadraticModel(_vartype(values.get("vartype", "BINARY")))
    for label, bias in biases.items():
        bqm.add_variable(label, _number(bias))
    for entry in as_list(values.get("quadratic", [])):
        if not isinstance(entry, list) or len(entry) != 3:
            raise InputError("quantum.malformed_quadratic_entry", entry=json.dumps(entry))
        one, other, bias = entry
        bqm.add_quadratic(_label(one, bqm), _label(other, bqm), _number(bias))
    bqm.offset += _number(values.get("offset", 0.0))
    return bqm


def _label(label: Any, bqm: dimod.BinaryQuadraticModel) -> Any:
    """Return the variable that a label means.

    Keys of a JSON object are always text, so 0 means "0" if the linear part has "0".
    """
    is_text = label not in bqm.variables and str(label) in bqm.variables
    return str(label) if is_text else label


def _vartype(name: object) -> str:
    if name not in VARTYPES:
        raise InputError("quantum.unknown_vartype", name=name, vartypes=", ".join(VARTYPES))
    return str(name)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
        raise InputError("quantum.value_not_finite", value=json.dumps(value))
    return float(value)


READERS: dict[str, Callable[[Path], dimod.BinaryQuadraticModel]] = {
    ".bqm": _read_bqm,
    ".npz": _read_npz,
    ".json": _read_json,
}
