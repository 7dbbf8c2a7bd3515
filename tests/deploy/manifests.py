"""What must hold between the objects that `kubectl kustomize` renders. Each check yields what is wrong, as text."""

import pathlib
import re

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
DRAINED_LATER = 15  # seconds that a pod has to end in after it has drained
WORKERS = ("prefill", "decode")
MEMBERS = ("router", *WORKERS)  # of the cluster: they have its key, and the model
# The services by which a process tells gRPC health whether it serves its part.
SERVES = {"router": "runahead.v1.Inference", "prefill": "runahead.v1.Worker", "decode": "runahead.v1.Decode"}
# And by which page a gateway does.
HEALTH = ("http", "/health")
# Where NCCL listens: Linux's default of net.ipv4.ip_local_port_range.
NCCL_PORTS = "32768-60999"


def seconds(duration):
    return sum(float(n) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[u]
               for n, u in re.findall(r"([\d.]+)(ms|s|m|h)", str(duration)))


def size(text):
    number, unit = re.fullmatch(r"(\d+)\s*([KMG]i)?B?", str(text)).groups()
    return int(number) * {None: 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}[unit]


def matches(selector, labels):
    """As Kubernetes does: all of matchLabels and matchExpressions; an empty selector takes all."""
    return (all(labels.get(k) == v for k, v in selector.get("matchLabels", {}).items()) and
            all(labels.get(e["key"]) in e["values"] for e in selector.get("matchExpressions", [])))


def place(container, path):
    """(volume, path within) of a path of a container, or None where no volume is mounted."""
    for mount in container["volumeMounts"]:
        if path.startswith(mount["mountPath"] + "/"):
            return mount["name"], path[len(mount["mountPath"]) + 1:]
    return None


def fetched(container):
    """The path of the file that an init container fetches by its arguments `runahead pull NAME`, or None."""
    models = {line.split()[0]: line.split()[2] for line in (ROOT / "deploy/models").read_text().splitlines()
              if line and not line.startswith("#")}
    (cache,) = re.findall(r"(?m)^ENV XDG_CACHE_HOME=(\S+)$", (ROOT / "Dockerfile").read_text())
    *command, name = container["args"]
    if command != ["runahead", "pull"] or name not in models:
        return None
    return f"{cache}/runahead/{pathlib.Path(models[name]).name}"


