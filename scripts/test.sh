#!/bin/sh
# test.sh PACKAGE...: install what tests need, build what they test, run the checks and all tests; start what servers they
# need and stop them again. Fails when anything failed, at the end, so that one run shows everything. modelparallel/ is
# tested from its sources: it need not be installed.
#
# An image's build waits for downloads and for one process at a time, so the checks that need no image run beside it.
#
# Two runs of pytest share the machine's cores, so a test may miss a limit of time that it keeps alone. The few that failed
# run once more when all others have ended, and have failed if they fail again.
set -eu
here=$(dirname "$0")
. "$here/lib.sh"
cd "$here/.."

began=$(date +%s)
stage() { say "[$(($(date +%s) - began)) s] $*"; }

# All that make or remove images, so that only one at a time does: a list of them fails where one goes meanwhile.
with_engine="tests/images tests/shoal tests/e2e tests/sdk tests/benchmarks/test_images.py tests/benchmarks/test_jobs.py"
background=
# shellcheck disable=SC2317,SC2329 # the traps call it
finish() {
    [ -z "$background" ] || kill "$background" 2>/dev/null || true
    scripts/engine.sh stop
}

stage "setting up"
need "the tests need these packages, and only root on Debian can install them: $*" "$@"
scripts/venv.sh
PATH=$PWD/.venv/bin:$PATH
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
scripts/engine.sh start
stage "compiling smddp, installing train"
make --no-print-directory smddp
pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps ./entrypoint
mkdir -p .shoal
failed=
# logged NAME COMMAND...: run it, as it speaks and into .shoal/test-NAME.log; its exit code is then in $code
logged() {
    log=.shoal/test-$1.log
    shift
    # A pipe has the exit code of its last command.
    { "$@" 2>&1 && echo 0 >.shoal/test-code || echo $? >.shoal/test-code; } | tee -a "$log"
    read -r code <.shoal/test-code
}
rm -f .shoal/test-*.log
stage "building the image 2.13-cpu (.shoal/test-image.log)"
shoal build 2.13-cpu >.shoal/test-image.log 2>&1 &
background=$!
stage "linting"
logged lint scripts/lint.sh
[ "$code" = 0 ] || failed="$failed lint"
stage "testing the C++ core: plain, with ASan and UBSan, with TSan"
logged core scripts/test-core.sh
[ "$code" = 0 ] || failed="$failed core"
stage "waiting for the image"
wait "$background" || { cat .shoal/test-image.log >&2; exit 1; }
background=

# Each run of pytest remembers what failed in a folder of its own.
memory=.shoal/pytest
options="-q --durations=10 --override-ini=cache_dir=$memory"
rm -rf "$memory-engine" "$memory-others"
# settle NAME CODE ARGUMENT...: run what failed in the run of this name, which had these arguments and ended with CODE, once more
settle() {
    name=$1
    code=$2
    shift 2
    [ "$code" != 0 ] || return 0
    count=$(grep -c ': true' "$memory-$name/v/cache/lastfailed" || true)
    # Exit code 1: tests failed. Any other means that pytest itself did not work.
    if [ "$code" = 1 ] && [ "${count:-0}" -gt 0 ] && [ "$count" -le 8 ]; then
        stage "once more, alone: $count of \"$name\" that failed"
        # shellcheck disable=SC2086 # lists
        logged "$name" pytest $options-"$name" "$@" --last-failed --last-failed-no-failures=none
    fi
    [ "$code" = 0 ] || failed="$failed $name"
}

# Two runs side by side: the tests of images and jobs wait for the engine most of the time, the others compute.
stage "running pytest: images and jobs (.shoal/test-engine.log), and beside it all others"
# shellcheck disable=SC2046,SC2086 # an option for each folder
others=$(printf -- '--ignore=%s ' $with_engine)
engine_code=0
# shellcheck disable=SC2086 # lists
pytest $options-engine $with_engine >.shoal/test-engine.log 2>&1 &
background=$!
# shellcheck disable=SC2086
logged others pytest $options-others $others
others_code=$code
stage "waiting for the tests of images and jobs"
wait "$background" || engine_code=$?
background=
cat .shoal/test-engine.log
# shellcheck disable=SC2086
settle others "$others_code" $others
# shellcheck disable=SC2086
settle engine "$engine_code" $with_engine
for name in $failed; do
    stage "failed: $name; .shoal/test-$name.log ends with"
    tail -n 30 ".shoal/test-$name.log"
done
stage "done"
[ -z "$failed" ]
