#!/bin/sh
# test.sh PACKAGE...: install what tests need, build what they test, run the checks and all tests; start what servers they
# need and stop them again. Fails when anything failed, at the end, so that one run shows everything. modelparallel/ is
# tested from its sources: it need not be installed.
#
# Two rows of work go side by side, as each waits much of its time: the image's build with the tests of model parallelism
# beside it, then the tests of images and jobs, then those of `train`; and the checks, the core's tests and all other tests.
#
# So a test may miss a limit of time that it keeps alone. The few that failed run once more when all others have ended, and
# have failed if they fail again. The image is built once more where it failed because the engine ended (dockerd 20.10 did
# so once in the middle of a build).
set -eu
here=$(dirname "$0")
. "$here/lib.sh"
cd "$here/.."

began=$(date +%s)
stage() { say "[$(($(date +%s) - began)) s] $*"; }

# All that make or remove images, so that only one at a time does: a list of them fails where one goes meanwhile.
with_engine="tests/images tests/shoal tests/e2e tests/sdk tests/benchmarks/test_images.py tests/benchmarks/test_jobs.py"
# tests_of NAME: what pytest is given for the run of this name, which remembers what failed in a folder of its own
# shellcheck disable=SC2086 # an option for each folder
tests_of() {
    printf -- '-q --durations=10 --override-ini=cache_dir=.shoal/pytest-%s ' "$1"
    case $1 in
        smp) echo tests/modelparallel ;;
        engine) echo "$with_engine" ;;
        train) echo tests/entrypoint ;;
        others) printf -- '--ignore=%s ' tests/modelparallel tests/entrypoint $with_engine ;;
    esac
}

# apart NAME COMMAND...: start it, as a process of its own whose id is then $!, and keep what it says
children=
apart() {
    log=.shoal/test-$1.log
    shift
    "$@" >"$log" 2>&1 &
    children="$children $!"
}
# ended NAME ID: wait for it and keep its exit code
ended() {
    code=0
    wait "$2" || code=$?
    echo "$code" >".shoal/test-$1.code"
}
# logged NAME COMMAND...: run it, as it speaks and into its log, and keep its exit code
logged() {
    name=$1
    shift
    # A pipe has the exit code of its last command.
    { "$@" 2>&1 && echo 0 >".shoal/test-$name.code" || echo $? >".shoal/test-$name.code"; } | tee -a ".shoal/test-$name.log"
}
# code_of NAME: how it ended; nothing where it was not run
code_of() { cat ".shoal/test-$1.code" 2>/dev/null || true; }

# shellcheck disable=SC2046 # lists
first_row() {
    trap 'kill $children 2>/dev/null; exit 143' TERM
    apart image shoal build 2.13-cpu
    image=$!
    apart smp pytest $(tests_of smp)
    smp=$!
    ended image "$image"
    if [ "$(code_of image)" != 0 ] && ! scripts/engine.sh answers; then
        cat .shoal/test-image.log
        stage "the Docker engine ended while it built the image: once more, with a new one"
        scripts/engine.sh start
        apart image shoal build 2.13-cpu
        ended image $!
    fi
    ended smp "$smp"
    if [ "$(code_of image)" = 0 ]; then
        stage "running pytest: images and jobs (.shoal/test-engine.log)"
        apart engine pytest $(tests_of engine)
        ended engine $!
    fi
    stage "running pytest: train (.shoal/test-train.log)"
    apart train pytest $(tests_of train)
    ended train $!
}

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
rm -rf .shoal/test-*.log .shoal/test-*.code .shoal/pytest-*
stage "building the image 2.13-cpu (.shoal/test-image.log); running pytest: model parallelism (.shoal/test-smp.log)"
first_row &
background=$!
stage "linting"
logged lint scripts/lint.sh
stage "testing the C++ core: plain, with ASan and UBSan, with TSan"
logged core scripts/test-core.sh
stage "running pytest: all others"
# shellcheck disable=SC2046 # lists
logged others pytest $(tests_of others)
stage "waiting for the tests of images, jobs and train"
wait "$background" || true
background=
for name in smp engine train; do
    [ ! -e ".shoal/test-$name.log" ] || cat ".shoal/test-$name.log"
done

# settle NAME: run what failed in the run of this name, which ended with 1, once more. Any other exit code means that pytest
# itself did not work.
settle() {
    count=$(grep -c ': true' ".shoal/pytest-$1/v/cache/lastfailed" || true)
    if [ "${count:-0}" -gt 0 ] && [ "$count" -le 8 ]; then
        stage "once more, alone: $count of \"$1\" that failed"
        # shellcheck disable=SC2046 # lists
        logged "$1" pytest $(tests_of "$1") --last-failed --last-failed-no-failures=none
    fi
}
for name in others smp engine train; do
    [ "$(code_of $name)" != 1 ] || settle $name
done
failed=
for name in lint core image others smp engine train; do
    # Without an image those of images and jobs were not run.
    [ -e ".shoal/test-$name.log" ] && [ "$(code_of $name)" != 0 ] || continue
    failed="$failed $name"
    stage "failed: $name; .shoal/test-$name.log ends with"
    tail -n 30 ".shoal/test-$name.log"
done
stage "done"
[ -z "$failed" ]
