#!/bin/bash
# Makes a bundle and tries it as a machine with a GPU gets it: see --help.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if [[ $# -gt 0 ]]; then
  cat <<USAGE
usage: tests/gpu/check_bundle.sh

Makes a bundle (tests/gpu/bundle.sh), brings it with a copy of this checkout's files into an empty folder, and runs
tests/gpu/run.sh --dry-run there: every binary starts and has the tests that the steps name. Then it must refuse the
bundle beside another file, and with another byte in it. Needs the CUDA toolkit and no GPU.

Exit codes: 0 all of it held; 77 there is no CUDA toolkit here; anything else: it did not.
USAGE
  [[ $1 == -h || $1 == --help ]] && exit 0 || exit 2
fi

plugin=$(cmake --preset release -DRUNAHEAD_CUDA=AUTO | grep 'CUDA plugin')
if [[ $plugin == *'not built'* ]]; then
  echo "tests/gpu/check_bundle.sh: skipped: $plugin"
  exit 77
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
tests/gpu/bundle.sh --out "$folder/bundle"
mkdir "$folder/checkout"
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents --no-dereference -t "$folder/checkout"
cd "$folder/checkout"

tests/gpu/run.sh --bundle "$folder/bundle" --dry-run

# must_refuse WORDS: run.sh does, and says so.
must_refuse() {
  local said code=0
  said=$(tests/gpu/run.sh --bundle "$folder/bundle" --dry-run 2>&1) || code=$?
  if [[ $code -ne 2 || $said != *"$1"* ]]; then
    printf 'tests/gpu/check_bundle.sh: run.sh was to say "%s" and to end with 2, not %d:\n%s\n' "$1" "$code" "$said" >&2
    exit 1
  fi
}
echo >>deploy/models
must_refuse "deploy/models differ here"
truncate --size=-1 deploy/models
printf x >>"$folder/bundle/bin/librunahead_cuda.so"
must_refuse "bin/librunahead_cuda.so of $folder/bundle are not as they were made"
echo "tests/gpu/check_bundle.sh: the bundle is whole, starts, and is refused where it is not of this checkout"
