#!/bin/sh
# test-entrypoint.sh PACKAGE...: the tests of `train` alone. Fails when any failed.
set -eu
here=$(dirname "$0")
. "$here/lib.sh"
cd "$here/.."
need "these tests need the packages, and only root on Debian can install them: $*" "$@"
make --no-print-directory smddp
.venv/bin/pytest -q --durations=10 tests/entrypoint
