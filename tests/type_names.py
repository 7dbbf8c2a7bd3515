"""Which types of C++ sources are defined where, as far as text tells: for layering_test.py."""
import re

NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*|R"(\w*)\((?:.|\n)*?\)\1"|"(?:\\.|[^"\\\n])*"',
                   re.S | re.M)
TOKEN = re.compile(r"[{};]|[^{};]+")
NAMESPACE = re.compile(r"\bnamespace\s*([\w:]*)$")
TYPE = re.compile(r"(?:^|\s)(?:class|struct|union|enum(?:\s+(?:class|struct))?)\s+(?:(?:\w+\([^()]*\)|\[\[[^\]]*\]\])\s+)*(\w+)"
                  r"(?:\s+final)?(?:\s*:(?!:)[^()]*)?$")
ALIAS = re.compile(r"(?:^|\s)(?:using\s+(\w+)\s*=|typedef\s.*\b(\w+)$)", re.S)


def types_of(text):
    """(namespace, name) of each type that `text` defines in a namespace; a hidden namespace ends in '::'."""
    scopes, found, head = [], [], ""
    for token in TOKEN.findall(NOISE.sub(" ", text)):
        if token == "{":
            namespace, defined = NAMESPACE.search(head.strip()), TYPE.search(head.strip())
            if namespace:
                scopes.append(namespace.group(1))
            else:
                if defined and None not in scopes and "template <>" not in head:
                    found.append(("::".join(scopes), defined.group(1)))
                scopes.append(None)
        elif token == "}":
            scopes = scopes[:-1]
        elif token == ";":
            alias = ALIAS.search(head.rstrip())
            if alias and None not in scopes:
                found.append(("::".join(scopes), alias.group(1) or alias.group(2)))
        head = "" if token in "{};" else token
    return found


def shared_names(texts):
    """(path, name, other path) of types that two files of `texts` (path: text) define in one namespace.

    A type that one file hides may share its name with what another hides, but not with what a header shows to all.
    """
    homes = {}
    for path in sorted(texts):
        for namespace, name in types_of(texts[path]):
            hidden = namespace.endswith("::")
            homes.setdefault((namespace.removesuffix("::"), name), {}).setdefault(path, hidden)
    for (_, name), files in sorted(homes.items()):
        shown = [path for path, hidden in files.items() if not hidden]
        for path in files:
            if shown and path != shown[0]:
                yield path, name, shown[0]
