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
for folder in shoal entrypoint/src tests/shoal/image tests/shoal/push tests/shoal/job tests/shoal/catalogue tests/shoal/advise tests/shoal/report tests/shoal/submit \
    tests/shoal/serve tests/images tests/e2e tests/scripts tests/forking tests/conftest.py tests/shoal/conftest.py; do
    check mypy --no-error-summary "$folder"
done
for folder in scripts benchmarks; do
    check env MYPYPATH=modelparallel/python mypy --no-error-summary "$folder"
done
check env MYPYPATH=tests/forking mypy --no-error-summary tests/smddp
check env MYPYPATH=tests/shoal/job:tests/shoal/serve:tests/sdk/programs mypy --no-error-summary tests/sdk
# Modules named from this folder, not those of an installed copy.
check env MYPYPATH=smddp_core/python mypy --no-error-summary --explicit-package-bases smddp_core/python
check env MYPYPATH=modelparallel/python mypy --no-error-summary --explicit-package-bases modelparallel/python
# What these tests define (modules, step functions) torch types loosely, or not at all. Other options want a cache of their own:
# with one for all, mypy reads torch again whenever they change.
check env MYPYPATH=modelparallel/python:tests/forking mypy --cache-dir=.mypy_cache/modelparallel --no-error-summary --allow-untyped-calls --allow-untyped-decorators --no-warn-return-any \
    --no-warn-unused-ignores --disable-error-code=misc --disable-error-code=union-attr tests/modelparallel
check env MYPYPATH=entrypoint/src mypy --no-error-summary tests/entrypoint
check env MYPYPATH=benchmarks:tests/sdk mypy --no-error-summary tests/benchmarks
# An example's modules import one another by bare name, as they do in the container. They are there to be copied, so they carry
# no marks for what torch leaves untyped (`loss.backward()`).
for folder in examples/*/; do
    check env MYPYPATH="${folder}source:modelparallel/python:entrypoint/src" mypy --cache-dir=.mypy_cache/examples --no-error-summary --allow-untyped-calls \
        --no-warn-unused-ignores --disable-error-code=var-annotated "$folder"
done
# Not by a pipe, whose last part would keep to itself that it failed.
# shellcheck disable=SC2046 # lists; no name has a space
{
    check clang-format --dry-run --Werror $(git ls-files 'smddp_core/*.cpp' 'smddp_core/*.hpp' 'benchmarks/*.cpp' 'benchmarks/*.hpp')
    check shellcheck --external-sources --source-path=SCRIPTDIR $(git ls-files '*.sh' .ci/run)
    check hadolint --config images/hadolint.yaml $(git ls-files 'images/rendered/*.Dockerfile')
}
check shoal render --check
exit $failed
