"""The parts of a page that follows a run: progress, bars and meters."""

from typing import Any

import pytest

from infrastructure.monitoring.report.live_parts import bar, meters, progress


@pytest.mark.parametrize(("share", "width"), [(0.2504, "250.4"), (-1.0, "0.0"), (2.0, "1000.0")])
def test_a_bar_is_as_long_as_its_share(share: float, width: str) -> None:
    shown = bar(share, "running")
    assert shown.startswith('<svg class="bar running" viewBox="0 0 1000 10"')
    assert f'<rect class="track" width="1000" height="10"/><rect class="fill" width="{width}"' in (
        shown
    )


def test_progress_is_shown_from_the_first_step_and_as_a_bar_if_the_share_is_known() -> None:
    view: Any = {"step": 3, "progress": "step 3", "times": "5 s", "share_done": 0.5, "state": "x"}
    words = '<div class="split"><span>step 3</span><span>5 s</span></div>'
    assert progress(view) == f'<section class="progress">{words}{bar(0.5, "x")}</section>'
    assert progress({**view, "share_done": None}) == f'<section class="progress">{words}</section>'
    assert progress({**view, "step": None}) == ""


def test_each_meter_has_its_bar() -> None:
    memory = {"name": "memory", "text": "6 of 8 GiB", "share": 0.75, "level": "high"}
    words = '<div class="split"><span>memory</span><span>6 of 8 GiB</span></div>'
    shown = f'<div class="meters"><div>{words}{bar(0.75, "high")}</div></div>'
    view: Any = {"machine": {"meters": [memory]}}
    assert meters(view) == shown
    assert meters({**view, "machine": {"meters": []}}) == ""
