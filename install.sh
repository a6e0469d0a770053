#!/bin/sh
# Create .venv and install the package with the versions of constraints.txt. `make` calls it:
#   sh install.sh quickstart    what `make quickstart` runs: the CPU engine, the trainer, the games without extras
#   sh install.sh all           also what tests, documentation and all games need
# PYTHON names the interpreter, VENV another directory. uv's own variables apply: UV_TORCH_BACKEND=cpu takes PyTorch's CPU build,
# UV_DEFAULT_INDEX another package index, UV_CACHE_DIR another cache.
set -eu
cd "$(dirname "$0")"
VENV=${VENV:-.venv}
stop() {
    printf '%s\n' "$*" >&2
    exit 1
}

case ${1:-} in
quickstart) gigabytes=8 extras=cpu ;;
all) gigabytes=10 extras=cpu,games,dev ;;
*) stop "install.sh takes quickstart or all" ;;
esac
[ "${UV_TORCH_BACKEND:-}" != cpu ] || gigabytes=5
case $VENV in *' '* | '~'*) stop "VENV=$VENV: a path without spaces and without ~ is needed." ;; esac
case "$(uname -s) $(uname -m)" in
'Linux x86_64' | 'Linux aarch64') ;;
Linux*) stop "$(uname -m): vLLM and PyTorch are built for x86_64 and aarch64 only." ;;
Darwin*) stop "macOS: the CPU engine (vLLM) has no build for it. Run 'pip install .', which trains with inference.engine: transformers (not tested), or use docker/cpu.Dockerfile." ;;
*) stop "Windows: run this in WSL (Ubuntu 24.04), where everything works as on Linux: wsl --install" ;;
esac

usable='import sys; sys.exit(not (sys.implementation.name == "cpython" and (3, 11) <= sys.version_info < (3, 15)))'
python=$VENV/bin/python found=$VENV/bin/python
if [ -e "$python" ] || [ -L "$python" ]; then
    "$python" -c "$usable" 2>/dev/null || stop "The Python of $VENV is gone or is not 3.11 to 3.14: remove it (rm -r $VENV), then run this again."
else
    for found in ${PYTHON:-python3.13 python3.12 python3.11 python3} ''; do
        "$found" -c "import ensurepip, venv; $usable" 2>/dev/null && break
    done
    [ -n "$found" ] || stop "Python 3.11 to 3.14 with venv is needed${PYTHON:+, and $PYTHON is not one}. Install one, then run this again:
  Ubuntu 24.04, Debian 12 or 13   sudo apt-get install python3 python3-venv
  Fedora                          sudo dnf install python3.13
  conda                           conda create -n py313 python=3.13 && conda activate py313
  uv                              uv python install 3.13"
fi
version=$("$found" -c 'import platform; print(platform.python_version())')

mkdir -p "$VENV"
log=$VENV/install.log
free() {
    echo $(($(df -Pk "$VENV" | awk 'NR == 2 {print $4}') / $1))
}
[ -e "$VENV/bin/uv" ] || [ "$(free 1048576)" -ge $gigabytes ] ||
    stop "The disk has $(free 1048576) GB left for $VENV, which needs $gigabytes GB: free some, or run this again with VENV=/path, a directory on another disk."

# Run a command, its output on the terminal (less the list of packages) and in the log; if it fails, say why in one line.
run() {
    status=$({ { "$@" 2>&1 && echo 0 >&3 || echo 1 >&3; } | tee "$log" | grep -v '^ [-+~] ' >&2; } 3>&1) || true
    [ "$status" = 0 ] || failed
}
failed() {
    # A full disk may have kept the reason out of the log.
    if [ "$(free 1024)" -lt 100 ] || grep -qiE 'no space left on device|quota exceeded' "$log"; then
        stop "The disk is full, or your share of it: $VENV needs $gigabytes GB, and so does the cache if it is on another disk (UV_CACHE_DIR names it). Free some and run this again."
    elif grep -qiE 'failed to (fetch|download)|resolutionimpossible' "$log"; then
        stop "The package index cannot be reached, lacks what is asked of it, or broke off: behind a proxy set HTTPS_PROXY, for certificates of a company PIP_CERT, for a mirror UV_DEFAULT_INDEX and PIP_INDEX_URL, then run this again."
    elif grep -qi 'no solution found' "$log"; then
        stop "A version in constraints.txt cannot be installed for Python $version on $(uname -m) (the lines above name it). Try another Python (rm -r $VENV, then run this again with PYTHON=python3.12) or a newer system (glibc 2.31 or later); a mirror may lack the version."
    fi
    stop "The installation failed; its output is in $log."
}
install() {
    run "$VENV/bin/uv" pip install --python "$python" --compile-bytecode "$@"
}

[ "$found" = "$python" ] || run "$found" -m venv "$VENV"
export PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-1}" # a company's certificates
# An environment of uv has no pip; one that was interrupted has part of it.
"$python" -m pip --version >/dev/null 2>&1 || run "$python" -m ensurepip
# uv installs faster than pip and can leave out what a package asks for without need (pyproject.toml).
run "$python" -m pip install --quiet --constraint constraints.txt uv
index=${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-$("$python" -m pip config get global.index-url 2>/dev/null || true)}}
[ -z "$index" ] || export UV_DEFAULT_INDEX="$index"

headers='import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")'
if [ "$1" = quickstart ]; then
    :
elif command -v g++ >/dev/null && command -v make >/dev/null && command -v cmake >/dev/null && "$python" -c "$headers" 2>/dev/null; then
    extras=cpu,all-games,dev
else
    echo 'There is no C++ compiler with make, cmake and Python.h (python3-dev): TextWorld, ALFWorld and reasoning-gym are left out, and their tests are skipped.' >&2
fi
echo "Installing into $VENV (Python $version): up to $gigabytes GB on disk, less than half of it to download." >&2
install --constraint constraints.txt --editable ".[$extras]"
[ "$1" = quickstart ] || install --no-deps --group files
