#!/bin/sh
# build-wheel.sh SOURCE DIRECTORY: build the wheel of the project in SOURCE (mounted read-only) into DIRECTORY.
# Nothing is downloaded: the build tools and torch are installed already.
set -eu
. "$(dirname "$0")/host-settings.sh"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$1" "$work/source"
pip wheel --quiet --no-index --no-deps --no-build-isolation --no-cache-dir --wheel-dir "$2" "$work/source"
ls "$2"/*.whl
