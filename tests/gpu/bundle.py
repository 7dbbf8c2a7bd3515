"""The folder of a bundle: what belongs to it, whether it is whole, and whether it fits this checkout and machine."""
import glob
import hashlib
import json
import lzma
import os
import shutil
import sys
import tarfile
import tempfile

import machine

MODEL_FOLDER = os.path.join(tempfile.gettempdir(), "runahead-gpu-model")
ARCHIVE = "files.tar.xz"  # of all files but the manifest
KEYS = ("glibc", "commit", "changed", "sources", "files", "compiler", "needs", "tests", "benchmarks")
MOST_NAMES = 5  # of files, in a message


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def counts_as_source(path):
    """Whether a file of the checkout decides what a run does: pages do not."""
    return not path.startswith("docs/") and not path.endswith(".md")


def load_manifest(folder):
    """The manifest, or None; and why there is none."""
    try:
        with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as file:
            manifest = json.load(file)
    except OSError:
        return None, (f"there is no bundle in {folder}: tests/gpu/bundle.sh makes one, where the CUDA toolkit and all "
                      "packages are")
    except ValueError as error:
        return None, f"{folder}/manifest.json is damaged ({error}): bring the bundle again"
    if any(key not in manifest for key in KEYS):
        return None, f"the bundle in {folder} was made by another version of tests/gpu/bundle.sh: make it anew"
    return manifest, ""


def numbers(version):
    return [int(part) for part in version.split(".")]


def glibc_too_old(manifest, here):
    """`here`: the version of this machine, "" for none."""
    return not here or numbers(here) < numbers(manifest["glibc"])


def some(paths):
    more = len(paths) - MOST_NAMES
    return ", ".join(paths[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def why_another_checkout(manifest, root):
    """Why a run here would not be of what the bundle was made from; "" where it would."""
    commit = manifest["commit"]
    anew = f"make the bundle anew, or run it in a checkout of {commit[:12]}"
    differ = [path for path, expected in manifest["sources"].items()
              if not os.path.isfile(os.path.join(root, path)) or digest(os.path.join(root, path)) != expected]
    if differ:
        with_changes = " with changes" if manifest["changed"] else ""
        return f"the bundle is of commit {commit[:12]}{with_changes}, and {some(differ)} differ here: {anew}"
    return ""


def unpack(folder):
    """Once: the archive is removed. Raises lzma.LZMAError, EOFError and tarfile.TarError where it is damaged."""
    packed = os.path.join(folder, ARCHIVE)
    if os.path.exists(packed):
        with tarfile.open(packed, "r:xz") as archive:
            archive.extractall(folder)
        os.remove(packed)


def why_damaged(manifest, folder):
    """Unpacks; "" where every file is as it was made."""
    again = "bring the bundle again"
    try:
        unpack(folder)
    except (lzma.LZMAError, EOFError, tarfile.TarError) as error:
        return f"{folder} is damaged ({error}): {again}"
    differ = [path for path, expected in manifest["files"].items()
              if not os.path.isfile(os.path.join(folder, path)) or digest(os.path.join(folder, path)) != expected]
    return f"{some(differ)} of {folder} are not as they were made: {again}" if differ else ""


def keep_model_parts(folder):
    """Moves parts of the model out of the bundle's folder, which the next bundle replaces. How many there were."""
    parts = glob.glob(os.path.join(folder, "model.part*of*"))
    os.makedirs(MODEL_FOLDER, exist_ok=True)
    for part in parts:
        shutil.copyfile(part, os.path.join(MODEL_FOLDER, os.path.basename(part)))
        print(f"kept {os.path.basename(part)} of the quick-start model in {MODEL_FOLDER}")
    return len(parts)


def quick_start_model(root):
    """Its path; "" where it is not here."""
    if os.environ.get("RUNAHEAD_TEST_MODEL"):
        return os.path.abspath(os.environ["RUNAHEAD_TEST_MODEL"])
    whole = os.path.join(MODEL_FOLDER, "model.gguf")
    parts = sorted(glob.glob(os.path.join(MODEL_FOLDER, "model.part*of*")))
    if not os.path.exists(whole) and parts and parts[-1].endswith(f"of{len(parts)}"):
        with open(whole, "wb") as out:
            for part in parts:
                with open(part, "rb") as piece:
                    shutil.copyfileobj(piece, out)
    if not os.path.exists(whole):
        return ""
    with open(os.path.join(root, "deploy/models"), encoding="utf-8") as models:
        if digest(whole) not in models.read():
            print(f"{whole} is not the quick-start model (SHA-256): its parts are removed, bring them again")
            shutil.rmtree(MODEL_FOLDER)
            return ""
    return whole


def refused(manifest, folder, root):
    """Says what the machine's C library must be before anything else. Whether there is nothing to run, said why."""
    here = machine.glibc()
    print(f"glibc: the bundle needs {manifest['glibc']} or newer, this machine has {here or 'none'}", flush=True)
    if glibc_too_old(manifest, here):
        why = f"glibc is too old: make the bundle on a system with glibc {here or 'of this machine'} or older"
    else:
        why = why_another_checkout(manifest, root) or why_damaged(manifest, folder)
    if why:
        print(f"tests/gpu/run.sh: {why}", file=sys.stderr)
    return bool(why)
