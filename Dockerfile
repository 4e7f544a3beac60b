# perfci with CUDA, torch, Nsight Systems and the Nsight Compute of that CUDA: docs/containers.md.
# The values here are those of cuda13 in src/perfci/system/pins.toml; `make image VARIANT=cuda12` gives others.
ARG BASE=nvidia/cuda:13.0.2-devel-ubuntu24.04
FROM ${BASE}

SHELL ["/bin/bash", "-euo", "pipefail", "-c"]

ARG PACKAGES="ca-certificates g++=4:13.2.* git=1:2.43.* ninja-build=1.11.* python3-dev=3.12.* python3-venv=3.12.* strace=6.8* tini=0.19.*"
# hadolint ignore=DL3008
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends ${PACKAGES} \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/ldconfig/aux-cache /var/log/*

ARG NSYS_PACKAGE=https://developer.download.nvidia.com/devtools/repos/ubuntu2204/amd64/NsightSystems-linux-cli-public-2025.3.1.90-3582212.deb
ARG NSYS_SHA256=d2484ad0faf6831b11fa0bf73c54232d9ea8beafb50414019e6ba299c4ed5718
# Debian keeps what writes nsys's reports where nsys does not look. It must record here, not only tell its version.
RUN if [ -n "${NSYS_PACKAGE}" ]; then \
      python3 -c 'import sys, urllib.request; urllib.request.urlretrieve(*sys.argv[1:])' "${NSYS_PACKAGE}" /tmp/nsys.deb; \
      echo "${NSYS_SHA256}  /tmp/nsys.deb" | sha256sum --check --quiet; \
      apt-get update; \
      DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends /tmp/nsys.deb; \
      ln -s /opt/nvidia/nsight-systems-cli/*/bin/nsys /usr/local/bin/nsys; \
      rm -rf /tmp/nsys.deb /var/lib/apt/lists/* /var/cache/apt/* /var/cache/ldconfig/aux-cache /var/log/*; \
    elif [ -d /usr/lib/nsight-systems/host-linux-x64 ]; then \
      ln -s /usr/lib/nsight-systems/host-linux-x64 /usr/lib/x86_64-linux-gnu/nsight-systems/; \
    fi; \
    nsys --version; \
    ncu --version; \
    nsys profile --trace nvtx --sample none --cpuctxsw none --output /tmp/recorded.nsys-rep /bin/true; \
    nsys export --type sqlite --output /tmp/recorded.sqlite /tmp/recorded.nsys-rep; \
    rm -rf /tmp/recorded.* /tmp/nvidia

# The interpreter of the code under test. Without TORCH it has the distribution's. torch itself pins what it needs of CUDA.
ARG TORCH=2.13.0
COPY constraints.txt /opt/perfci/constraints.txt
RUN if [ -n "${TORCH}" ]; then \
      python3 -m venv /opt/torch; \
      grep -v -E '^(torch|cuda-)' /opt/perfci/constraints.txt >/opt/torch/constraints.txt; \
      /opt/torch/bin/pip install --no-cache-dir --constraint /opt/torch/constraints.txt "torch==${TORCH}" numpy; \
    else \
      python3 -m venv --system-site-packages /opt/torch; \
    fi; \
    /opt/torch/bin/pip install --no-cache-dir --constraint /opt/perfci/constraints.txt nvtx

# perfci's own, every package by its hash.
COPY action/requirements.txt /opt/perfci/requirements.txt
RUN python3 -m venv /opt/perfci \
 && /opt/perfci/bin/pip install --no-cache-dir --require-hashes --only-binary :all: --requirement /opt/perfci/requirements.txt
COPY LICENSE /opt/perfci/
COPY docs/undecided.md /opt/perfci/docs/
COPY src /opt/perfci/src
COPY perfci.yaml /opt/perfci/suite/
COPY kernels /opt/perfci/suite/kernels
RUN /opt/perfci/bin/python -c 'import sysconfig; open(sysconfig.get_path("purelib") + "/perfci.pth", "w").write("/opt/perfci/src")' \
 && /opt/perfci/bin/python -m compileall -q /opt/perfci/src \
 && printf '#!/bin/sh\nexec /opt/perfci/bin/python -I -m perfci "$@"\n' >/usr/local/bin/perfci \
 && chmod 755 /usr/local/bin/perfci \
 && install --directory --mode 1777 /workspace

# Code under test finds its interpreter first, then the base image's programs; perfci's interpreter is not on PATH.
ARG VARIANT=cuda13
ENV PATH=/opt/torch/bin:${PATH} VIRTUAL_ENV=/opt/torch PERFCI_IMAGE=${VARIANT}
RUN perfci doctor --offline

ARG VERSION=1.0.0
ARG REVISION=
LABEL org.opencontainers.image.title="perfci" \
      org.opencontainers.image.description="The performance gate for GPU kernels, with torch, Nsight Systems and Nsight Compute" \
      org.opencontainers.image.licenses="Apache-2.0 AND LicenseRef-NVIDIA-CUDA-EULA AND LicenseRef-NVIDIA-Nsight-EULA" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

# It starts as root to arrange what src/perfci/container/entry.py says; code under test runs as who owns the workspace.
WORKDIR /workspace
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/bin/tini", "-s", "--", "/opt/perfci/bin/python", "-I", "-m", "perfci.container.entry"]
