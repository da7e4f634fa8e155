"""The report as a reader of HTML sees it: whole, alone, escaped, and true about what failed."""

import json
import math
import random
import re
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from infrastructure.monitoring.drawing.metrics_file import encode_record
from infrastructure.monitoring.records.run_view import read_view
from infrastructure.monitoring.report.report import write_report
from infrastructure.monitoring.report.report_sections import forecast, stages
from tests.slow import slow

ATTACK = "</pre></script><script>alert(1)</script><img src=x onerror=alert(2)>"
VOID = {"meta", "br", "wbr", "input"}


class Page(HTMLParser):
    """Checks that every tag is closed in order and collects what a test asks for."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.text.append(data)
            if self.tags[-1][0] == "wbr":  # a word may break there, and is one
                self.text[-2:] = ["".join(self.text[-2:])]

    @property
    def all_text(self) -> str:
        return " ".join(" ".join(self.text).split())

    def count(self, tag: str, css_class: str | None = None) -> int:
        return sum(
            name == tag and (css_class is None or css_class in (attributes.get("class") or ""))
            for name, attributes in self.tags
        )


def write_run(directory: Path, **files: Any) -> None:
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))


def write_records(directory: Path, records: list[dict[str, Any]]) -> None:
    (directory / "metrics.jsonl").write_bytes(b"".join(map(encode_record, records)))


def step_record(step: int, loss: float) -> dict[str, Any]:
    return {
        "step": step,
        "epoch": 0,
        "loss": loss,
        "learning_rate": 1e-3,
        "grad_norm": 1.0 + loss,
        "tokens": 100.0 * step,
        "seconds": 0.5,
        "tokens_per_second": 200.0,
        "memory_bytes": 3.0e8,
    }


def page_of(directory: Path) -> Page:
    path = write_report(directory)
    assert path == directory / "report.html"
    return Page(path.read_text(encoding="utf-8"))


RUN = {
    "run_id": "my-run",
    "created": "2026-11-20T23:45:12+0000",
    "command": "temper train data.jsonl --epochs 3",
    "config": {
        "data.path": {"value": "my data.jsonl", "source": "argument DATA"},
        "training.learning_rate": {"value": 0.001, "source": "--learning-rate"},
        "training.seed": {"value": 0, "source": "default"},
    },
    "versions": {"torch": "2.13.0"},
    "hardware": {"memory": {"total_bytes": 2**34}, "gpus": []},
    "precision": "bf16",
    "model": {"name": "embedded", "num_parameters": 3_000_000, "num_trainable": 1_500_000},
    "data": {
        "lines": ["4,000 rows read"],
        "num_rows": 4000,
        "preview": ["2 + 2 = ⟦4⟧"],
    },
}
SUMMARY = {
    "status": "finished",
    "steps": 40,
    "seconds": 126.0,
    "before": {"eval_loss": 8.0, "exact_match": {"reverse": 0.0, "all": 0.0}},
    "after": {"eval_loss": 0.5, "exact_match": {"reverse": 0.95, "all": 0.95}},
    "example": {"prompt": "Reverse: abc", "expected": "cba", "before": "aaa", "after": "cba "},
    "paths": {"model": "runs/my-run/final"},
}


def test_the_report_of_a_finished_run_is_complete(tmp_path: Path) -> None:
    (tmp_path / "final").mkdir()
    (tmp_path / "final/tokenizer_config.json").write_text("{}")
    write_run(tmp_path, run=RUN, summary=SUMMARY, data_report={"num_used": 3997})
    evaluation = {"step": 40, "kind": "evaluation", "eval_loss": 0.5, "eval_exact_match": 0.9}
    write_records(tmp_path, [*[step_record(s, 8 / s) for s in range(1, 41)], evaluation])
    page = page_of(tmp_path)
    for text in (
        "my-run finished",
        "Finished at step 40, after 2 min 06 s.",
        "Model: small model from scratch · 3.00 M parameters, of which 1.50 M are trained",
        "8 → 0.5000",
        "held-out loss 8 0.5000 -93.8%",
        "exact match 0% 95.0% +95.0 points",
        "reverse 0% 95.0%",
        "Before aaa After as expected cba",
        "4,000 rows read",
        "2 + 2 = ⟦4⟧",
        "Loss last 0.2000 · held out 0.5000",
        "Exact match, held out",
        "monitoring.num_defaults(count=1)",
        "training.learning_rate 0.001 --learning-rate",
        "memory total 16.0 GiB gpus – precision bf16",
        "torch 2.13.0",
        f"temper eval {tmp_path / 'final'} DATA",
    ):
        assert text in page.all_text, text
    assert "train-resume" not in page.all_text
    assert sum("data-chart" in given for _, given in page.tags) == 6


def test_the_page_needs_nothing_but_itself(tmp_path: Path) -> None:
    write_run(tmp_path, run=RUN, summary=SUMMARY)
    write_records(tmp_path, [step_record(step, 1.0) for step in range(1, 4)])
    html = write_report(tmp_path).read_text()
    page = Page(html)
    names = {tag for tag, _ in page.tags}
    assert page.count("script") == 1  # our own, by its hash
    assert not names & {"link", "img", "iframe", "object", "embed", "form", "base"}
    attributes = {name for _, given in page.tags for name in given}
    anchors = {f"#{given['id']}" for tag, given in page.tags if tag == "section" and "id" in given}
    links = [given["href"] for _, given in page.tags if "href" in given]
    assert links
    assert set(links) == anchors  # the table of contents
    assert not attributes & {"src", "srcset", "style", "background", "action"}
    assert not any(name.startswith("on") for name in attributes)
    addresses = set(re.findall(r"[a-z]+://[^ )\"']*", html))
    assert addresses == {"https://github.com/leeoniya/uPlot"}  # in a comment of the library
    assert "url(" not in html
    assert "@import" not in html
    policy = [given["content"] for tag, given in page.tags if "http-equiv" in given]
    allowed = r"default-src 'none'; style-src 'sha256-[^ ']+'; script-src 'sha256-[^ ']+'"
    assert len(policy) == 1
    assert re.fullmatch(allowed, str(policy[0]))


def attacked(value: Any) -> Any:
    """The same shape with the attack in every key and every text."""
    if isinstance(value, dict):
        return {f"{key}{ATTACK}": attacked(inner) for key, inner in value.items()} | {
            key: attacked(inner) for key, inner in value.items()
        }
    if isinstance(value, list):
        return [attacked(inner) for inner in value]
    return value + ATTACK if isinstance(value, str) else value


def test_text_from_data_is_never_markup(tmp_path: Path) -> None:
    write_run(tmp_path, run=attacked(RUN), summary=attacked(SUMMARY), data_report={ATTACK: ATTACK})
    write_records(tmp_path, [{**step_record(1, 2.0), ATTACK: 3.0, f"{ATTACK}2": ATTACK}])
    page = page_of(tmp_path)
    assert page.count("script") == 1  # our own
    assert page.count("img") == 0
    assert "alert(2)" in page.all_text


def test_nan_is_named_and_breaks_the_curve(tmp_path: Path) -> None:
    losses = [math.nan if 10 <= step < 15 else 2.0 for step in range(1, 31)]
    write_records(tmp_path, [step_record(n + 1, loss) for n, loss in enumerate(losses)])
    page = page_of(tmp_path)
    assert "Not finite: loss: NaN at steps 10–14 (5 records)" in page.all_text
    assert "Not finite: grad norm: NaN at steps 10–14 (5 records)" in page.all_text
    charts = [json.loads(str(given["data-chart"])) for tag, given in page.tags if tag == "figure"]
    assert [chart["gaps"] for chart in charts] == [[[10, 14]], [], [[10, 14]], [], []]


def test_a_run_whose_last_loss_is_nan_does_not_show_a_number(tmp_path: Path) -> None:
    write_records(
        tmp_path, [*(step_record(step, 2.0) for step in (1, 2)), step_record(3, math.nan)]
    )
    page = page_of(tmp_path)
    assert "Loss NaN" in page.all_text
    assert "Loss last NaN" in page.all_text


@pytest.mark.parametrize(
    ("method", "held_out", "architecture", "command"),
    [
        ("sft", None, "LlamaForCausalLM", "DATA"),  # it has learnt the rows of data.path
        ("sft", "held.jsonl", "LlamaForCausalLM", "held.jsonl"),
        ("dpo", "pairs.jsonl", "LlamaForCausalLM", "DATA"),  # whose rows are no answers
        ("reward", None, "LlamaForSequenceClassification", None),
    ],
)
def test_the_command_that_measures_takes_rows_that_it_can_measure(
    method: str, held_out: str | None, architecture: str, command: str | None, tmp_path: Path
) -> None:
    (tmp_path / "final").mkdir()
    (tmp_path / "final/tokenizer_config.json").write_text("{}")
    (tmp_path / "final/config.json").write_text(json.dumps({"architectures": [architecture]}))
    values = {"training.method": method, "data.eval_path": held_out, "data.path": "rows.jsonl"}
    config = {key: {"value": value, "source": "a flag"} for key, value in values.items()}
    write_run(tmp_path, run={**RUN, "config": config}, summary=SUMMARY)
    shown = page_of(tmp_path).all_text
    measuring = f"temper eval {tmp_path / 'final'}"
    assert (measuring in shown) == (command is not None)
    assert (f"temper ask {tmp_path / 'final'}" in shown) == (command is not None)
    assert command is None or f"{measuring} {command} " in shown


def test_only_what_can_be_typed_stands_in_a_box(tmp_path: Path) -> None:
    advice = [
        {"text": "4 steps are few; to train longer, try", "command": "training.max_steps=9"},
        {"text": "Step 2 was better; its model", "command": "temper export runs/a@best FOLDER"},
    ]
    write_run(tmp_path, run=RUN, summary={**SUMMARY, "advice": advice})
    html = write_report(tmp_path).read_text()
    assert "<p>4 steps are few; to train longer, try training.max_steps=9</p>" in html
    assert "<p>Step 2 was better; its model:</p><pre>temper export runs/a@best FOLDER</pre>" in html
    assert "<pre></pre>" not in html


def test_paths_are_shown_as_they_are_typed_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Trainer's run knows its whole path, and is shown as a run of the other loop is."""
    run = tmp_path / "runs" / "mine"
    (run / "final").mkdir(parents=True)
    (run / "final/tokenizer_config.json").write_text("{}")
    paths = {"model": str(run / "final"), "run": str(run), "copy": "/elsewhere/mine"}
    write_run(run, run=RUN, summary={**SUMMARY, "paths": paths})
    monkeypatch.chdir(tmp_path)
    shown = page_of(run).all_text
    assert str(tmp_path) not in shown
    assert "temper ask runs/mine/final" in shown
    assert "run runs/mine" in shown
    assert "/elsewhere/mine" in shown


