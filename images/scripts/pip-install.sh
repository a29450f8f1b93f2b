#!/bin/sh
# pip-install.sh LOCK...: install exactly the wheels that the lock files name, each checked against its hash.
# They come from the mounted wheelhouse; where that is empty (a plain `docker build`), from pip's configured indexes.
set -eu
. "$(dirname "$0")/host-settings.sh"

wheelhouse=/build/wheelhouse
if [ -n "$(find "$wheelhouse" -name '*.whl' -print -quit 2>/dev/null)" ]; then
    export PIP_NO_INDEX=1 PIP_FIND_LINKS="$wheelhouse"
fi
for lock in "$@"; do
    set -- "$@" --requirement "$lock"
    shift
done
pip install --quiet --no-cache-dir --no-compile --require-hashes "$@"
packages=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# Packages' own test suites: a tenth of the image, of which nothing is imported.
rm -rf "$packages/torch/test"
find "$packages" -type d -name tests -prune -exec rm -rf {} +
# Compiled here, on all cores: a container that had to compile torch itself would pay seconds at every start.
# Packages carry a few files for newer Pythons than this one; those do not compile, and nothing imports them.
python -m compileall -qq -j 0 "$packages" || true
