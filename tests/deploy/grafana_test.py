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
