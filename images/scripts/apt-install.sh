#!/bin/sh
# apt-install.sh PACKAGE...: install Debian packages and nothing they merely recommend.
# The package lists and archives live in cache mounts, so there is nothing to clean up afterwards.
set -eu
. "$(dirname "$0")/host-settings.sh"

apt-get -qq update
apt-get -qq install -y --no-install-recommends "$@" >/dev/null
# A package that is set up leaves these behind; they differ from build to build and serve nobody.
rm -rf /var/log/apt /var/log/dpkg.log /var/log/alternatives.log /var/cache/debconf/*-old /var/lib/dpkg/*-old
