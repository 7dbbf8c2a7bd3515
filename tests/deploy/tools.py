"""What tests of deploy/ look for on this machine before they run."""

import shutil
import sys

SKIPPED = 77  # as ctest is told


def need(what, *programs, modules=()):
    """Ends this test as not run where something is missing of what Debian's packages bring."""
    missing = [program for program in programs if shutil.which(program) is None]
    for module in modules:
        try:
            __import__(module)
        except ImportError:
            missing.append(f"Python's {module}")
    if missing:
        print(f"did not run here: {what}: no {', '.join(missing)} (deploy/setup tests installs it)")
        sys.exit(SKIPPED)