def test_other_data_on_the_way_is_shown_with_what_was_accepted(tmp_path: Path) -> None:
    changes = [
        {"name": "data", "was": "a" * 64, "is": "b" * 64},
        {"name": "learning_rate", "was": 0.1, "is": 0.2},
    ]
    data = {"lines": ["104 rows to train on"], "num_rows": 104}
    entry = {"when": "2026-11-25T10:54:51+0000", "step": 6, "changes": changes, "data": data}
    write_run(tmp_path, run={**RUN, "history": [entry]}, summary=SUMMARY)
    shown = page_of(tmp_path).all_text
    assert f"6 data {'a' * 12}… {'b' * 12}…" in shown
    assert "6 learning_rate 0.1 0.2" in shown
    assert "Since step 6: 104 rows to train on" in shown
    assert "monitoring.data_until_step(step=6) 4,000 rows read" in shown


@pytest.mark.parametrize(
    ("status", "title", "is_first"),
    [
        ("finished", "monitoring.recovered_errors_heading", False),
        ("failed", "monitoring.errors_and_actions_heading", True),
    ],
)
def test_a_finished_run_begins_with_its_result(
    status: str, title: str, is_first: bool, tmp_path: Path
) -> None:
    errors = tmp_path / "logs" / "errors"
    errors.mkdir(parents=True)
    record = {"step": 7, "kind": "loss_spike", "action": "went back to step 4", "message": "0.015"}
    (errors / "errors.jsonl").write_bytes(encode_record({**record, "rows": ["data.jsonl:12"]}))
    write_run(tmp_path, run=RUN, summary={**SUMMARY, "status": status})
    write_records(tmp_path, [step_record(7, 2.0)])
    text = page_of(tmp_path).all_text
    assert (text.index(title) < text.index("Curves")) is is_first
    assert "7 loss_spike 0.015 went back to step 4 data.jsonl:12" in text


