"""deploy/grafana: the dashboards are what their sources make, whole, without overlaps, and name real metrics."""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
import dashboards  # noqa: E402, beside this file
import metric_page  # noqa: E402

COLUMNS = 24
# Of Grafana's units those that we use.
UNITS = {"s", "bytes", "Bps", "reqps", "ops", "percentunit", "short", "none"}
# Panels whose lines are parts of a whole, and only those, are stacked.
STACKED = {"Mean TTFT by stage", "How parts were found", "Bytes handed off", "Positions by lane", "Requests by code",
           "Outcomes", "Requests here now", "Edges of the line", "Slots", "What requests wait for", "Calls by API key",
           "Tokens by API key", "Known share of prompt tokens"}
# By how a metric's name ends: units of its values, and of its rate.
VALUES = {"_bytes_per_second": {"Bps"}, "_bytes": {"bytes"}, "_seconds": {"s"}, "_ratio": {"percentunit", "none"},
          ":slow_rate5m": {"percentunit"}, ":slow_rate1h": {"percentunit"}, ":share": {"percentunit"},
          "share_rate5m": {"percentunit"}, "_ratio:mean_rate5m": {"percentunit"}, "": {"none"}}
RATES = {"_bytes_total": {"Bps"}, "_seconds_total": {"percentunit", "none"}, "_seconds_sum": {"percentunit"},
         "_seconds_saved_total": {"none"}, "_seconds_lost_total": {"none"},
         "_tokens_total": {"short"}, "": {"reqps", "ops"}}


def by_ending(name, table):
    return next(units for ending, units in table.items() if name.endswith(ending))


def units(expression):
    """The units in which what a query gives may be shown."""
    names = [name for name, _ in metric_page.SELECTOR.findall(expression)]
    of = re.sub(r"_(bucket|sum|count)$", "", names[0])
    if " / " in expression:
        is_mean = names == [f"{of}_sum", f"{of}_count"]
        return by_ending(of, VALUES) if is_mean else {"percentunit", "none"}
    if "rate(" in expression and not names[0].endswith("_bucket"):
        return by_ending(names[0], RATES)
    return {"none"} if "increase(" in expression else by_ending(of, VALUES)


def recorded():
    rules = (dashboards.ROOT / "deploy/prometheus/rules/recording.yaml").read_text()
    return set(re.findall(r"- record: (\S+)", rules))


class GrafanaTest(unittest.TestCase):
    def test_the_committed_dashboards_are_what_the_sources_make(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, dashboards.FOLDER / "generate", folder], check=True, timeout=60)
            made = {path.name: path.read_text() for path in pathlib.Path(folder).iterdir()}
        self.assertEqual(made, {path.name: path.read_text() for path in dashboards.FILES},
                         "run deploy/grafana/generate")

    def test_there_are_four_dashboards_that_link_to_each_other(self):
        loaded = [dashboards.load(path) for path in dashboards.FILES]
        self.assertEqual(sorted(one["title"] for one in loaded),
                         ["Runahead: Chain", "Runahead: Decode and KVPR", "Runahead: Service", "Runahead: TTFT"])
        self.assertEqual(len({one["uid"] for one in loaded}), len(loaded))
        for one in loaded:
            self.assertEqual(one["links"][0]["tags"], one["tags"])

    def test_every_panel_says_what_it_shows(self):
        for path in dashboards.FILES:
            for panel in dashboards.panels(dashboards.load(path)):
                with self.subTest(f"{path.stem}: {panel['title']}"):
                    self.assertRegex(panel["description"], r"^[\w1:].{15,}\.$")
                    self.assertIn(panel["fieldConfig"]["defaults"]["unit"], UNITS)
                    self.assertTrue(panel["targets"])
                    for target in panel["targets"]:
                        self.assertRegex(target["legendFormat"], r"\{\{\w+\}\}")

    def test_units_are_those_of_the_metrics(self):
        for path in dashboards.FILES:
            for panel in dashboards.panels(dashboards.load(path)):
                for target in panel["targets"]:
                    with self.subTest(f"{path.stem}: {panel['title']}"):
                        self.assertIn(panel["fieldConfig"]["defaults"]["unit"], units(target["expr"]))

    def test_parts_of_a_whole_are_stacked_and_nothing_else(self):
        panels = [panel for path in dashboards.FILES for panel in dashboards.panels(dashboards.load(path))]
        stacked = {panel["title"] for panel in panels
                   if panel["fieldConfig"]["defaults"]["custom"].get("stacking", {}).get("mode") == "normal"}
        self.assertEqual(stacked, STACKED)

    def test_heatmaps_are_asked_for_buckets_as_such(self):
        for path in dashboards.FILES:
            for panel in dashboards.panels(dashboards.load(path)):
                heat = panel["type"] == "heatmap"
                for target in panel["targets"]:
                    self.assertEqual(target["format"], "heatmap" if heat else "time_series", panel["title"])
                if heat:
                    (target,) = panel["targets"]
                    self.assertRegex(target["expr"], r"^sum by \(le\) \(rate\(\w+_bucket\{")
                    self.assertEqual(target["legendFormat"], "{{le}}")
                    self.assertIs(panel["options"]["calculate"], False)  # the buckets are Prometheus'

    def test_stages_are_means_of_the_same_stage(self):
        (panel,) = [p for p in dashboards.panels(dashboards.load(dashboards.FOLDER / "dashboards/ttft.json"))
                    if p["title"] == "Mean TTFT by stage"]
        (target,) = panel["targets"]
        stage = "sum by (stage) (rate(runahead_ttft_stage_seconds_{}{{job=~\"$job\"}}[$__rate_interval]))"
        self.assertEqual(target["expr"], f"{stage.format('sum')} / ({stage.format('count')} > 0)")

    def test_panels_have_ids_of_their_own_and_do_not_overlap(self):
        for path in dashboards.FILES:
            taken, ids = {}, set()
            for panel in dashboards.load(path)["panels"]:
                place = panel["gridPos"]
                self.assertLessEqual(place["x"] + place["w"], COLUMNS)
                self.assertNotIn(panel["id"], ids)
                ids.add(panel["id"])
                for x in range(place["x"], place["x"] + place["w"]):
                    for y in range(place["y"], place["y"] + place["h"]):
                        self.assertIsNone(taken.setdefault((x, y), None), f"{path.stem}: {panel['title']}")
                        taken[x, y] = panel["title"]

    def test_every_metric_that_panels_name_is_documented(self):
        known, rules = metric_page.metrics(), recorded()
        for where, target in dashboards.queries():
            with self.subTest(where):
                self.assertEqual(metric_page.unknown(target["expr"], known, rules), [])

    def test_every_query_keeps_to_the_chosen_clusters(self):
        for where, target in dashboards.queries():
            names = [name for name, _ in metric_page.SELECTOR.findall(target["expr"])]
            self.assertEqual(target["expr"].count('job=~"$job"'), len(names), where)

    def test_datasource_and_folder_are_provisioned(self):
        provider = (dashboards.FOLDER / "provisioning/dashboards/runahead.yaml").read_text()
        self.assertIn("/var/lib/grafana/dashboards", provider)
        source = (dashboards.FOLDER / "provisioning/datasources/prometheus.yaml").read_text()
        self.assertIn("type: prometheus", source)
        self.assertIn("url: http://prometheus:9090", source)  # the service of the compose stack
        for path in dashboards.FILES:
            (variable,) = [v for v in dashboards.load(path)["templating"]["list"] if v["type"] == "datasource"]
            self.assertEqual(variable["query"], "prometheus")


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
