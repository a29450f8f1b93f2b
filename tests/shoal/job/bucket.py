"""A server that speaks the API of S3, on loopback or an address of this machine, and a bucket in it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import boto3
from moto.server import ThreadedMotoServer

KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_EC2_METADATA_DISABLED": "true"}


@dataclass
class Bucket:
    """An empty bucket; `environment` is what a command needs to find it."""

    name: str
    endpoint_url: str

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **KEYS, "AWS_ENDPOINT_URL": self.endpoint_url}

    def put(self, **content: bytes) -> None:
        for key, data in content.items():
            self.client.put_object(Bucket=self.name, Key=key, Body=data)

    def content(self, prefix: str = "") -> dict[str, bytes]:
        found = self.client.list_objects_v2(Bucket=self.name, Prefix=prefix).get("Contents", [])
        return {o["Key"]: self.client.get_object(Bucket=self.name, Key=o["Key"])["Body"].read() for o in found}

    @property
    def client(self) -> Any:
        return boto3.client(
            "s3",
            region_name="us-east-1",
            endpoint_url=self.endpoint_url,
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )


@contextmanager
def s3_server(address: str = "127.0.0.1") -> Iterator[str]:
    """Run the server; yield its URL."""
    server = ThreadedMotoServer(ip_address=address, port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()
