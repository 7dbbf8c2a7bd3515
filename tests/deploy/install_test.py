"""What `cmake --install` lays down: programs that start, configurations that they accept, units that name them.

usage: install_test.py BUILD_FOLDER
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import config_check

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv.pop())
UNITS = {"runahead-gateway.service": "runahead-gateway", "runahead-router.service": "runahead-router",
         "runahead-worker@.service": "runahead-worker"}


def seconds(text):
    return float(re.fullmatch(r"(\d+)s", text).group(1))


class InstallTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.prefix = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory())) / "usr"
        subprocess.run(["cmake", "--install", BUILD, "--prefix", cls.prefix], stdout=subprocess.DEVNULL, check=True)

    def unit(self, name):
        return (self.prefix / "lib/systemd/system" / name).read_text()

    def test_the_usual_folders_and_nothing_else(self):
        files = {str(path.relative_to(self.prefix)) for path in self.prefix.rglob("*") if path.is_file()}
        self.assertEqual(files - {"lib/librunahead_cuda.so"}, {
            "bin/runahead", "bin/runahead-gateway", "bin/runahead-router", "bin/runahead-worker",
            "lib/systemd/system/runahead-gateway.service", "lib/systemd/system/runahead-router.service",
            "lib/systemd/system/runahead-worker@.service",
            "share/runahead/examples/decode.yaml", "share/runahead/examples/gateway.yaml",
            "share/runahead/examples/prefill.yaml", "share/runahead/examples/router.yaml"})

    def test_installed_programs_start(self):
        for name in ("runahead", "runahead-gateway", "runahead-router", "runahead-worker"):
            for flag in ("--version", "--help"):
                with self.subTest(name, flag=flag):
                    run = subprocess.run([self.prefix / "bin" / name, flag], capture_output=True, text=True, check=False)
                    self.assertEqual(run.returncode, 0, run.stderr)
                    self.assertIn(name, run.stdout)

    def test_the_programs_accept_the_example_configurations(self):
        for example, program in (("gateway", "runahead-gateway"), ("router", "runahead-router"),
                                 ("prefill", "runahead-worker"), ("decode", "runahead-worker")):
            with self.subTest(example):
                path = self.prefix / f"share/runahead/examples/{example}.yaml"
                self.assertIsNone(config_check.complaint(self.prefix / "bin" / program, [f"--config={path}"]))

    def example(self, name):
        return (self.prefix / f"share/runahead/examples/{name}.yaml").read_text()

    def test_the_examples_go_together_on_one_host(self):
        port = re.compile(r"(?m)^(?:listen: [\d.]+:|metrics_listen: 0.0.0.0:|link_port: )(\d+)$")
        ports = {name: port.findall(self.example(name)) for name in ("gateway", "router", "prefill", "decode")}
        self.assertEqual({name: len(taken) for name, taken in ports.items()},
                         {"gateway": 2, "router": 2, "prefill": 3, "decode": 3})
        taken = [port for of_one in ports.values() for port in of_one]
        self.assertEqual(len(taken), len(set(taken)), ports)
        workers = re.findall(r"(?m)^  - \{role: (\w+), address: [\d.]+:(\d+)\}$", self.example("router"))
        self.assertEqual(set(workers), {(role, ports[role][0]) for role in ("prefill", "decode")})
        self.assertIn(f"\nrouter: 127.0.0.1:{ports['router'][0]}\n", self.example("gateway"))
        scraped = re.findall(r"targets: \[\"(\w+)-[\w-]+:(\d+)\"", (ROOT / "deploy/prometheus/static.yaml").read_text())
        self.assertEqual(set(scraped), {(name, ports[name][1]) for name in ports})

    def test_the_steps_with_systemd_make_what_the_units_read(self):
        steps = re.search(r"(?s)With systemd:\n```\n(.*?)```", (ROOT / "docs/deploy.md").read_text()).group(1)
        (folder,) = re.findall(r"(?m)^cd /usr/local/(\S+)", steps)
        made = {f"/etc/runahead/{name}.yaml": source for source, name in
                re.findall(r"(?m)^cp (\S+) /etc/runahead/(\S+)\.yaml", steps)}
        started = re.findall(r"(?m)^systemctl enable --now (\S+)", steps)
        for unit in started:
            name, at, instance = unit.partition("@")
            (read,) = re.findall(r"--config=(\S+)", self.unit(f"{name}{at}.service"))
            self.assertTrue((self.prefix / folder / made.pop(read.replace("%i", instance))).exists(), unit)
        self.assertEqual(made, {})
        roles = {unit.partition("@")[2].partition("-")[0] or unit.removeprefix("runahead-") for unit in started}
        self.assertEqual(roles, {"gateway", "router", "prefill", "decode"})

    def test_a_key_that_no_program_knows_is_noticed(self):
        path = self.prefix.parent / "wrong.yaml"
        path.write_text("role: prefill\nlisten_on: 0.0.0.0:1\n")
        complaint = config_check.complaint(self.prefix / "bin/runahead-worker", [f"--config={path}"])
        self.assertIn("listen_on: unknown key", complaint)

    def test_units_run_the_installed_programs_with_flags_that_they_take(self):
        for name, program in UNITS.items():
            with self.subTest(name):
                path, *flags = re.search(r"^ExecStart=(.*)$", self.unit(name), re.MULTILINE).group(1).split()
                self.assertEqual(path, str(self.prefix / "bin" / program))
                help_text = subprocess.run([path, "--help"], capture_output=True, text=True, check=True).stdout
                for flag in flags:
                    self.assertIn(flag.partition("=")[0] + " ", help_text)

    def test_units_wait_for_what_drains(self):
        for name in UNITS:
            for example in (self.prefix / "share/runahead/examples").iterdir():
                drain = re.search(r"^drain_timeout: (\S+)$", example.read_text(), re.MULTILINE).group(1)
                stop = re.search(r"^TimeoutStopSec=(\S+)$", self.unit(name), re.MULTILINE).group(1)
                self.assertGreater(seconds(stop), seconds(drain), (name, example.name))

    @unittest.skipUnless(shutil.which("systemd-analyze"), "there is no systemd-analyze here")
    def test_systemd_finds_nothing_wrong_with_the_units(self):
        for name in UNITS:
            with self.subTest(name):
                # An instance of its own: of a template, as `runahead-worker@prefill-0`, systemd checks only those.
                unit = self.prefix.parent / name.replace("@", "@prefill-0")
                shutil.copy(self.prefix / "lib/systemd/system" / name, unit)
                run = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True,
                                     check=False)
                self.assertEqual((run.returncode, [line for line in run.stderr.splitlines() if unit.name in line]), (0, []))


if __name__ == "__main__":
    if not shutil.which("systemd-analyze"):
        print("did not run here: systemd's own check of the units: there is no systemd-analyze")
    sys.exit(unittest.main(verbosity=2))
