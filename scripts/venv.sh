#!/bin/sh
# venv.sh: have .venv with exactly the packages of requirements/dev.txt, and the `shoal` command in it.
# Nothing is done when neither the lock nor pyproject.toml has changed since.
set -eu
here=$(dirname "$0")
. "$here/lib.sh"
cd "$here/.."

lock=requirements/dev.txt
stamp=.venv/.made-from
version=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || echo none)
[ "$version" = 3.11 ] || die "Python 3.11 is needed as python3 (found: $version): on Debian 12, install python3"
python3 -c 'import ensurepip' 2>/dev/null || need "the venv module of Python 3.11 is needed" python3-venv

inputs() { cat "$lock" pyproject.toml; }
inputs | cmp -s - "$stamp" && exit 0
say "making .venv from $lock"
rm -rf .venv
python3 -m venv .venv
install() { .venv/bin/pip install --quiet --disable-pip-version-check --require-hashes -r "$lock" "$@"; }
# The host's own sources first. Where they have no CPU build of torch, the index of its publisher does.
install 2>.venv/pip.log || install --extra-index-url https://download.pytorch.org/whl/cpu 2>>.venv/pip.log ||
    die "pip could not install $lock: $(grep '^ERROR' .venv/pip.log | tail -n 1) (all of it: .venv/pip.log)"
.venv/bin/pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
inputs >"$stamp"
