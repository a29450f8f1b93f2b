#!/bin/sh
# apt-install.sh PACKAGE...: install Debian packages and nothing they merely recommend.
# The package lists and archives live in cache mounts, so there is nothing to clean up afterwards.
# Where /build/debs is mounted (`shoal build --offline`) it is the archive, and no other is asked.
set -eu
. "$(dirname "$0")/host-settings.sh"
. "$(dirname "$0")/same-dates.sh"

if [ -f /build/debs/sources.list ]; then
    # In a place of its own: the lists in the cache mount are those of the real archive.
    work=$(mktemp -d)
    chmod 0755 "$work" # apt reads as a user without rights
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
    # Signatures and hashes are checked as ever; that the lists are older than their archive would like is the point.
    cat >"$work/apt.conf" <<END
Dir::Etc::SourceList "/build/debs/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State::lists "$work/lists";
Dir::Cache "$work/cache";
Acquire::Languages "none";
Acquire::Check-Valid-Until "false";
Acquire::Check-Date "false";
END
    export APT_CONFIG="$work/apt.conf"
fi

apt-get -qq update
apt-get -qq install -y --no-install-recommends "$@" >/dev/null
# Keys belong to a job, never to an image: `train` makes them when a job starts. Here, so that no layer has them either.
rm -f /etc/ssh/ssh_host_*
# Accounts are dated with the day on which a package made them.
if [ /etc/shadow -nt "$began" ]; then
    sed -i "s/^\([^:]*:[^:]*\):[0-9]*:/\1:$((date_of_all / 86400)):/" /etc/shadow
fi
# A package that is set up leaves these behind; they differ from build to build and serve nobody.
rm -rf /var/log/apt/* /var/log/dpkg.log /var/log/alternatives.log /var/cache/debconf/*-old /var/lib/dpkg/*-old \
    /var/cache/ldconfig/aux-cache "${work:-}"
same_dates
