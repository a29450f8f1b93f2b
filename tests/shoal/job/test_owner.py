"""Who is gone and who is not: only an owner that has surely ended may be swept up after."""

import subprocess
import sys

from shoal.job import owner

PRINT_OWNER = "from shoal.job import owner; print(owner.this_process(), flush=True); input()"


def test_a_process_is_there_until_it_ends() -> None:
    command = [sys.executable, "-c", PRINT_OWNER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        identity = process.stdout.readline().strip()
        assert not owner.is_gone(identity)
        process.stdin.write("\n")
    assert owner.is_gone(identity)


def test_a_reused_process_id_and_an_earlier_boot_are_another_process() -> None:
    boot, namespace, pid, started = owner.this_process().split("/")
    assert owner.is_gone(f"{boot}/{namespace}/{pid}/{int(started) - 1}")
    assert owner.is_gone(f"an-earlier-boot/{namespace}/{pid}/{started}")


def test_what_cannot_be_known_is_not_gone() -> None:
    boot, _namespace, pid, _started = owner.this_process().split("/")
    assert not owner.is_gone(f"{boot}/pid:[1]/{pid}/1")
    assert not owner.is_gone("")
    assert not owner.is_gone("unknown")
