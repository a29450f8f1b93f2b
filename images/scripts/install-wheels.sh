#!/bin/sh
# install-wheels.sh FOLDER: install the wheels that an earlier stage has built. What they need is there already.
set -eu
. "$(dirname "$0")/same-dates.sh"

pip install --quiet --no-index --no-deps --no-cache-dir --no-compile --root-user-action=ignore "$1"/*.whl
compile_packages
same_dates
