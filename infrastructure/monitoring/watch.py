"""`temper watch`: a run in the terminal, drawn again and again while it goes on.

The drawing is rich's. Where nothing can be redrawn (a pipe, a file, a notebook's `!` line) a line
is printed whenever the run has got further.
"""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from infrastructure.monitoring.drawing.downsampling import Points
from infrastructure.monitoring.drawing.formatting import (
    format_bytes,
    format_duration,
    format_number,
    format_share,
    printable,
)
from infrastructure.monitoring.drawing.html import readable_key
from infrastructure.monitoring.drawing.metrics_file import Record
from infrastructure.monitoring.drawing.tables import HELD_OUT_LOSS, held_out_loss
from infrastructure.monitoring.records.live_run import STATES, LiveRun
from infrastructure.monitoring.records.status_text import alert_words, error_words, safety_words

BLOCKS = "▁▂▃▄▅▆▇█"
NOT_FINITE_MARK = "×"
MAX_MESSAGES = 4
LINE_EVERY_SECONDS = 30.0
STATE_STYLES = {
    "running": "bold cyan",
    "starting": "cyan",
    "finished": "bold green",
    "stopped": "bold yellow",
    "interrupted": "bold yellow",
    "failed": "bold red",
}
LEVEL_STYLES = {"fine": "green", "high": "yellow", "full": "red"}
SEVERITY_STYLES = {"info": "dim", "warning": "yellow", "critical": "bold red"}
FROM_ZERO = {"tokens_per_second", "memory_bytes"}
ROWS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("loss", "loss", format_number),
    ("eval_loss", HELD_OUT_LOSS, format_number),
    ("learning_rate", "learning rate", format_number),
    ("grad_norm", "gradient norm", format_number),
    ("tokens_per_second", "tokens/s", lambda rate: format_number(round(rate))),
    ("memory_bytes", "peak memory", format_bytes),
)


def watch(
    directory: Path,
    is_once: bool = False,
    interval_seconds: float = 1.0,
    console: Console | None = None,
    sleep: Callable[[float], None] = time.sleep,
    is_patient: bool = True,
) -> str:
    """Show the run until it ends.

    Args:
        is_once: show it as it is now, and return.
        is_patient: a run that was broken off may go on: show it until somebody ends the watching.

    Returns:
        The state of the run at the end, one of `live_run.STATES`.

    Raises:
        ValueError: there is no such directory, or `interval_seconds` is not above 0.
        KeyboardInterrupt: the person has seen enough.
    """
    if not interval_seconds > 0:
        raise ValueError(f"--every must be more than 0 seconds, not {interval_seconds}")
    console = console or Console()
    run = LiveRun(directory)
    try:
        if is_once:
            console.print(frame(run, console.width))
        elif console.is_terminal and not console.is_dumb_terminal:
            _draw(run, console, interval_seconds, sleep, is_patient)
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
            live.update(frame(run, console.width), refresh=True)
            if _is_over(run, is_patient):
                return
            sleep(interval_seconds)
            run.refresh()


def _print_lines(
    run: LiveRun,
    console: Console,
    interval_seconds: float,
    sleep: Callable[[float], None],
    is_patient: bool,
) -> None:
    shown, shown_at = "", -math.inf
    while True:
        line, is_over = status_line(run), _is_over(run, is_patient)
        if line != shown and (is_over or time.monotonic() - shown_at >= LINE_EVERY_SECONDS):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
            shown, shown_at = line, time.monotonic()
        if is_over:
            return
        sleep(interval_seconds)
        run.refresh()


def _is_over(run: LiveRun, is_patient: bool) -> bool:
    return run.has_ended and not (is_patient and run.state == "interrupted")


def status_line(run: LiveRun) -> str:
    """The run in one line: `step 120 of 500 · 24 % · loss 0.51 · 12 min 03 s left`."""
    parts = [run.state if run.state != "running" else "", progress_words(run)]
    if (loss := run.facts.last("loss")) is not None and _is_number(loss):
        parts.append(f"loss {format_number(loss)}")
    if (rate := run.facts.last("tokens_per_second")) is not None and _is_number(rate):
        parts.append(f"{format_number(round(rate) if math.isfinite(rate) else rate)} tokens/s")
    if run.seconds_left is not None:
        parts.append(f"{format_duration(run.seconds_left)} left")
    return " · ".join(printable(part) for part in parts if part)


def progress_words(run: LiveRun) -> str:
    """`step 120 of 500 · 24 %`, as far as it is known."""
    if run.step is None:
        return "no step yet"
    text = f"step {run.step:,}"
    if run.total_steps is not None:
        text += f" of {run.total_steps:,} · {format_share(run.share_done or 0.0)}"
    return text


