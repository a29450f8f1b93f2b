# Sourced by the scripts beside it: how they speak, and how they install what is missing.
# shellcheck shell=sh

say() { printf 'shoal: %s\n' "$*" >&2; }
die() { say "$*"; exit 3; }

# need SENTENCE PACKAGE...: make sure the Debian packages are installed. Where they may not be installed (not Debian, not
# root), stop with SENTENCE, which says what the user must provide instead.
need() {
    sentence=$1
    shift
    missing=
    if command -v dpkg-query >/dev/null; then
        for package in "$@"; do
            dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q ' installed$' || missing="$missing $package"
        done
        [ -n "$missing" ] || return 0
    fi
    if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
        die "$sentence"
    fi
    say "installing Debian packages:$missing"
    # shellcheck disable=SC2086 # a list of package names
    apt_install $missing || die "apt-get could not install$missing: see above; $sentence"
}

apt_install() {
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update && apt-get -qq install -y --no-install-recommends "$@" >/dev/null
}
