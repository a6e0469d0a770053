# docker build --file docker/gpu.Dockerfile --tag rllib-lmgame:gpu .
# docker run --rm --gpus all --shm-size 16g rllib-lmgame:gpu doctor
FROM ghcr.io/astral-sh/uv:0.8.17 AS uv

# With nvcc, which flash-attn is built with.
FROM nvidia/cuda:12.9.1-devel-ubuntu22.04

SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends build-essential ca-certificates git \
    && rm -rf /var/lib/apt/lists/*
COPY --from=uv /uv /usr/local/bin/uv

ENV UV_PYTHON_INSTALL_DIR=/opt/python VIRTUAL_ENV=/opt/venv PATH=/opt/venv/bin:$PATH
RUN uv venv --no-cache --python 3.11.11 /opt/venv

WORKDIR /opt/rllib-lmgame
COPY . .
# torch first: flash-attn is built against it.
RUN uv pip install --no-cache --constraints constraints.txt torch numpy setuptools wheel ninja packaging \
    && MAX_JOBS=4 uv pip install --no-cache --constraints constraints.txt --no-build-isolation '.[gpu,lora,games]'

RUN useradd --uid 1000 --create-home player && mkdir /results && chown player /results
USER 1000
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
VOLUME /results
WORKDIR /results
ENTRYPOINT ["rllib"]
CMD ["doctor"]
