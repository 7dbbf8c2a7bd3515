"""docs/clients.md as its tests read it."""

import pathlib
import re
import shlex

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/clients.md"
ROUTER = "127.0.0.1:7000"  # what the page calls the router


def blocks(language=""):
    """The code blocks of that language; without one, what is typed into a shell."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [code for name, code in found if name == language]


def commands(*beginnings):
    """The commands of all shell blocks that begin so, a line each."""
    lines = "".join(blocks()).replace("\\\n", " ").split("\n")
    found = [line for line in lines if line.startswith(beginnings)]
    if not found:
        raise AssertionError(f"{PAGE} has no command that begins with {beginnings}")
    return found


def words(command):
    return shlex.split(command, comments=True)


def stand(folder):
    """Makes `folder` look like the repository, as far as the page's commands go: what they make stays out of that."""
    for name in ("examples", "proto"):
        pathlib.Path(folder, name).symlink_to(ROOT / name)
