"""A real Prometheus on a real cluster under load: every panel's query and every recording rule gives data.

usage: dashboards_test.py RUNAHEAD MAKE_SYNTHETIC_GGUF
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
import dashboards  # noqa: E402, beside this file
import tools  # noqa: E402

tools.need("the queries of dashboards and rules on a live cluster", "prometheus", "promtool")
import live  # noqa: E402

MAKE_MODEL = pathlib.Path(sys.argv.pop()).resolve()
RUNAHEAD = pathlib.Path(sys.argv.pop()).resolve()
RULES = dashboards.ROOT / "deploy/prometheus/rules"
# A model with as many KV heads as heads, over a slow link and with little device memory, so that each lane of KVPR has
# its part (docs/kvpr.md); edges slow enough that there is a prefill to cancel.
MODEL = ["--heads", 4, "--kv-heads", 4, "--layers", 5, "--context", 2048, "--seed", 25]
CLUSTER = ["--prefill", 2, "--decode", 1, "--dtype", "f32", "--device", "cpu", "--emulated-link-gbps", 20,
           "--kv-device-budget", "3MiB", "--recompute", 256, "--host-lane", 256, "--chain-link-gbps", 0.2,
           "--experiments"]
LONG = 1400
# What Grafana fills in.
FILLED = {"$__rate_interval": "1m", "$job": "runahead", "$model": ".+"}


def filled(expression):
    for variable, value in FILLED.items():
        expression = expression.replace(variable, value)
    return expression


def count_of(page, name):
    """The sum of all series of that name."""
    return sum(float(value) for value in re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", page, re.MULTILINE))


class LiveTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        model = pathlib.Path(folder, "model.gguf")
        subprocess.run([str(part) for part in (MAKE_MODEL, *MODEL, model)], check=True, timeout=live.PATIENCE)
        cls.cluster = cls.enterClassContext(live.Cluster(folder, RUNAHEAD, "--model", model, *CLUSTER,
                                                         "--api-keys", cls.make_key(folder)))
        cls.prometheus = cls.enterClassContext(live.Prometheus(folder, RULES / "*.yaml", cls.cluster.metrics))
        # Counters must have been seen at 0, else their first rise is none.
        live.until(lambda: cls.scraped(2) == len(cls.cluster.metrics), "every process has been scraped twice")
        cls.load()

    @classmethod
    def make_key(cls, folder):
        """The file of a key that all calls of this test bring."""
        made = json.loads(subprocess.run([RUNAHEAD, "keys", "new", "dashboards", "--json"], stdout=subprocess.PIPE,
                                         check=True, timeout=live.PATIENCE).stdout)
        os.environ["RUNAHEAD_API_KEY"] = made.pop("key")
        path = pathlib.Path(folder, "api-keys.yaml")
        path.write_text(json.dumps({"keys": [made]}))  # YAML, too
        return path

    @classmethod
    def scraped(cls, times):
        return sum(value >= times for _, value in cls.prometheus.query('count_over_time(up{job="runahead"}[1m])'))

    @classmethod
    def load(cls):
        for _ in range(3):
            for tokens, width in ((40, 1), (LONG, 2)):
                assert cls.cluster.generate(tokens, "--max-tokens", "8", "--width", str(width)) == 0
        # One whose deadline passes in prefill; when that is depends on the machine.
        timeouts = iter(range(2, 400, 2))

        def cancelled():
            cls.cluster.generate(LONG, "--max-tokens", "2", "--timeout", str(next(timeouts) / 100))
            return count_of(cls.cluster.page("router"), "runahead_cancel_to_free_seconds_count") > 0
        live.until(cancelled, "a prefill is cancelled")

    def assert_all_give_data(self, expressions):
        """`expressions`: {where: PromQL}. A scrape and an evaluation may still be to come."""
        faults = {}

        def none_left():
            faults.clear()
            for where, expression in expressions.items():
                if fault := self.prometheus.fault(expression):
                    faults[where] = fault
            return not faults
        try:
            live.until(none_left, "data", patience=20)
        except AssertionError:
            self.fail("\n".join(f"{where}: {fault}: {expressions[where]}" for where, fault in faults.items()))

    def test_every_panel_shows_data(self):
        self.assert_all_give_data({where: filled(target["expr"]) for where, target in dashboards.queries()})

    def test_every_recording_rule_gives_data(self):
        rules = [rule for path in RULES.glob("*.yaml") for rule in re.findall(r"- record: (\S+)", path.read_text())]
        self.assertGreater(len(rules), 40)
        self.assert_all_give_data({rule: rule for rule in rules})

    def test_all_rules_are_evaluated_without_error_and_no_alert_fires(self):
        def evaluated():
            groups = self.prometheus.ask("rules")["groups"]
            rules = [rule for group in groups for rule in group["rules"]]
            return rules if all(rule["health"] != "unknown" for rule in rules) else None
        for rule in live.until(evaluated, "every rule has been evaluated"):
            self.assertEqual(rule["health"], "ok", rule)
            self.assertNotEqual(rule.get("state"), "firing", rule)

    def test_no_two_lines_of_a_panel_are_called_the_same(self):
        for path in dashboards.FILES:
            for panel in dashboards.panels(dashboards.load(path)):
                with self.subTest(f"{path.stem}: {panel['title']}"):
                    names = [dashboards.legend(target, labels) for target in panel["targets"]
                             for labels, _ in self.prometheus.query(filled(target["expr"]))]
                    self.assertEqual(len(names), len(set(names)), names)

    def test_every_variable_has_values(self):
        for path in dashboards.FILES:
            for variable in dashboards.load(path)["templating"]["list"]:
                if variable["type"] == "query":
                    asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
                    values = self.prometheus.ask(f"label/{asked[2]}/values", **{"match[]": asked[1]})
                    self.assertTrue(values, variable["name"])

    def test_stages_add_up_to_ttft(self):
        def sum_of(name):
            return count_of(self.cluster.page("router"), f"{name}_sum")
        ttft = sum_of("runahead_time_to_first_token_seconds")
        self.assertAlmostEqual(sum_of("runahead_ttft_stage_seconds"), ttft, places=6)

    def test_the_stages_of_the_panel_add_up_to_the_mean_ttft(self):
        (stages,) = [target["expr"] for where, target in dashboards.queries() if where == "ttft: Mean TTFT by stage A"]
        ttft = "sum(rate(runahead_time_to_first_token_seconds_{}{{job=\"runahead\"}}[1m]))"
        ((_, ratio),) = self.prometheus.query(f"sum({filled(stages)}) / ({ttft.format('sum')} / {ttft.format('count')})")
        self.assertAlmostEqual(ratio, 1, places=6)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
