#!/usr/bin/env python3
"""Runs a bundle of tests/gpu/bundle.sh on this machine's GPU, within a given time: the parity tests, golden tokens
where the quick-start model is, chains of processes over NCCL, memcheck on the parity tests, and the benchmarks with
PyTorch's side beside them. Prints a table and writes all of it as JSON; one piece that fails does not keep the others
from running.

Exit codes: 0 all tests passed; 1 one did not (failed, timed out, skipped itself or had no time left); 77 there is no
GPU; 2 nothing could be run. Figures do not count.

environment: RUNAHEAD_GPU_BUDGET_S (540): seconds in all. RUNAHEAD_TEST_MODEL: the quick-start model's file; without it
  parts that came here before (tests/gpu/bundle.sh --model-part) are joined, or the golden tests do not run.
  OUT: the folder of the results.
"""
import argparse
import datetime
import glob
import hashlib
import json
import lzma
import os
import re
import shlex
import shutil
import sys
import tempfile
import time

import machine
from steps import PHASES, bench_steps, memcheck_steps, run_step, test_steps

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODEL_FOLDER = os.path.join(tempfile.gettempdir(), "runahead-gpu-model")
LEAST_S = 3      # a step is not begun with less
WRITE_S = 5      # kept for the end
SHOWN_LINES = 25  # of what failed
STATE = "clocks.sm,clocks.mem,temperature.gpu,power.draw,compute_mode"
# Figures that the table shows; all are in the results.
HEADLINES = re.compile(r"\w+: (all four|causal|dense rectangle|share of [\w ,]+|step, \d+ layers|gain of graphs"
                       r"|TTFT, prediction, 300.*|cost model.*|device to host.*|copy .*|prefill beside copies)"
                       r"|prefill: \d+ layers, .*")


def parse_args(argv):
    parser = argparse.ArgumentParser(prog="tests/gpu/run.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", default=os.path.join(ROOT, ".gpu-bundle"), help="folder of the bundle")
    parser.add_argument("--out", help="file of the results; default: gpu-results.json in $OUT, or here")
    parser.add_argument("--only", default="", metavar="REGEX",
                        help="steps whose 'phase/name' it matches (--dry-run lists them)")
    parser.add_argument("--seconds", type=float, default=0.2, help="of measuring for each figure of the benchmarks")
    parser.add_argument("--dry-run", action="store_true", help="list the steps with their longest times")
    args = parser.parse_args(argv)
    args.bundle = os.path.abspath(args.bundle)
    args.out = args.out or os.path.join(os.environ.get("OUT", "."), "gpu-results.json")
    return args


def keep_model_parts(bundle):
    """Moves parts of the model out of the bundle's folder, which the next bundle replaces. How many there were."""
    parts = glob.glob(os.path.join(bundle, "model.part*of*"))
    os.makedirs(MODEL_FOLDER, exist_ok=True)
    for part in parts:
        shutil.copyfile(part, os.path.join(MODEL_FOLDER, os.path.basename(part)))
        print(f"kept {os.path.basename(part)} of the quick-start model in {MODEL_FOLDER}")
    return len(parts)


def unpack(bundle):
    """Once: a packed file makes room for what it holds."""
    for packed in glob.glob(os.path.join(bundle, "*", "*.xz")):
        whole = packed[:-len(".xz")]
        with lzma.open(packed, "rb") as source, open(whole, "wb") as target:
            shutil.copyfileobj(source, target)
        shutil.copymode(packed, whole)
        os.remove(packed)


def quick_start_model():
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
    with open(os.path.join(ROOT, "deploy/models"), encoding="utf-8") as models, open(whole, "rb") as model:
        if hashlib.sha256(model.read()).hexdigest() not in models.read():
            print(f"{whole} is not the quick-start model (SHA-256): its parts are removed, bring them again")
            shutil.rmtree(MODEL_FOLDER)
            return ""
    return whole


