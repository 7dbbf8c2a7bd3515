"""The compose files against themselves, the Dockerfile, the pages and our programs.

usage: compose_test.py BIN_FOLDER
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

try:
    import yaml
except ImportError:
    print("did not run here: the compose files: Python's yaml is missing")
    sys.exit(77)

import config_check

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy/compose"
BIN = pathlib.Path(sys.argv.pop())
WORKERS = ("prefill-0", "prefill-1", "prefill-2", "decode-0")
MEMBERS = ("router", *WORKERS)  # of the cluster: they have its key, and the model
OURS = ("gateway", *MEMBERS)
METRICS_PORT = 7001
GRPC_PORT = 7000
HTTP_PORT = 8000


def port_of(name):
    return HTTP_PORT if name == "gateway" else GRPC_PORT


def load(name):
    return yaml.safe_load((FOLDER / name).read_text())


def with_defaults(text):
    """${NAME:-default} as it is without .env."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def seconds(text):
    return int(re.fullmatch(r"(\d+)s", text).group(1))


class ComposeTest(unittest.TestCase):
    def setUp(self):
        self.stack = load("compose.yaml")
        self.services = self.stack["services"]

    def config_file(self, name):
        """The file in the source tree that `name`'s --config is mounted from."""
        (path,) = [a.partition("=")[2] for a in self.services[name]["command"] if a.startswith("--config=")]
        (source,) = [v.split(":")[0] for v in self.services[name]["volumes"] if v.split(":")[1] == path]
        return FOLDER / source

    def test_the_programs_accept_their_command_lines(self):
        for name in OURS:
            with self.subTest(name):
                program, *flags = map(with_defaults, self.services[name]["command"])
                flags = [f"--config={self.config_file(name)}" if f.startswith("--config=") else f for f in flags]
                self.assertIsNone(config_check.complaint(BIN / program, flags))

    def test_every_process_listens_where_others_look_for_it(self):
        for name in OURS:
            config = yaml.safe_load(self.config_file(name).read_text())
            self.assertEqual(config["listen"], f"0.0.0.0:{port_of(name)}", name)
            self.assertEqual(config["metrics_listen"], f"0.0.0.0:{METRICS_PORT}", name)
            flag = "--gateway" if name == "gateway" else "--address"
            self.assertEqual(self.services[name]["healthcheck"]["test"],
                             ["CMD", "runahead", "health", flag, f"127.0.0.1:{port_of(name)}"])
        (scrape,) = load("prometheus.yaml")["scrape_configs"]
        self.assertEqual(scrape["job_name"], "runahead")  # what rules and dashboards look for
        (names,) = scrape["dns_sd_configs"]
        self.assertEqual(sorted(names["names"]), sorted(OURS))
        self.assertEqual(names["port"], METRICS_PORT)

    def test_clients_come_from_this_host_alone(self):
        for name, service in self.services.items():
            for published in map(with_defaults, service.get("ports", [])):
                self.assertTrue(published.startswith("127.0.0.1:"), (name, published))
        for name in ("gateway", "router"):
            port = port_of(name)
            self.assertEqual([with_defaults(p) for p in self.services[name]["ports"]], [f"127.0.0.1:{port}:{port}"])

    def test_the_gateway_calls_the_router(self):
        config = yaml.safe_load(self.config_file("gateway").read_text())
        self.assertEqual(config["router"], f"router:{GRPC_PORT}")
        self.assertEqual(config["allowed_hosts"], ["gateway"])  # and none that a stranger makes up

    def test_the_router_knows_every_worker_by_its_role(self):
        workers = yaml.safe_load((FOLDER / "router.yaml").read_text())["workers"]
        self.assertEqual({w["address"]: w["role"] for w in workers},
                         {f"{name}:{GRPC_PORT}": name.partition("-")[0] for name in WORKERS})
        for worker in workers:
            name = worker["address"].partition(":")[0]
            self.assertEqual(yaml.safe_load(self.config_file(name).read_text())["role"], worker["role"])
            self.assertIn(f"--name={name}", self.services[name]["command"])

    def mounted(self, service, path):
        """The file or folder of the source tree that a container sees as `path`."""
        for volume in self.services[service]["volumes"]:
            source, inside, *options = volume.split(":")
            if path.is_relative_to(inside) and source.startswith("."):
                self.assertEqual(options, ["ro"], volume)
                return (FOLDER / source / path.relative_to(inside)).resolve()
        return self.fail(f"{service}: nothing is mounted at {path}")

    def test_prometheus_reads_the_rules_of_the_repository(self):
        (path,) = [a.partition("=")[2] for a in self.services["prometheus"]["command"] if a.startswith("--config.file=")]
        config = self.mounted("prometheus", pathlib.Path(path))
        self.assertEqual(config, FOLDER / "prometheus.yaml")
        (pattern,) = yaml.safe_load(config.read_text())["rule_files"]  # beside the configuration
        rules = self.mounted("prometheus", pathlib.Path(path).parent / pattern)
        self.assertEqual(rules, ROOT / "deploy/prometheus/rules/*.yaml")

    def test_grafana_finds_the_dashboards_and_this_prometheus(self):
        grafana = ROOT / "deploy/grafana"
        # Grafana's own folder for it.
        self.assertEqual(self.mounted("grafana", pathlib.Path("/etc/grafana/provisioning")), grafana / "provisioning")
        (provider,) = yaml.safe_load((grafana / "provisioning/dashboards/runahead.yaml").read_text())["providers"]
        self.assertEqual(self.mounted("grafana", pathlib.Path(provider["options"]["path"])), grafana / "dashboards")
        (source,) = yaml.safe_load((grafana / "provisioning/datasources/prometheus.yaml").read_text())["datasources"]
        (port,) = [p.split(":")[-1] for p in self.services["prometheus"]["ports"]]
        self.assertEqual(source["url"], f"http://prometheus:{port}")
        self.assertEqual(port, "9090")  # where Prometheus listens unless told otherwise

    def test_a_third_prefill_worker_waits_to_be_asked_for(self):
        self.assertEqual({name: service["profiles"] for name, service in self.services.items() if "profiles" in service},
                         {"prefill-2": ["wider"], "smg": ["smg"]})

    def test_a_gateway_of_others_calls_the_router_once_for_a_request(self):
        smg = self.services["smg"]
        self.assertIn(f"--worker-urls=grpc://router:{GRPC_PORT}", smg["command"])
        self.assertIn("--disable-retries", smg["command"])
        self.assertIn("--queue-size=0", smg["command"])
        (published,) = map(with_defaults, smg["ports"])
        port = published.rpartition(":")[2]
        self.assertIn(f"--port={port}", smg["command"])
        self.assertIn(f"http://127.0.0.1:{port}/", smg["healthcheck"]["test"][-1])
        self.assertNotIn("secrets", smg)
        self.assertEqual(smg["depends_on"], {"router": {"condition": "service_healthy"}})

    def test_the_key_is_a_secret_of_the_clusters_members(self):
        self.assertEqual(self.stack["secrets"], {"cluster_key": {"file": "./cluster.key"}})
        for name in MEMBERS:
            self.assertEqual(self.services[name]["secrets"], ["cluster_key"])
            self.assertEqual(yaml.safe_load(self.config_file(name).read_text())["cluster_key"], "/run/secrets/cluster_key")
        for name in ("gateway", "model"):
            self.assertNotIn("secrets", self.services[name])

    def test_the_model_is_where_the_processes_read_it(self):
        _, _, member, _ = [line for line in (ROOT / "deploy/models").read_text().splitlines()
                           if line.startswith(self.services["model"]["command"][-1])][0].split()
        # `runahead pull` adds its own folder to XDG_CACHE_HOME.
        self.assertRegex((ROOT / "Dockerfile").read_text(), r"(?m)^ENV XDG_CACHE_HOME=/models$")
        self.assertEqual(self.services["model"]["volumes"], ["models:/models"])
        for name in MEMBERS:
            self.assertIn("models:/models:ro", self.services[name]["volumes"])
            (model,) = [a.partition("=")[2] for a in self.services[name]["command"] if a.startswith("--model=")]
            self.assertEqual(with_defaults(model), f"/models/runahead/{pathlib.Path(member).name}")

    def test_they_start_in_order_and_when_the_others_are_healthy(self):
        self.assertEqual(self.services["router"]["depends_on"],
                         {name: {"condition": "service_healthy"} for name in WORKERS if name != "prefill-2"})
        for name in ("gateway", "prometheus"):
            self.assertEqual(self.services[name]["depends_on"], {"router": {"condition": "service_healthy"}})
        for name in WORKERS:
            self.assertEqual(self.services[name]["depends_on"], {"model": {"condition": "service_completed_successfully"}})

    def test_who_is_stopped_has_time_to_drain(self):
        for name in OURS:
            drain = yaml.safe_load(self.config_file(name).read_text())["drain_timeout"]
            self.assertGreater(seconds(self.services[name]["stop_grace_period"]), seconds(drain))
            self.assertEqual(self.services[name]["stop_signal"], "SIGTERM")
        smg = self.services["smg"]
        (grace,) = [a.partition("=")[2] for a in smg["command"] if a.startswith("--shutdown-grace-period-secs=")]
        self.assertGreater(seconds(smg["stop_grace_period"]), int(grace))

    def test_they_run_without_root_and_write_nowhere(self):
        for name in (*OURS, "model", "smg"):
            self.assertEqual(with_defaults(self.services[name]["user"]), "10001:10001")
            self.assertTrue(self.services[name]["read_only"])
        # Python's pip unpacks there, and SMG the tokenizer.
        self.assertEqual({name: service["tmpfs"] for name, service in self.services.items() if "tmpfs" in service},
                         {"model": ["/tmp"], "smg": ["/tmp"]})

    def test_nobody_gains_privileges(self):
        for name, service in self.services.items():
            self.assertEqual(service["cap_drop"], ["ALL"], name)
            self.assertEqual(service["security_opt"], ["no-new-privileges:true"], name)

    def test_what_is_mounted_and_built_is_there(self):
        targets = re.findall(r"(?m)^FROM \S+ AS (\S+)$", (ROOT / "Dockerfile").read_text())
        for name, service in self.services.items():
            for volume in service.get("volumes", []):
                source = volume.split(":")[0]
                if source.startswith("."):
                    self.assertTrue((FOLDER / source).exists(), f"{name}: {source}")
                else:
                    self.assertIn(source, self.stack["volumes"])
            if "build" in service:
                self.assertEqual(service["build"]["context"], "../..")
                self.assertIn(service["build"]["target"], targets)
                self.assertEqual(service["image"], f"runahead:{service['build']['target']}")

    def test_with_gpus_each_worker_has_its_own(self):
        gpu = load("compose.gpu.yaml")["services"]
        self.assertEqual(sorted(gpu), sorted(WORKERS))
        devices = [with_defaults(device) for service in gpu.values()
                   for request in service["deploy"]["resources"]["reservations"]["devices"] for device in request["device_ids"]]
        self.assertEqual(sorted(devices), ["0", "1", "2", "3"])
        for name, service in gpu.items():
            (request,) = service["deploy"]["resources"]["reservations"]["devices"]
            self.assertEqual((request["driver"], request["capabilities"]), ("nvidia", ["gpu"]), name)
            self.assertEqual(service["image"], "runahead:cuda")
            self.assertEqual(service["ulimits"], {"memlock": {"soft": -1, "hard": -1}})
            # For NCCL between prefill workers; /dev/shm of the host has the host's size.
            self.assertEqual((service.get("ipc"), service.get("shm_size")),
                             ("host" if name.startswith("prefill") else None, None), name)

    def test_tools_take_the_files(self):
        """docker-compose 1.29, and the schema of the Compose Specification, by which newer ones read."""
        with tempfile.TemporaryDirectory() as folder:
            for file in FOLDER.iterdir():
                if file.suffix == ".yaml":
                    shutil.copy(file, folder)
            pathlib.Path(folder, "cluster.key").touch()
            for command in (["docker-compose", "-f", "compose.yaml", "config", "--quiet"],
                            ["docker-compose", "-f", "compose.yaml", "-f", "compose.gpu.yaml", "config", "--quiet"],
                            ["check-jsonschema", "--builtin-schema", "vendor.compose-spec", "compose.yaml", "compose.gpu.yaml"]):
                if shutil.which(command[0]):
                    with self.subTest(command[0]):
                        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
                        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)


