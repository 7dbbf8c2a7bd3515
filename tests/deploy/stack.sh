#!/bin/bash
# Builds the images and runs the stack of deploy/compose: see usage below.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

usage() {
  cat <<'USAGE'
usage: tests/deploy/stack.sh [--prebuilt FOLDER] [--rolling] [--cuda]

Builds the images of the Dockerfile and runs the stack of deploy/compose with them, on podman and docker-compose 1.29:
it comes up by deploy/compose/up, answers a prompt, a chat by the gateway and by SMG (the profile smg), gets a third prefill
worker, survives that one is stopped, and goes down cleanly. On Debian 12, as root; nothing outside of its own namespaces and cache folder is changed.

  --prebuilt FOLDER   takes the programs of a build of this machine, as build/, in place of compiling them in an image
  --rolling           under load replaces every process, one after the other, and prints what was lost
  --cuda              builds the CUDA image, too, with this machine's toolkit; it is not run

Images and layers stay in $RUNAHEAD_CONTAINERS (~/.cache/runahead/containers) for the next time. The compiler's cache is
that of ccache. Exit codes: 0 all of it held; 77 this machine cannot run containers; anything else: it did not.
USAGE
}

prebuilt=
rolling=
cuda=
while [[ $# -gt 0 ]]; do
  case $1 in
    --prebuilt)
      [[ -x ${2-}/bin/runahead-worker ]] || { echo "tests/deploy/stack.sh: '${2-}' is no build folder" >&2; exit 2; }
      prebuilt=$2
      shift
      ;;
    --rolling) rolling=--rolling ;;
    --cuda) cuda=1 ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      echo "tests/deploy/stack.sh: unknown argument '$1' (see --help)" >&2
      exit 2
      ;;
  esac
  shift
done

# Whether it can be done here at all: it takes what root may do on a machine, but not in most containers.
if [[ $(id -u) -ne 0 ]] || ! unshare --net --mount --propagation private mount -t cgroup2 cgroup2 /sys/fs/cgroup 2>/dev/null; then
  echo 'did not run here: images and the compose stack: this takes root and namespaces of its own'
  exit 77
fi

begin=$SECONDS
part() { printf '== %4d s: %s\n' $((SECONDS - begin)) "$*"; }

part 'what is needed'
deploy/setup containers
. tests/deploy/containers.sh
exec 9>"$CONTAINERS/lock"
flock 9  # two runs would clear each other's containers away
base_image
model=$(deploy/model)

part 'images'
compile=(--build-arg REVISION="$(git rev-parse --short HEAD 2>/dev/null || echo unknown)")
if [[ -n $prebuilt ]]; then
  # In place of the Dockerfile's stage of that name, and of its folder.
  stage=$(mktemp -d "$CONTAINERS/stage.XXXXXX")
  trap 'rm -rf "$stage"' EXIT
  cmake --install "$prebuilt" --prefix "$stage/install" --strip >/dev/null
  rm -rf "$stage/install/lib/librunahead_cuda.so"  # it is not for this image
  compile+=(--build-context build="$stage")
else
  # The compiler's cache of this machine.
  cache=$(ccache --get-config cache_dir)
  mkdir -p "$cache"
  compile+=(--volume "$cache:/host-ccache" --build-arg CCACHE_DIR=/host-ccache)
fi
for target in cpu model; do
  image runahead:$target --target $target "${compile[@]}" .
done
smg=
if smg_packages; then
  image runahead:smg --target smg "${compile[@]}" "${packages[@]}" .
  smg=--smg
fi
# No registry is reached: Debian's Prometheus stands in for the image of its makers.
prometheus=$(awk '/image: prom\// { print $2 }' deploy/compose/compose.yaml)
image "docker.io/$prometheus" tests/deploy/prometheus_image
if [[ -n $cuda ]]; then
  part 'the CUDA image'
  toolkit=$(awk '/ AS toolkit$/ { print $2 }' Dockerfile)
  image "docker.io/$toolkit" --volume "${CUDA_HOME:-/usr/local/cuda}:/toolkit:ro" tests/deploy/toolkit_image
  image runahead:cuda --target cuda "${compile[@]}" .
fi
in_namespace podman images --filter reference='localhost/runahead' --format '{{.Repository}}:{{.Tag}} {{.Size}}'

part 'the stack'
in_sandbox python3 tests/deploy/stack_scenario.py --model "$model" $smg $rolling
part 'done'
[[ -z $prebuilt ]] || echo 'did not run here: compiling in the image: the programs were those of the release build'
[[ -n $smg ]] || echo 'did not run here: the profile smg of the compose stack: its packages could not be fetched (above)'
[[ -n $rolling ]] || echo 'did not run here: replacing every process of the compose stack under load (tests/deploy/stack.sh --rolling)'
echo 'did not run here: the compose stack on a Docker engine, with limits of cgroups, and Grafana: podman stood in, and there is no Grafana'
