"""The style sheet of Temper's pages, for light and dark mode, narrow and wide screens, and print.

All colors in `RULES` come from the CSS variables that `COLOURS` sets.
"""

COLOURS = """
:root {
  color-scheme: light dark;
  --paper: #f6f7f9; --card: #ffffff; --ink: #1a2028; --soft: #5b6673; --line: #e1e5ea;
  --grid: #eceff3; --main: #2463c4; --faint: #2463c43d; --mark: #c65d0e; --bad: #c0322b;
  --bad-soft: #c0322b1f; --good: #1b7f4b; --warn: #96660a; --code: #f1f3f6;
  --mono: ui-monospace, "SF Mono", "Cascadia Mono", Menlo, "DejaVu Sans Mono", monospace;
  --run1: #8a3fc0; --run2: #1b7f4b; --run3: #c2327f; --run4: #b8860b; --run5: #0a8a9a;
  --run6: #7a4a1e;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #12161b; --card: #1a2027; --ink: #e4e9ef; --soft: #98a4b2; --line: #2c353f;
    --grid: #252d36; --main: #7aaaf5; --faint: #7aaaf53d; --mark: #f0a05a; --bad: #f2827b;
    --bad-soft: #f2827b2e; --good: #62c793; --warn: #e3b45c; --code: #222a33;
    --run1: #c79bf2; --run2: #62c793; --run3: #f28bc0; --run4: #e3c75c; --run5: #5cc9d6;
    --run6: #c9a27e;
  }
}
"""

