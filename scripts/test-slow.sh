#!/bin/sh
# test-slow.sh FILE PACKAGE...: a test of images that takes many minutes, which `make test` leaves out. ROW says of which row.
set -eu
here=$(dirname "$0")
. "$here/lib.sh"
cd "$here/.."
file=$1
shift
need "this test needs the packages, and only root on Debian can install them: $*" "$@"
.venv/bin/pytest -q --durations=5 "$file"
