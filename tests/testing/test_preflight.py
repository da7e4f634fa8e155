"""Which checks run before a run, in which order, and how an error of one is reported."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infrastructure.core.errors import PreflightError
from infrastructure.models.token_functions import TokenFunctionError
from infrastructure.testing import preflight as module
from infrastructure.testing.doctor import Diagnosis
from infrastructure.testing.preflight import preflight, run_check
from infrastructure.testing.results import CheckResult

SUBJECT: Any = SimpleNamespace(device=torch.device("cpu"))
HERE = Path(__file__).name


def check_no_memory(subject: object) -> CheckResult:
    raise torch.OutOfMemoryError("CUDA out of memory")


def check_token_function(subject: object) -> CheckResult:
    raise TokenFunctionError("it returned a mean")


def check_own_code(subject: object) -> CheckResult:
    raise KeyError("a\nb")


@pytest.mark.parametrize(
    ("check", "status", "text", "remedy"),
    [
        (
            check_no_memory,
            "skipped",
            "testing.check_out_of_memory(error=OutOfMemoryError: CUDA out of memory)",
            "",
        ),
        (check_token_function, "fail", "it returned a mean", ""),
        (
            check_own_code,
            "fail",
            "testing.own_code_raised(error=KeyError: 'a\\nb', "
            f"place={HERE}:{check_own_code.__code__.co_firstlineno + 1} (check_own_code))",
            "testing.fix_own_code()",
        ),
        (
            json.loads,
            "fail",
            "testing.check_did_not_run(error=TypeError: the JSON object must be str, bytes or"
            " bytearray, not SimpleNamespace)",
            "",
        ),
    ],
)
def test_an_error_of_a_check_is_its_result(
    check: Callable[..., Any],
    status: str,
    text: str,
    remedy: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    freed: list[object] = []
    clock = iter([5.0, 7.5])
    monkeypatch.setattr(module, "free_memory", freed.append)
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(clock))
    found = run_check(check, SUBJECT, "integration")
    name = check.__name__.removeprefix("check_").replace("_", " ")
    assert found == CheckResult(name, status, text, remedy, "integration", seconds=2.5)  # type: ignore[arg-type]
    assert freed == [SUBJECT.device]


def test_a_result_is_of_the_group_that_is_run() -> None:
    result = CheckResult("loss", "pass", "as it should be", numbers={"loss": 1.0})
    found = run_check(lambda _: result, SUBJECT, "integration")
    assert (found.group, found.numbers) == ("integration", {"loss": 1.0})
    assert found.seconds > 0


def named(name: str, status: Any = "pass") -> CheckResult:
    return CheckResult(name, status, f"of {name}", "mend it" if status == "fail" else "")


@pytest.mark.parametrize(
    ("statuses", "has_begun", "found"),
    [
        ({}, False, ["machine", "own loss", "labels", "end of answers"]),
        ({"own loss": "fail"}, False, "machine: of machine|own loss: of own loss (mend it)"),
        (
            {"labels": "fail", "end of answers": "fail"},
            False,
            "labels: of labels (mend it); end of answers: of end of answers (mend it)",
        ),
        ({"end of answers": "fail"}, True, ["machine", "own loss", "labels", "end of answers"]),
        ({"labels": "fail"}, True, "labels: of labels (mend it)"),
        ({"machine": "fail"}, False, "machine: of machine (mend it)"),
    ],
)
def test_a_run_that_cannot_succeed_does_not_start(
    statuses: dict[str, str],
    has_begun: bool,
    found: list[str] | str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folders: list[Path] = []

    def result(name: str) -> Callable[[object], CheckResult]:
        return lambda _: named(name, statuses.get(name, "pass"))

    def machine(folder: Path) -> CheckResult:
        folders.append(folder)
        return result("machine")(None)

    monkeypatch.setattr(module, "Subject", lambda trainer: SUBJECT)
    monkeypatch.setattr(module, "machine_check", machine)
    monkeypatch.setattr(module, "own_checks", lambda _: (result("own loss"),))
    monkeypatch.setattr(module, "UNIT", (result("labels"), result("end of answers")))
    trainer: Any = None
    if isinstance(found, str):
        with pytest.raises(PreflightError) as raised:
            preflight(trainer, tmp_path, has_begun)
        failed = found.rpartition("|")[2]
        assert str(raised.value) == f"testing.preflight_failed(failed={failed})"
    else:
        results = preflight(trainer, tmp_path, has_begun)
        assert [one.name for one in results] == found
        assert results[-1].status == ("warn" if has_begun else "pass")
    assert folders == [tmp_path]


MEMORY, DISK = Diagnosis("warn", "memory", "little", "close it"), Diagnosis("warn", "disk", "small")
GPU, CPU = Diagnosis("fail", "GPU", "broken", "mend it"), Diagnosis("ok", "CPU", "fine")


@pytest.mark.parametrize(
    ("findings", "machine", "installation"),
    [
        ([CPU, CPU], ("pass", "testing.no_problems_found(num_items=2)", ""), None),
        ([CPU, MEMORY], ("warn", "memory: little", "close it"), None),
        (
            [DISK, MEMORY],
            ("warn", "disk: small; memory: little", "close it"),
            ("warn", "testing.several_warnings(subjects=disk, memory)", "testing.see_doctor()"),
        ),
        ([MEMORY, GPU, GPU], ("fail", "GPU: broken; GPU: broken", "mend it; mend it"), None),
    ],
)
def test_findings_of_the_doctor_are_one_result(
    findings: list[Diagnosis],
    machine: tuple[str, str, str],
    installation: tuple[str, str, str] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts: dict[Path, Any] = {tmp_path: findings}
    monkeypatch.setattr(module, "detect", facts.__getitem__)
    monkeypatch.setattr(module, "check_machine", iter)
    monkeypatch.setattr(module, "examine", lambda: findings)
    found = [module.machine_check(tmp_path), module.installation_check()]
    assert [(one.name, one.status, one.text, one.remedy) for one in found] == [
        ("machine", *machine),
        ("installation", *(installation or machine)),
    ]
    assert all(one.seconds > 0 and one.group == "unit" for one in found)