def sparkline(points: Points, width: int, from_zero: bool = False) -> str:
    """The points as at most `width` block characters; a stretch that is not finite is a ×."""
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
    low, high = min([*finite, 0.0] if from_zero else finite), max(finite)
    return "".join(_block(mean, low, high) for mean in means)


def _mean(values: Sequence[float]) -> float | None:
    """None where one of the values is not finite: such a step must be seen."""
    return sum(values) / len(values) if all(map(math.isfinite, values)) else None


def _block(value: float | None, low: float, high: float) -> str:
    if value is None:
        return NOT_FINITE_MARK
    share = (value - low) / (high - low) if high > low else 0.5
    return BLOCKS[min(len(BLOCKS) - 1, int(share * len(BLOCKS)))]


def frame(run: LiveRun, width: int) -> RenderableType:
    """Everything that is shown at once, for a terminal of `width` columns."""
    parts: list[RenderableType] = [_head(run, width), Text()]
    parts += [part for part in (_numbers(run, width), _machine(run, width)) if part is not None]
    parts.append(Text(safety_words(run.facts, time.time()), style="dim"))
    for words, style in messages(run):
        parts.append(Text(printable(words), style=style))
    title = f"[bold]{escape(printable(run.facts.run_id))}[/]"
    foot = None if run.has_ended else "Ctrl-C leaves; the training goes on"
    return Panel(
        Group(*parts), title=title, subtitle=foot, border_style="dim", padding=(0, 1), width=width
    )


def _head(run: LiveRun, width: int) -> RenderableType:
    state = Text(f"{run.state}", style=STATE_STYLES[run.state])
    if run.state not in ("running", "finished"):
        state.append(f"  {STATES[run.state]}", style="not bold")
    if run.is_silent:
        state.append("  but has said nothing for long", style="yellow not bold")
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(ratio=1)
    grid.add_column(justify="right")
    left = _time_words(run)
    grid.add_row(state, Text(left))
    grid.add_row(Text(progress_words(run)), Text())
    if run.share_done is None:
        return grid
    style = "green" if run.state == "finished" else "cyan"
    bar = ProgressBar(
        total=1.0,
        completed=run.share_done,
        width=width - 4,
        complete_style=style,
        finished_style="green",
    )
    return Group(grid, bar)


def _time_words(run: LiveRun) -> str:
    parts = []
    if run.seconds_trained:
        parts.append(f"trained {format_duration(run.seconds_trained)}")
    if run.seconds_left is not None:
        parts.append(f"about {format_duration(run.seconds_left)} left")
    return " · ".join(parts)


def _numbers(run: LiveRun, width: int) -> RenderableType | None:
    known = {key for key, _, _ in ROWS}
    further = [
        (key, readable_key(key.removeprefix("eval_")) + ", held out", format_number)
        for key in run.points
        if key in run.evaluated - known and key.startswith("eval_")
    ]
    rows = [row for row in (*ROWS, *further) if row[0] in run.points]
    if not rows:
        return None
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True, style="cyan")
    label = held_out_loss(run.facts.config_value("training.loss"))
    width -= max(0, len(label) - len(HELD_OUT_LOSS))
    for key, name, format_value in rows:
        points = run.points[key]
        curve = points.kept if len(points.kept) > 1 else []  # one number is no curve
        line = sparkline(curve, max(8, width - 40), key in FROM_ZERO)
        shown = label if key == "eval_loss" else printable(name)
        table.add_row(Text(shown), format_value(points.last), line)
    return Group(table, Text())


def _machine(run: LiveRun, width: int) -> RenderableType | None:
    meters = [] if run.has_ended else run.machine.meters()
    if not meters:
        return None
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(no_wrap=True, width=max(8, min(40, width - 50)))
    table.add_column(no_wrap=True)
    for meter in meters:
        style = LEVEL_STYLES[meter.level]
        bar = ProgressBar(
            total=1.0, completed=meter.share, complete_style=style, finished_style=style
        )
        table.add_row(meter.name, bar, meter.text)
    return Group(table, Text())


def messages(run: LiveRun) -> list[tuple[str, str]]:
    """(words, style) of what a person should know: what went wrong, and the newest alerts."""
    lines: list[tuple[str, str]] = [(problem, "yellow") for problem in run.problems]
    if error := run.facts.summary.get("error"):
        lines.append((str(error), "red"))
    elif reason := run.facts.summary.get("reason"):
        lines.append((str(reason), "yellow"))
    recent: list[Record] = list(run.alerts)[-MAX_MESSAGES:]
    lines += [(alert_words(alert), _style_of(alert)) for alert in recent]
    lines += [(error_words(error), "yellow") for error in run.facts.errors[-MAX_MESSAGES:]]
    return lines


def _style_of(alert: Record) -> str:
    if "ended_at" in alert:
        return "dim"
    return SEVERITY_STYLES.get(str(alert.get("severity")), "yellow")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
