"""Models come from files as they were written; wrong files are refused with a reason."""

import json
from pathlib import Path
from typing import Any, ClassVar

import dimod
import numpy as np
import pytest

from infrastructure.features.quantum.solving import solve_file as solve_file_module
from infrastructure.features.quantum.solving.solve_file import read_model, solve_file
from tests.features.quantum.samplers.questions import random_model


def assert_same(one: dimod.BinaryQuadraticModel, other: dimod.BinaryQuadraticModel) -> None:
    assert one.vartype is other.vartype
    assert one.is_almost_equal(other)


@pytest.mark.parametrize("vartype", ["BINARY", "SPIN"])
def test_dimods_own_forms(vartype: str, tmp_path: Path) -> None:
    bqm = random_model(6, 0, vartype)
    with (tmp_path / "a.bqm").open("wb") as file, bqm.to_file() as written:
        file.write(written.read())
    assert_same(read_model(tmp_path / "a.bqm"), bqm)
    (tmp_path / "a.json").write_text(json.dumps(bqm.to_serializable()))
    assert_same(read_model(tmp_path / "a.json"), bqm)


@pytest.mark.parametrize("vartype", ["BINARY", "SPIN"])
def test_a_square_of_numpy_is_its_quadratic_form(vartype: str, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    matrix, linear = random.standard_normal((5, 5)), random.standard_normal(5)
    np.savez(tmp_path / "a.npz", quadratic=matrix, linear=linear, offset=2.5, vartype=vartype)
    bqm = read_model(tmp_path / "a.npz")
    low = min(bqm.vartype.value)
    for number in range(32):
        x = np.array([1 if number >> i & 1 else low for i in range(5)])
        energy = bqm.energy(dict(enumerate(x)))
        assert energy == pytest.approx(x @ matrix @ x + linear @ x + 2.5)


def test_coordinates_and_labels_of_numpy(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "a.npz",
        rows=[0, 1, 1],
        columns=[1, 2, 1],
        quadratic=[1.0, -2.0, 0.5],
        linear=[0.0, 0.0, 3.0, 4.0],
        variables=["a", "b", "c", "d"],
    )
    wanted = dimod.BinaryQuadraticModel(
        {"a": 0, "b": 0.5, "c": 3, "d": 4}, {"ab": 1.0, "bc": -2.0}, "BINARY"
    )
    assert_same(read_model(tmp_path / "a.npz"), wanted)


def test_what_an_archive_leaves_out_has_a_default(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", rows=[0], columns=[3], quadratic=[2.0])
    wanted = dimod.BinaryQuadraticModel(dict.fromkeys(range(4), 0.0), {(0, 3): 2.0}, "BINARY")
    assert_same(read_model(tmp_path / "a.npz"), wanted)
    np.savez(tmp_path / "a.npz", rows=[2], columns=[1], quadratic=[2.0], vartype="SPIN")
    wanted = dimod.BinaryQuadraticModel(dict.fromkeys(range(3), 0.0), {(1, 2): 2.0}, "SPIN")
    assert_same(read_model(tmp_path / "a.npz"), wanted)
    np.savez(tmp_path / "a.npz", quadratic=np.zeros((0, 0)), offset=1.5)
    assert_same(read_model(tmp_path / "a.npz"), dimod.BinaryQuadraticModel({}, {}, 1.5, "BINARY"))


class Remembering(dimod.ExactSolver):
    """A sampler that takes a seed and a time limit."""

    calls: ClassVar[list[dict[str, Any]]] = []

    def __init__(self) -> None:
        super().__init__()
        self.parameters = {"seed": [], "time_limit": []}

    def sample(self, bqm: dimod.BinaryQuadraticModel, **given: Any) -> dimod.SampleSet:
        self.calls.append(given)
        return super().sample(bqm)


def test_an_answer_is_in_the_order_of_the_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solve_file_module, "create_sampler", lambda name: Remembering())
    path = tmp_path / "a.json"
    path.write_text('{"linear": {"b": -1, "a": 2, "0": 1}, "quadratic": [[0, "b", -3]]}')
    found = solve_file(path, "exact", 50.0, seed=7)
    assert 0 <= found.pop("seconds") < 50  # type: ignore[misc]
    assert found == {
        **{"file": str(path), "num_variables": 3, "num_interactions": 1, "energy": -3.0},
        **{"sampler": "exact", "reason": "quantum.sampler_requested()"},
        **{"variables": ["b", "a", "0"], "values": [1, 0, 1]},
    }
    [given] = Remembering.calls
    assert given["seed"] == 7
    assert 40 < given["time_limit"] <= 50


def test_the_plain_form_of_json(tmp_path: Path) -> None:
    values = {"vartype": "SPIN", "linear": {"a": 1}, "quadratic": [["a", "b", -2.5]], "offset": 3}
    (tmp_path / "a.json").write_text(json.dumps(values))
    wanted = dimod.BinaryQuadraticModel({"a": 1, "b": 0}, {"ab": -2.5}, 3, "SPIN")
    assert_same(read_model(tmp_path / "a.json"), wanted)
    (tmp_path / "b.json").write_text('{"linear": [1, 2], "quadratic": [[0, 1, 4]]}')
    wanted = dimod.BinaryQuadraticModel({0: 1, 1: 2}, {(0, 1): 4}, "BINARY")
    assert_same(read_model(tmp_path / "b.json"), wanted)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", r"quantum\.unreadable_model_file.*suffix=\.json.*Expecting property name"),
        ("[1]", r"quantum\.not_a_json_object"),
        ('{"lineer": {}}', r"quantum\.unknown_key\(key=lineer"),
        ('{"quadratic": [[0, 1]]}', r"quantum\.malformed_quadratic_entry\(entry=\[0, 1\]\)"),
        ('{"linear": {"a": "1"}}', r'quantum\.value_not_finite\(value="1"\)'),
        ('{"linear": {"a": NaN}}', r"quantum\.value_not_finite\(value=NaN\)"),
        ('{"linear": {"a": true}}', r"quantum\.value_not_finite\(value=true\)"),
        ('{"offset": Infinity}', r"quantum\.value_not_finite\(value=Infinity\)"),
        ('{"quadratic": [["a", "a", 1]]}', "'a'"),
        (
            '{"vartype": "TERNARY"}',
            r"unknown_vartype\(name=TERNARY, vartypes=BINARY, SPIN\)",
        ),
        ('{"type": "BinaryQuadraticModel"}', "quantum.unreadable_model_file"),
        ('{"linear": 3}', "quantum.unreadable_model_file"),
    ],
)
def test_wrong_json_is_refused_with_the_reason(text: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=code):
        read_model(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("arrays", "code"),
    [
        ({"linear": [1.0]}, "quadratic"),
        ({"quadratic": np.zeros((2, 3))}, r"quantum\.quadratic_wrong_shape\(shape=\(2, 3\)\)"),
        ({"quadratic": [1.0]}, "rows"),
        ({"quadratic": [1.0], "rows": [0, 1], "columns": [1]}, "quantum.quadratic_lengths_differ"),
        ({"quadratic": [1.0], "rows": [0.5], "columns": [1]}, "quantum.indices_not_whole_numbers"),
        ({"quadratic": [1.0], "rows": [-1], "columns": [1]}, "quantum.negative_variable_index"),
        (
            {"quadratic": np.zeros((2, 2)), "linear": [1.0, 2.0, 3.0]},
            r"quantum\.linear_wrong_shape\(shape=\(3,\), count=2\)",
        ),
        (
            {"quadratic": np.zeros((2, 2)), "variables": ["a", "a"]},
            r"quantum\.labels_do_not_match_variables\(num_labels=1, num_variables=2\)",
        ),
        (
            {"quadratic": [1.0], "rows": [0], "columns": [2], "linear": [1.0, 2.0]},
            r"quantum\.linear_wrong_shape\(shape=\(2,\), count=3\)",
        ),
        (
            {"quadratic": np.zeros((2, 2)), "linear": np.zeros((2, 1))},
            r"quantum\.linear_wrong_shape\(shape=\(2, 1\), count=2\)",
        ),
        ({"quadratic": np.zeros((2, 2)), "vartype": "BIT"}, r"unknown_vartype\(name=BIT, "),
        ({"quadratic": np.full((2, 2), np.inf)}, "quantum.coefficient_not_finite"),
        (
            {"quadratic": np.zeros((2, 2)), "lineer": [1.0]},
            r"quantum\.unknown_array\(array=lineer",
        ),
        ({"quadratic": np.array([[object()]])}, "allow_pickle=False"),
    ],
)
def test_wrong_arrays_are_refused_with_the_reason(
    arrays: dict[str, Any], code: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ValueError, match=code):
        read_model(tmp_path / "a.npz")


