# docker build --file docker/gpu.Dockerfile --tag rllib-lmgame:gpu .
# docker run --rm --gpus all --shm-size 16g rllib-lmgame:gpu doctor
# The host needs NVIDIA's driver 580 or newer: PyTorch's wheels bring CUDA 13.0 themselves.
FROM python:3.13.9-slim-bookworm

SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# A compiler for Triton, which builds what launches its kernels when they are first used.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap build-essential cmake \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/rllib-lmgame
COPY . .
RUN python -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir --constraint constraints.txt uv \
    && /opt/venv/bin/uv pip install --no-cache --compile-bytecode --python /opt/venv/bin/python \
        --constraint constraints.txt '.[gpu,lora,all-games]'

RUN useradd --uid 1000 --create-home player && mkdir /results && chown player /results
USER 1000
ENV PATH=/opt/venv/bin:$PATH NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
VOLUME /results
WORKDIR /results
ENTRYPOINT ["rllib"]
CMD ["doctor"]
