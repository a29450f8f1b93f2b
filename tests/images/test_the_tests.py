"""Images spoilt on purpose: each fault makes the tests that watch for it fail, and no other.

All faults of a group go into one image, and the tests of tests/images/by_image run on it once.
"""

import shlex
import subprocess
import sys
import uuid
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import docker
import pytest

from shoal.image.versions import Row

pytestmark = [pytest.mark.image, pytest.mark.slow, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
# Of the length that the pattern asks for; no such key was ever issued.
NO_KEY = "A" + "KIA" + "Q" * 16


class Fault(NamedTuple):
    """What somebody could do to an image, in the words of a shell or of a Dockerfile, and the tests that notice."""

    command: str
    noticed_by: Sequence[str]
    changes: Sequence[str] = ()


OF_THE_SYSTEM = (
    Fault("cp /bin/true /usr/bin/surprise && chmod 4755 /usr/bin/surprise", ["no_program_takes_another_user_s_rights"]),
    Fault("echo x >/etc/anybody && chmod 666 /etc/anybody", ["nothing_can_be_written_by_everybody"]),
    Fault("sed -i 's/^root:[^:]*/root:/' /etc/shadow", ["no_account_has_a_password"]),
    Fault("echo 'toor:x:0:0::/root:/bin/sh' >>/etc/passwd", ["only_root_is_root"]),
    Fault("touch /srv/file && chown 4321:4321 /srv/file", ["every_file_belongs_to_an_account_that_there_is"]),
    Fault(
        "mkdir -p /root/.ssh && ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/id_ed25519",
        ["root_has_no_keys", "no_secret_in_any_layer[private key]", "no_file_of_credentials_in_any_layer"],
    ),
    Fault(
        'setcap() { python -c \'import os; os.setxattr("/usr/bin/env", "security.capability",'
        ' bytes.fromhex("0100000202000000000000000000000000000000"))\'; }; setcap',
        ["no_program_has_capabilities"],
    ),
    Fault("sed -i s/VERSION_ID=.*/VERSION_ID=99/ /etc/os-release", ["the_system_is_the_row_s"]),
    Fault("ln -s /bin/true /usr/local/bin/gcc", ["no_compiler[gcc]"]),
    Fault("touch /var/tmp/left", ["no_caches[/var/tmp]"]),
    Fault("echo said >/var/log/build.log", ["no_logs"]),
    Fault("echo 'Acquire::https::Proxy \"x\";' >/etc/apt/apt.conf.d/99x", ["the_build_host_s_apt_options_are_gone"]),
    Fault("echo 'deb http://mirror.example/debian x main' >/etc/apt/sources.list.d/x.list", ["apt_asks_the_public"]),
    Fault(f"echo {NO_KEY} >/etc/one", ["no_secret_in_any_layer[AWS key]"]),
    Fault(f"echo ghp_{'q' * 36} >/etc/two", ["no_secret_in_any_layer[token]"]),
    Fault("echo https://me:geheim@host.example >/etc/three", ["no_secret_in_any_layer[password in an address]"]),
    Fault(":", ["the_environment_names_no_secret"], ["ENV HF_TOKEN=x"]),
    Fault("mkdir -p /usr/share/man/man1 && touch /usr/share/man/man1/x.1", ["licences_of_packages_are_kept"]),
    Fault("echo >>/usr/bin/ssh-copy-id", ["files_of_packages_are_as_they_came"]),
    Fault(
        "dpkg --force-depends --unpack /nothing 2>&1; echo 'bash hold' | dpkg --set-selections", ["every_package_is"]
    ),
)
OF_THE_SOFTWARE = (
    Fault("rm -r sympy-*.dist-info", ["every_package_s_requirements_are_met"]),
    Fault(
        "sed -i -e \"s/^cuda.*/cuda = '12.4'/\" -e \"s/+cpu'/+rocm'/\" torch/version.py",
        [
            *("measured_is_what_the_row_declares", "the_tag_says_what_is_in_it", "torch_is_the_build_for_the_row_s"),
            "torch_knows_that_there_is_none",
        ],
    ),
    Fault("echo 0 >pytorch_lightning/version.info", ["both_names_of_li"]),
    Fault("cp torch/lib/libtorch_python.so torch/x.so", ["every_library_finds_what_it_is_linked_to"]),
    Fault("mkdir -p numpy/tests", ["no_test_suites_of_packages"]),
    Fault("echo 'raise ImportError' >numpy/testing/__init__.py", ["numpy_s_own_testing_module_still_works"]),
    Fault("touch torch/libcudart.so.12", ["no_library_of_cuda"]),
    Fault(
        "cp -r six-*.dist-info nvidia_x-1.dist-info && sed -i s/^Name:.*/Name:nvidia-x/ nvidia_x*/METADATA",
        ["no_package_of_cuda"],
    ),
    Fault(":", ["the_environment_asks_for_no_gpu"], ["ENV CUDA_HOME=/usr/local/cuda"]),
    Fault("echo 'import sys; sys.stderr.write(\"x\")' >>lightning/__init__.py", ["imports_have_nothing_to_say"]),
    Fault(
        "echo PermitEmptyPasswords yes >/etc/ssh/sshd_config.d/x.conf", ["the_ssh_server_takes_no_passwords_for_root"]
    ),
    Fault("rm /opt/venv/bin/smddp", ["programs_are_on_path[smddp]"]),
    Fault(
        "cp /usr/bin/mpirun /usr/local/bin",
        ["contract_are_ours[mpirun]", "mpirun_is_given_interfaces_that_exist", "only_where_it_is_asked_to[]"],
    ),
    Fault("rm shoal_entrypoint/_hostname*.so", ["the_host_name_shim_is_there_and_works"]),
    Fault("echo >/opt/ml/code/left.py", ["folders_of_the_contract"]),
    Fault("rm -r paramiko", ["modules_of_the_contract_are_there[paramiko]"]),
    Fault(":", ["labels_of_the_project"], ['LABEL dev.shoal.row="other"']),
    Fault(":", ["labels_of_sagemaker"], ['LABEL com.amazonaws.ml.engines.sagemaker.dlc.device.tpu="true"']),
    Fault(":", ["the_configuration_leaves_the_command_to_the_user"], ["EXPOSE 22"]),
)
OF_THE_START = (
    Fault(
        "chown 2000:2000 /opt/venv/lib && chmod 700 /opt/venv/lib",
        [
            *("as_nobody_in_particular", "over_gloo_and_smddp[not-root]", "over_gloo_and_smddp[no-capabilities]"),
            *("a_job_of_two_ranks[not-root]", "a_job_of_two_ranks[all-at-once]"),
        ],
    ),
    Fault(
        "cd smdistributed/modelparallel/torch && echo 'init = print' >>init.py && python -m compileall -q init.py",
        ["two_ranks_share_a_model", "a_job_of_a_model_in_two_parts"],
    ),
    Fault("rm -r torch/nn/__pycache__", ["python_compiles_nothing_at_start"]),
    Fault(
        "cd /opt/venv/bin && mv train real && printf '#!/bin/sh\\nreal \"$@\"; exit 0' >train && chmod +x train",
        ["a_job_s_exit_code_and_failure_file", "train_without_a_job_fails_with_one_line"],
    ),
    Fault(":", ["any_command_is_run_as_it_is[command2"], ["WORKDIR /"]),
)


@pytest.fixture
def spoil(client: docker.DockerClient, image: str) -> Iterator[list[str]]:
    """Return a list to which the names of spoilt images are added, to be removed."""
    made: list[str] = []
    yield made
    for name in made:
        client.images.remove(name, force=True)


def spoilt(client: docker.DockerClient, image: str, faults: Sequence[Fault]) -> str:
    """Return the name of a new image, which is `image` with these faults."""
    repository, tag = "shoal-test-spoilt", uuid.uuid4().hex[:8]
    packages = "cd /opt/venv/lib/python3*/site-packages"
    command = "\n".join([packages, *(f"({fault.command})" for fault in faults)])
    container = client.containers.run(image, ["sh", "-c", command], detach=True, network_mode="none")
    container.wait(timeout=120)
    # The API takes one change only in this form; CMD, because the container's own would stay.
    changes = "\n".join(["CMD bash", *(change for fault in faults for change in fault.changes)])
    container.commit(repository=repository, tag=tag, changes=changes.replace("CMD bash", 'CMD ["bash"]'))
    container.remove(force=True)
    return f"{repository}:{tag}"


def failures(image: str, row_name: str, report: Path, folders: Sequence[str]) -> set[str]:
    """Return the names of the tests that fail on `image`."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    command += ["--row", row_name, "--image", image, *(str(HERE / "by_image" / folder) for folder in folders)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE.parents[1])
    assert done.returncode == 1, shlex.join(command) + done.stdout + done.stderr
    cases = ET.parse(report).getroot().iter("testcase")
    return {case.attrib["name"] for case in cases if case.find("failure") is not None or case.find("error") is not None}


@pytest.mark.parametrize(
    ("faults", "folders"),
    [
        pytest.param(OF_THE_SYSTEM, ["os", "debian"], id="system"),
        pytest.param(
            OF_THE_SOFTWARE,
            ["runtime/test_programs.py", "runtime/test_versions.py", "cpu", "sagemaker/test_sagemaker.py"],
            id="software",
        ),
        pytest.param(OF_THE_START, ["runtime/test_start.py", "sagemaker/test_jobs.py"], id="start"),
    ],
)
def test_each_fault_is_noticed_and_nothing_else_is(
    client: docker.DockerClient,
    image: str,
    row: Row,
    row_name: str,
    spoil: list[str],
    tmp_path: Path,
    faults: Sequence[Fault],
    folders: Sequence[str],
) -> None:
    if (row.device, row.base) != ("cpu", "debian12"):
        pytest.skip("the faults are those of a CPU image on Debian 12")
    spoil.append(spoilt(client, image, faults))
    failed = failures(spoil[0], row_name, tmp_path / "report.xml", folders)
    expected = {words for fault in faults for words in fault.noticed_by}
    unnoticed = {words for words in expected if not any(words in name for name in failed)}
    unexpected = {name for name in failed if not any(words in name for words in expected)}
    assert (unnoticed, unexpected) == (set(), set())
