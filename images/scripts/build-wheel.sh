#!/bin/sh
# build-wheel.sh SOURCE DIRECTORY: build the wheel of the project in SOURCE (mounted read-only) into DIRECTORY.
# Nothing is downloaded: the build tools and torch are installed already. Where /build/ccache is mounted, what was compiled
# before is taken from there.
set -eu
. "$(dirname "$0")/host-settings.sh"
. "$(dirname "$0")/same-dates.sh"

# One fixed place: paths get into debug information, and into what ccache looks things up by.
work=/tmp/wheel
trap 'rm -rf "$work"' EXIT
mkdir "$work"
cp -r "$1" "$work/source"
if [ -d /build/ccache ] && command -v ccache >/dev/null; then
    export CCACHE_DIR=/build/ccache CCACHE_MAXSIZE=5G CCACHE_COMPILERCHECK=content CCACHE_STATSLOG=$work/stats
    export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
    # A precompiled header is looked up by its content: its sources were copied a moment ago.
    export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
    export CXXFLAGS="${CXXFLAGS:-} -fpch-preprocess"
fi
export SOURCE_DATE_EPOCH="$date_of_all"
pip wheel --quiet --no-index --no-deps --no-build-isolation --no-cache-dir --wheel-dir "$2" "$work/source"
ls "$2"/*.whl
if [ -n "${CCACHE_DIR:-}" ]; then ccache --show-log-stats; fi
