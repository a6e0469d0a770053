# docker build --file docker/cpu.Dockerfile --tag rllib-lmgame:cpu .
# docker run --rm --shm-size 4g rllib-lmgame:cpu train file /opt/rllib-lmgame/tuned_examples/quickstart-sokoban.yaml
FROM python:3.13.9-slim-bookworm

SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# The sandbox's bubblewrap, a compiler for the sources of TextWorld, ALFWorld and reasoning-gym, and the browser of the browser games.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap build-essential chromium cmake \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/rllib-lmgame
COPY . .
# The pinned versions of constraints.txt, in .venv.
RUN make install && rm -rf /root/.cache

RUN useradd --uid 1000 --create-home player && mkdir /results && chown player /results
USER 1000
ENV PATH=/opt/rllib-lmgame/.venv/bin:$PATH OMP_NUM_THREADS=1
VOLUME /results
WORKDIR /results
ENTRYPOINT ["rllib"]
CMD ["doctor"]
