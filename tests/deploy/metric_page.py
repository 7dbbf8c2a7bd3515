"""docs/metrics.md, and what of it a PromQL expression names."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What Prometheus itself adds, and what rules make.
SCRAPED = {"job", "instance", "le"}
NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
SELECTOR = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)?\{([^{}]*)\}")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
GROUPING = re.compile(r"\b(by|without|on|ignoring|group_left|group_right)\s*\(([^()]*)\)")
KEYWORDS = {"and", "or", "unless", "bool", "offset", "inf", "nan", "by", "without", "on", "ignoring", "group_left",
            "group_right"}


def _quoted(cell):
    return re.findall(r"`([^`]+)`", cell)


def families():
    """What the page promises, by section ("Router", "All processes"): {section: {name: (type, {label: values})}}; the
    values are empty where it does not list them."""
    shared, found, section = {}, {}, ""
    for line in (ROOT / "docs/metrics.md").read_text().split("\n"):
        section = line[3:] if line.startswith("## ") else section
        if not line.startswith("| `"):
            continue
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        (first, *others) = _quoted(cells[0])
        if not first.startswith(("runahead_", "process_")):
            shared.update({label: set(_quoted(cells[1])) for label in (first, *others)})
            continue
        labels = {}
        for part in cells[2].split("; "):
            said, _, values = part.partition(": ")
            labels.update({label: set(_quoted(values)) for label in _quoted(said)})
        # `stage` and `prompt_class` are listed once for all, unless the line lists others; of other labels the first table
        # says in words what they are.
        listed_once = {label for label in labels.keys() & {"stage", "prompt_class"} if not labels[label]}
        labels.update({label: shared[label] for label in listed_once})
        found.setdefault(section, {})[first] = (cells[1].split(" ")[0], labels)
    return found


def metrics():
    """Of each series that the page promises its labels and, where it lists them, their values: {name: {label: values}}.
    A histogram counts as its three series."""
    found = {}
    for section in families().values():
        for first, (kind, labels) in section.items():
            ends = [f"{first}_{end}" for end in ("bucket", "sum", "count")] if kind == "histogram" else [first]
            found.update({name: labels for name in ends})
    return found


def unknown(expression, known, recorded=()):
    """What `expression` names and the page does not: metrics, labels and their values. `recorded` are rules' names."""
    complaints = []
    for name, matchers in SELECTOR.findall(expression):
        for label, operator, value in MATCHER.findall(matchers):
            if label in SCRAPED or name in recorded or name == "up" or "$" in value:
                continue
            labels = known.get(name, {})
            if label not in labels:
                complaints.append(f"{name} has no label {label}")
            for one in value.split("|") if operator in ("=~", "!~") else [value]:
                if labels.get(label) and one not in labels[label]:
                    complaints.append(f"{name} has no {label}={one}")
    bare = re.sub(r'"[^"]*"', "", expression)
    bare = re.sub(r"\[[^\]]*\]", "", SELECTOR.sub(lambda found: found[1] or "", bare))
    all_labels = SCRAPED | {"model_name"} | {label for labels in known.values() for label in labels}
    for _, grouped in GROUPING.findall(bare):
        complaints += [f"no metric has the label {label}" for label in NAME.findall(grouped) if label not in all_labels]
    bare = GROUPING.sub(" ", bare)
    for found in NAME.finditer(bare):
        name, rest = found[0], bare[found.end():].lstrip()
        if rest.startswith("(") or name.lower() in KEYWORDS or bare[:found.start()][-1:].isdigit():  # 1e3, 5m
            continue
        if name not in known and name not in recorded and name != "up":
            complaints.append(f"docs/metrics.md has no {name}")
    return complaints
