"""What tests read of deploy/grafana: its dashboards, their panels and queries."""

import json
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy/grafana"
FILES = sorted((FOLDER / "dashboards").glob("*.json"))


def load(path):
    return json.loads(path.read_text())


def panels(dashboard):
    """Those that show something."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def legend(target, labels):
    """What Grafana calls the line of a series; raises where it has no such label."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels[found[1]], target["legendFormat"])


def queries():
    """(where, query) of all panels of all dashboards."""
    for path in FILES:
        for panel in panels(load(path)):
            for target in panel["targets"]:
                yield f"{path.stem}: {panel['title']} {target['refId']}", target