class UpTest(unittest.TestCase):
    """deploy/compose/up beside a docker-compose that only notes how it was called."""

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        shutil.copy(FOLDER / "up", self.folder)
        for name, body in (("docker", "exit 1"), ("docker-compose", 'echo "$@" >called')):
            (self.folder / name).write_text(f"#!/bin/bash\n{body}\n")
            (self.folder / name).chmod(0o755)

    def up(self, *arguments):
        environment = {**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}"}
        subprocess.run([self.folder / "up", *arguments], env=environment, check=True)
        settings = dict(line.split("=", 1) for line in (self.folder / ".env").read_text().splitlines())
        return (self.folder / "called").read_text().split(), settings

    def test_makes_a_key_that_the_containers_user_alone_may_read(self):
        called, settings = self.up("--no-build", "router")
        self.assertEqual(called, ["up", "-d", "--no-build", "router"])
        key = (self.folder / "cluster.key").stat()
        self.assertEqual(key.st_mode & 0o777, 0o600)
        self.assertEqual(key.st_size, 64)
        self.assertEqual(settings["RUNAHEAD_USER"], f"{key.st_uid}:{key.st_gid}")
        self.assertNotEqual(key.st_uid, 0)
        self.assertGreaterEqual(int(settings["RUNAHEAD_THREADS"]), 1)
        self.assertEqual(settings["COMPOSE_FILE"], "compose.yaml")

    def test_keeps_what_is_there_but_for_the_files(self):
        self.up()
        key = (self.folder / "cluster.key").read_text()
        with open(self.folder / ".env", "a") as file:
            file.write("RUNAHEAD_PUBLISH=0.0.0.0:7000\n")
        called, settings = self.up("--gpu")
        self.assertEqual(called, ["up", "-d"])
        self.assertEqual((self.folder / "cluster.key").read_text(), key)
        self.assertEqual(settings["RUNAHEAD_PUBLISH"], "0.0.0.0:7000")
        self.assertEqual(settings["COMPOSE_FILE"], "compose.yaml:compose.gpu.yaml")

    def test_every_variable_of_the_files_has_a_default_or_is_written(self):
        _, settings = self.up()
        for file in ("compose.yaml", "compose.gpu.yaml"):
            for variable in re.findall(r"\$\{(\w+)\}", (FOLDER / file).read_text()):
                self.assertIn(variable, settings)


if __name__ == "__main__":
    for program, what in (("docker-compose", "docker-compose's own check"),
                          ("check-jsonschema", "the Compose Specification's schema (Python package check-jsonschema)")):
        if not shutil.which(program):
            print(f"did not run here: the compose files against {what}")
    sys.exit(unittest.main(verbosity=2))