@slow
def test_a_hundred_thousand_steps_stay_small(tmp_path: Path) -> None:
    generator = random.Random(0)
    losses = [generator.random() + 0.1 for _ in range(100_000)]
    losses[4_000] = 77.0
    for step in range(50_000, 100_000, 3):
        losses[step] = math.nan
    write_records(tmp_path, [step_record(n + 1, loss) for n, loss in enumerate(losses)])
    started = time.process_time()
    path = write_report(tmp_path)
    assert time.process_time() - started < 20
    assert path.stat().st_size < 300_000
    assert "100" in Page(path.read_text()).all_text


def test_a_new_report_replaces_the_old_one(tmp_path: Path) -> None:
    write_report(tmp_path)
    write_run(tmp_path, run={"run_id": "renamed"})
    assert "renamed" in page_of(tmp_path).all_text
    assert [path.name for path in tmp_path.glob("*report*")] == ["report.html"]


ROW = {"what": "peak_memory_bytes", "foretold": 1 << 30, "was": 1 << 29, "error": 1.0}


@pytest.mark.parametrize(
    "summary",
    [{}, {"forecast": []}, {"forecast": 3}, {"forecast": [4, {"what": "x"}, {**ROW, "was": "?"}]}],
)
def test_nothing_known_gives_no_section(tmp_path: Path, summary: dict[str, Any]) -> None:
    write_run(tmp_path, run={}, summary=summary)
    assert forecast(read_view(tmp_path)) == ""


@pytest.mark.parametrize("records", [None, "x", [1], [{"name": "a", "seconds": "long"}], {}])
def test_damaged_stages_are_left_out(tmp_path: Path, records: Any) -> None:
    write_run(tmp_path, run={}, summary={"stages": records})
    assert stages(read_view(tmp_path)) == ""