@pytest.mark.parametrize("name", ["a.bqm", "a.npz"])
@pytest.mark.parametrize("content", [b"", b"DIMODBQM", b"no such thing", b"DIMODBQM\x02\x00" * 9])
def test_damaged_files_are_refused_by_name(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"quantum\.unreadable_model_file.*{name}, suffix="):
        read_model(tmp_path / name)


def test_a_file_that_was_cut_is_a_sentence_and_never_another_model(tmp_path: Path) -> None:
    bqm = random_model(20, 0)
    with bqm.to_file() as written:
        whole = written.read()
    for end in range(10, len(whole), 97):
        (tmp_path / "a.bqm").write_bytes(whole[:end])
        if whole[end:].strip() == b"":  # only blanks are gone, with which dimod fills up
            assert_same(read_model(tmp_path / "a.bqm"), bqm)
        else:
            with pytest.raises(ValueError, match=r"quantum\.unreadable_model_file"):
                read_model(tmp_path / "a.bqm")


def test_other_endings_and_no_file_are_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown_model_file_ending.*\.bqm, \.npz, \.json"):
        read_model(tmp_path / "a.pickle")
    with pytest.raises(ValueError, match=r"quantum\.model_file_missing"):
        read_model(tmp_path / "a.bqm")


@pytest.mark.parametrize("name", ["a.bqm", "a.json"])
def test_numbers_that_are_none_are_refused_in_every_form(name: str, tmp_path: Path) -> None:
    bqm = dimod.BinaryQuadraticModel({0: 1.0, 1: 1.0}, {(0, 1): float("nan")}, "BINARY")
    with (tmp_path / "a.bqm").open("wb") as file, bqm.to_file() as written:
        file.write(written.read())
    (tmp_path / "a.json").write_text(json.dumps(bqm.to_serializable()))
    with pytest.raises(ValueError, match=r"quantum\.coefficient_not_finite"):
        read_model(tmp_path / name)
