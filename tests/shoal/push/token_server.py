"""What large registries log in by: a third party that hands out signed tokens for one repository each."""

import base64
import datetime as dt
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID


class TokenServer:
    """Knows one user; `asked` has the scopes of the tokens given."""

    def __init__(self, folder: Path, username: str, password: str) -> None:
        self.asked: list[str] = []
        self._basic = f"Basic {base64.b64encode(f'{username}:{password}'.encode()).decode()}"
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._certificate = self._self_signed()
        bundle = folder / "tokens.pem"
        bundle.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        realm = f"http://127.0.0.1:{self._server.server_port}/token"
        self.settings = {"token": {"realm": realm, "service": "s", "issuer": "i", "rootcertbundle": str(bundle)}}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _self_signed(self) -> x509.Certificate:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tokens")])
        now = dt.datetime.now(tz=dt.UTC)
        unsigned = x509.CertificateBuilder(name, name, self._key.public_key(), 1, now, now + dt.timedelta(days=1))
        return unsigned.sign(self._key, hashes.SHA256())

    def _token(self, scope: str) -> str:
        now = int(dt.datetime.now(tz=dt.UTC).timestamp())
        kind, name, actions = scope.split(":")
        der = base64.b64encode(self._certificate.public_bytes(serialization.Encoding.DER)).decode()
        access = [{"type": kind, "name": name, "actions": actions.split(",")}]
        claims = {"iss": "i", "sub": "ann", "aud": "s", "exp": now + 300, "nbf": now - 9, "iat": now, "access": access}
        head = {"typ": "JWT", "alg": "RS256", "x5c": [der]}
        signed = ".".join(_base64(json.dumps(part).encode()) for part in (head, claims))
        return f"{signed}.{_base64(self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = self.headers.get("Authorization") == server._basic
                scope = parse_qs(urlsplit(self.path).query).get("scope", [""])[0]
                body = json.dumps({"token": server._token(scope)} if known else {}).encode()
                server.asked.append(scope)
                self.send_response(200 if known else 401)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
