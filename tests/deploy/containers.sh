# Source me: podman and buildah with all that they keep under $CONTAINERS, in place of a Docker engine.
#   in_namespace COMMAND...   runs it in a mount namespace in which crun works on hosts that mix cgroup v1 and v2
#   in_sandbox COMMAND...     and without a network but its own; what is left of it ends with it

CONTAINERS=${RUNAHEAD_CONTAINERS:-${XDG_CACHE_HOME:-$HOME/.cache}/runahead/containers}
mkdir -p "$CONTAINERS"/{run,store,tmp}
cat >"$CONTAINERS/storage.conf" <<CONF
[storage]
driver = "overlay"
runroot = "$CONTAINERS/run"
graphroot = "$CONTAINERS/store"
CONF
cat >"$CONTAINERS/registries.conf" <<CONF
unqualified-search-registries = ["docker.io"]
short-name-mode = "disabled"
CONF
# Limits are those that this host has: a container that asks for more does not start.
cat >"$CONTAINERS/containers.conf" <<CONF
[containers]
cgroups = "disabled"
netns = "host"
default_ulimits = ["nofile=$(ulimit -Hn):$(ulimit -Hn)", "nproc=16384:16384"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "crun"
[network]
network_backend = "netavark"
network_config_dir = "$CONTAINERS/networks"
CONF
export CONTAINERS_STORAGE_CONF=$CONTAINERS/storage.conf CONTAINERS_REGISTRIES_CONF=$CONTAINERS/registries.conf
export CONTAINERS_CONF=$CONTAINERS/containers.conf TMPDIR=$CONTAINERS/tmp

in_namespace() {
  unshare --mount --propagation private bash -c 'mount -t cgroup2 cgroup2 /sys/fs/cgroup; exec "$@"' namespace "$@"
}

in_sandbox() {
  unshare --mount --propagation private --net --pid --fork --kill-child --mount-proc bash -c '
    ip link set lo up
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    # Where netavark and its name server say what runs: not for who runs them outside.
    mkdir -p /run/containers /run/netns
    mount -t tmpfs tmpfs /run/containers
    mount -t tmpfs tmpfs /run/netns
    exec "$@"' sandbox "$@"
}

# The base image: from a registry, or made of Debian's own packages where none is reached.
base_image() {
  local image=docker.io/library/debian:bookworm-slim folder
  ! in_namespace podman image exists $image || return 0
  ! in_namespace timeout 60 podman pull --quiet $image 2>/dev/null || return 0
  folder=$(mktemp -d "$CONTAINERS/base.XXXXXX")
  debootstrap --variant=minbase bookworm "$folder/root" >"$folder/log" 2>&1 || { tail "$folder/log" >&2; return 1; }
  rm -rf "$folder"/root/var/cache/apt/archives/*.deb "$folder"/root/var/lib/apt/lists/*
  tar -C "$folder/root" -c . | in_namespace podman import --quiet --change 'CMD ["bash"]' - $image
  rm -rf "$folder"
}

# image TAG [ARGUMENTS OF podman build...]
image() {
  local tag=$1
  shift
  in_namespace podman build --isolation=chroot --network=host --layers --format docker --quiet -t "$tag" "$@" >/dev/null
}

# The packages of the Dockerfile's stage smg, as this machine's pip finds them: in the image pip would know neither its
# index nor its certificates. Sets `packages`, arguments for `image`. False where they cannot be fetched.
smg_packages() {
  local pin folder
  pin=$(grep -oE 'smg==[0-9.]+' Dockerfile)
  folder=$CONTAINERS/packages-$pin
  if [[ ! -d $folder ]]; then
    rm -rf "$folder.new"
    # For Debian 12's Python, whatever runs here.
    python3 -m pip download --quiet --only-binary :all: --python-version 3.11 --dest "$folder.new" "$pin" || return 1
    printf '[global]\nno-index = true\nfind-links = /packages\n' >"$folder.new/pip.conf"
    mv "$folder.new" "$folder"
  fi
  packages=(--volume "$folder:/packages:ro" --volume "$folder/pip.conf:/etc/pip.conf:ro")
}
