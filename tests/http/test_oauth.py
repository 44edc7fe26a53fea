"""Tokens of an OAuth issuer: made with openssl, so that nothing of ours checks itself."""

import base64
import json
import shutil
import subprocess
import sys
import time
import unittest
from pathlib import Path

from harness import Home, HttpTestCase, PATIENCE

ISSUER, RESOURCE = "https://login.example/realm", "https://jar.example/mcp"
METADATA = "https://jar.example/.well-known/oauth-protected-resource/mcp"

if not shutil.which("openssl"):
    print("\n*** openssl is missing: NOTHING about OAuth is tested ***", file=sys.stderr)


def openssl(*arguments, data=None):
    return subprocess.run(["openssl", *arguments], input=data, capture_output=True, check=True, timeout=60 * PATIENCE).stdout


def encode(data):
    data = data if isinstance(data, bytes) else json.dumps(data).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Key:
    """A private key, how it signs, and what the issuer publishes of it."""

    def __init__(self, directory, kid, kind):
        self.kid, self.kind, self.path = kid, kind, Path(directory, f"{kid}.pem")
        if kind == "RS256":
            openssl("genrsa", "-out", self.path, "2048")
            modulus = openssl("rsa", "-in", self.path, "-noout", "-modulus").decode().strip().partition("=")[2]
            self.public = {"kty": "RSA", "n": encode(bytes.fromhex(modulus)), "e": "AQAB"}
        else:
            openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", self.path)
            point = openssl("ec", "-in", self.path, "-pubout", "-outform", "DER")[-64:]
            self.public = {"kty": "EC", "crv": "P-256", "x": encode(point[:32]), "y": encode(point[32:])}

    def jwk(self):
        return {**self.public, "kid": self.kid, "alg": self.kind, "use": "sig"}

    def sign(self, data):
        signature = openssl("dgst", "-sha256", "-sign", self.path, data=data)
        if self.kind == "RS256":
            return signature
        # From ASN.1, SEQUENCE of two INTEGERs, to two numbers of 32 bytes.
        first = signature[4:4 + signature[3]]
        second = signature[6 + len(first):]
        return b"".join(number[-32:].rjust(32, b"\0") for number in (first, second))

    def token(self, header=None, signed_by=None, **claims):
        now = int(time.time())
        claims = {"iss": ISSUER, "aud": RESOURCE, "sub": "ann", "scope": "belljar other", "iat": now, "exp": now + 600, **claims}
        claims = {name: value for name, value in claims.items() if value is not None}
        head = {"alg": self.kind, "kid": self.kid, "typ": "at+jwt", **(header or {})}
        body = f"{encode({name: value for name, value in head.items() if value is not None})}.{encode(claims)}"
        return f"{body}.{encode((signed_by or self).sign(body.encode()))}"


