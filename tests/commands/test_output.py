"""The output of commands: lines of text, or one JSON object with everything else beside it."""

import pytest

from infrastructure.commands.output import loading_torch, progress, show


def test_a_result_is_lines_or_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    show(False, {"a": 1}, "first", "second")
    show(True, {"a": "ä"}, "first")
    assert capsys.readouterr().out == 'first\nsecond\n{"a": "ä"}\n'


@pytest.mark.parametrize("as_json", [False, True])
def test_progress_stays_beside_an_object(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    progress(as_json, "a line")
    with loading_torch(as_json):
        pass
    shown = capsys.readouterr()
    expected = ("", "a line\n") if as_json else ("a line\nLoading PyTorch\n", "")
    assert (shown.out, shown.err) == expected
