#!/usr/bin/env python3
"""Writes the manifest of a bundle whose files tests/gpu/bundle.sh has laid out, and packs them.

usage: make_manifest.py CTEST_JSON BUNDLE [LIBRARY...]: what ctest --show-only=json-v1 printed of the tests in it; the
libraries that the machine must have itself.
"""
import glob
import json
import lzma
import os
import re
import subprocess
import sys
import tarfile

import bundle

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def said(*command, cwd=ROOT):
    return subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                          check=True).stdout.strip()


def glibc_of(paths):
    """The newest version of glibc that one of the binaries asks for."""
    versions = ["2.0"]
    for path in paths:
        with open(path, "rb") as file:
            if file.read(4) != b"\x7fELF":
                continue
        versions += re.findall(r"Name: GLIBC_([0-9.]+) ", said("readelf", "--version-info", "--wide", path))
    return max(versions, key=bundle.numbers)


def sources_of(root):
    paths = said("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=root).split("\0")
    return {path: bundle.digest(os.path.join(root, path)) for path in sorted(filter(None, paths))
            if bundle.counts_as_source(path) and os.path.isfile(os.path.join(root, path))
            and not os.path.islink(os.path.join(root, path))}


def files_of(folder):
    paths = sorted(path for path in glob.glob(os.path.join(folder, "*", "*")) if os.path.isfile(path))
    return {os.path.relpath(path, folder): bundle.digest(path) for path in paths}


def entry(test, build):
    """One of ctest's, with its command as a path in the bundle."""
    properties = {one["name"]: one["value"] for one in test["properties"]}
    environment = (one.split("=", 1) for one in properties.get("ENVIRONMENT", []))
    return {"name": test["name"], "command": [os.path.relpath(test["command"][0], build), *test["command"][1:]],
            "timeout_s": properties["TIMEOUT"], "labels": properties["LABELS"],
            "environment": {name: value for name, value in environment if name != "TEST_TMPDIR"}}  # a folder of this build's


def compiler_of(build):
    [about] = glob.glob(os.path.join(build, "CMakeFiles/*/CMakeCUDACompiler.cmake"))
    with open(about, encoding="utf-8") as file:
        return "nvcc " + re.search(r'CMAKE_CUDA_COMPILER_VERSION "(.*)"', file.read()).group(1)


def make(root, folder, tests, compiler, needs):
    """`tests`: as `entry` makes them. Nothing is packed yet."""
    files = files_of(folder)
    return {
        "glibc": glibc_of(os.path.join(folder, path) for path in files),
        "commit": said("git", "rev-parse", "HEAD", cwd=root),
        "changed": said("git", "status", "--porcelain", cwd=root) != "",
        "compiler": compiler,
        "needs": sorted(set(needs)),
        "tests": tests,
        "benchmarks": ["bench/gpu"],
        "files": files,
        "sources": sources_of(root),
    }


def write(manifest, folder):
    with open(os.path.join(folder, "manifest.json"), "w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1)


def pack(folder, paths):
    """Makes one archive of the files; run.sh unpacks it. The binaries hold much of the same code, and the dictionary is
    as large as all of them: the second binary with it costs next to nothing. A higher preset takes twice as long for 3%
    less."""
    how = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 256 << 20}]
    with lzma.open(os.path.join(folder, bundle.ARCHIVE), "wb", filters=how) as packed, \
            tarfile.open(fileobj=packed, mode="w|") as archive:
        for path in paths:
            archive.add(os.path.join(folder, path), path)
    for path in paths:
        os.remove(os.path.join(folder, path))


def main(argv):
    tests, folder, needs = json.loads(argv[0])["tests"], argv[1], argv[2:]
    build = os.path.join(ROOT, "build")
    manifest = make(ROOT, folder, [entry(test, build) for test in tests], compiler_of(build), needs)
    write(manifest, folder)
    pack(folder, manifest["files"])
    with_changes = " with changes" if manifest["changed"] else ""
    print(f"{len(tests)} tests of commit {manifest['commit'][:12]}{with_changes}; the machine must have glibc "
          f"{manifest['glibc']} or newer, {', '.join(manifest['needs'])}")


if __name__ == "__main__":
    main(sys.argv[1:])
