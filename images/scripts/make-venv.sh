#!/bin/sh
# make-venv.sh FOLDER: make the Python environment that everything else is installed into, with pip.
set -eu
. "$(dirname "$0")/same-dates.sh"

python3 -m venv "$1"
PATH=$1/bin:$PATH
compile_packages
same_dates
