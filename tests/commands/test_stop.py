"""`temper stop`: which process it stops, and its exit code."""

from pathlib import Path

import pytest

from infrastructure.commands.main import main
from infrastructure.core.exit_codes import ExitCode
from infrastructure.deployment import detached
from tests.monitoring.written_run import write_run


@pytest.mark.parametrize(
    ("words", "preparing", "stopped"),
    [
        ([], ["first", "second"], "second"),  # the newest
        ([], [], "20260102-b"),
        (["20260101-a"], ["first"], "20260101-a"),
    ],
)
@pytest.mark.parametrize("is_stopped", [True, False])
def test_the_run_or_what_is_being_prepared_is_stopped(
    words: list[str],
    preparing: list[str],
    stopped: str,
    is_stopped: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("20260101-a", "20260102-b"):
        write_run(tmp_path, name)
    called: list[object] = []

    def prepared(folder: Path) -> list[str]:
        assert folder == tmp_path
        return preparing

    def stop(given: object) -> bool:
        called.append(given.name if isinstance(given, Path) else given)
        return is_stopped

    monkeypatch.setattr(detached, "preparing", prepared)
    monkeypatch.setattr(detached, "stop", stop)
    code = main(["stop", *words, "--output", str(tmp_path)])
    assert code == (ExitCode.DONE if is_stopped else ExitCode.FAILED)
    assert called == [stopped]
