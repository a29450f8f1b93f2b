#!/bin/sh
# old_compilers.sh COMPILER...: builds smddp's core and its tests with compilers of Debian 11 (g++-9 is Ubuntu 20.04's too),
# in a system of their own that is thrown away, and runs the tests of the reduction loops: those depend on the compiler.
# As root; three minutes a compiler.
set -eu
cd "$(dirname "$0")/../.."
. scripts/lib.sh
need "this check needs mmdebstrap, and only root on Debian can install it" mmdebstrap
cmake=$(.venv/bin/python -c 'import cmake; print(cmake.CMAKE_DATA)')
packages=$(printf '%s,' "$@")ninja-build,libgtest-dev,libgmock-dev,libfabric-dev
set -- "$(printf '%s ' "$@")"
# mmdebstrap runs the hooks in the folder of the new system's root, $1.
exec mmdebstrap --quiet --variant=minbase --include="$packages" \
    --customize-hook="mkdir \"\$1/src\" \"\$1/opt/cmake\"" \
    --customize-hook="tar -C smddp_core --exclude=./build -c . | tar -C \"\$1/src\" -x" \
    --customize-hook="cp -r '$cmake/.' \"\$1/opt/cmake\"" \
    --customize-hook="chroot \"\$1\" sh -euc 'for compiler in $1; do
        CXX=\$compiler /opt/cmake/bin/cmake -G Ninja -S /src -B /build -DSMDDP_BUILD_TORCH=OFF -DSMDDP_BUILD_TESTS=ON -DSMDDP_WERROR=ON >/log || { cat /log; exit 1; }
        ninja -C /build >/log || { cat /log; exit 1; }
        /build/tests/smddp_tests --gtest_brief=1 \"--gtest_filter=Kernel.*\"
        rm -r /build
        echo \"\$compiler: built, passed\"
    done'" \
    bullseye /dev/null