class Manifests:
    def __init__(self, text):
        self.objects = [o for o in yaml.safe_load_all(text) if o]
        self.pods = {o["metadata"]["name"]: o for o in self.objects if o["kind"] in ("Deployment", "StatefulSet")}

    def of(self, kind):
        return {o["metadata"]["name"]: o for o in self.objects if o["kind"] == kind}

    def labels(self, name):
        return self.pods[name]["spec"]["template"]["metadata"]["labels"]

    def pod(self, name):
        return self.pods[name]["spec"]["template"]["spec"]

    def container(self, name):
        (container,) = self.pod(name)["containers"]
        return container

    def containers(self, name):
        return self.pod(name).get("initContainers", []) + self.pod(name)["containers"]

    def ports(self, name):
        return {p["name"]: p["containerPort"] for p in self.container(name)["ports"]}

    def main_port(self, name):
        """Where others call its process."""
        ports = self.ports(name)
        return next((ports[known] for known in ("worker", "grpc", "http") if known in ports), None)

    def config(self, name):
        """The YAML that the pod's process reads, by its --config."""
        (path,) = [a.partition("=")[2] for a in self.container(name)["args"] if a.startswith("--config=")]
        volumes = {v["name"]: v for v in self.pod(name)["volumes"]}
        for mount in self.container(name)["volumeMounts"]:
            source = volumes[mount["name"]].get("configMap")
            if source and path.startswith(mount["mountPath"] + "/"):
                return yaml.safe_load(self.of("ConfigMap")[source["name"]]["data"][path[len(mount["mountPath"]) + 1:]])
        raise KeyError(f"{name}: {path} is in no mounted ConfigMap")

    def selected(self, selector):
        return [name for name in self.pods if matches(selector, self.labels(name))]

    def problems(self):
        for check in (self.workloads, self.processes, self.models, self.resources, self.devices, self.services,
                      self.membership, self.probes, self.stopping, self.placement, self.disruption, self.network,
                      self.security):
            yield from check()

    def workloads(self):
        (namespace,) = self.of("Namespace")
        for o in self.objects:
            if o["kind"] != "Namespace" and o["metadata"].get("namespace") != namespace:
                yield f"{o['kind']} {o['metadata']['name']}: it is not in the namespace {namespace}"
        for name, workload in self.pods.items():
            if not matches(workload["spec"]["selector"], self.labels(name)):
                yield f"{name}: its selector is not that of its pods"
            volumes = {v["name"] for v in self.pod(name)["volumes"]}
            for container in self.containers(name):
                for mount in container["volumeMounts"]:
                    if mount["name"] not in volumes:
                        yield f"{name}: there is no volume {mount['name']}"
        if self.pods["router"]["spec"]["strategy"]["type"] != "Recreate" or self.pods["router"]["spec"]["replicas"] != 1:
            yield "router: a worker refuses a second one, so it is one, and Recreate"
        gateway = self.pods["gateway"]["spec"]
        if gateway["replicas"] < 2 or gateway["strategy"].get("rollingUpdate", {}).get("maxUnavailable") != 0:
            yield "gateway: clients are left without one while one is replaced"
        for name in WORKERS:
            if self.pods[name]["spec"]["podManagementPolicy"] != "Parallel":
                yield f"{name}: a worker waits for the one before it to load its model"
            given = {e["name"]: e["valueFrom"]["fieldRef"]["fieldPath"] for e in self.container(name)["env"]}
            said = [re.sub(r"\$\((\w+)\)", lambda v: given.get(v[1], "nothing"), a) for a in self.container(name)["args"]]
            # Its name is its place on the line; others reach it by the address of the pod.
            if not {"--name=metadata.name", "--link-host=status.podIP"} <= set(said):
                yield f"{name}: it is not told the name or the address of its pod"

    def processes(self):
        """The configuration of each process against its container."""
        for name in self.pods:
            config, container, ports = self.config(name), self.container(name), self.ports(name)
            listens = {"listen": self.main_port(name), "metrics_listen": ports.get("metrics")}
            for key, port in listens.items():
                if config[key] != f"0.0.0.0:{port}":
                    yield f"{name}: {key} {config[key]} is not port {port} of its container"
            if config.get("link_port") != ports.get("link"):
                yield f"{name}: link_port {config.get('link_port')} is not port {ports.get('link')} of its container"
            limit = size(container["resources"]["limits"]["memory"])
            if sum(size(config.get(k, 0)) for k in ("kv_memory", "prefill_memory")) > limit * 3 / 4:
                yield f"{name}: KV takes more than three quarters of its memory limit"
            if name not in MEMBERS:
                continue
            key_mounts = [m["mountPath"] for m in container["volumeMounts"] if m["name"] == "key"]
            (key,) = [v["secret"] for v in self.pod(name)["volumes"] if v["name"] == "key"]
            if [config["cluster_key"]] != [f"{mount}/cluster.key" for mount in key_mounts]:
                yield f"{name}: cluster_key is not where the secret is mounted"
            if key["defaultMode"] & 0o007:
                yield f"{name}: everybody may read the cluster key"
        if self.config("gateway")["router"] != f"router:{self.main_port('router')}":
            yield f"gateway: its router is {self.config('gateway')['router']}"
        if any("key" in v.get("secret", {}).get("secretName", "") for v in self.pod("gateway")["volumes"]):
            yield "gateway: it has the cluster key, which it needs not"

    def models(self):
        """The file that a process opens is the one that is fetched before it starts."""
        for name in MEMBERS:
            opened = place(self.container(name), self.config(name)["model"])
            (init,) = self.pod(name)["initContainers"]
            path = fetched(init)
            if not path:
                yield f"{name}: {init['args']} fetches no model that deploy/models knows"
            elif not opened or place(init, path) != opened:
                yield f"{name}: {self.config(name)['model']} is fetched by nobody"

    def resources(self):
        for name in self.pods:
            for container in self.containers(name):
                requests, limits = container["resources"].get("requests", {}), container["resources"].get("limits", {})
                if not {"cpu", "memory"} <= set(requests) or size(requests["memory"]) > size(limits["memory"]):
                    yield f"{name}: {container['name']} asks for no CPU or memory, or for more than its limit"

    def devices(self):
        """What runs the CUDA image computes on a GPU and has one; in a chain it shares memory with its neighbours. Others
        do not."""
        for name in WORKERS:
            container, pod = self.container(name), self.pod(name)
            gpu = container["image"].endswith(":cuda")
            said = [a.partition("=")[2] for a in container["args"] if a.startswith("--device=")]
            if said != (["cuda"] if gpu else []):
                yield f"{name}: it computes on {said}, with the image {container['image']}"
            if container["resources"]["limits"].get("nvidia.com/gpu") != (1 if gpu else None):
                yield f"{name}: it computes on {said} and has another number of GPUs than one each"
            if gpu != any(t["key"] == "nvidia.com/gpu" for t in pod.get("tolerations", [])):
                yield f"{name}: it may not run where GPUs are, or need not"
            shared = [m["name"] for m in container["volumeMounts"] if m["mountPath"] == "/dev/shm"]
            volumes = [v["emptyDir"].get("medium") for v in pod["volumes"] if v["name"] in shared]
            if volumes != (["Memory"] if gpu and name == "prefill" else []):
                yield f"{name}: /dev/shm is of {volumes}"
            if not gpu and container["resources"]["requests"] != container["resources"]["limits"]:
                yield f"{name}: no cores of its own: it asks for something else than its limit"

    def services(self):
        for name, service in self.of("Service").items():
            pods = self.selected({"matchLabels": service["spec"]["selector"]})
            if pods != [name]:
                yield f"service {name}: selects {pods}"
                continue
            for port in service["spec"]["ports"]:
                if self.ports(name).get(port["targetPort"]) != port["port"]:
                    yield f"service {name}: {port['targetPort']} is not port {port['port']} of its pods"
        for name, workload in self.of("StatefulSet").items():
            service = self.of("Service").get(workload["spec"]["serviceName"])
            if not service or service["spec"].get("clusterIP") != "None":
                yield f"{name}: its service is none, or not headless"

    def membership(self):
        """The router finds each role by the SRV records that its headless service has for a port of gRPC."""
        named = {worker["role"]: worker["service"] for worker in self.config("router")["workers"]}
        for role in WORKERS:
            record = re.fullmatch(r"_(\w+)\._tcp\.(\w+)", named.get(role, ""))
            service = self.of("Service").get(record[2]) if record else None
            if not service or record[2] != role:
                yield f"router: does not know where {role} workers are: {named.get(role)}"
                continue
            ports = {port["name"]: port for port in service["spec"]["ports"]}
            if record[1] not in ports or not self.config(role)["listen"].endswith(f":{ports[record[1]]['port']}"):
                yield f"router: {named[role]} is not the port of {role} workers"
            if not service["spec"].get("publishNotReadyAddresses"):
                yield f"service {role}: a slow probe takes a worker off the line"

    def probes(self):
        for name in self.pods:
            container = self.container(name)
            for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                probe = container.get(kind)
                if not probe:
                    yield f"{name}: no {kind}"
                elif "grpc" in probe and probe["grpc"]["port"] != self.main_port(name):
                    yield f"{name}: {kind} asks another port than that of its gRPC services"
                elif (name, kind) == ("gateway", "readinessProbe"):
                    if (probe["httpGet"]["port"], probe["httpGet"]["path"]) != HEALTH:
                        yield f"{name}: readiness is told by {HEALTH[1]} of {HEALTH[0]}"
                elif "httpGet" in probe and (probe["httpGet"]["port"], probe["httpGet"]["path"]) != ("metrics", "/healthz"):
                    yield f"{name}: {kind} asks something else than /healthz of metrics"
                if kind == "livenessProbe" and "grpc" in (probe or {}):
                    yield f"{name}: a crowd at its gRPC port would have it restarted"
            if container.get("readinessProbe", {}).get("grpc", {}).get("service") != SERVES.get(name):
                yield f"{name}: readiness is told by gRPC health of {SERVES[name]}"

    def stopping(self):
        """Who is stopped drains, and is waited for. New calls must first go elsewhere, but for workers: the router hears
        of it from them."""
        for name in self.pods:
            hook = self.container(name).get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])
            if hook[0] != "sleep" or (float(hook[1]) > 0) != (name not in WORKERS):
                yield f"{name}: its preStop is {hook}"
            wait = float(hook[1]) + seconds(self.config(name)["drain_timeout"]) + DRAINED_LATER
            if self.pod(name)["terminationGracePeriodSeconds"] < wait:
                yield f"{name}: terminationGracePeriodSeconds is less than preStop, drain_timeout and {DRAINED_LATER} s"

    def placement(self):
        """KV flows between all workers, so they are drawn to each other: GPUs to one host, then to one zone. On CPUs all
        cores of a worker compute at once, so those of a role keep to hosts of their own."""
        everybody = {"matchLabels": {"app.kubernetes.io/name": "runahead"}}
        for name in WORKERS:
            pod, gpu = self.pod(name), self.container(name)["image"].endswith(":cuda")
            terms = sorted(pod.get("affinity", {}).get("podAffinity", {})
                           .get("preferredDuringSchedulingIgnoredDuringExecution", []), key=lambda term: -term["weight"])
            wanted = ["kubernetes.io/hostname"] * gpu + ["topology.kubernetes.io/zone"]
            if [(t["podAffinityTerm"]["topologyKey"], t["podAffinityTerm"]["labelSelector"]) for t in terms] != [
                    (key, everybody) for key in wanted]:
                yield f"{name}: it is not drawn to all others by {' and '.join(wanted)}"
            spread = [(c["topologyKey"], self.selected(c["labelSelector"])) for c in pod.get("topologySpreadConstraints", [])]
            if spread != ([] if gpu else [("kubernetes.io/hostname", [name])]):
                yield f"{name}: it is spread by {spread}"

    def disruption(self):
        spread = [(c["topologyKey"], self.selected(c["labelSelector"]))
                  for c in self.pod("gateway").get("topologySpreadConstraints", [])]
        if spread != [("kubernetes.io/hostname", ["gateway"])]:
            yield f"gateway: it is spread by {spread}, so one host may take all of them along"
        budgets = sorted((self.selected(b["spec"]["selector"]), b["spec"].get("maxUnavailable"))
                         for b in self.of("PodDisruptionBudget").values())
        if budgets != [(["decode"], 1), (["gateway"], 1), (["prefill"], 1)]:
            yield f"disruption budgets are {budgets}, not one at a time of each role"

    def sources(self, rule):
        """Who comes in by a rule of a policy: our pods by name, all others in words."""
        for peer in rule.get("from", [{"namespaceSelector": "all, and all outside"}]):
            if "namespaceSelector" in peer:
                yield f"{peer}"
            elif peer["podSelector"] == {}:
                yield "anybody here"
            else:
                yield from self.selected(peer["podSelector"])

    def network(self):
        """Who may come in where: what the processes need from each other, and nothing else."""
        allowed = set()
        for policy in self.of("NetworkPolicy").values():
            for target in self.selected(policy["spec"]["podSelector"]):
                for rule in policy["spec"].get("ingress", []):
                    for port in rule.get("ports", [{"port": "any"}]):
                        name = f"{port['port']}-{port['endPort']}" if "endPort" in port else port["port"]
                        allowed |= {(source, target, name) for source in self.sources(rule)}
        def namespaces(label, value):
            return str({"namespaceSelector": {"matchLabels": {label: value}}})
        needed = {("router", w, "worker") for w in WORKERS}
        needed |= {(source, w, "link") for source in WORKERS for w in WORKERS}
        needed |= {(source, target, port) for target, port in (("router", "grpc"), ("gateway", "http"))
                   for source in ("anybody here", namespaces("runahead-client", "true"))}
        needed |= {(namespaces("kubernetes.io/metadata.name", "monitoring"), name, "metrics") for name in self.pods}
        if self.container("prefill")["image"].endswith(":cuda"):
            needed.add(("prefill", "prefill", NCCL_PORTS))
        for source, target, port in sorted(needed - allowed):
            yield f"network policies keep {source} from port {port} of {target}"
        for source, target, port in sorted(allowed - needed):
            yield f"network policies let {source} to port {port} of {target}, which nobody needs"
        for target, port in sorted({(target, port) for _, target, port in needed if port != NCCL_PORTS}):
            if port not in self.ports(target):
                yield f"{target} has no port {port}, which network policies name"
        if not any(p["spec"]["podSelector"] == {} and "ingress" not in p["spec"] for p in self.of("NetworkPolicy").values()):
            yield "no network policy keeps all others out"

    def security(self):
        for name in self.pods:
            pod = self.pod(name)
            if not pod["securityContext"].get("runAsNonRoot") or pod.get("automountServiceAccountToken", True):
                yield f"{name}: runs as root, or has a token"
            for container in self.containers(name):
                context = container.get("securityContext", {})
                if (not context.get("readOnlyRootFilesystem") or context.get("allowPrivilegeEscalation", True) or
                        context.get("capabilities") != {"drop": ["ALL"]}):
                    yield f"{name}: {container['name']} may write to its root, or gain privileges"
