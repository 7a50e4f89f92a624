"""The Dash app: a run's report, timeline and what-ifs in a browser."""

from fsdpdoctor.version import __version__

TIMELINE_FILES = (
    "tiles.js",
    "format.js",
    "layout.js",
    "canvas.js",
    "raster.js",
    "loader.js",
    "data_source.js",
    "local_source.js",
    "tracks.js",
    "details_panel.js",
    "bookmarks.js",
    "selection.js",
    "address.js",
    "toolbar.js",
    "mouse.js",
    "keys.js",
    "rows.js",
    "rulers.js",
    "memory.js",
    "overlay.js",
    "follow.js",
    "surface.js",
    "timeline.js",
)
"""The timeline component, in the order in which its files need each other."""

# What Dash looks for in the package of a component. The component's own files are
# "dynamic": Dash serves them and leaves it to the page, which asks for them before
# any of Dash's, so that the picture need not wait.
_js_dist = [
    *[
        {
            "relative_package_path": f"timeline/{name}",
            "namespace": "fsdpdoctor_dashboard",
            "dynamic": True,
        }
        for name in (*TIMELINE_FILES, "first_paint.js")
    ],
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

__all__ = ["TIMELINE_FILES", "__version__"]
