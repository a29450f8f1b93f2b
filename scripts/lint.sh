#!/bin/sh
# lint.sh: every check that runs nothing of the project. Prints what each found; fails if any did.
set -u
cd "$(dirname "$0")/.." || exit 1
PATH=$PWD/.venv/bin:$PATH
failed=0

check() {
    "$@" || { printf 'lint: failed: %s\n' "$*" | cut -c 1-120 >&2; failed=1; }
}

check ruff check --quiet .
check ruff format --quiet --check .
check mypy shoal scripts tests/shoal tests/images tests/e2e
check mypy entrypoint/src
check mypy tests/entrypoint
check mypy -p smdistributed.dataparallel
check mypy tests/smddp
git ls-files 'smddp_core/*.cpp' 'smddp_core/*.hpp' | check xargs -r clang-format --dry-run --Werror
git ls-files '*.sh' .ci/run | check xargs -r shellcheck --external-sources --source-path=SCRIPTDIR
git ls-files 'images/rendered/*.Dockerfile' | check xargs -r hadolint --config images/hadolint.yaml
check shoal render --check
exit $failed
