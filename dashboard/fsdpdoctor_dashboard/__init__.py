"""The Dash app: a run's report, timeline and what-ifs in a browser."""

from fsdpdoctor.version import __version__

# What Dash looks for in the package of a component. The scripts that draw the timeline
# are not among them: the page itself asks for those, before any of Dash's.
_js_dist = [
    {
        "relative_package_path": "timeline/dash_component.js",
        "namespace": "fsdpdoctor_dashboard",
    },
]
_css_dist = [
    {
        "relative_package_path": "timeline/timeline.css",
        "namespace": "fsdpdoctor_dashboard",
    }
]

__all__ = ["__version__"]