def plan(args, manifest, model):
    tests = test_steps(args.bundle, manifest, model)
    sanitizer = machine.find_tool("compute-sanitizer", "bin/compute-sanitizer", "compute-sanitizer/compute-sanitizer")
    steps = tests + memcheck_steps(tests, sanitizer) + bench_steps(args.bundle, manifest, ROOT, args.seconds)
    return [step for step in steps if re.search(args.only, f"{step.phase}/{step.name}")]


def phase_ends(steps, begin, budget_s):
    """When each phase must be over, so that the later ones have their share."""
    ends, end = {}, begin + budget_s - WRITE_S
    for phase in reversed(PHASES):
        ends[phase] = end
        if any(step.phase == phase for step in steps):
            end -= PHASES[phase] * budget_s
    ends["pytorch"] = ends["bench"]
    return ends


def own_environment(bundle, libraries):
    """For the bundle's binaries: the libraries that they came with, and the machine's own of CUDA and NCCL."""
    folders = [os.path.join(bundle, "lib")] + [os.path.dirname(path) for path in libraries.values()]
    folders += os.environ.get("LD_LIBRARY_PATH", "").split(":")
    environment = dict(os.environ, LD_LIBRARY_PATH=":".join(dict.fromkeys(filter(None, folders))))
    environment.pop("RUNAHEAD_TEST_MODEL", None)  # said where it is wanted
    return environment


def run_all(steps, ends, environment, log, keep):
    """`keep` is called after each step: what stops all of this in the middle loses one."""
    for step in steps:
        left = ends[step.phase] - time.monotonic()
        if step.missing:
            step.note = step.missing
        elif left < LEAST_S:
            step.note = "time"
        else:
            # PyTorch brings libraries of its own.
            mine = dict(os.environ) if step.phase == "pytorch" else environment
            run_step(step, min(step.timeout_s, left), ROOT, mine)
        log.write(f"\n==== {row_of(step)}\n{shlex.join(step.command)}\n{step.output}")
        log.flush()
        print(row_of(step), flush=True)
        if step.result not in ("passed", "not run"):
            print("\n".join("    " + line for line in step.output.splitlines()[-SHOWN_LINES:]), flush=True)
        keep()


def row_of(step):
    named = f"{step.phase:<9} {step.name:<46} {step.result}"
    return f"{named} ({step.note})" if step.result == "not run" else f"{named:<65} {step.seconds:6.1f} s  {step.note}"


def comparison(steps):
    """Our figures beside PyTorch's of the same thing, in the order in which they came: what was measured twice, or by
    several backends, is listed."""
    table = {}
    for step in steps:
        for figure in step.figures:
            if figure.get("suite") == "device":
                continue
            key = tuple(str(figure.get(name, "")) for name in ("suite", "model", "shape", "what", "unit"))
            entry = table.setdefault(key, {"runahead": [], "pytorch": []})
            entry.setdefault(figure.get("side", "runahead"), []).append(figure)
    return table


def value_text(figures):
    known = [figure for figure in figures if figure.get("value") is not None]
    if not known:
        return "-" if not figures else "none"
    # PyTorch's backends by their first word: FLASH_ATTENTION, CUDNN_ATTENTION.
    texts = [f"{figure['value']:.4g} {figure.get('backend', '').split('_')[0].lower()}" for figure in known]
    return ", ".join(text.strip() for text in texts)


def print_comparison(table):
    row = "{:<10}{:<12}{:<26}{:<33}{:<9}{:<16}{}"
    print("\n" + row.format("suite", "model", "shape", "what", "unit", "runahead", "pytorch"))
    for (suite, model, shape, what, unit), sides in table.items():
        if HEADLINES.fullmatch(f"{suite}: {what}"):
            values = [value_text(sides[side]) for side in ("runahead", "pytorch")]
            print(row.format(suite, model, shape, what, unit, *values).rstrip(" -"))


