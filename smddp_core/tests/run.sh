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
# Without a sanitizer file by file, which shows what a file does not include itself.
unity=ON
[ -n "$sanitizer" ] || unity=OFF
cmake -S "$here" -B "$build" -G Ninja -DSMDDP_BUILD_TORCH=OFF -DSMDDP_BUILD_TESTS=ON -DSMDDP_WERROR=ON -DSMDDP_SANITIZE="$sanitizer" \
  -DCMAKE_UNITY_BUILD="$unity" >/dev/null
cmake --build "$build"
# Sanitizers take fresh pages for the shadow of every large buffer; each then costs a fault, which stops the other cores:
# two fifths of TSan's time went there. They clear the pages that they have instead.
keep="clear_shadow_mmap_threshold=268435456"
export ASAN_OPTIONS="$keep:${ASAN_OPTIONS:-}" TSAN_OPTIONS="$keep:no_huge_pages_for_shadow=0:${TSAN_OPTIONS:-}"
# TSan wants memory where it expects it: kernels that scatter mappings widely make it stop at once.
# It also follows every byte of the buffers that libfabric clears for each rank; most of its time went there.
fixed=""
if [ "$sanitizer" = thread ]; then
  export FI_OFI_RXM_BUFFER_SIZE=2048 FI_OFI_RXM_RX_SIZE=64 FI_OFI_RXM_TX_SIZE=64
fi
if [ "$sanitizer" = thread ] && setarch "$(uname -m)" -R true 2>/dev/null; then
  fixed="setarch $(uname -m) -R"
fi
# shellcheck disable=SC2086 # a command and its options
exec $fixed "$build/tests/smddp_tests" "$@"
