#!/bin/sh
# apt-download.sh PACKAGE...: install as apt-install.sh does, and keep what apt needed for it in /shoal-debs:
#   lists/  the signed indexes    archives/  the packages    targets, uris  where in the archive each of them was
# `shoal bundle` runs it in place of apt-install.sh; shoal/image/bundle/debs.py reads what it leaves.
set -eu
. "$(dirname "$0")/host-settings.sh"

keep=/shoal-debs
nothing=$(mktemp -d)
mkdir -p "$nothing/partial" "$keep/lists/partial" "$keep/archives/partial"
apt() {
    apt-get -qq -o Dir::State::lists="$keep/lists" -o Acquire::Languages=none -o Acquire::GzipIndexes=true \
        -o Acquire::IndexTargets::deb::Packages::KeepCompressedAs=xz "$@"
}
install() { apt install -y --no-install-recommends "$@"; }

# Once: later steps choose from the same indexes, even if the archive changes in the meantime.
[ -s "$keep/targets" ] || apt update
# shellcheck disable=SC2016 # apt's own variables
apt indextargets --format '$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(METAKEY)|$(FILENAME)' 'Created-By: Packages' >"$keep/targets"
# Looked at with an empty folder of archives: what is there already is not listed.
install -o Dir::Cache::archives="$nothing" --print-uris "$@" >>"$keep/uris"
install -o Dir::Cache::archives="$keep/archives" --download-only "$@" >/dev/null
install -o Dir::Cache::archives="$keep/archives" -o APT::Keep-Downloaded-Packages=true "$@" >/dev/null
rm -rf "$nothing"
