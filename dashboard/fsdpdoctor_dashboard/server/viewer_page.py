"""A page that opens reports that are dropped on it: one file, no server, no network.

It holds the timeline's scripts and no run: what it shows it reads from reports.
"""

from __future__ import annotations

from html import escape

from fsdpdoctor.renderers.html_style import STYLE
from fsdpdoctor_dashboard.server.standalone_page import PAGE_STYLE, policy_of
from fsdpdoctor_dashboard.timeline.scripts import SCRIPTS, script, style
from fsdpdoctor_dashboard.timeline.settings import settings_script

VIEWER = "viewer.js"
STYLES = """
.drop { border: 2px dashed #98a2ad; border-radius: 8px; padding: 14px 18px; }
[hidden] { display: none !important; }
#said { white-space: pre-line; font-weight: 600; } #said:empty { display: none; }
@media (min-width: 900px) { #words.twice { display: grid; gap: 28px;
  grid-template-columns: repeat(2, minmax(0, 1fr)); } }
@media print { .drop { display: none; } }
"""
BODY = """<div class="drop"><p><b>Drop reports here</b>, or choose them:
<input type="file" id="files" multiple accept=".html,.json" aria-label="reports"></p>
<p class="facts">It opens what <code>fsdpdoctor report RUN --out report.html</code> and
<code>fsdpdoctor share RUN</code> write, two beside each other, and a report's JSON.
Nothing is sent anywhere.</p>
<p class="facts">It cannot read a recorded run's folder, nor a trace: make a page of it
first.</p></div>
<p id="said" class="alert" role="alert"></p>
<div id="fd-timeline" hidden></div>
<div id="words"></div>"""


def viewer_page() -> str:
    """The page, as it is opened from disk."""
    scripts = [settings_script(), *map(script, SCRIPTS), script(VIEWER)]
    policy = escape(policy_of(scripts))
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            "<title>fsdpdoctor: reports</title>",
            f"<style>{STYLE}{style()}{PAGE_STYLE}{STYLES}</style></head><body>",
            BODY,
            *(f"<script>{text}</script>" for text in scripts),
            "</body></html>\n",
        )
    )
