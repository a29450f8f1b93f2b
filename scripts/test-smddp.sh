#!/bin/sh
# test-smddp.sh PACKAGE...: the tests of the collective library alone. Fails when anything failed, at the end.
set -eu
here=$(dirname "$0")
. "$here/lib.sh"
cd "$here/.."
need "these tests need the packages, and only root on Debian can install them: $*" "$@"
make --no-print-directory smddp
failed=0
scripts/test-core.sh || failed=1
say "testing the back end through torch"
.venv/bin/pytest -q --durations=10 tests/smddp || failed=1
exit $failed
