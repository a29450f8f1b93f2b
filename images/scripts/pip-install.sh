#!/bin/sh
# pip-install.sh LOCK...: install exactly the wheels that the lock files name, each checked against its hash.
# They come from the mounted wheelhouse; where that is empty (a plain `docker build`), from pip's configured indexes.
set -eu
. "$(dirname "$0")/host-settings.sh"
. "$(dirname "$0")/same-dates.sh"

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
# Static libraries, which nothing here could link: of CUDA's profiler alone, 170 MB.
find "$packages" -name '*.a' -delete
# Debug information that its publisher left in: of triton, three quarters of a gigabyte.
if [ -d /build/binutils ]; then
    binutils() { # PROGRAM ARGUMENT...
        program=$1
        shift
        LD_LIBRARY_PATH=/build/binutils/lib/$(uname -m)-linux-gnu "/build/binutils/bin/$program" "$@"
    }
    find "$packages" -name '*.so*' -size +10M | while read -r library; do
        if binutils objdump --section-headers "$library" | grep -q '\.debug_info'; then
            binutils strip --strip-unneeded "$library"
        fi
    done
fi
compile_packages
same_dates
