#!/usr/bin/env python3
"""Runs a bundle of tests/gpu/bundle.sh on this machine's GPU, within a given time: the parity tests, golden tokens
where the quick-start model is, chains of processes over NCCL, memcheck on the parity tests, racecheck on the flash
kernels, and the benchmarks with PyTorch's side beside them. Prints a table and writes all of it as JSON; one piece that
fails does not keep the others from running. What came after an error of CUDA that stays is not run, and said so.

Exit codes (figures do not count in any):
  0   all tests passed
  1   a test failed: it did not pass, timed out, skipped itself, or lost the GPU
  2   nothing was run: there is no bundle or no step of that name, or the bundle is refused: it needs a newer glibc, is
      of other files than this checkout has (pages apart), or is damaged
  3   what was run passed, and something was not run, which is listed: for want of the model, of compute-sanitizer, of
      time
  77  there is no GPU
--dry-run: 0 where every binary starts and has the tests and suites that are named here, whether or not it could run
them; 1 where one does not; 2 as above.

environment: RUNAHEAD_GPU_BUDGET_S (540): seconds in all. RUNAHEAD_TEST_MODEL: the quick-start model's file; without it
  parts that came here before (tests/gpu/bundle.sh --model-part) are joined, or the golden tests do not run.
  OUT: the folder of the results.
"""
import argparse
import datetime
import json
import os
import re
import shlex
import sys
import time

import bundle
import machine
from steps import PHASES, bench_steps, run_step, sanitizer_steps, test_steps, tests_of, why_no_suite

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LEAST_S = 3      # a step is not begun with less
WRITE_S = 5      # kept for the end
SHOWN_LINES = 25  # of what failed
STATE = "clocks.sm,clocks.mem,temperature.gpu,power.draw,compute_mode"
# Figures that the table shows; all are in the results.
HEADLINES = re.compile(r"\w+: (all four|causal|dense rectangle|share of [\w ,]+|step, \d+ layers|gain of graphs"
                       r"|TTFT, prediction, 300.*|cost model.*|device to host.*|copy .*|prefill beside copies)"
                       r"|prefill: \d+ layers, .*|kvpr: .*")


def parse_args(argv):
    parser = argparse.ArgumentParser(prog="tests/gpu/run.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", default=os.path.join(ROOT, ".gpu-bundle"), help="folder of the bundle")
    parser.add_argument("--out", help="file of the results; default: gpu-results.json in $OUT, or here")
    parser.add_argument("--only", default="", metavar="REGEX",
                        help="steps whose 'phase/name' it matches (--dry-run lists them)")
    parser.add_argument("--seconds", type=float, default=0.2, help="of measuring for each figure of the benchmarks")
    parser.add_argument("--dry-run", action="store_true",
                        help="check the bundle, start its binaries, list the steps with their longest times")
    args = parser.parse_args(argv)
    args.bundle = os.path.abspath(args.bundle)
    args.out = args.out or os.path.join(os.environ.get("OUT", "."), "gpu-results.json")
    return args


def plan(args, manifest, model):
    tests = test_steps(args.bundle, manifest, model)
    sanitizer = machine.find_tool("compute-sanitizer", "bin/compute-sanitizer", "compute-sanitizer/compute-sanitizer")
    steps = tests + sanitizer_steps(tests, sanitizer) + bench_steps(args.bundle, manifest, ROOT, args.seconds)
    return [step for step in steps if re.search(args.only, step.full_name)]


def phase_ends(steps, begin, budget_s):
    """When each phase must be over, so that the later ones have their share."""
    ends, end = {}, begin + budget_s - WRITE_S
    for phase in reversed(PHASES):
        ends[phase] = end
        if any(step.phase == phase and not step.missing for step in steps):
            end -= PHASES[phase] * budget_s
    ends["pytorch"] = ends["bench"]
    return ends


def own_environment(folder, libraries):
    """For the bundle's binaries: the libraries that they came with, and the machine's own of CUDA and NCCL."""
    folders = [os.path.join(folder, "lib")] + [os.path.dirname(path) for path in libraries.values()]
    folders += os.environ.get("LD_LIBRARY_PATH", "").split(":")
    environment = dict(os.environ, LD_LIBRARY_PATH=":".join(dict.fromkeys(filter(None, folders))))
    environment.pop("RUNAHEAD_TEST_MODEL", None)  # said where it is wanted
    return environment