@unittest.skipUnless(shutil.which("openssl"), "openssl is missing")
class OAuth(HttpTestCase):
    size = ("--pool-size", "1", "--pool-languages", "python")

    @classmethod
    def prepare(cls):
        cls.rsa, cls.ec, cls.stranger = (Key(cls.home.path, kid, kind) for kid, kind in (
            ("rsa-1", "RS256"), ("ec-1", "ES256"), ("stranger", "RS256")))
        keys = cls.home.path / "jwks.json"
        keys.write_text(json.dumps({"keys": [cls.rsa.jwk(), cls.ec.jwk()]}))
        cls.local = cls.home.token("add", "ann", "--operator")
        cls.arguments = ("--auth-issuer", ISSUER, "--auth-jwks", str(keys), "--auth-resource", RESOURCE,
                         "--auth-scopes", "belljar", "--http-hosts", "jar.example")

    def setUp(self):
        time.sleep(0.25)  # more than five refusals a second from one address are answered with 429

    def listed(self, token):
        client = self.server.client(token)
        return client.post(client.message("tools/list"))

    def test_good_tokens_are_let_in(self):
        now = int(time.time())
        for name, token in (("rsa", self.rsa.token()), ("ec", self.ec.token()), ("more audiences", self.rsa.token(aud=["x", RESOURCE])),
                            ("scp", self.rsa.token(scope=None, scp=["belljar"])), ("without kid", self.rsa.token({"kid": None})),
                            ("a clock that is a little off", self.rsa.token(nbf=now + 30, exp=now - 30))):
            with self.subTest(name):
                answer = self.listed(token)
                self.assertEqual(answer.status, 200, answer.body)

    def test_others_are_told_where_to_get_one(self):
        now = int(time.time())
        hour = 3600
        good = self.rsa.token()
        head, body, signature = good.split(".")
        secret = encode({"alg": "HS256", "kid": "rsa-1"})
        refused = {
            "another audience": self.rsa.token(aud="https://other.example/mcp"), "no audience": self.rsa.token(aud=None),
            "almost our audience": self.rsa.token(aud=RESOURCE + "/"), "another issuer": self.rsa.token(iss="https://evil.example"),
            "no issuer": self.rsa.token(iss=None), "expired": self.rsa.token(exp=now - hour), "never expires": self.rsa.token(exp=None),
            "not yet": self.rsa.token(nbf=now + hour), "no subject": self.rsa.token(sub=None),
            "somebody else's key": self.rsa.token(signed_by=self.stranger), "an unknown key": self.stranger.token(),
            "the other key's id": self.rsa.token({"kid": "ec-1"}), "no signature": f"{head}.{body}.",
            "nothing to sign": f"{encode({'alg': 'none'})}.{body}.", "a secret": f"{secret}.{body}.{signature}",
            "a changed body": f"{head}.{encode({'iss': ISSUER, 'aud': RESOURCE, 'sub': 'root', 'exp': now + hour})}.{signature}",
            "half": good[:len(good) // 2], "a critical header": self.rsa.token({"crit": ["x"], "x": 1}),
        }
        messages = set()
        for name, token in refused.items():
            with self.subTest(name):
                time.sleep(0.22)
                answer = self.listed(token)
                self.assertEqual(answer.status, 401, answer.body)
                challenge = answer.headers["WWW-Authenticate"]
                self.assertTrue(challenge.startswith("Bearer "), challenge)
                for part in ('error="invalid_token"', f'resource_metadata="{METADATA}"', 'scope="belljar"'):
                    self.assertIn(part, challenge)
                messages.add(answer.body)
        self.assertEqual(len(messages), 1, "nobody learns what was wrong")

    def test_without_a_token(self):
        answer = self.listed(None)
        challenge = answer.headers["WWW-Authenticate"]
        self.assertEqual(answer.status, 401)
        self.assertIn(f'resource_metadata="{METADATA}"', challenge)
        self.assertNotIn("error=", challenge)

    def test_a_scope_that_is_missing(self):
        for scope in ("other", "belljarx", "BELLJAR", None):
            answer = self.listed(self.rsa.token(scope=scope))
            self.assertEqual(answer.status, 403, scope)
            for part in ('error="insufficient_scope"', 'scope="belljar"', f'resource_metadata="{METADATA}"'):
                self.assertIn(part, answer.headers["WWW-Authenticate"])

    def test_the_metadata_is_where_clients_look(self):
        for path in ("/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"):
            answer = self.server.http("GET", path)
            self.assertEqual(answer.status, 200)
            metadata = answer.json()
            self.assertEqual((metadata["resource"], metadata["authorization_servers"]), (RESOURCE, [ISSUER]))
            self.assertEqual(metadata["scopes_supported"], ["belljar"])
            self.assertEqual(metadata["bearer_methods_supported"], ["header"])

    def test_the_subject_is_the_caller(self):
        ann, same, bob = (self.server.client(token) for token in (self.rsa.token(), self.ec.token(), self.rsa.token(sub="bob")))
        context = ann.context("mine")
        self.assertEqual(same.value(context, "1"), "1")
        self.assert_refused("CONTEXT_NOT_FOUND", bob, "run_code", context_id=context, code="1")
        # A token of ours with the same name is somebody else.
        local = self.server.client(self.local)
        self.assert_refused("CONTEXT_NOT_FOUND", local, "run_code", context_id=context, code="1")

    def test_nobody_of_the_issuer_is_an_operator(self):
        status = lambda token: self.server.http("GET", "/metrics", headers={"Authorization": f"Bearer {token}"}).status
        self.assertEqual((status(self.rsa.token()), status(self.local)), (403, 200))


@unittest.skipUnless(shutil.which("openssl"), "openssl is missing")
class Settings(unittest.TestCase):
    def test_a_resource_is_needed_and_plain_http_refused(self):
        from test_door import serve
        home = Home()
        self.addCleanup(home.remove)
        for arguments, word in ((("--auth-issuer", ISSUER), "auth.resource"),
                                (("--auth-issuer", "http://login.example", "--auth-resource", RESOURCE), "https"),
                                (("--auth-issuer", ISSUER, "--auth-resource", RESOURCE, "--auth-jwks", "/no/such/file"), "/no/such/file")):
            done = serve(home, *arguments)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(word, done.stderr)


if __name__ == "__main__":
    unittest.main()
