"""What the checks of the tree share: how they are called, and how they show that each of their rules can fail."""
import os
import sys
import tempfile


def main(arguments, usage, run, clean, broken):
    """Runs `run` on the tree that `arguments` name, or the self-test. `run` takes a folder and gives the violations;
    `clean` is a tree without any, {path: text}; `broken` lists (path, what is appended to it, what `run` must
    say of that path; or, of another, how that begins)."""
    if len(arguments) != 1:
        print(usage, file=sys.stderr)
        return 2
    problems = _self_test(run, clean, broken) if arguments[0] == "--self-test" else run(arguments[0])
    for problem in problems:
        print(problem)
    return 1 if problems else 0


def _self_test(run, clean, broken):
    failures = [f"the clean tree: {violation}" for violation in _run_on(run, clean)]
    for path, addition, expected in broken:
        violations = _run_on(run, {**clean, path: clean.get(path, "") + addition + "\n"})
        if not any(v.startswith(path + ":") and expected in v or v.startswith(expected) for v in violations):
            failures.append(f"{path} + {addition!r}: expected a complaint with {expected!r}, got {violations}")
    return failures


def _run_on(run, files):
    with tempfile.TemporaryDirectory() as root:
        for path, text in files.items():
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write(text)
        return run(root)
