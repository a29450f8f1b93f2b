#!/bin/sh
# demo.sh: from a clean machine to a model trained on two hosts. What needs no Python is here, the rest in demo.py.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

start=$(date +%s)
scripts/engine.sh start
engine=$(($(date +%s) - start))
# The base image is bootstrapped where no registry answers; a machine that cannot install this may yet be able to pull it.
if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    need "mmdebstrap is needed to bootstrap Debian" mmdebstrap
fi
scripts/venv.sh
setup=$(($(date +%s) - start - engine))
exec .venv/bin/python scripts/demo.py "Docker engine=$engine" "Python packages=$setup"
