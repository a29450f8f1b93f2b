"""What is read from a rendered Dockerfile, and what becomes of it for a bundle and for a build from one."""

from pathlib import Path

import pytest

from shoal.image.bundle import dockerfile

RENDERED = sorted((Path(__file__).resolve().parents[3] / "images" / "rendered").glob("*.Dockerfile"))

SMALL = """\
ARG suite
FROM shoal-base:debian12 AS base
# apt-install.sh in a comment
RUN --mount=type=bind,source=images/scripts,target=/build/scripts \\
    --mount=type=cache,target=/var/cache/apt,id=one,sharing=locked \\
    --mount=type=cache,target=/var/lib/apt/lists,id=two,sharing=locked \\
    /build/scripts/apt-install.sh \\
        python3 \\
        python3-venv
ENV A=b
FROM base AS builder
RUN --mount=type=bind,source=wheelhouse/a-lock,target=/build/wheelhouse pip install x
RUN --mount=type=cache,target=/ccache /build/scripts/apt-install.sh g++
FROM base AS final
COPY --from=builder /wheels /
"""


def test_packages_of_each_step() -> None:
    assert dockerfile.apt_steps(SMALL) == [["python3", "python3-venv"], ["g++"]]


def test_folders_of_wheels() -> None:
    assert dockerfile.wheel_folders(SMALL) == ["a-lock"]


def test_what_a_bundle_does_not_hold() -> None:
    assert dockerfile.unbundled(SMALL) == []
    assert dockerfile.unbundled("RUN --mount=type=bind,source=wheelhouse/a/python,target=/p x") == [
        "wheelhouse/a/python"
    ]


def test_only_apt_keeps_stages_and_order() -> None:
    heads = [one.split(" \\")[0] for one in dockerfile.instructions(dockerfile.only_apt(SMALL))]
    assert heads == [
        "ARG suite",
        "FROM shoal-base:debian12 AS base",
        "RUN --mount=type=bind,source=images/scripts,target=/build/scripts",
        "FROM base AS builder",
        "RUN --mount=type=cache,target=/ccache /build/scripts/apt-download.sh g++",
        "FROM base AS final",
        "FROM scratch AS downloaded",
        "COPY --from=base /shoal-debs /base",
        "COPY --from=builder /shoal-debs /builder",
    ]


def test_debs_take_the_place_of_apts_caches_and_of_nothing_else() -> None:
    text = dockerfile.with_debs(SMALL, "wheelhouse/row-debs")
    assert text.count("--mount=type=bind,source=wheelhouse/row-debs,target=/build/debs") == 2
    assert "/var/cache/apt" not in text
    assert "/var/lib/apt" not in text
    assert "--mount=type=cache,target=/ccache" in text
    assert dockerfile.apt_steps(text) == dockerfile.apt_steps(SMALL)


@pytest.mark.parametrize("path", RENDERED, ids=lambda path: path.name)
def test_every_committed_dockerfile_is_understood(path: Path) -> None:
    text = path.read_text()
    assert all(dockerfile.apt_steps(text))
    assert dockerfile.wheel_folders(text)
    assert dockerfile.only_apt(text).count(dockerfile.APT_DOWNLOAD) == len(dockerfile.apt_steps(text))
    offline = dockerfile.with_debs(text, "wheelhouse/row-debs")
    assert offline.count("target=/build/debs") == len(dockerfile.apt_steps(text))
    assert "target=/var/" not in offline
