"""The report's section on stack-wise training, from whole, partial and damaged files."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from infrastructure.features.stackwise.report import STACKWISE_FILE, stack_section, stacks_of
from infrastructure.monitoring.drawing.charts import PointsByKey
from infrastructure.monitoring.records.run_view import RunView, read_view


def phase(number: int, **more: Any) -> dict[str, Any]:
    return {
        **{"name": f"layer {number} of 2", "num_epochs": 1, "num_steps": 4, "time_step": None},
        **{"trains": [[number - 1, number]], "adapts": [], "start": number - 1, "depth": number},
        **{"parameters": {"layers": 100}, "weights_bytes": 3 << 20, "gradient_bytes": 1 << 20},
        **{"optimizer_bytes": 2 << 20, **more},
    }


FIRST = {"layers": 100, "embedding": 40, "final norm": 4}
STACKWISE: dict[str, Any] = {
    "plan": {
        "kind": "sequential",
        "stacks": [[0, 1], [1, 2]],
        "parameters": {"layers": 200, "embedding": 40, "final norm": 4},
        "phases": [phase(1, parameters=FIRST), phase(2)],
    },
    "began": [{"phase": 0, "step": 0}],
}
POINTS: PointsByKey = {
    "loss": [(step, 4.0 - step / 4) for step in range(1, 7)],
    "eval_loss": [(4, 3.25)],
}


def shown(folder: Path, found: Any = STACKWISE, points: PointsByKey = POINTS) -> str:
    (folder / STACKWISE_FILE).write_text(json.dumps(found))
    return stack_section(viewed(folder, points))


def viewed(folder: Path, points: PointsByKey = POINTS) -> RunView:
    return {**read_view(folder), "curves": points}


def test_the_plan_is_shown(tmp_path: Path) -> None:
    page = shown(tmp_path)
    assert "stacks_and_layers(stacks=2, layers=2) stackwise.order_sequential()" in page
    assert "Of 244 parameters: layers 82.0%, embedding 16.4%, final norm 1.6%." in page
    assert "<td>1: layer 1 of 2</td><td>144</td><td>1 to 4</td>" in page


@pytest.mark.parametrize(
    ("change", "described"),
    [
        ({}, "stackwise.order_sequential()"),
        ({"kind": "rackwise"}, "stackwise.order_rackwise()"),
        ({"kind": "other"}, ""),
        ({"phases": [phase(1), phase(2, trains=[[0, 2]])]}, "stackwise.model_grows()"),
        ({"phases": [phase(2, trains=[[0, 2]])]}, "stackwise.order_sequential()"),
    ],
)
def test_the_whole_section(tmp_path: Path, change: dict[str, Any], described: str) -> None:
    plan = {**STACKWISE["plan"], "stacks": [[0, 1], [1, 2]], **change}
    began = [{"phase": 0, "step": 0}, {"phase": 1, "step": 5}]
    page = shown(tmp_path, {"plan": plan, "began": began})
    found = re.split(r"\s*(?:<[^>]+>\s*)+", page)[1:-1]
    shape = f"stackwise.stacks_and_layers(stacks=2, layers=2) {described}"
    assert found[:2] == [
        "Block-wise training",
        f"{shape} Of 244 parameters: layers 82.0%, embedding 16.4%, final norm 1.6%.",
    ]
    if not change:
        columns = ["phase", "parameters", "steps", "loss", "held-out loss"]
        assert found[2:] == [
            *(*columns, "memory without activations"),
            *("1: layer 1 of 2", "144", "1 to 5", "3.750 → 2.750", "3.250", "6.0 MiB"),
            *("2: layer 2 of 2", "100", "6 to 9", "2.500", "6.0 MiB"),
        ]


@pytest.mark.parametrize(("num_phases", "is_open"), [(8, True), (9, False), (101, False)])
def test_long_plans_are_folded_and_cut(tmp_path: Path, num_phases: int, is_open: bool) -> None:
    found = copy.deepcopy(STACKWISE)
    found["plan"]["stacks"] = [[n, n + 1] for n in range(num_phases)]
    found["plan"]["phases"] = [phase(n + 1) for n in range(num_phases)]
    page = shown(tmp_path, found)
    assert ("<details>" in page) is not is_open
    rows = [row.partition("</td>")[0] for row in page.split("<tr><td>")[1:]]
    assert rows == [f"{n + 1}: layer {n + 1} of 2" for n in range(min(100, num_phases))]
    assert (f"All {num_phases} phases" in page) is not is_open


def test_the_loss_by_phase(tmp_path: Path) -> None:
    (tmp_path / STACKWISE_FILE).write_text(json.dumps(STACKWISE))
    _, phases = stacks_of(viewed(tmp_path))
    assert [phase.losses for phase in phases] == [POINTS["loss"][:4], []]
    began = {**STACKWISE, "began": [{"phase": 0, "step": 0}, {"phase": 1, "step": 5}]}
    (tmp_path / STACKWISE_FILE).write_text(json.dumps(began))
    _, phases = stacks_of(viewed(tmp_path))
    assert [phase.losses for phase in phases] == [POINTS["loss"][:5], POINTS["loss"][5:]]
    assert [(phase.start, phase.end) for phase in phases] == [(0, 5), (5, 9)]
    page = shown(tmp_path, began)
    assert "3.750 → 2.750" in page
    assert "<td>3.250</td>" in page
    assert "6.0 MiB" in page


def test_many_phases_take_little_of_the_page(tmp_path: Path) -> None:
    found = copy.deepcopy(STACKWISE)
    found["plan"]["stacks"] = [[n, n + 1] for n in range(64)]
    found["plan"]["phases"] = [phase(n + 1) for n in range(64)]
    page = shown(tmp_path, found)
    assert "<summary>All 64 phases</summary>" in page
    assert len(page) < 200_000


def test_nothing_where_there_are_no_stacks(tmp_path: Path) -> None:
    assert stack_section(viewed(tmp_path)) == ""


PLAN = STACKWISE["plan"]


@pytest.mark.parametrize(
    "found",
    [
        [],
        {"plan": 3},
        {"plan": {**PLAN, "stacks": None}},
        {"plan": {**PLAN, "stacks": [[0, 10**9]]}},
        {"plan": {**PLAN, "stacks": [["a", 2], [2, 1]]}},
        {"plan": {**PLAN, "phases": "none"}},
        {"plan": {**PLAN, "phases": [{"num_steps": -1}, None, 3]}},
    ],
)
def test_damaged_files_show_nothing(tmp_path: Path, found: Any) -> None:
    assert shown(tmp_path, found) == ""


@pytest.mark.parametrize(
    "more",
    [
        {"trains": [[5, 9]], "depth": 99},
        {"trains": "x", "adapts": 3, "parameters": None, "name": None, "weights_bytes": "many"},
        {"num_steps": 10**30},
        {"time_step": "late", "parameters": {"<script>": 1}},
    ],
)
def test_odd_values_break_no_page(tmp_path: Path, more: dict[str, Any]) -> None:
    found = copy.deepcopy(STACKWISE)
    found["plan"]["phases"][0] |= more
    found["plan"]["parameters"]["<script>"] = 5
    page = shown(tmp_path, found)
    assert "<script>" not in page


def test_a_damaged_beginning_is_left_out(tmp_path: Path) -> None:
    found = {**STACKWISE, "began": [{"phase": "x"}, 3, {"phase": 1, "step": -4}]}
    assert "Block-wise training" in shown(tmp_path, found)
