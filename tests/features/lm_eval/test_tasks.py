"""Tasks of lm-evaluation-harness: refused where it is not installed; run for real where it is."""

import fnmatch
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core import optional
from infrastructure.core.errors import MissingPackageError
from infrastructure.core.optional import is_installed
from infrastructure.evaluation.intervals import Interval
from infrastructure.features.lm_eval.request import TaskRequest
from infrastructure.features.lm_eval.tasks import (
    TaskDifference,
    TaskResults,
    TaskScore,
    _facts,
    _scores,
    evaluate_tasks,
    task_differences,
)
from tests.slow import slow

TASK = """\
task: backwards
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
output_type: generate_until
test_split: test
doc_to_text: "{{{{q}}}}\\n"
doc_to_target: "{{{{a}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 4}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""


class Harness:
    """A stand-in for the harness with the same signatures, which records what it is given."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.managers: list[tuple[str | None, bool]] = []
        self.loaded: list[list[str]] = []
        self.sizes: list[object] = []
        self.given: list[dict[str, Any]] = []
        self.error: Exception | None = None
        parts = {
            "lm_eval": {"simple_evaluate": self._evaluate},
            "lm_eval.tasks": {"TaskManager": self._manager, "get_task_dict": self._load},
            "lm_eval.models": {},
            "lm_eval.models.huggingface": {"HFLM": self._model},
        }
        for name, functions in parts.items():
            module = SimpleNamespace(__spec__=SimpleNamespace(name=name), **functions)
            patch.setitem(sys.modules, name, module)

    def _manager(self, include_path: str | None, include_defaults: bool) -> SimpleNamespace:
        self.managers.append((include_path, include_defaults))
        known = [*(["mine", "mine_too"] if include_path else []), *(["usual"] * include_defaults)]
        return SimpleNamespace(
            all_tasks=known,
            match_tasks=lambda names: [one for n in names for one in fnmatch.filter(known, n)],
        )

    def _load(self, names: list[str], manager: SimpleNamespace) -> None:
        self.loaded.append([*names])
        if self.error is not None:
            raise self.error

    def _model(self, pretrained: Any, tokenizer: Any, batch_size: object) -> str:
        assert not pretrained.training
        self.sizes.append(batch_size)
        return "model"

    def _evaluate(self, model: str, **given: Any) -> dict[str, Any]:
        self.given.append({**given, "task_manager": model})
        right = float(len(self.given) % 2 == 0)
        rows = [{"doc_id": n, "filter": "none", "acc": right, "text": "é"} for n in range(4)]
        numbers = {"acc,none": right, "acc_stderr,none": 0.25 * right, "words,none": 1234.5678}
        return {
            "results": {"mine": numbers},
            "samples": {"mine": rows},
            "n-samples": {"mine": {"effective": 1200}},
            "higher_is_better": {"mine": {"acc": True}},
        }


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Harness:
    return Harness(monkeypatch)


def test_the_harness_is_named_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optional, "is_installed", lambda package: False)
    with pytest.raises(MissingPackageError, match=r"core\.package_not_installed.*package=lm_eval"):
        TaskRequest(("gsm8k",))


@pytest.mark.parametrize(
    ("request_of", "words"),
    [
        ({"names": ()}, "lm_eval.no_tasks"),
        ({"names": ("a",), "folder": Path("nowhere")}, "lm_eval.tasks_path_missing"),
        ({"names": ("a",), "limit": 0}, "lm_eval.limit_too_small"),
        ({"names": ("a",), "num_fewshot": -1}, "lm_eval.num_fewshot_negative"),
    ],
)
def test_what_is_no_request_for_tasks(
    request_of: dict[str, Any], words: str, harness: Harness
) -> None:
    with pytest.raises(ValueError, match=words):
        TaskRequest(**request_of)
    assert TaskRequest(("a",), limit=1, num_fewshot=0).limit == 1


def results(name: str, values: dict[int, float]) -> TaskResults:
    samples = [{"doc_id": row, "filter": "none", "acc": value} for row, value in values.items()]
    score = TaskScore("t", "acc,none", Interval(0, 0, 0), len(values), True)
    return TaskResults(name, [score], {"t": samples})


