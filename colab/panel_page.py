"""What the live panel shows of a run: the dashboard's parts, small enough for a cell's output.

It takes text colour and background from the notebook around it, light or dark.
"""

from infrastructure.monitoring.dashboard.page import live_rules
from infrastructure.monitoring.dashboard.sections import (
    NUM_SMALL_BUCKETS,
    alerts,
    make_tile,
    meters,
    number_tiles,
    progress,
)
from infrastructure.monitoring.drawing.curves import WIDE, curves, holes
from infrastructure.monitoring.drawing.formatting import clip, format_duration
from infrastructure.monitoring.drawing.html import Markup, element, raw_markup
from infrastructure.monitoring.records.live_run import STATES, LiveRun
from infrastructure.monitoring.records.run_reader import RunFacts
from infrastructure.monitoring.records.status_text import safety_words
from infrastructure.monitoring.report.report_sections import (
    NOTHING,
    before_after,
    errors,
    example,
    notices,
)
from infrastructure.monitoring.watch import status_line
from infrastructure.run.latest_checkpoint import SavedCheckpoint

SHOWN_CURVES = (WIDE, "eval_loss", "learning_rate")
MAX_PLACE_CHARACTERS = 40

# Twice the class, because notebooks have rules of their own for tables and headings.
CLASS, SELECTOR = "temper-panel", ".temper-panel.temper-panel"
COLOURS = """
  --ink: currentColor; --paper: transparent; --card: transparent;
  --soft: color-mix(in srgb, currentColor 65%, transparent);
  --line: color-mix(in srgb, currentColor 18%, transparent);
  --grid: color-mix(in srgb, currentColor 10%, transparent);
  --code: color-mix(in srgb, currentColor 7%, transparent);
  --main: #4c8bf0; --faint: #4c8bf03d; --mark: #dd7a2b; --bad: #dc5048; --bad-soft: #dc504826;
  --good: #2c9f68; --warn: #b98a1e; --mono: ui-monospace, Menlo, "DejaVu Sans Mono", monospace;
"""
RULES = """
  font: 14px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
  max-width: 1080px; padding: 14px 18px; margin: 4px 0; box-sizing: border-box;
  border: 1px solid var(--line); border-radius: 10px;
  section { border: 0; border-radius: 0; padding: 0; margin: 0 0 14px; }
  section.progress { padding: 0; }
  section.tiles { border: 1px solid var(--line); border-radius: 8px; }
  section.notice, section.alarm { border-left: 4px solid var(--warn); padding-left: 12px; }
  .tile { padding: 9px 16px; } .tile .value { font-size: 17px; }
  h2 { font-size: 15px; margin: 0 0 8px; } h3 { margin: 0 0 4px; }
  .status { margin-left: 8px; vertical-align: 1px; padding: 0 9px; font-size: 12px; }
  .name-of-run { font-size: 16px; font-weight: 620; overflow-wrap: anywhere; }
  .columns { grid-template-columns: repeat(auto-fit, minmax(min(100%, 320px), 1fr));
             gap: 4px 28px; }
  figure { margin: 0 0 8px; } p:last-child { margin: 0; }
  table { margin: 0; border: 0; table-layout: auto; } tbody tr { background: none; }
  .alerts td:first-child { width: 1%; }
  > .split { margin-bottom: 10px; } .columns { margin-bottom: 10px; }
  th, td { text-align: left; background: none; border-width: 0 0 1px; }
  .bar, .chart { max-width: 100%; }
"""


def panel_html(run: LiveRun, saved: SavedCheckpoint | None, advice: str, now: float) -> str:
    """The panel as HTML that is its own style.

    Args:
        saved: the newest checkpoint on this machine.
        advice: what a person can do while it goes on.
        now: unix time.
    """
    facts = run.facts
    parts = [
        head(run),
        progress(run),
        element("section", *number_tiles(run), *saved_tiles(run, saved, now), css_class="tiles"),
        notices(facts, [*run.problems, *holes(run.curves)]),
        alerts(run),
        curve_section(run),
        meters(run),
    ]
    if run.has_ended:
        parts += [before_after(facts), example(facts), errors(facts)]
    parts.append(element("p", safety_words(facts, now), css_class="soft"))
    if advice and not run.has_ended:
        parts.append(element("p", advice, css_class="soft"))
    style = f"{SELECTOR} {{{COLOURS}{live_rules()}{RULES}}}"
    return element("div", element("style", raw_markup(style)), *parts, css_class=CLASS)


def panel_text(run: LiveRun, saved: SavedCheckpoint | None, now: float) -> str:
    """The same in two lines, for who shows no HTML."""
    here = f"saved: step {saved.step}" if saved else "nothing is saved yet"
    return f"{run.facts.run_id}: {status_line(run)}\n{here}; {safety_words(run.facts, now)}"


def head(run: LiveRun) -> Markup:
    """Which run it is, what becomes of it, and who trains it."""
    status = element("span", run.state, css_class=f"status {run.state}")
    name = element("span", run.facts.title, css_class="name-of-run", title=run.facts.run_id)
    text = STATES[run.state]
    if run.trainer is not None and not run.has_ended:
        text += f" by {run.trainer}"
    if run.is_silent:
        text += "; it has said nothing for long"
    return element("div", element("span", name, status), element("span", text), css_class="split")


def saved_tiles(run: LiveRun, saved: SavedCheckpoint | None, now: float) -> list[Markup]:
    """Where the work is that no death takes: the newest confirmed copy, and what is saved here."""
    copies, tiles = run.facts.copies, []
    if copies.get("place"):
        tiles.append(_confirmed_tile(run.facts, now))
    if saved is None:
        return [*tiles, make_tile("Saved on this machine", "nothing yet")]
    age = f"{format_duration(max(0.0, now - saved.saved_at))} ago"
    where = "Saved on this machine" if tiles else "Last durable checkpoint"
    more = age if tiles or run.has_ended else f"{age}, on this machine only"
    return [*tiles, make_tile(where, f"step {saved.step:,}", more)]


def _confirmed_tile(facts: RunFacts, now: float) -> Markup:
    step, saved_at = facts.copies.get("confirmed_step"), facts.copies.get("saved_at")
    place = clip(str(facts.copies["place"]), MAX_PLACE_CHARACTERS)
    if not isinstance(step, int) or not isinstance(saved_at, int | float):
        return make_tile("Last durable checkpoint", "none yet", f"at {place}")
    age = format_duration(max(0.0, now - saved_at))
    return make_tile("Last durable checkpoint", f"step {step:,}", f"{age} ago, at {place}")


def curve_section(run: LiveRun) -> Markup:
    """Loss and learning rate."""
    points = {key: run.points[key].kept for key in SHOWN_CURVES if key in run.points}
    figures = curves(points, run.evaluated, NUM_SMALL_BUCKETS, wide=None)
    if figures:
        return element("div", *figures, css_class="columns")
    return NOTHING if run.has_ended else element("p", "No step has been logged yet.")
