#!/bin/sh
# Builds and runs the C++ tests of the core: run.sh [address|undefined|thread] [GoogleTest options]
# Needs cmake, ninja, g++ and GoogleTest (Debian: libgtest-dev). No torch.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
sanitizer=""
case "${1:-}" in
  address | undefined | thread)
    sanitizer=$1
    shift
    ;;
esac
build="$here/build/tests${sanitizer:+-$sanitizer}"
cmake -S "$here" -B "$build" -G Ninja -DSMDDP_BUILD_TORCH=OFF -DSMDDP_BUILD_TESTS=ON -DSMDDP_SANITIZE="$sanitizer" >/dev/null
cmake --build "$build"
exec "$build/tests/smddp_tests" "$@"
