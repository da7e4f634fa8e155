"""The content of the live panel, in a size for a cell's output."""

from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.charts import WIDE, charts_of, curves
from infrastructure.monitoring.drawing.formatting import clip, format_duration
from infrastructure.monitoring.drawing.html import Markup, element, raw_markup
from infrastructure.monitoring.drawing.html_page import DRAW, chart_rules, chart_script
from infrastructure.monitoring.records.run_view import RunView
from infrastructure.monitoring.report.live_parts import live_rules, meters, progress
from infrastructure.monitoring.report.report_sections import (
    NOTHING,
    alerts,
    before_after,
    errors,
    example,
    make_tile,
    notices,
    tiles,
)
from infrastructure.monitoring.watch import status_line
from infrastructure.run.latest_checkpoint import SavedCheckpoint

SHOWN_CURVES = (WIDE, "eval_loss", "learning_rate")
MAX_PLACE_CHARACTERS = 40

# The class twice, because notebooks have their own rules for tables and headings.
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
  max-width: 1080px; padding: clamp(8px, 2.5vw, 14px) clamp(8px, 3vw, 18px);
  margin: 4px 0; box-sizing: border-box;
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
# On a phone, JupyterLab's empty column next to an output takes a fifth of the width.
NARROW = f"""
@media (max-width: 600px) {{
  .jp-OutputArea-child:has({SELECTOR}) > .jp-OutputPrompt {{ display: none; }}
}}
"""


def panel_html(view: RunView, saved: SavedCheckpoint | None, advice: str, now: float) -> str:
    """Return the panel as HTML with its own style and script.

    Args:
        saved: the newest checkpoint on this machine.
        advice: what the user can do while the run trains.
        now: the current Unix time.
    """
    parts = [
        head(view),
        progress(view),
        tiles(view, *saved_tiles(view, saved, now)),
        notices(view),
        alerts(view),
        curve_section(view),
        meters(view),
    ]
    if view["is_over"]:
        parts += [before_after(view), example(view), errors(view)]
    parts.append(element("p", view["backup"]["text"], css_class="soft"))
    if advice and not view["is_over"]:
        parts.append(element("p", advice, css_class="soft"))
    style = f"{SELECTOR} {{{COLOURS}{live_rules()}{chart_rules()}{RULES}}}{NARROW}"
    script = element("script", raw_markup(f"{chart_script()}\n{DRAW}"))
    return element("div", element("style", raw_markup(style)), *parts, script, css_class=CLASS)


def panel_text(view: RunView, saved: SavedCheckpoint | None) -> str:
    """Return the panel as two lines of text, for use if HTML cannot be shown."""
    here = f"saved: step {saved.step}" if saved else phrase("notebook.nothing_saved_yet")
    return f"{view['title']}: {status_line(view)}\n{here} · {view['backup']['text']}"


def head(view: RunView) -> Markup:
    """Return the name of the run and its status."""
    status = element("span", view["state"], css_class=f"status {view['state']}")
    name = element("span", view["title"], css_class="name-of-run", title=view["run_id"])
    text = element("span", view["state_text"])
    return element("div", element("span", name, status), text, css_class="split")


def saved_tiles(view: RunView, saved: SavedCheckpoint | None, now: float) -> list[Markup]:
    """Return tiles with the newest confirmed backup and the newest checkpoint on this machine."""
    copy, tiles = view["backup"], []
    if copy["place"] is not None:
        place = f"at {clip(copy['place'], MAX_PLACE_CHARACTERS)}"
        shown = "none yet"
        if copy["confirmed_step"] is not None and copy["saved_at"] is not None:
            shown = f"step {copy['confirmed_step']:,}"
            place = f"{format_duration(max(0.0, now - copy['saved_at']))} ago, {place}"
        tiles.append(make_tile("Last durable checkpoint", shown, more=place))
    where = phrase("notebook.saved_on_this_machine") if tiles else "Last durable checkpoint"
    if saved is None:
        return [*tiles, make_tile(phrase("notebook.saved_on_this_machine"), "nothing yet")]
    age = f"{format_duration(max(0.0, now - saved.saved_at))} ago"
    more = age if tiles or view["is_over"] else phrase("notebook.saved_here_only", age=age)
    return [*tiles, make_tile(where, f"step {saved.step:,}", more=more)]


def curve_section(view: RunView) -> Markup:
    """Return plots of the loss and the learning rate."""
    points = {key: view["curves"][key] for key in SHOWN_CURVES if key in view["curves"]}
    figures = curves(charts_of(points, view["evaluated"]), wide=None)
    if figures:
        return element("div", *figures, css_class="columns")
    return NOTHING if view["is_over"] else element("p", phrase("notebook.no_step_logged_yet"))
