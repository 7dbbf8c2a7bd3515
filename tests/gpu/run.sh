#!/bin/bash
# Runs a bundle of tests/gpu/bundle.sh on this machine's GPU: see --help.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if ! command -v python3 >/dev/null; then
  echo "tests/gpu/run.sh: python3 (3.9 or newer) is needed" >&2
  exit 2
fi
exec python3 "$here/run_bundle.py" "$@"
