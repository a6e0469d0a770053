#!/bin/sh
# What `make quickstart` and `make install` do on a machine that has Python, make and little else: an empty home, no variables, no
# caches, no pip configuration, no compiler, git, curl, Java or browser. Prints times and sizes.
#   sh tests/empty_environment.sh [PYTHON]
set -eu
cd "$(dirname "$0")/.."
python=${1:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
mkdir "$work/bin" "$work/home" "$work/copy"

for name in ${python:-python3.13 python3.12 python3.11 python3}; do
    # What a shim of pyenv leads to.
    real=$("$name" -c 'import sys; print(sys._base_executable)' 2>/dev/null) && ln -s "$real" "$work/bin/$(basename "$name")"
done
for name in awk basename bash cat chmod cp cut date df dirname du env expand expr find free getconf grep head hostname id ln ls lscpu \
    make mkdir mktemp mv nproc ps readlink rm rmdir sed sh sleep sort stat tail tar tee touch tr tty uname uniq wc which xargs; do
    path=$(command -v "$name" || true)
    case $path in /*) ln -s "$path" "$work/bin/$name" ;; esac
done
tar -c --exclude=.venv --exclude=.git --exclude=runs --exclude=build --exclude=__pycache__ . | tar -x -C "$work/copy"

# What leads to the network stays: a proxy, the system's certificates, which may have a company's.
cert=${PIP_CERT:-/etc/ssl/certs/ca-certificates.crt}
[ -e "$cert" ] || cert=''
in_empty_environment() {
    began=$(date +%s)
    (cd "$work/copy" && env -i HOME="$work/home" PATH="$work/bin" PIP_CONFIG_FILE=/dev/null ${HTTPS_PROXY:+HTTPS_PROXY="$HTTPS_PROXY"} \
        ${cert:+PIP_CERT="$cert" SSL_CERT_FILE="$cert"} "$@")
    echo "$*: $(($(date +%s) - began)) s; $(du -sh "$work/copy/.venv" | cut -f1) in .venv" >&2
}
# The warm start ends after ten iterations; this ends soon after.
in_empty_environment make quickstart TRAIN_ARGS='--set stop.training_iteration=10 --set report=null'
in_empty_environment make install
in_empty_environment .venv/bin/python -c 'import deepspeed, textarena, transformers, trl, vllm; print("imports work")'
in_empty_environment .venv/bin/python -m pytest -q tests/envs/test_sokoban.py tests/learners/test_advantages.py
