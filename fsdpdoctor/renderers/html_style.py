"""The style sheet of the HTML report: the dashboard's colours, and paper's."""

STYLE = """
:root { color-scheme: light dark;
  --ground: #ffffff; --ink: #1b1f24; --soft: #59636e; --line: #d8dee4;
  --card: #f6f8fa; --exposed: #c93a18; --bar: #c9ddf2; --exposed-bar: #f5c9a8;
  --critical: #9a2d00; --warning: #8a6100; --info: #2f5f8f; --code: #eef1f4; }
@media (prefers-color-scheme: dark) { :root {
  --ground: #12161b; --ink: #e3e8ee; --soft: #9aa5b1; --line: #323a44;
  --card: #1a2028; --exposed: #ff6a3d; --bar: #274764; --exposed-bar: #6e3a17;
  --critical: #ff8f66; --warning: #f0c040; --info: #8fb8d8; --code: #0c0f13; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 24px 20px 60px;
  background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 22px; line-height: 1.35; margin: 0 0 8px; }
h2 { font-size: 17px; margin: 34px 0 10px; }
h3 { font-size: 15px; margin: 0 0 6px; display: flex; flex-wrap: wrap;
  gap: 4px 10px; align-items: baseline; }
p { margin: 4px 0; }
.facts, .where { color: var(--soft); }
.alert { border-left: 4px solid var(--warning); background: var(--card);
  padding: 6px 12px; margin: 8px 0; }
.finding { background: var(--card); border: 1px solid var(--line);
  border-left: 5px solid var(--info); border-radius: 6px; padding: 12px 16px;
  margin: 12px 0; }
.finding.critical { border-left-color: var(--critical); }
.finding.warning { border-left-color: var(--warning); }
.severity { text-transform: uppercase; font-size: 12px; letter-spacing: .06em;
  font-weight: 700; color: var(--info); }
.critical .severity { color: var(--critical); }
.warning .severity { color: var(--warning); }
.cost { color: var(--exposed); font-weight: 700; }
.advice { margin-top: 10px; }
.advice b { color: var(--ink); }
pre { background: var(--code); border: 1px solid var(--line); border-radius: 4px;
  padding: 8px 12px; margin: 6px 0; overflow-x: auto;
  font: 13px/1.45 ui-monospace, "DejaVu Sans Mono", Menlo, monospace; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: right; color: var(--soft); font-weight: 600; font-size: 13px;
  border-bottom: 1px solid var(--line); padding: 4px 8px; white-space: nowrap; }
td { text-align: right; padding: 3px 8px; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th.left, td.left { text-align: left; }
td.left { max-width: 360px; overflow: hidden; text-overflow: ellipsis; }
td { border-right: 6px solid transparent; background-clip: padding-box; }
td.bar { background-image: linear-gradient(to left, var(--bar) var(--share),
  transparent var(--share)); }
td.exposed.bar { background-image: linear-gradient(to left, var(--exposed-bar)
  var(--share), transparent var(--share)); }
td.mismatch { color: var(--exposed); font-weight: 700; }
.budget { display: flex; height: 30px; border-radius: 4px; overflow: hidden; }
.budget div { min-width: 1px; }
.budget div + div { border-left: 1px solid var(--ground); }
.legend { display: grid; grid-template-columns: repeat(auto-fill, minmax(300px, 1fr));
  gap: 2px 20px; margin: 10px 0 0; padding: 0; list-style: none; }
.legend li { display: flex; align-items: center; gap: 8px; }
.legend .name { flex: 1; }
.legend .hidden { color: var(--exposed); font-weight: 700; }
.swatch { width: 13px; height: 13px; border-radius: 2px; flex: none; }
.hatched { background-image: repeating-linear-gradient(45deg, #ffffff66 0 3px,
  transparent 3px 8px); }
.outlook { display: flex; height: 26px; border-radius: 4px; overflow: hidden;
  margin: 10px 0 4px; background: var(--card); max-width: 900px; }
.outlook .gain { -webkit-mask-image: repeating-linear-gradient(135deg, #000 0 6px,
  #0000 6px 10px); mask-image: repeating-linear-gradient(135deg, #000 0 6px,
  #0000 6px 10px); }
.stacks { display: grid; grid-template-columns: max-content 1fr max-content;
  gap: 4px 12px; align-items: center; font-variant-numeric: tabular-nums; }
.stacks .bar { display: flex; height: 20px; border-radius: 3px; overflow: hidden;
  background: var(--card); }
.parts { margin: 8px 0 0 10px; }
.folded { margin: 12px 0; } summary { cursor: pointer; }
button { font: inherit; font-size: 13px; color: var(--ink); background: var(--ground);
  border: 1px solid var(--line); border-radius: 6px; padding: 2px 10px;
  cursor: pointer; }
.best { border-left: 5px solid #57788f; background: var(--card); border-radius: 6px;
  padding: 10px 16px; margin: 12px 0; }
ul { margin: 6px 0; padding-left: 20px; }
li { overflow-wrap: anywhere; }
p, h1, h3 { overflow-wrap: anywhere; }
footer { margin-top: 40px; color: var(--soft); font-size: 13px; }
@page { size: A4; margin: 12mm; }
@media print {
  :root { color-scheme: light; --ground: #ffffff; --ink: #1b1f24; --soft: #59636e;
    --line: #d8dee4; --card: #f6f8fa; --exposed: #c93a18; --code: #eef1f4;
    --critical: #9a2d00; --warning: #8a6100; --info: #2f5f8f; }
  body { max-width: none; padding: 0; font-size: 11px; print-color-adjust: exact;
    -webkit-print-color-adjust: exact; }
  h1 { font-size: 17px; } h2 { font-size: 14px; } h3 { font-size: 12px; }
  h2, h3, thead { break-after: avoid; }
  .budget, .legend li, tr, .alert { break-inside: avoid; }
  pre { white-space: pre-wrap; font-size: 9px; }
  .scroll { overflow: visible; } button { display: none; }
  details::details-content { content-visibility: visible; }
  table, th { font-size: 9px; }
  th, td { white-space: normal; padding: 2px 4px; border-right: 0; }
  td.bar, td.exposed.bar { background-image: none; }
}
"""
