#!/bin/sh
# test-core.sh: the C++ tests of smddp's core, plain and under the sanitizers. Fails when any failed, at the end.
#
# A test that waits for peers can miss its limit of time on a machine that others use: what failed runs once more, and has
# failed if it fails again. What a sanitizer found gets no second run: it ends the program with a code of its own (TSan 66,
# leaks 23), or before the report is written (ASan, UBSan).
set -eu
here=$(dirname "$0")
. "$here/lib.sh"
cd "$here/.."
PATH=$PWD/.venv/bin:$PATH
report=$PWD/.shoal/test-core.json
mkdir -p .shoal

# The names of the tests that the report calls failed, as GoogleTest's filter takes them.
failures() {
    python - "$report" <<'END'
import json, sys
suites = json.load(open(sys.argv[1]))["testsuites"]
print(":".join(f"{test['classname']}.{test['name']}" for suite in suites for test in suite["testsuite"] if "failures" in test))
END
}

run() {
    rm -f "$report"
    code=0
    # shellcheck disable=SC2086 # no sanitizer is no argument
    smddp_core/tests/run.sh $1 --gtest_brief=1 "--gtest_output=json:$report" || code=$?
    [ "$code" = 1 ] && [ -e "$report" ] || return "$code"
    names=$(failures)
    say "once more, alone: $names"
    # shellcheck disable=SC2086
    smddp_core/tests/run.sh $1 "--gtest_filter=$names"
}

failed=0
for sanitizer in "" address thread; do
    say "testing the C++ core${sanitizer:+ with the $sanitizer sanitizer}"
    run "$sanitizer" || failed=1
done
exit $failed
