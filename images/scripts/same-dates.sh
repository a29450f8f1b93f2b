# Sourced, never run: what makes two builds of the same inputs the same, byte by byte (docs/images-offline.md).
# shellcheck shell=sh

# 2020-01-01, in seconds since 1970: any day after 1980, where the dates of zip files begin, is as good.
date_of_all=1577836800
began=$(mktemp)

# Give the one date to everything in FOLDER that this step has written, and to nothing that is in a layer below.
same_dates_in() { # FOLDER
    find "$1" -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /build -o -path /wheels \) -prune \
        -o -newer "$began" -exec touch --no-dereference --date="@$date_of_all" {} +
}

# The last thing a step does.
same_dates() {
    same_dates_in /
    rm "$began"
    touch --date="@$date_of_all" /tmp
}

# Compile the Python packages that this step has installed, on all cores: a container that had to compile torch itself
# would pay seconds at every start. A compiled file contains the date of its source, so that is set before. Packages carry
# a few files for newer Pythons than this one; those do not compile, and nothing imports them.
compile_packages() {
    packages=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    sources=$(mktemp)
    find "$packages" -name '*.py' -newer "$began" -print0 > "$sources"
    same_dates_in "$packages"
    xargs -0 -r -n 200 -P "$(nproc)" python -m compileall -qq --invalidation-mode timestamp < "$sources" || true
    rm "$sources"
}
