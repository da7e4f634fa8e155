"""What a check found, counted, told and written down."""

from infrastructure.testing.results import (
    CheckResult,
    count,
    has_failed,
    lines_of,
    sentence,
    verdict,
)

GOOD = CheckResult("loss", "pass", "as it should be", seconds=0.25)
BAD = CheckResult("steps", "fail", "nothing moved", "look at it", "integration", seconds=0.5)
DOUBTFUL = CheckResult("speed", "warn", "slower", group="performance", seconds=0.25)
LEFT_OUT = CheckResult("labels", "skipped", "no text")


def test_the_verdict_counts() -> None:
    assert verdict([GOOD]) == "1 passed in 0.2 s"
    assert verdict([GOOD, BAD, DOUBTFUL, LEFT_OUT]) == (
        "1 passed, 1 with a warning, 1 failed, 1 skipped in 1.0 s"
    )


def test_a_warning_is_a_failure_only_when_strict() -> None:
    assert has_failed([GOOD, BAD])
    assert not has_failed([GOOD, DOUBTFUL, LEFT_OUT])
    assert has_failed([GOOD, DOUBTFUL], strict=True)
    assert not has_failed([GOOD, LEFT_OUT], strict=True)


def test_the_lines_are_by_group_with_the_remedy_below() -> None:
    results = [BAD, DOUBTFUL, GOOD, LEFT_OUT]
    assert lines_of(results) == [
        "unit checks",
        "  ok    loss: as it should be",
        "  skip  labels: no text",
        "integration checks",
        "  FAIL  steps: nothing moved",
        "        → look at it",
        "performance checks",
        "  WARN  speed: slower",
        verdict(results),
    ]
    assert sentence([BAD, GOOD]) == "steps: nothing moved (look at it); loss: as it should be"
    assert count(results[:3]) == {"pass": 1, "warn": 1, "fail": 1, "skipped": 0}
    assert BAD.to_dict() == {
        "name": "steps",
        "status": "fail",
        "text": "nothing moved",
        "remedy": "look at it",
        "group": "integration",
        "numbers": {},
        "seconds": 0.5,
    }


def test_secrets_are_in_no_line_and_no_file() -> None:
    secret = "hf_" + "aB" * 17
    result = CheckResult("loss", "fail", f"token {secret}", f"drop {secret}")
    assert secret not in "".join([*lines_of([result]), sentence([result])])
    assert secret not in str(result.to_dict())


def test_numbers_that_are_not_finite_are_written_by_name() -> None:
    result = CheckResult("loss", "fail", "bad", numbers={"loss": float("nan")})
    assert result.to_dict()["numbers"] == {"loss": "NaN"}
