"""A browser without a screen, and the runs it looks at."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")


from fsdpdoctor_dashboard.app import Serving, make_app
from fsdpdoctor_dashboard.data.run_registry import Library


class Client:
    """A browser without a screen: keeps the cookie, follows nothing."""

    def __init__(self, library: Library, prefix: str = "/") -> None:
        app = make_app(library, Serving(token="secret", prefix=prefix))
        self.http = app.server.test_client()

    def get(self, path: str, **headers: str) -> tuple[int, bytes]:
        """Status and body."""
        with self.http.get(path, headers=headers) as answer:
            return answer.status_code, answer.data

    def ask(self, output: str, **values: object) -> Any:
        """What a callback answers, as Dash's renderer asks it.

        `values` are those of its inputs and states, by id, hyphens as underscores;
        properties of one id (`url`) by both names. What is not given is None.
        """
        known = json.loads(self.get("/_dash-dependencies")[1])
        callback = next(c for c in known if output in c["output"])

        def given(place: dict[str, str]) -> dict[str, object]:
            name = place["id"].replace("-", "_")
            value = values.get(name, values.get(f"{name}_{place['property']}"))
            return {"id": place["id"], "property": place["property"], "value": value}

        names = [n.split(".") for n in callback["output"].strip(".").split("...")]
        outputs = [{"id": name, "property": what} for name, what in names]
        asked = {
            "output": callback["output"],
            "outputs": outputs if callback["output"].startswith("..") else outputs[0],
            "inputs": [given(place) for place in callback["inputs"]],
            "state": [given(place) for place in callback["state"]],
            "changedPropIds": [],
        }
        with self.http.post("/_dash-update-component", json=asked) as answer:
            assert answer.status_code == 200, answer.data
            return json.loads(answer.data)
