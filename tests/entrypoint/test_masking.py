"""What a log or a failure file may show."""

from __future__ import annotations

import pytest
from shoal_entrypoint.failure import command_failure
from shoal_entrypoint.masking import HIDDEN, is_secret, mask, mask_command, mask_text


@pytest.mark.parametrize(
    "name",
    [
        *("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "HF_TOKEN", "HFTOKEN", "hf-token"),
        *("WANDB_API_KEY", "wandbApiKey", "DB_PASSWORD", "PGPASSWD", "db.pwd", "GOOGLE_APPLICATION_CREDENTIALS"),
        *("SSH_PRIVATE_KEY", "SHOAL_JOB_SECRET", "SMDDP_JOB_SECRET", "AUTHORIZATION", "PIP_AUTH", "ENCRYPTION_KEY"),
        *("SM_HP_API_TOKEN", "--auth-token", "accessKey"),
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)
    assert mask(name, "abc") == HIDDEN
    assert mask(name, "") == ""


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "LR", "max_tokens", "tokenizer_name", "author", "SM_HOSTS", "KEY", "label_key", "NCCL_DEBUG"),
        *("PASSES", "num_tokens_per_batch", "compass", "keys", ""),
    ],
)
def test_names_that_are_no_secrets(name: str) -> None:
    assert not is_secret(name)
    assert mask(name, "abc") == "abc"


def test_a_url_loses_its_password_and_keeps_the_rest() -> None:
    url = "https://user:pa55@pypi.example.org:8080/simple?a=b@c"
    assert mask("PIP_INDEX_URL", url) == f"https://{HIDDEN}@pypi.example.org:8080/simple?a=b@c"
    assert mask("X", "https://example.org/a@b") == "https://example.org/a@b"
    assert mask_text(f"cannot reach {url}, gave up") == f"cannot reach {mask('X', url)}, gave up"


def test_command_lines() -> None:
    argv = ["mpirun", "-x", "HF_TOKEN=abc", "-x", "LR=0.1", "-x", "AWS_SECRET_ACCESS_KEY", "--host", "algo-1:2"]
    argv += ["train.py", "--api_key", "abc", "--db-password=abc", "--password", "--lr", "1", "--url", "s3://u:abc@h/p"]
    shown = mask_command(argv)
    assert "abc" not in " ".join(shown)
    assert shown[:9] == ["mpirun", "-x", f"HF_TOKEN={HIDDEN}", *argv[3:9]]
    assert shown[9:] == [
        *("train.py", "--api_key", HIDDEN, f"--db-password={HIDDEN}", "--password", "--lr", "1"),
        *("--url", f"s3://{HIDDEN}@h/p"),
    ]


def test_a_shell_s_command_is_one_word() -> None:
    shown = mask_command(["/bin/sh", "-c", "./train.sh --lr 1 -x HF_TOKEN='a b' --api-key=abc --pwd 'c d' --x"])
    assert shown[2] == f"./train.sh --lr 1 -x HF_TOKEN={HIDDEN} --api-key={HIDDEN} --pwd {HIDDEN} --x"


def test_objects_of_hyperparameters() -> None:
    assert mask_command(["--c", "a=1,hf_token=x,y,b=2"]) == ["--c", f"a=1,hf_token={HIDDEN},b=2"]
    assert mask_text("{'lr': '1', 'token': 'a b', \"x\": {\"api_key\":\"v\"}}") == (
        f"{{'lr': '1', 'token': {HIDDEN}, \"x\": {{\"api_key\":{HIDDEN}}}}}"
    )


def test_the_failure_file_s_command_hides_them() -> None:
    text = command_failure("ExecuteUserScriptError", 1, "boom", ["python", "train.py", "--hf_token", "abc"]).text
    assert text.endswith(f'Command "python train.py --hf_token {HIDDEN}"')
