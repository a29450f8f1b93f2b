#!/bin/sh
# test-jobs.sh PACKAGE...: the tests of jobs alone, the examples on the real image among them. Sets up what they need on a bare
# machine, and stops the engine if it started it. Fails when any failed.
set -eu
here=$(dirname "$0")
. "$here/lib.sh"
cd "$here/.."
need "these tests need the packages, and only root on Debian can install them: $*" "$@"
scripts/venv.sh
trap 'scripts/engine.sh stop' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
scripts/engine.sh start
PATH=$PWD/.venv/bin:$PATH
say "building the image 2.13-cpu"
shoal build 2.13-cpu
say "testing jobs"
folders=
for folder in tests/shoal/job tests/shoal/submit tests/shoal/serve tests/shoal/advise tests/e2e tests/sdk; do
    [ ! -d "$folder" ] || folders="$folders $folder"
done
# shellcheck disable=SC2086 # a list of folders
pytest -q --durations=10 $folders