def run_all(steps, ends, environment, log, keep):
    """`keep` is called after each step: what stops all of this in the middle loses one."""
    lost = None
    for step in steps:
        left = ends[step.phase] - time.monotonic()
        if lost:
            step.note = f"the GPU is lost: {lost}"
        elif step.missing:
            step.note = step.missing
        elif left < LEAST_S:
            step.note = "time"
        else:
            # PyTorch brings libraries of its own.
            mine = dict(os.environ) if step.phase == "pytorch" else environment
            run_step(step, min(step.timeout_s, left), ROOT, mine)
            if step.result in ("failed", "timeout"):
                lost = machine.lost_gpu()
        log.write(f"\n==== {row_of(step)}\n{shlex.join(step.full_command)}\n{step.output}")
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
        "seconds": round(seconds, 1), "passed": all(step.result == "passed" for step in steps if step.is_test),
        "steps": [{"phase": step.phase, "name": step.name, "command": shlex.join(step.full_command),
                   "result": step.result, "seconds": round(step.seconds, 2), "note": step.note,
                   "tests_not_run": step.tests_not_run, "figures": step.figures} for step in steps],
    }


def dry_run(args, steps, environment, budget_s):
    ends, broken = phase_ends(steps, 0, budget_s), []
    counts = {}  # of the tests of a command, which several phases may run
    for step in steps:
        about = ""
        if step.is_test:
            key = tuple(step.command)
            if key not in counts:
                counts[key] = tests_of(step, ROOT, environment)
            count, why = counts[key]
            about = f"{count} tests  "
            if why:
                broken.append(f"{step.full_name}: {why}")
        elif step.phase == "bench" and not step.missing:
            why = why_no_suite(step, ROOT, environment)
            if why:
                broken.append(f"{step.full_name}: {why}")
        not_run = f"({step.missing})  " if step.missing else ""
        print(f"{step.full_name:<54} {min(step.timeout_s, ends[step.phase]):4.0f} s  {about}{not_run}"
              f"{shlex.join(step.full_command)}")
    print(f"{len(steps)} steps; the phases end after " +
          ", ".join(f"{phase} {ends[phase]:.0f} s" for phase in PHASES) + f" of {budget_s:.0f} s at the latest")
    print("\n".join(f"DOES NOT START {line}" for line in broken)
          or "all binaries start and have the tests and suites named here")
    return 1 if broken else 0


def main(argv):
    begin = time.monotonic()
    args = parse_args(argv)
    budget_s = float(os.environ.get("RUNAHEAD_GPU_BUDGET_S", "540"))
    manifest, why = bundle.load_manifest(args.bundle)
    if manifest is not None and bundle.refused(manifest, args.bundle, ROOT):
        return 2
    if bundle.keep_model_parts(args.bundle) and not os.path.exists(os.path.join(args.bundle, "manifest.json")):
        return 0
    no_gpu = None if args.dry_run else machine.missing_gpu()
    if no_gpu:
        print(f"skipped: no CUDA device: {no_gpu}")
        return 77
    steps = [] if manifest is None else plan(args, manifest, bundle.quick_start_model(ROOT))
    if not steps:
        print(f"tests/gpu/run.sh: {why or f'no step is called {args.only}: --dry-run lists them'}", file=sys.stderr)
        return 2
    libraries = machine.find_libraries(manifest["needs"])
    if args.dry_run:
        return dry_run(args, steps, own_environment(args.bundle, libraries), budget_s)
    return run(args, manifest, steps, libraries, begin, budget_s)


def run(args, manifest, steps, libraries, begin, budget_s):
    gpu = {**machine.first_gpu(), "shm_mib": machine.shm_mib(), "before": machine.smi(STATE)}
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
    print_summary(steps, keep(), args.out)
    return 1 if any(step.failed for step in steps) else 3 if any(step.left_out for step in steps) else 0


def print_summary(steps, results, out):
    table = comparison(steps)
    if table:
        print_comparison(table)
    print("\n" + "\n".join(row_of(step) for step in steps))
    print(f"\n{len(steps)} steps in {results['seconds']} s, {out}: "
          + ("all tests passed" if results["passed"] else "NOT ALL TESTS PASSED"))
    failed = [step.full_name for step in steps if step.failed]
    if failed:
        print("failed: " + ", ".join(failed))
    cut_short = [f"{step.tests_not_run} of {step.full_name}" for step in steps if step.tests_not_run]
    if cut_short:
        print("not run (after one that ended its process): " + ", ".join(cut_short))
    for note in dict.fromkeys(step.note for step in steps if step.result == "not run"):
        print(f"not run ({note}): " + ", ".join(step.full_name for step in steps
                                              if step.result == "not run" and step.note == note))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
