#!/bin/sh
# Create .venv and install the package with the versions of constraints.txt. `make` calls it:
#   sh install.sh quickstart    what `make quickstart` runs: the CPU engine, the trainer, the games without extras
#   sh install.sh all           also what tests, documentation and all games need
# PYTHON names the interpreter, VENV another directory. uv's own variables apply: UV_TORCH_BACKEND=cpu takes PyTorch's CPU build,
# UV_DEFAULT_INDEX another package index, UV_CACHE_DIR another cache.
set -eu
cd "$(dirname "$0")"
VENV=${VENV:-.venv}
what=${1:-}

stop() {
    printf '%s\n' "$*" >&2
    exit 1
}

case $what in
quickstart) gigabytes=8 ;;
all) gigabytes=10 ;;
*) stop "install.sh takes quickstart or all" ;;
esac
case $VENV in
*' '* | '~'*) stop "VENV=$VENV: a path without spaces and without ~ is needed." ;;
esac

case "$(uname -s)" in
Linux) ;;
Darwin) stop "macOS: the CPU engine (vLLM) has no build for it. Run 'pip install .', which trains with inference.engine: transformers (not tested), or use docker/cpu.Dockerfile." ;;
*) stop "Windows: run this in WSL (Ubuntu 24.04), where everything works as on Linux: wsl --install" ;;
esac
case "$(uname -m)" in
x86_64 | aarch64) ;;
*) stop "$(uname -m): vLLM and PyTorch are built for x86_64 and aarch64 only." ;;
esac

usable='import sys; sys.exit(not (sys.implementation.name == "cpython" and (3, 11) <= sys.version_info < (3, 15)))'
if [ -e "$VENV/bin/python" ] || [ -L "$VENV/bin/python" ]; then
    found=$VENV/bin/python
    "$found" -c "$usable" 2>/dev/null || stop "The Python of $VENV is gone or is not 3.11 to 3.14: remove it (rm -r $VENV), then run this again."
else
    found='' bare=''
    for python in ${PYTHON:-python3.13 python3.12 python3.11 python3}; do
        "$python" -c "$usable" 2>/dev/null || continue
        bare=$python
        if "$python" -c 'import ensurepip, venv' 2>/dev/null; then found=$python && break; fi
    done
    [ -n "$found" ] || [ -z "$bare" ] || stop "$bare has no venv: apt-get install $("$bare" -c 'import sys; print("python3.%d-venv" % sys.version_info[1])')"
    [ -n "$found" ] || stop "Python 3.11 to 3.14 is needed${PYTHON:+, and $PYTHON is not one}. Install one, then run this again:
  Ubuntu 24.04, Debian 12 or 13   sudo apt-get install python3 python3-venv
  Fedora                          sudo dnf install python3.13
  conda                           conda create -n py313 python=3.13 && conda activate py313
  uv                              uv python install 3.13"
fi

[ "${UV_TORCH_BACKEND:-}" != cpu ] || gigabytes=5
mkdir -p "$VENV"
free() {
    echo $(($(df -Pk "$VENV" | awk 'NR == 2 {print $4}') / $1))
}
free=$(free 1048576)
used=$(($(du -sk "$VENV" | cut -f1) / 1048576))
[ $((free + used)) -ge $gigabytes ] || stop "The disk has ${free} GB left for $VENV, which needs $gigabytes GB: free some, or run this again with VENV=/path, a directory on another disk."

pip() {
    PIP_USER=0 "$VENV/bin/python" -m pip --disable-pip-version-check "$@"
}
log=$VENV/install.log
version=$("$found" -c 'import platform; print(platform.python_version())')

# Run a command, its output on the terminal (less the list of packages) and in the log; if it fails, say why in one line.
run() {
    { "$@" && echo 0 >"$log.status" || echo 1 >"$log.status"; } 2>&1 | tee "$log" | while IFS= read -r line; do
        case $line in ' + '* | ' - '* | ' ~ '*) ;; *) printf '%s\n' "$line" >&2 ;; esac
    done || true
    [ "$(cat "$log.status")" = 0 ] || failed
}
failed() {
    # A full disk may have kept the reason out of the log.
    if [ "$(free 1024)" -lt 100 ] || grep -qi 'no space left on device\|quota exceeded\|os error \(28\|122\)\|errno \(28\|122\)' "$log"; then
        stop "The disk is full, or your share of it: $VENV needs $gigabytes GB, and so does the cache if it is on another disk (UV_CACHE_DIR names it). Free some and run this again."
    elif grep -qi 'no solution found\|not found in the package registry\|no matching distribution\|has no .*wheel\|not found on' "$log"; then
        stop "A version in constraints.txt cannot be installed for Python $version on $(uname -m) (the lines above name it). Try another Python (rm -r $VENV, then run this again with PYTHON=python3.12) or a newer system (glibc 2.31 or later); a mirror may lack the version."
    elif grep -qi 'failed to fetch\|error sending request\|timed out\|connection\|resolutionimpossible' "$log"; then
        stop "The package index cannot be reached: behind a proxy set HTTPS_PROXY, for a mirror set UV_DEFAULT_INDEX and PIP_INDEX_URL, then run this again."
    fi
    stop "The installation failed; its output is in $log."
}

[ "$found" = "$VENV/bin/python" ] || run "$found" -m venv "$VENV"
# An environment of uv has no pip; one that was interrupted has part of it.
pip --version >/dev/null 2>&1 || run "$VENV/bin/python" -m ensurepip
# uv installs faster than pip and can leave out what a package asks for without need (pyproject.toml).
uv=$VENV/bin/uv
run pip install --quiet --constraint constraints.txt uv
export UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-1}" # a company's certificates
index=${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-$(pip config get global.index-url 2>/dev/null || true)}}
[ -z "$index" ] || export UV_DEFAULT_INDEX="$index"
install() {
    run "$uv" pip install --python "$VENV/bin/python" --compile-bytecode "$@"
}

echo "Installing into $VENV (Python $version): up to $gigabytes GB on disk, less than half of it to download." >&2
case $what in
quickstart) install --constraint constraints.txt --editable '.[cpu]' ;;
all)
    install --constraint constraints.txt --editable '.[cpu,games,dev]'
    install --no-deps --group files
    headers='import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")'
    if command -v g++ >/dev/null && command -v make >/dev/null && command -v cmake >/dev/null && "$VENV/bin/python" -c "$headers" 2>/dev/null; then
        install --constraint constraints.txt --editable '.[all-games]'
    else
        echo 'There is no C++ compiler with make, cmake and Python.h (python3-dev): TextWorld, ALFWorld and reasoning-gym are left out, and their tests are skipped.' >&2
    fi
    ;;
esac
