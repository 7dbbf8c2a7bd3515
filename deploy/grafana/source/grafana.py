"""Dashboards as Grafana reads them, of the few kinds of panel that ours have. What Grafana fills in is left out."""

import dataclasses

SCHEMA = 39  # Grafana 11; newer ones take it over
COLUMNS = 24
HEIGHT = 8
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclasses.dataclass
class Query:
    expression: str
    legend: str


@dataclasses.dataclass
class Panel:
    kind: str  # as Grafana calls it
    title: str
    unit: str
    description: str
    queries: list
    custom: dict = dataclasses.field(default_factory=dict)  # of fieldConfig.defaults
    options: dict = dataclasses.field(default_factory=dict)
    maximum: float | None = None


def lines(title, unit, description, *queries, stacked=False, maximum=None):
    custom = {"drawStyle": "line", "fillOpacity": 70 if stacked else 8, "showPoints": "auto",
              "stacking": {"mode": "normal" if stacked else "none"}}
    options = {"legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
               "tooltip": {"mode": "multi", "sort": "desc"}}
    return Panel("timeseries", title, unit, description, list(queries), custom, options, maximum)


def number(title, unit, description, *queries):
    options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "textMode": "value_and_name", "colorMode": "none"}
    return Panel("stat", title, unit, description, list(queries), options=options)


def heatmap(title, unit, description, expression):
    options = {"calculate": False, "yAxis": {"unit": unit}, "cellGap": 1,
               "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64}}
    return Panel("heatmap", title, unit, description, [Query(expression, "{{le}}")], options=options)


def _panel(panel, number_of_it, place):
    heat = panel.kind == "heatmap"
    limits = {} if panel.maximum is None else {"max": panel.maximum}
    return {
        "id": number_of_it, "type": panel.kind, "title": panel.title, "description": panel.description,
        "datasource": SOURCE, "gridPos": place,
        "targets": [{"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": query.expression,
                     "legendFormat": query.legend, "format": "heatmap" if heat else "time_series", "range": True}
                    for i, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, **limits, "custom": panel.custom}, "overrides": []},
        "options": panel.options,
    }


def _variable(name, label, metric):
    return {"name": name, "label": label, "type": "query", "datasource": SOURCE,
            "query": {"query": f"label_values({metric}, {name})", "refId": name}, "refresh": 2, "sort": 1,
            "multi": True, "includeAll": True, "current": {"text": "All", "value": "$__all"}}


def dashboard(uid, title, description, rows):
    """`rows`: title of each, and its panels; up to three stand side by side."""
    panels, y = [], 0
    for row_title, row in rows.items():
        panels.append({"id": len(panels) + 1, "type": "row", "title": row_title, "collapsed": False, "panels": [],
                       "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": y}})
        y += 1
        for first in range(0, len(row), 3):
            beside = row[first:first + 3]
            width = COLUMNS // len(beside)
            for i, panel in enumerate(beside):
                panels.append(_panel(panel, len(panels) + 1, {"h": HEIGHT, "w": width, "x": i * width, "y": y}))
            y += HEIGHT
    return {
        "uid": uid, "title": title, "description": description, "tags": ["runahead"], "schemaVersion": SCHEMA,
        "editable": False, "graphTooltip": 1, "refresh": "30s", "timezone": "browser",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [
            {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
            _variable("job", "Cluster", "runahead_build_info"),
            _variable("model", "Model", "runahead_requests_total"),
        ]},
        "links": [{"title": "Runahead", "type": "dashboards", "tags": ["runahead"], "keepTime": True,
                   "includeVars": True}],
        "panels": panels,
    }