RULES = """
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
}
main { max-width: 1080px; margin: 0 auto; padding: 40px 24px 64px; }
header { margin-bottom: 28px; }
.over { color: var(--soft); font-size: 13px; letter-spacing: .04em; text-transform: uppercase; }
h1 { font-size: 28px; line-height: 1.2; font-weight: 650; margin: 4px 0 8px;
     overflow-wrap: anywhere; }
h2 { font-size: 18px; font-weight: 650; margin: 0 0 14px; }
h3 { font-size: 14px; font-weight: 600; margin: 0 0 6px; display: flex; flex-wrap: wrap;
     gap: 0 12px; justify-content: space-between; align-items: baseline; }
h3 .now { color: var(--soft); font-weight: 450; font-variant-numeric: tabular-nums;
          white-space: nowrap; }
p { margin: 0 0 8px; overflow-wrap: anywhere; }
.lead { font-size: 16px; max-width: 75ch; margin-bottom: 2px; }
.status { display: inline-block; padding: 1px 11px; border-radius: 99px; font-size: 13px;
          font-weight: 600; vertical-align: 5px; margin-left: 12px; border: 1px solid; }
.finished { color: var(--good); } .failed { color: var(--bad); }
.stopped, .interrupted { color: var(--warn); } .running, .starting { color: var(--main); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
          padding: 22px 24px; margin: 0 0 18px; }
.tiles { display: flex; flex-wrap: wrap; padding: 0; overflow: hidden; }
.tile { flex: 1 0 auto; padding: 16px 22px; margin: 0 -1px -1px 0;
        border: 0 solid var(--line); border-width: 0 1px 1px 0; }
.tile .name { color: var(--soft); font-size: 13px; }
.tile .value { font-size: 21px; font-weight: 620; font-variant-numeric: tabular-nums;
               white-space: nowrap; }
.tile .from { color: var(--soft); font-weight: 450; font-size: 16px; }
.tile .more { color: var(--soft); font-size: 12.5px; white-space: nowrap; }
.tiles.numbers { border: 1px solid var(--line); border-radius: 8px; margin-top: 14px; }
.tiles.numbers .value { font-size: 17px; }
.notice { border-left: 4px solid var(--bad); }
.alerts.alarm { border-left: 4px solid var(--warn); }
.alerts .info { color: var(--soft); } .alerts .critical { color: var(--bad); font-weight: 600; }
.alerts td:first-child { width: 170px; white-space: nowrap; }
ul { margin: 0 0 14px; padding-left: 20px; }
.scroll { overflow-x: auto; margin-bottom: 14px; } .scroll:last-child { margin-bottom: 0; }
table { border-collapse: collapse; width: 100%; font-size: 14px;
        font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--soft); font-weight: 550; font-size: 13px; white-space: nowrap; }
th, td { padding: 6px 16px 6px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
tr:last-child td { border-bottom: 0; }
td { overflow-wrap: break-word; }
table.facts td, table.stack td { overflow-wrap: anywhere; }
th:last-child, td:last-child { padding-right: 0; }
table.numbers th:not(:first-child), table.numbers td:not(:first-child) {
  text-align: right; white-space: nowrap; }
table.numbers { width: auto; min-width: min(100%, 520px); }
table.numbers td:first-child { padding-right: 40px; }
table.numbers.measures td:first-child { padding-right: 16px; white-space: nowrap; }
tr.total td { font-weight: 620; }
tr.part td:first-child { padding-left: 18px; }
table.phases td:first-child, table.names td:first-child,
table.stages td:nth-child(-n+3) { white-space: nowrap; }
table.checks td:nth-child(-n+2), table.checks td:last-child { white-space: nowrap; }
table.facts td:first-child { color: var(--soft); width: 34%; min-width: 120px; }
table.config td:first-child { min-width: 240px; }
table.config td:nth-child(2) { min-width: 90px; font-family: var(--mono); font-size: 13px; }
table.config td:last-child { color: var(--soft); min-width: 110px; }
code, pre { font-family: var(--mono); font-size: 13px; }
pre { background: var(--code); border-radius: 7px; padding: 10px 14px; margin: 4px 0 14px;
      white-space: pre-wrap; overflow-wrap: anywhere; max-height: 320px; overflow-y: auto; }
nav.contents { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 0 0 20px; font-size: 14px; }
nav.contents a { color: var(--main); text-decoration: none; }
nav.contents a:hover { text-decoration: underline; }
section:target { border-color: var(--main); }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr));
           gap: 8px 36px; }
.columns > * { min-width: 0; }
.columns.three { grid-template-columns: repeat(auto-fit, minmax(min(100%, 260px), 1fr));
                 gap: 0 20px; }
figure { margin: 0 0 16px; }
figcaption { font-size: 13px; color: var(--soft); }
.columns figcaption .band { display: none; } /* the wide chart says it once */
.chart { display: block; width: 100%; height: auto; }
.chart text { fill: var(--soft); font: 11px system-ui, sans-serif;
              font-variant-numeric: tabular-nums; }
.chart .grid { stroke: var(--grid); } .chart .axis { stroke: var(--soft); stroke-opacity: .5; }
@media (max-width: 640px) {
  main { padding: 24px 14px 40px; } section { padding: 16px; }
  section.tiles { padding: 0; }
  .tile { padding: 12px 14px; } .tile .value { font-size: 18px; } h1 { font-size: 23px; }
  .status { margin-left: 0; } h1 { display: flex; flex-wrap: wrap; gap: 8px; }
  table.numbers th, table.numbers td, table.numbers td:first-child { padding-right: 10px; }
  table.machine th:nth-child(3), table.machine td:nth-child(3),
  table.machine th:last-child, table.machine td:last-child { display: none; }
  table.machine td:first-child, table.forecast td:first-child { white-space: normal; }
  table.change, table.change th { font-size: 12px; }
  table.numbers.change th { white-space: normal; }
  table.numbers.change td, table.numbers.change th { padding-right: 5px; }
  table.numbers.change td:last-child, table.numbers.change th:last-child { padding-right: 0; }
  table.numbers.change td:first-child { white-space: normal; }
  table.change tr.part td:first-child { padding-left: 8px; }
  table.measures thead { display: none; }
  table.measures tr { display: flex; flex-wrap: wrap; gap: 0 14px; padding: 7px 0;
                      border-bottom: 1px solid var(--line); }
  table.measures tr:last-child { border: 0; }
  table.numbers.measures td { display: block; border: 0; padding: 0; text-align: left; }
  table.numbers.measures td:first-child { flex: 0 0 100%; font-weight: 550; white-space: normal; }
  table.numbers.measures td:not(:first-child) { white-space: normal; }
  table.measures td[data-name]:not(:first-child)::before {
    content: attr(data-name) " "; color: var(--soft); }
  table.stack thead { display: none; }
  table.stack tr, table.stack td { display: block; border: 0; padding: 0; }
  table.stack td:first-child { font-weight: 550; min-width: 0; }
  table.stack tr { border-bottom: 1px solid var(--line); padding: 7px 0; }
  table.stack tr:last-child { border: 0; } .alerts td:first-child { width: auto; }
  .chart text { font-size: 13px; }
}
.key { display: inline-block; margin-right: 16px; }
.key::before { content: ""; display: inline-block; width: 14px; height: 3px; border-radius: 2px;
               margin-right: 6px; vertical-align: 3px; background: var(--main); }
.key.band::before { height: 10px; vertical-align: 0; background: var(--faint); }
.key.held-out::before { background: var(--mark); }
.key.none::before { display: none; }
.bad { color: var(--bad); } .good { color: var(--good); } .soft { color: var(--soft); }
.warn { color: var(--warn); }
div.narrow { display: none; }
@media (max-width: 640px) { div.wide { display: none; } div.narrow { display: block; } }
details { margin-top: 14px; }
summary { cursor: pointer; color: var(--soft); font-size: 14px; }
details[open] > summary { margin-bottom: 10px; }
footer { color: var(--soft); font-size: 13px; text-align: center; margin-top: 28px; }
@media print { body { background: none; } section { break-inside: avoid; } }
"""

STYLE = COLOURS + RULES
