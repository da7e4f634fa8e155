"""`temper watch`: a run in the terminal, redrawn while it trains.

The display uses rich. If the output cannot be redrawn (a pipe, a file, a `!` command in a
notebook), a line is printed whenever there are new steps.
"""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.charts import WIDE
from infrastructure.monitoring.drawing.downsampling import Points
from infrastructure.monitoring.drawing.formatting import printable
from infrastructure.monitoring.records.live_run import LiveRun
from infrastructure.monitoring.records.run_reader import FINISHED
from infrastructure.monitoring.records.run_view import Headline, RecordedAlert, RunView, view_of
from infrastructure.monitoring.records.status_text import STATE_WORDS

BLOCKS = "▁▂▃▄▅▆▇█"
NOT_FINITE_MARK = "×"
MAX_MESSAGES = 4
LOOK_SECONDS = 1.0
MOST_SECONDS = 30.0  # between two lines in a pipe, which become rarer over time
STATE_STYLES = {
    "running": "bold cyan",
    "starting": "cyan",
    "finished": "bold green",
    "stopped": "bold yellow",
    "interrupted": "bold yellow",
    "failed": "bold red",
}
SEVERITY_STYLES = {"info": "dim", "warning": "yellow", "critical": "bold red"}
NUM_HEADLINES = 3


def check_interval(interval_seconds: float | None) -> None:
    """Check that an interval is positive.

    Raises:
        ValueError: if `interval_seconds` is not above 0.
    """
    if interval_seconds is not None and not interval_seconds > 0:
        raise InputError("monitoring.watch_interval_not_positive", seconds=interval_seconds)


def watch(
    directory: Path,
    is_once: bool = False,
    interval_seconds: float | None = None,
    console: Console | None = None,
    sleep: Callable[[float], None] = time.sleep,
    is_patient: bool = True,
) -> str:
    """Show the run until it ends.

    Args:
        is_once: show only the current state, and return.
        interval_seconds: the time between updates; by default, a second, and longer between two
            lines in a pipe.
        is_patient: continue to show an interrupted run until the user presses Ctrl-C, because the
            run may resume.

    Returns:
        The state of the run at the end, one of `live_run.STATES`.

    Raises:
        ValueError: if there is no such directory, or `interval_seconds` is not above 0.
        KeyboardInterrupt: if the user has stopped watching.
    """
    check_interval(interval_seconds)
    console = console or Console()
    run = LiveRun(directory)
    try:
        if is_once:
            console.print(frame(view_of(run), console.width))
        elif console.is_terminal and not console.is_dumb_terminal:
            _draw(run, console, interval_seconds or LOOK_SECONDS, sleep, is_patient)
        else:
            _print_lines(run, console, interval_seconds, sleep, is_patient)
    finally:
        run.close()
    return run.state


def _draw(
    run: LiveRun,
    console: Console,
    interval_seconds: float,
    sleep: Callable[[float], None],
    is_patient: bool,
) -> None:
    with Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(frame(view_of(run), console.width), refresh=True)
            if _is_over(run, is_patient):
                return
            sleep(interval_seconds)
            run.refresh()


def _print_lines(
    run: LiveRun,
    console: Console,
    interval_seconds: float | None,
    sleep: Callable[[float], None],
    is_patient: bool,
) -> None:
    began, shown, shown_at = time.monotonic(), "", -math.inf
    while True:
        view = view_of(run)
        line, is_over = status_line(view), _is_over(run, is_patient)
        now = time.monotonic()
        least = interval_seconds or min(MOST_SECONDS, (now - began) / 6)
        if line != shown and (is_over or now - shown_at >= least):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
            shown, shown_at = line, now
            if run.has_ended and not is_over:
                waits = phrase("monitoring.waiting_for_resume", next_step=_next_step(view))
                console.print(waits, markup=False, highlight=False, soft_wrap=True)
        if is_over:
            return
        sleep(interval_seconds or LOOK_SECONDS)
        run.refresh()


def _next_step(view: RunView) -> str:
    text, command = view["next_steps"][0]
    return printable(f"{text}: {command}" if command else text)


def _is_over(run: LiveRun, is_patient: bool) -> bool:
    return run.has_ended and not (is_patient and run.state == "interrupted")


def status_line(view: RunView) -> str:
    """Return one line on the run: `step 120 of 500 · 24% · loss 0.51 · about 12 min 03 s left`."""
    state = [] if view["state"] == "running" else [STATE_WORDS[view["state"]].lower()]
    numbers = [
        f"{line['name'].lower()} {_was_and_is(line)}" for line in view["headlines"][:NUM_HEADLINES]
    ]
    times = [] if view["is_over"] else [view["times"]]
    parts = [*state, view["progress"], *numbers, *times]
    return " · ".join(printable(part) for part in parts if part)


def _was_and_is(line: Headline) -> str:
    """Return the value of a headline, preceded by the value before training if it is known."""
    return f"{line['before']} → {line['text']}" if "before" in line else line["text"]


def sparkline(points: Points, width: int) -> str:
    """Return a sparkline of at most `width` characters. A × marks a value that is not finite."""
    if not points or width < 1:
        return ""
    num_columns = min(width, len(points))
    columns = [
        points[i * len(points) // num_columns : (i + 1) * len(points) // num_columns]
        for i in range(num_columns)
    ]
    means = [_mean([value for _, value in column]) for column in columns]
    finite = [mean for mean in means if mean is not None]
    if not finite:
        return NOT_FINITE_MARK * num_columns
    low, high = min(finite), max(finite)
    return "".join(_block(mean, low, high) for mean in means)


def _mean(values: Sequence[float]) -> float | None:
    """Return the mean of the values; None if any of them is not finite."""
    return sum(values) / len(values) if all(map(math.isfinite, values)) else None


def _block(value: float | None, low: float, high: float) -> str:
    if value is None:
        return NOT_FINITE_MARK
    share = (value - low) / (high - low) if high > low else 0.5
    return BLOCKS[min(len(BLOCKS) - 1, int(share * len(BLOCKS)))]


def frame(view: RunView, width: int) -> RenderableType:
    """Return the complete display for a terminal of `width` columns."""
    loss = view["curves"].get(WIDE, [])
    lines = [
        (view["title"], "bold"),
        (view["state_text"], STATE_STYLES[view["state"]]),
        (status_line(view), ""),
        (sparkline(loss if len(loss) > 1 else [], width), "cyan"),
        (view["backup"]["text"], "dim"),
        *messages(view),
    ]
    if not view["is_over"]:
        lines.append((phrase("monitoring.ctrl_c_exits_watch"), "dim"))
    elif view["state"] != FINISHED:
        lines.append((_next_step(view), ""))
    return Group(*[Text(printable(words), style=style) for words, style in lines if words])


def messages(view: RunView) -> list[tuple[str, str]]:
    """Return (text, style) of the messages to show: problems, and the newest alerts and errors."""
    lines = [(problem, "yellow") for problem in view["problems"]]
    lines += [(view["error"], "red")] if view["error"] else []
    lines += [(alert["text"], _style_of(alert)) for alert in view["alerts"][-MAX_MESSAGES:]]
    return lines + [(error["text"], "yellow") for error in view["errors"][-MAX_MESSAGES:]]


def _style_of(alert: RecordedAlert) -> str:
    return "dim" if alert["is_over"] else SEVERITY_STYLES.get(alert["severity"], "yellow")
