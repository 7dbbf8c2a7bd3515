#!/bin/bash
# Makes a folder that tests/gpu/run.sh runs on a machine with a GPU and without our packages: see --help.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

bundle=.gpu-bundle
limit_mib=60
part_mib=56  # what is left of the quick-start model goes with the bundle into 60

usage() {
  cat <<USAGE
usage: tests/gpu/bundle.sh [--out FOLDER]
       tests/gpu/bundle.sh --model-part N [--out FOLDER]

Builds the CUDA plugin, the tests that need a GPU and the GPU's benchmark, and copies them into FOLDER ($bundle)
with the libraries that they need, but for CUDA's own and the C library: packed, at most $limit_mib MiB. tests/gpu/run.sh
runs it on a machine with a GPU and a C library that is not older (which glibc that is comes at the end), in a checkout
with the same files, pages apart; it refuses any other.

The quick-start model, which some golden tests want, is too large to go with it: --model-part N puts its part N, of
$part_mib MiB, into FOLDER instead (of RUNAHEAD_TEST_MODEL, or of deploy/model's). tests/gpu/run.sh keeps each part that it
finds there, and uses the model once it has had all.
USAGE
}

part=
while [[ $# -gt 0 ]]; do
  case $1 in
    --out | --model-part)
      [[ $# -gt 1 ]] || { echo "tests/gpu/bundle.sh: $1 wants a value" >&2; exit 2; }
      [[ $1 == --out ]] && bundle=$2 || part=$2
      shift
      ;;
    -h | --help) usage; exit 0 ;;
    *) echo "tests/gpu/bundle.sh: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
  shift
done

# Only what an earlier run made is replaced.
if [[ -e $bundle && -n $(ls -A "$bundle") && ! -e $bundle/.runahead-gpu-bundle ]]; then
  echo "tests/gpu/bundle.sh: $bundle holds something else: name another folder with --out" >&2
  exit 2
fi
fresh_folder() {
  rm -rf "$bundle"
  mkdir -p "$bundle"
  touch "$bundle/.runahead-gpu-bundle"
}

if [[ -n $part ]]; then
  model=${RUNAHEAD_TEST_MODEL:-$(deploy/model)}
  part_bytes=$((part_mib << 20))
  parts=$((($(stat -Lc %s "$model") + part_bytes - 1) / part_bytes))
  [[ $part =~ ^[0-9]+$ && $part -ge 1 && $part -le $parts ]] ||
    { echo "tests/gpu/bundle.sh: --model-part is 1 to $parts" >&2; exit 2; }
  fresh_folder
  { tail -c "+$(((part - 1) * part_bytes + 1))" "$model" || true; } |  # head ends it
    head -c "$part_bytes" >"$bundle/model.part${part}of$parts"
  ls -l "$bundle/model.part${part}of$parts"
  echo "Next, on the machine with the GPU: tests/gpu/run.sh --bundle $bundle; then the other parts, then the bundle."
  exit 0
fi

deploy/build release -DRUNAHEAD_CUDA=ON -DBUILD_TESTING=ON gpu_tests make_synthetic_gguf bench_gpu
fresh_folder

tests=$(ctest --test-dir build -L '^gpu$' --show-only=json-v1)
mapfile -t files < <(python3 - "$tests" <<'PYTHON'
import json, os, sys
build = os.path.abspath("build")
tests = json.loads(sys.argv[1])["tests"]
files = {os.path.relpath(test["command"][0], build) for test in tests}
print("\n".join(sorted(files)))
PYTHON
)
files+=(tests/worker_prefill_chain_peer tests/worker_prefill_chain_peer_gpu tests/make_synthetic_gguf bin/librunahead_cuda.so bench/gpu)
for file in "${files[@]}"; do
  install -D "build/$file" "$bundle/$file"
  strip --strip-unneeded "$bundle/$file"
done

# What the machine must have itself: CUDA's libraries, which are of its driver's version, and the C library, which goes
# with its dynamic linker.
readonly cuda='^lib(cuda|cudart|cublas|cublasLt|nccl|nvrtc|nvJitLink)\.so'
readonly libc='^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|mvec|anl))\.so'
mkdir "$bundle/lib"
needs=()
while read -r name path; do
  if [[ $name =~ $cuda ]]; then
    needs+=("$name")
  elif [[ ! $name =~ $libc && ! -e $bundle/lib/$name ]]; then
    [[ $path == /* ]] || { echo "tests/gpu/bundle.sh: $name, which a binary needs, is not here" >&2; exit 1; }
    install "$path" "$bundle/lib/$name"
    strip --strip-unneeded "$bundle/lib/$name"
  fi
done < <(for file in "${files[@]}"; do ldd "build/$file"; done | awk '$2 == "=>" { print $1, $3 }' | sort -u)

tests/gpu/make_manifest.py "$tests" "$bundle" "${needs[@]}"

size_kib=$(du -sk --apparent-size "$bundle" | cut -f1)
if [[ $size_kib -gt $((limit_mib * 1024)) ]]; then
  echo "tests/gpu/bundle.sh: $bundle has $((size_kib / 1024)) MiB, above the $limit_mib that it may. The largest:" >&2
  (cd "$bundle" && find . -type f -printf '%s %P\n' | sort -rn | head -20) >&2
  exit 1
fi
echo "$bundle: $((size_kib / 1024)) MiB of at most $limit_mib. Bring it and the checkout to a machine with a GPU," \
  "and run there: tests/gpu/run.sh --bundle $bundle (--dry-run lists what it does)."
