"""What a rendered Dockerfile says of where its packages come from. Text in, text out; nothing here runs Docker."""

import re

APT_INSTALL = "/build/scripts/apt-install.sh"
APT_DOWNLOAD = "/build/scripts/apt-download.sh"
DEBS_TARGET = "/build/debs"
_APT_CACHES = re.compile(r"--mount=type=cache,target=/var/(cache|lib)/apt\S* \\\n *")
DOWNLOADED = "/shoal-debs"  # where images/scripts/apt-download.sh keeps what it downloads


def instructions(dockerfile: str) -> list[str]:
    """Return the instructions of a Dockerfile, each with its continuation lines, comments left out."""
    found: list[str] = []
    open_ended = False
    for line in dockerfile.splitlines():
        if line.lstrip().startswith("#") or not (line.strip() or open_ended):
            continue
        if open_ended:
            found[-1] += f"\n{line}"
        else:
            found.append(line)
        open_ended = line.rstrip().endswith("\\")
    return found


def apt_steps(dockerfile: str) -> list[list[str]]:
    """Return the packages of each step that installs Debian packages, in order."""
    steps = [one for one in instructions(dockerfile) if APT_INSTALL in one]
    return [step.split(APT_INSTALL, 1)[1].replace("\\\n", " ").split() for step in steps]


def wheel_folders(dockerfile: str) -> list[str]:
    """Return the folders of wheelhouse/ that the Dockerfile mounts."""
    return sorted(set(re.findall(r"source=wheelhouse/([A-Za-z0-9._-]+)", dockerfile)))


def unbundled(dockerfile: str) -> list[str]:
    """Return what the Dockerfile mounts of wheelhouse/ that is not a folder of wheels: a Python from elsewhere."""
    return sorted(set(re.findall(r"source=(wheelhouse/[^/,\s]+/[^,\s]+)", dockerfile)))


def only_apt(dockerfile: str) -> str:
    """Return a Dockerfile that runs the same apt steps on the same stages, and ends in what they downloaded.

    Each step sees the packages installed that it sees in the real build, so apt chooses the same.
    """
    lines: list[str] = []
    stages: list[str] = []
    stage = ""
    for one in instructions(dockerfile):
        if named := re.match(r"FROM +\S+ +AS +(\S+)", one):
            stage = named[1]
            lines.append(one)
        elif one.startswith("ARG") and not stage:
            lines.append(one)
        elif APT_INSTALL in one:
            lines.append(_APT_CACHES.sub("", one).replace(APT_INSTALL, APT_DOWNLOAD))
            stages.append(stage)
    copies = [f"COPY --from={name} {DOWNLOADED} /{name}" for name in dict.fromkeys(stages)]
    return "\n".join([*lines, "FROM scratch AS downloaded", *copies]) + "\n"


def with_debs(dockerfile: str, folder: str) -> str:
    """Return the Dockerfile with `folder` of the build context, a part of the archive, mounted for every apt step.

    It takes the place of apt's caches, which hold what other builds have downloaded.
    """
    mount = f"--mount=type=bind,source={folder},target={DEBS_TARGET} \\\n    "
    return _APT_CACHES.sub("", dockerfile).replace(APT_INSTALL, mount + APT_INSTALL)
