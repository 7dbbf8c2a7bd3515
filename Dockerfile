# Images of Runahead (docs/deploy.md):
#   docker build -t runahead:cpu .                       gateway, router, and workers on CPUs
#   docker build -t runahead:cuda --target cuda .        the same with the plugin for GPUs
#   docker build -t runahead:model --target model .      fetches a model by name into a volume
#   docker build -t runahead:smg --target smg .          SMG, a gateway of others, as it is (docs/engine.md)
# It takes BuildKit (Docker 23 and later use it by themselves), podman or buildah.

# ---- what compiles
FROM debian:bookworm-slim AS tools
WORKDIR /src
COPY deploy/setup deploy/setup
RUN deploy/setup build ccache model && rm -rf /var/lib/apt/lists/*
# Sources that the build fetches from the Python package index (deploy/xgrammar, deploy/flashinfer) are kept in a cache, too.
# Without a way there, and without them in it, answers of a given form are left out, and cmake says so.
# Where another cache is mounted, name it: what was compiled once is not compiled again.
ARG CCACHE_DIR=/root/.cache/ccache
COPY . .

FROM tools AS build
RUN --mount=type=cache,target=/root/.cache/ccache --mount=type=cache,target=/root/.cache/runahead \
  deploy/build release -DBUILD_TESTING=OFF -DRUNAHEAD_CUDA=OFF runahead runahead-gateway runahead-router runahead-worker && \
  cmake --install build --prefix /install --strip && rm -rf build

# ---- what compiles for GPUs, with the toolkit of NVIDIA's image
FROM nvidia/cuda:13.0.2-devel-ubuntu22.04 AS toolkit

FROM tools AS build-cuda
COPY --from=toolkit /usr/local/cuda-13.0 /usr/local/cuda
COPY --from=toolkit /usr/include/nccl.h /usr/local/cuda/include/
COPY --from=toolkit /usr/lib/x86_64-linux-gnu/libnccl.so* /usr/local/cuda/lib64/
RUN --mount=type=cache,target=/root/.cache/ccache --mount=type=cache,target=/root/.cache/runahead \
  deploy/build release -DBUILD_TESTING=OFF -DRUNAHEAD_CUDA=ON runahead runahead-gateway runahead-router runahead-worker worker_plugin && \
  cmake --install build --prefix /install --strip && rm -rf build
# What the plugin links beside the driver, which the container engine brings.
RUN mkdir /libraries && cp -L /usr/local/cuda/lib64/libcublasLt.so.13 /usr/local/cuda/lib64/libnccl.so.2 /libraries/

# ---- what runs
FROM debian:bookworm-slim AS runtime
# Not pinned: security updates are to arrive with every build. The last line fails where a library is missing here.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends \
  libabsl20220623 libcpp-httplib0.11 libdnnl2 libgrpc++1.51 libpcre2-8-0 libprometheus-cpp-core1.0 libprotobuf32 \
  libspdlog1.10 libssl3 libutf8proc2 libxxhash0 libyaml-cpp0.7 tini && rm -rf /var/lib/apt/lists/*
# A volume here may be filled by whoever runs the container.
RUN install -d -m 1777 /models
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Runahead" \
  org.opencontainers.image.description="Serves large language models with a short time to first token on long prompts" \
  org.opencontainers.image.version="${VERSION}" \
  org.opencontainers.image.revision="${REVISION}"
USER 10001:10001
# gRPC, metrics, the links between workers, and the gateway's HTTP, where the configuration says so: each container has an
# address of its own.
EXPOSE 7000 7001 7002 8000
HEALTHCHECK --interval=5s --timeout=5s --start-period=120s --retries=3 \
  CMD ["runahead", "health", "--address", "127.0.0.1:7000"]
# tini passes signals on, and reaps.
ENTRYPOINT ["/usr/bin/tini", "--"]
CMD ["runahead", "--help"]

FROM runtime AS cuda
COPY --from=build-cuda /libraries/ /usr/local/lib/
COPY --from=build-cuda /install/ /usr/local/
USER 0:0
RUN ldconfig && runahead-gateway --version && runahead-router --version && runahead-worker --version && runahead --version
USER 10001:10001
# What the container engine gives a program: CUDA, and nvidia-smi.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility

# ---- what fetches a model: `runahead pull` takes Python's pip
FROM runtime AS model
USER 0:0
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates python3 python3-pip && \
  rm -rf /var/lib/apt/lists/*
COPY --from=build /install/bin/runahead /usr/local/bin/
USER 10001:10001
ENV XDG_CACHE_HOME=/models
HEALTHCHECK NONE
CMD ["runahead", "pull", "smollm2-135m-instruct"]

# ---- a gateway of others, from the Python package index
FROM runtime AS smg
USER 0:0
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates python3 python3-pip && \
  rm -rf /var/lib/apt/lists/*
RUN python3 -m pip install --no-cache-dir --break-system-packages smg==1.13.0
USER 10001:10001
HEALTHCHECK NONE
CMD ["smg", "launch", "--help"]

# ---- the last one is what `docker build .` makes
FROM runtime AS cpu
COPY --from=build /install/ /usr/local/
RUN runahead-gateway --version && runahead-router --version && runahead-worker --version && runahead --version
