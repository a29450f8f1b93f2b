# Sourced, never run: turns the build host's package settings, mounted as BuildKit secrets, into this process's environment.
# Each file is optional, and none of it is written to the image:
#   ca.pem      CA bundle                         pip.conf    pip's index settings
#   apt.conf    apt's Acquire settings, mirrors   proxy.env   NAME=value lines, http_proxy and its kin
# shellcheck shell=sh
secrets=/run/secrets

if [ -s "$secrets/proxy.env" ]; then
    set -a
    # shellcheck disable=SC1091 # exists only while building
    . "$secrets/proxy.env"
    set +a
fi
if [ -s "$secrets/ca.pem" ]; then
    export SSL_CERT_FILE="$secrets/ca.pem" PIP_CERT="$secrets/ca.pem"
fi
if [ -s "$secrets/pip.conf" ]; then
    export PIP_CONFIG_FILE="$secrets/pip.conf"
fi
if [ -s "$secrets/apt.conf" ]; then
    export APT_CONFIG="$secrets/apt.conf"
fi
export DEBIAN_FRONTEND=noninteractive PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
