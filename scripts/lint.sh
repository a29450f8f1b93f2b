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
# One run a folder: two folders may each have a conftest.py, and mypy knows modules by name.
for folder in shoal scripts entrypoint/src tests/shoal/image tests/shoal/job tests/images tests/e2e tests/scripts \
    tests/smddp benchmarks tests/conftest.py; do
    check mypy --no-error-summary "$folder"
done
# Modules named from this folder, not those of an installed copy.
check env MYPYPATH=smddp_core/python mypy --no-error-summary --explicit-package-bases smddp_core/python
check env MYPYPATH=entrypoint/src mypy --no-error-summary tests/entrypoint
check env MYPYPATH=benchmarks mypy --no-error-summary tests/benchmarks
# An example's modules import one another by bare name, as they do in the container.
for folder in examples/*/; do
    check env MYPYPATH="${folder}source" mypy --no-error-summary "$folder"
done
git ls-files 'smddp_core/*.cpp' 'smddp_core/*.hpp' 'benchmarks/*.cpp' 'benchmarks/*.hpp' | check xargs -r clang-format --dry-run --Werror
git ls-files '*.sh' .ci/run | check xargs -r shellcheck --external-sources --source-path=SCRIPTDIR
git ls-files 'images/rendered/*.Dockerfile' | check xargs -r hadolint --config images/hadolint.yaml
check shoal render --check
exit $failed
