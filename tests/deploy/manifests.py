"""What must hold between the objects that `kubectl kustomize` renders. Each check yields what is wrong, as text."""

import re

import yaml

DRAINED_LATER = 15  # seconds that a pod has to end in after it has drained


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

    def ports(self, name):
        return {p["name"]: p["containerPort"] for p in self.container(name)["ports"]}

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
        for check in (self.workloads, self.processes, self.services, self.membership, self.probes, self.disruption,
                      self.network, self.security):
            yield from check()

    def workloads(self):
        for name, workload in self.pods.items():
            if not matches(workload["spec"]["selector"], self.labels(name)):
                yield f"{name}: its selector is not that of its pods"
            volumes = {v["name"] for v in self.pod(name)["volumes"]}
            for container in self.pod(name).get("initContainers", []) + self.pod(name)["containers"]:
                for mount in container["volumeMounts"]:
                    if mount["name"] not in volumes:
                        yield f"{name}: there is no volume {mount['name']}"
        if self.pods["router"]["spec"]["strategy"]["type"] != "Recreate" or self.pods["router"]["spec"]["replicas"] != 1:
            yield "router: a worker refuses a second one, so it is one, and Recreate"

    def processes(self):
        """The configuration of each process against its container."""
        for name in self.pods:
            config, container, ports = self.config(name), self.container(name), self.ports(name)
            listens = {"listen": ports.get("worker", ports.get("grpc")), "metrics_listen": ports.get("metrics")}
            for key, port in listens.items():
                if config[key] != f"0.0.0.0:{port}":
                    yield f"{name}: {key} {config[key]} is not port {port} of its container"
            if config.get("link_port") != ports.get("link"):
                yield f"{name}: link_port {config.get('link_port')} is not port {ports.get('link')} of its container"
            key_mounts = [m["mountPath"] for m in container["volumeMounts"] if m["name"] == "key"]
            (key,) = [v["secret"] for v in self.pod(name)["volumes"] if v["name"] == "key"]
            if [config["cluster_key"]] != [f"{mount}/cluster.key" for mount in key_mounts]:
                yield f"{name}: cluster_key is not where the secret is mounted"
            if key["defaultMode"] & 0o007:
                yield f"{name}: everybody may read the cluster key"
            wait = seconds(config["drain_timeout"]) + DRAINED_LATER
            stop = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", 0])
            if self.pod(name)["terminationGracePeriodSeconds"] < wait + float(stop[1]):
                yield f"{name}: terminationGracePeriodSeconds is less than preStop, drain_timeout and {DRAINED_LATER} s"
            limit = size(container["resources"]["limits"]["memory"])
            if sum(size(config.get(k, 0)) for k in ("kv_memory", "prefill_memory")) > limit * 3 / 4:
                yield f"{name}: KV takes more than three quarters of its memory limit"

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
        for role in ("prefill", "decode"):
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
                elif "grpc" in probe and probe["grpc"]["port"] != self.ports(name).get("worker", self.ports(name).get("grpc")):
                    yield f"{name}: {kind} asks another port than that of its gRPC services"
                elif "httpGet" in probe and (probe["httpGet"]["port"], probe["httpGet"]["path"]) != ("metrics", "/healthz"):
                    yield f"{name}: {kind} asks something else than /healthz of metrics"
            if "grpc" not in container.get("readinessProbe", {}):
                yield f"{name}: readiness is told by gRPC health"

    def disruption(self):
        budgets = [self.selected(b["spec"]["selector"]) for b in self.of("PodDisruptionBudget").values()]
        if sorted(budgets) != [["decode"], ["prefill"]]:
            yield f"disruption budgets are for {budgets}"

    def network(self):
        """Who may come in where: exactly what the processes need, from each other."""
        allowed = set()
        for policy in self.of("NetworkPolicy").values():
            for target in self.selected(policy["spec"]["podSelector"]):
                for rule in policy["spec"].get("ingress", []):
                    sources = [s for peer in rule["from"] if "namespaceSelector" not in peer
                               for s in self.selected(peer["podSelector"])]
                    for port in [p["port"] for p in rule["ports"]]:
                        if isinstance(port, str) and port not in self.ports(target):
                            yield f"network policy {policy['metadata']['name']}: {target} has no port {port}"
                        allowed |= {(source, target, port) for source in sources}
        workers = ("prefill", "decode")
        needed = {("router", w, "worker") for w in workers} | {("prefill", w, p) for w in workers for p in ("link", "worker")}
        for source, target, port in sorted(needed - allowed):
            yield f"network policies keep {source} from port {port} of {target}"
        if not any(p["spec"]["podSelector"] == {} and "ingress" not in p["spec"] for p in self.of("NetworkPolicy").values()):
            yield "no network policy keeps all others out"

    def security(self):
        for name in self.pods:
            pod = self.pod(name)
            if not pod["securityContext"].get("runAsNonRoot") or pod.get("automountServiceAccountToken", True):
                yield f"{name}: runs as root, or has a token"
            for container in pod["initContainers"] + pod["containers"]:
                context = container.get("securityContext", {})
                if (not context.get("readOnlyRootFilesystem") or context.get("allowPrivilegeEscalation", True) or
                        context.get("capabilities") != {"drop": ["ALL"]}):
                    yield f"{name}: {container['name']} may write to its root, or gain privileges"
