# syntax=docker/dockerfile:1
# Two images of grpo_plus, without root:
#   docker build --target cpu -t grpo_plus:cpu .
#   docker build --target gpu -t grpo_plus:gpu .
#   docker run --rm -v "$PWD:/work" grpo_plus:cpu train quickstart.yaml
#   docker run --rm --gpus all -v "$PWD:/work" -v ~/.cache/huggingface:/home/trainer/.cache/huggingface grpo_plus:gpu \
#     train config.yaml
# The code box makes user namespaces. Docker's default profiles forbid that, and the box falls back to its level "process"; for
# the level "full":  docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined …
# (`grpo-plus check` inside says which level is reached.)

FROM python:3.11-slim-bookworm AS base
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
RUN apt-get update -q \
  && apt-get install -qy --no-install-recommends bubblewrap git \
  && rm -rf /var/lib/apt/lists/* \
  && useradd --uid 1000 --create-home trainer \
  && python -m venv /opt/venv \
  && chown -R trainer /opt/venv \
  && install -d -o trainer /work
ENV PATH=/opt/venv/bin:$PATH PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1
USER 1000
WORKDIR /src
COPY --chown=trainer pyproject.toml README.md LICENSE constraints.txt ./
COPY --chown=trainer grpo_plus grpo_plus
COPY --chown=trainer verifiers verifiers
COPY --chown=trainer examples examples

FROM base AS cpu
# The index of PyTorch has builds without CUDA: some 200 MB in place of gigabytes.
RUN pip install --quiet -c constraints.txt torch --index-url https://download.pytorch.org/whl/cpu \
  && pip install --quiet -c constraints.txt '.[json,search]'
WORKDIR /work
ENTRYPOINT ["grpo-plus"]
CMD ["--help"]

FROM base AS gpu
# The wheels of PyTorch and bitsandbytes carry CUDA's libraries; the host needs a driver and the NVIDIA container toolkit.
USER 0
RUN apt-get update -q \
  && apt-get install -qy --no-install-recommends gcc libc6-dev \
  && rm -rf /var/lib/apt/lists/*
USER 1000
RUN pip install --quiet -c constraints.txt '.[json,search]'
WORKDIR /work
ENTRYPOINT ["grpo-plus"]
CMD ["--help"]