def results_of(args, manifest, gpu, libraries, steps, seconds):
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": "tests/gpu/run.sh " + shlex.join(sys.argv[1:]), "commit": manifest["commit"],
        "changed": manifest["changed"], "compiler": manifest["compiler"], "device": gpu, "libraries": libraries,
        "seconds": round(seconds, 1), "passed": not any(step.failed for step in steps),
        "steps": [{"phase": step.phase, "name": step.name, "command": shlex.join(step.command), "result": step.result,
                   "seconds": round(step.seconds, 2), "note": step.note, "figures": step.figures} for step in steps],
    }


def load_manifest(args):
    """None, with a message, where there is nothing to run."""
    try:
        with open(os.path.join(args.bundle, "manifest.json"), encoding="utf-8") as file:
            return json.load(file)
    except OSError:
        print(f"tests/gpu/run.sh: there is no bundle in {args.bundle}: tests/gpu/bundle.sh makes one, where the CUDA "
              "toolkit and all packages are", file=sys.stderr)
        return None


def dry_run(args, steps, budget_s):
    ends = phase_ends(steps, 0, budget_s)
    for step in steps:
        print(f"{step.phase + '/' + step.name:<54} {min(step.timeout_s, ends[step.phase]):4.0f} s  "
              f"{step.missing or shlex.join(step.command)}")
    print(f"{len(steps)} steps; the phases end after " +
          ", ".join(f"{phase} {ends[phase]:.0f} s" for phase in PHASES) + f" of {budget_s:.0f} s at the latest")
    return 0


def main(argv):
    begin = time.monotonic()
    args = parse_args(argv)
    budget_s = float(os.environ.get("RUNAHEAD_GPU_BUDGET_S", "540"))
    if keep_model_parts(args.bundle) and not os.path.exists(os.path.join(args.bundle, "manifest.json")):
        return 0
    why = machine.missing_gpu()
    if why and not args.dry_run:
        print(f"skipped: no CUDA device: {why}")
        return 77
    manifest = load_manifest(args)
    if manifest is None:
        return 2
    unpack(args.bundle)
    steps = plan(args, manifest, quick_start_model())
    if args.dry_run:
        return dry_run(args, steps, budget_s)

    gpu = {**machine.first_gpu(), "shm_mib": machine.shm_mib(), "before": machine.smi(STATE)}
    libraries = machine.find_libraries(manifest["needs"])
    print(f"{gpu['name']}, compute {gpu['compute']}, {gpu['memory_mib']} MiB, driver {gpu['driver']} for CUDA "
          f"{gpu['driver_cuda']}; commit {manifest['commit'][:12]}{' with changes' if manifest['changed'] else ''}")
    print(f"/dev/shm, of which NCCL takes tens of MiB for a link: {gpu['shm_mib']} MiB free")
    for name, path in libraries.items():
        print(f"{name}: {path or 'NOT FOUND: install it, or name its folder in LD_LIBRARY_PATH'}")
    os.makedirs(os.path.dirname(os.path.abspath(args.out)), exist_ok=True)

    def keep():
        results = results_of(args, manifest, gpu, libraries, steps, time.monotonic() - begin)
        with open(args.out + ".new", "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
        os.replace(file.name, args.out)
        return results

    with open(os.path.splitext(args.out)[0] + ".log", "w", encoding="utf-8") as log:
        run_all(steps, phase_ends(steps, begin, budget_s), own_environment(args.bundle, libraries), log, keep)
    gpu["after"] = machine.smi(STATE)
    results = keep()
    print_summary(steps, results, args.out)
    return 0 if results["passed"] else 1


def print_summary(steps, results, out):
    table = comparison(steps)
    if table:
        print_comparison(table)
    print("\n" + "\n".join(row_of(step) for step in steps))
    bad = [f"{step.phase}/{step.name}" for step in steps if step.failed]
    left_out = sorted({step.note for step in steps if step.is_test and step.result == "not run" and not step.failed})
    print(f"\n{len(steps)} steps in {results['seconds']} s, {out}: "
          + ("NOT PASSED: " + ", ".join(bad) if bad else
             "all tests passed" + (" but those not run: " + ", ".join(left_out) if left_out else "")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
