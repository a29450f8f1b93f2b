#!/bin/sh
# test-report.sh PACKAGE...: the tests of what measures jobs and of `shoal report`. Fails when any failed.
set -eu
here=$(dirname "$0")
. "$here/lib.sh"
cd "$here/.."
need "these tests need the packages, and only root on Debian can install them: $*" "$@"
make --no-print-directory smddp
PATH=$PWD/.venv/bin:$PATH
pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps ./entrypoint
say "testing the sampler, the marks and the report"
pytest -q --durations=10 tests/shoal/report tests/entrypoint/test_profile.py tests/entrypoint/test_marks.py \
    tests/smddp/test_marks.py tests/modelparallel/test_marks.py
