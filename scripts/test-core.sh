#!/bin/sh
# test-core.sh: the C++ tests of smddp's core, plain and under the sanitizers. Fails when any failed, at the end.
set -eu
here=$(dirname "$0")
. "$here/lib.sh"
cd "$here/.."
PATH=$PWD/.venv/bin:$PATH
failed=0
for sanitizer in "" address thread; do
    say "testing the C++ core${sanitizer:+ with the $sanitizer sanitizer}"
    # shellcheck disable=SC2086 # no sanitizer is no argument
    smddp_core/tests/run.sh $sanitizer --gtest_brief=1 || failed=1
done
exit $failed
