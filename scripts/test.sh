#!/bin/sh
# test.sh PACKAGE...: install what tests need, build what they test, run the checks and all tests; start what servers they
# need and stop them again. Fails when anything failed, at the end, so that one run shows everything.
set -eu
here=$(dirname "$0")
. "$here/lib.sh"
cd "$here/.."

began=$(date +%s)
stage() { say "[$(($(date +%s) - began)) s] $*"; }

stage "setting up"
need "the tests need these packages, and only root on Debian can install them: $*" "$@"
scripts/venv.sh
PATH=$PWD/.venv/bin:$PATH
trap 'scripts/engine.sh stop' EXIT
scripts/engine.sh start
stage "compiling smddp, installing train"
make --no-print-directory smddp
pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps ./entrypoint
stage "building the image 2.13-cpu"
shoal build 2.13-cpu >/dev/null
failed=0
stage "linting"
scripts/lint.sh || failed=1
stage "testing the C++ core: plain, with ASan and UBSan, with TSan"
scripts/test-core.sh || failed=1
stage "running pytest"
pytest -q --durations=10 || failed=1
stage "done"
exit $failed