def test_two_models_are_compared_row_by_row() -> None:
    first = results("a", dict.fromkeys(range(12), 0.0))
    second = results("b", {row: float(row != 3) for row in range(2, 12)})
    [difference] = task_differences(first, second)
    assert difference.num_rows == 10
    assert difference.difference.value == pytest.approx(0.9)
    assert difference.verdict(True) == "second is better"
    assert difference.verdict(False) == "first is better"
    same = TaskDifference("t", "acc", Interval(0.1, -0.1, 0.3), 10)
    assert same.verdict(True) == "no clear difference"
    assert difference.verdict(None) == "they differ"
    worse = TaskDifference("t", "acc", Interval(-0.1, -0.2, -0.05), 10)
    verdicts = [worse.verdict(better) for better in (True, False)]
    assert verdicts == ["first is better", "second is better"]


def test_a_model_is_measured_on_tasks_beside_another(
    harness: Harness, saved_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.strftime", lambda form: "now")
    (tmp_path / "tasks").mkdir()
    base, other = str(saved_llama), shutil.copytree(saved_llama, tmp_path / "other")
    (other / "chat_template.jinja").write_text("x")
    config = DeploymentConfig(model_name=base, device="cpu", output_dir=str(tmp_path / "runs"))
    request = TaskRequest(("mine*", "mine"), tmp_path / "tasks", limit=4, num_fewshot=2)
    facts, lines = evaluate_tasks(config, request, against=str(other))
    assert harness.managers == [(str(tmp_path / "tasks"), False)]
    assert (harness.loaded, harness.sizes) == ([["mine", "mine_too"]], [8, 8])
    assert harness.given == [
        {
            **{"tasks": ["mine", "mine_too"], "task_manager": "model", "limit": 4},
            **{"num_fewshot": 2, "apply_chat_template": has_template, "bootstrap_iters": 1000},
        }
        for has_template in (False, True)
    ]

    def score(metric: str, value: float, half: float | None) -> dict[str, object]:
        ends = (
            [None, None]
            if half is None
            else [pytest.approx(value + s * half, abs=1e-4) for s in (-1, 1)]
        )
        low, high = ends
        named = {"task": "mine", "metric": metric, "value": value, "low": low, "high": high}
        return {**named, "rows": 1200}

    file = tmp_path / "runs/evaluations" / f"now-{saved_llama.name}-tasks.json"
    difference = {"task": "mine", "metric": "acc,none", "value": 1.0, "low": 1.0, "high": 1.0}
    assert facts == {
        **{"tasks": ["mine*", "mine"], "limit": 4, "num_fewshot": 2, "file": str(file)},
        "models": [
            {
                **{"model": name, "used_chat_template": bool(value)},
                "scores": [
                    score("acc,none", value, 0.25 * value * 1.96 if value else 0.0),
                    score("words,none", 1234.5678, None),
                ],
            }
            for name, value in ((base, 0.0), (str(other), 1.0))
        ],
        "differences": [{**difference, "rows": 4}],
    }
    assert json.loads(file.read_text()) == {k: v for k, v in facts.items() if k != "file"}
    written = [json.loads(line) for line in file.with_suffix(".jsonl").read_text().splitlines()]
    assert written == [
        {
            **{"model": name, "task": "mine", "doc_id": row, "filter": "none"},
            **{"acc": value, "text": "é"},
        }
        for name, value in ((base, 0.0), (str(other), 1.0))
        for row in range(4)
    ]
    assert "é" in file.with_suffix(".jsonl").read_text()
    assert lines[0].startswith(f"lm_eval.uses_chat_template(model={other})\n")
    tables = [line.split() for line in lines[0].splitlines() if line.startswith("mine")]
    assert tables == [
        ["mine", "acc", "0", "0", "to", "0", "1,200"],
        ["mine", "words", "1,235", "–", "1,200"],
        ["mine", "acc", "1", "0.5100", "to", "1.490", "1,200"],
        ["mine", "words", "1,235", "–", "1,200"],
        *(["mine", "acc", "4", "+1", "1", "to", "1", "second", "is", "better"],),
    ]
    assert lines[1:] == [f"evaluation.results_file(file={file})"]


def test_the_tasks_of_the_harness_are_searched_if_a_folder_lacks_a_name(
    harness: Harness, saved_llama: Path, tmp_path: Path
) -> None:
    config = DeploymentConfig(
        model_name=str(saved_llama),
        **{"device": "cpu", "output_dir": str(tmp_path), "batch_size": 3},
    )
    facts, _ = evaluate_tasks(config, TaskRequest(("mine", "usual"), tmp_path))
    assert harness.managers == [(str(tmp_path), False), (str(tmp_path), True)]
    assert (harness.loaded, harness.sizes) == ([["mine", "usual"]], [3])
    assert "differences" not in facts
    with pytest.raises(ValueError, match=r"usuall.*usual"):
        evaluate_tasks(config, TaskRequest(("usuall",)))
    assert harness.managers[2:] == [(None, True)]
    harness.error = OSError("\nno network\nat all")
    with pytest.raises(
        ValueError, match=r"names=mine, mine_too, error_type=OSError, reason=no network\)"
    ):
        evaluate_tasks(config, TaskRequest(("mine*",), tmp_path))


def test_each_number_of_the_harness_has_its_interval_and_its_rows() -> None:
    found = {
        "results": {
            "t": {
                **{"alias": "t", "acc,none": 0.5, "acc_stderr,none": 0.1},
                **{"acc,strict": 0.25, "acc_stderr,strict": "N/A", "sample_len": 8},
            }
        },
        "groups": {"g": {"acc,none": 0.75, "acc_stderr,none": 0.2}},
        "n-samples": {"t": {"original": 100, "effective": 8}},
        "higher_is_better": {"t": {"acc": True}},
    }
    scores = {(one.task, one.metric): one for one in _scores(found)}
    assert [*scores] == [("t", "acc,none"), ("t", "acc,strict"), ("g", "acc,none")]
    first, strict, group = scores.values()
    assert (first.num_rows, first.is_greater_better) == (8, True)
    assert (first.interval.value, first.interval.low) == (0.5, pytest.approx(0.5 - 0.196, abs=1e-4))
    assert first.interval.high == pytest.approx(0.5 + 0.196, abs=1e-4)
    assert (group.num_rows, group.is_greater_better) == (None, None)
    request = SimpleNamespace(names=("t",), limit=8, num_fewshot=2)
    model = TaskResults("model", [first, strict], used_chat_template=True)
    facts = _facts([model], [], request)  # type: ignore[arg-type]
    assert (facts["limit"], facts["num_fewshot"], "differences" in facts) == (8, 2, False)
    [written] = facts["models"]
    assert written["used_chat_template"]
    assert written["scores"][1] == {
        **{"task": "t", "metric": "acc,strict", "value": 0.25, "rows": 8},
        **{"low": None, "high": None},  # JSON has no NaN
    }


def test_rows_are_compared_by_their_filter_and_their_own_metric() -> None:
    def model(strict: float, loose: float) -> TaskResults:
        named = (("strict", strict), ("loose", loose))
        samples = [
            {"doc_id": row, "filter": name, "acc": value, "words": "a text"}
            for row in range(4)
            for name, value in named
        ]
        scores = [
            TaskScore("t", f"{metric},{name}", Interval(0, 0, 0), 4, True)
            for metric in ("acc", "words")
            for name, _ in named
        ]
        return TaskResults("model", scores, {"t": samples})

    differences = task_differences(model(0.0, 1.0), model(1.0, 1.0))
    assert [(one.metric, one.difference.value) for one in differences] == [
        *[("acc,strict", 1.0), ("acc,loose", 0.0)]
    ]


@slow
@pytest.mark.skipif(not is_installed("lm_eval"), reason="lm_eval is not installed")
@pytest.mark.filterwarnings("ignore")  # the harness's own, and those of what it imports
def test_a_task_of_ones_own_is_measured(saved_llama: Path, tmp_path: Path) -> None:
    rows = [{"q": f"Reverse {n}", "a": str(n)[::-1]} for n in range(10, 16)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "tasks").mkdir()
    text = TASK.format(rows=tmp_path / "rows.jsonl")
    (tmp_path / "tasks" / "backwards.yaml").write_text(text)
    config = DeploymentConfig(
        model_name=str(saved_llama), device="cpu", output_dir=str(tmp_path / "runs")
    )
    request = TaskRequest(("backwards",), tmp_path / "tasks", limit=4)
    facts, lines = evaluate_tasks(config, request, against=str(saved_llama))
    [score] = [s for s in facts["models"][0]["scores"] if s["metric"] == "exact_match,none"]
    assert (score["task"], score["rows"], score["value"]) == ("backwards", 4, 0.0)
    assert facts["differences"][0]["value"] == 0.0
    assert lines[-1] == f"The numbers are in {facts['file']}"
    assert json.loads(Path(facts["file"]).read_text())["limit"] == 4
    with pytest.raises(ValueError, match=r"task 'backward'.*backwards"):
        evaluate_tasks(config, TaskRequest(("backward",), tmp_path / "tasks"))
