"""deploy/prometheus: what promtool says of it, that every alert is tested both ways, and that all names are real."""

import json
import re
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
import metric_page  # noqa: E402, beside this file
import tools  # noqa: E402

tools.need("the rules and scrape configurations of Prometheus", "promtool", modules=["yaml"])
import yaml  # noqa: E402

ROOT = metric_page.ROOT
FOLDER = ROOT / "deploy/prometheus"
RULES = sorted((FOLDER / "rules").glob("*.yaml"))
RULE_TESTS = sorted((ROOT / "tests/deploy/rules").glob("*_test.yaml"))
PATIENCE = 240  # seconds that a call of promtool may take on a busy machine
RUNBOOKS = ROOT / "docs/operations.md"


def all_rules():
    return [rule for path in RULES for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def promtool(*arguments):
    done = subprocess.run(["promtool", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=PATIENCE, check=False)
    return done.returncode, done.stdout


def discovered(config):
    """The labels after relabelling of those targets of `config`'s only job that it keeps, by instance."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump({**config, "rule_files": []}, file)
        file.flush()
        done = subprocess.run(["promtool", "check", "service-discovery", "--timeout=1s", file.name, "runahead"],
                              stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=True)
    kept = [target["labels"] for target in json.loads(done.stdout) if target.get("labels")]
    return sorted(kept, key=lambda labels: labels["instance"])


class ConfigTest(unittest.TestCase):
    def test_promtool_accepts_the_scrape_configurations(self):
        for name in ("static.yaml", "dns.yaml"):
            with self.subTest(name):
                code, said = promtool("check", "config", FOLDER / name)
                self.assertEqual(code, 0, said)
                self.assertIn(f"{len(RULES)} rule files found", said.replace("SUCCESS: ", ""))

    def test_only_processes_of_a_job_that_rules_look_for_are_scraped(self):
        for path in FOLDER.glob("*.yaml"):
            with self.subTest(path.name):
                (job,) = yaml.safe_load(path.read_text())["scrape_configs"]
                self.assertEqual(job["job_name"], "runahead")

    def test_static_targets_are_called_by_their_names(self):
        config = yaml.safe_load((FOLDER / "static.yaml").read_text())
        self.assertEqual([labels["instance"] for labels in discovered(config)],
                         ["decode-0", "gateway", "prefill-0", "prefill-1", "router"])

    def discovered_with(self, name, mechanism, targets):
        """What `name` makes of `targets`, as if its own mechanism had found them."""
        config = yaml.safe_load((FOLDER / name).read_text())
        (job,) = config["scrape_configs"]
        del job[mechanism]
        job["static_configs"] = [{"targets": [address], "labels": labels} for address, labels in targets]
        return discovered(config)

    def test_addresses_of_a_name_are_told_apart(self):
        targets = [(f"10.0.0.{i}:7001", {"__meta_dns_name": "prefill"}) for i in (1, 2)]
        found = self.discovered_with("dns.yaml", "dns_sd_configs", targets)
        self.assertEqual([labels["instance"] for labels in found], ["prefill-10.0.0.1:7001", "prefill-10.0.0.2:7001"])

    def test_pods_and_names_are_looked_for_where_the_manifests_put_them(self):
        base = ROOT / "deploy/kubernetes/base"
        (job,) = yaml.safe_load((FOLDER / "kubernetes.yaml").read_text())["scrape_configs"]
        (asked,) = job["kubernetes_sd_configs"]
        self.assertEqual(asked["role"], "pod")
        namespace = yaml.safe_load((base / "namespace.yaml").read_text())["metadata"]["name"]
        self.assertEqual(asked["namespaces"], {"names": [namespace]})
        self.assertEqual(asked["selectors"], [{"role": "pod", "label": "app.kubernetes.io/name=runahead"}])
        (job,) = yaml.safe_load((FOLDER / "dns.yaml").read_text())["scrape_configs"]
        (asked,) = job["dns_sd_configs"]
        for role in ("gateway", "router", "prefill", "decode"):
            service, workload = yaml.safe_load_all((base / f"{role}.yaml").read_text())
            self.assertEqual(workload["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"], "runahead")
            self.assertIn(service["metadata"]["name"], asked["names"])
            listens = yaml.safe_load((base / f"config/{role}.yaml").read_text())["metrics_listen"]
            self.assertEqual(listens, f"0.0.0.0:{asked['port']}")

    # Debian's Prometheus is built without Kubernetes: all but the block that names it is checked.
    def test_of_pods_the_metrics_port_is_scraped_and_called_by_the_pods_name(self):
        def pod(port, phase):
            return {"__meta_kubernetes_pod_name": "prefill-0", "__meta_kubernetes_pod_node_name": "host-a",
                    "__meta_kubernetes_pod_container_port_name": port, "__meta_kubernetes_pod_phase": phase}
        found = self.discovered_with("kubernetes.yaml", "kubernetes_sd_configs", [
            ("10.0.0.1:7000", pod("grpc", "Running")), ("10.0.0.1:7001", pod("metrics", "Running")),
            ("10.0.0.9:7001", pod("metrics", "Failed"))])
        self.assertEqual([(labels["__address__"], labels["instance"], labels["node"]) for labels in found],
                         [("10.0.0.1:7001", "prefill-0", "host-a")])


class RulesTest(unittest.TestCase):
    def test_promtool_accepts_the_rules(self):
        code, said = promtool("check", "rules", *RULES)
        self.assertEqual(code, 0, said)

    def test_the_rules_do_what_their_tests_say(self):
        code, said = promtool("test", "rules", *RULE_TESTS)
        self.assertEqual(code, 0, said)

    def test_every_alert_is_tested_for_firing_and_for_silence(self):
        fires, silent = set(), set()
        for path in RULE_TESTS:
            for case in yaml.safe_load(path.read_text())["tests"]:
                for asked in case.get("alert_rule_test", []):
                    (fires if asked["exp_alerts"] else silent).add(asked["alertname"])
        alerts = {rule["alert"] for rule in all_rules() if "alert" in rule}
        self.assertEqual(fires, alerts)
        self.assertEqual(silent, alerts)

    def test_every_metric_that_rules_name_is_documented(self):
        known = metric_page.metrics()
        recorded = {rule["record"] for rule in all_rules() if "record" in rule}
        for rule in all_rules():
            with self.subTest(rule.get("alert") or rule["record"]):
                self.assertEqual(metric_page.unknown(rule["expr"], known, recorded), [])

    def test_every_alert_has_a_runbook_with_its_name(self):
        entries = re.findall(r"^### (Runahead\w+)$", RUNBOOKS.read_text(), re.MULTILINE)
        alerts = [rule for rule in all_rules() if "alert" in rule]
        self.assertEqual(sorted(entries), sorted(rule["alert"] for rule in alerts))
        for rule in alerts:
            self.assertEqual(rule["annotations"]["runbook_url"], f"docs/operations.md#{rule['alert'].lower()}")
            self.assertIn(rule["labels"]["severity"], ("page", "ticket"))

    def test_the_page_lists_all_of_vllms_names_that_are_offered_and_no_other(self):
        offered = {rule["record"] for rule in all_rules() if rule.get("record", "").startswith("vllm:")}
        listed = re.findall(r"^\| `(vllm:[\w]+)`", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE)
        self.assertEqual(sorted({re.sub(r"_(bucket|sum|count)$", "", name) for name in offered}), sorted(listed))


class UnknownTest(unittest.TestCase):
    """That the check of names can fail."""

    KNOWN = {"a_total": {"code": {"OK", "NOT"}}, "b": {}}

    def test_what_is_documented_is_known(self):
        for expression in (
                'sum by (code) (rate(a_total{code=~"OK|NOT",job="x"}[5m])) / on (job) group_left (code) (b > 0)',
                "clamp_min(b offset 5m, 1e3) and up", 'label_replace(b, "z", "$1", "q", "(.*)")', "l:b:p50 or b"):
            self.assertEqual(metric_page.unknown(expression, self.KNOWN, {"l:b:p50"}), [], expression)

    def test_each_kind_of_mistake_is_found(self):
        for expression, complaint in (("rate(c_total[5m])", "docs/metrics.md has no c_total"),
                                      ('a_total{kind="OK"}', "a_total has no label kind"),
                                      ('a_total{code="OKAY"}', "a_total has no code=OKAY"),
                                      ('a_total{code=~"OK|NO"}', "a_total has no code=NO"),
                                      ("sum by (kind) (a_total)", "no metric has the label kind"),
                                      ("l:b:p51", "docs/metrics.md has no l:b:p51")):
            self.assertIn(complaint, metric_page.unknown(expression, self.KNOWN, {"l:b:p50"}), expression)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
