"""Tasks of lm-evaluation-harness: refused where it is not installed; run for real where it is."""

import json
from pathlib import Path
from types import SimpleNamespace

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
def test_what_is_no_request_for_tasks(request_of: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TaskRequest(**request_of)


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
