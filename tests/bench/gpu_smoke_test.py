#!/usr/bin/env python3
"""Runs every suite of the GPU benchmark on tiny sizes and checks what it prints: usage: gpu_smoke_test.py BINARY"""
import json
import subprocess
import sys

SUITES = {"gemm", "attention", "prefill", "decode", "parts", "handoff", "kvpr"}
KEYS = {"suite", "model", "shape", "what", "value", "unit", "dtype"}


def main():
    command = [sys.argv[1], "--tiny", "--dtype", "f32", "--seconds", "0.005", "--json", "all"]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    assert lines[0]["suite"] == "device", lines[0]
    seen = set()
    for line in lines[1:]:
        assert KEYS <= line.keys(), line
        assert line["value"] is not None and line["value"] >= 0, line
        if "runs" in line:
            assert line["runs"] >= 5 and line["median"] > 0 and line["spread"] >= 0, line
        if "cards=" in line["shape"]:
            assert "prediction" in line["what"] and line["parts"], line
            assert len(line["parts"]) == int(line["shape"].split("cards=")[1]), line
        seen.add(line["suite"])
    assert seen == SUITES, seen
    print(f"{len(lines)} lines")


if __name__ == "__main__":
    main()
