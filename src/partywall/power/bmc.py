"""Management controllers of servers: Redfish over HTTP(S), and IPMI through `ipmitool`.

One client for meters and for power control, so both accept the same certificates, cipher suites and passwords. It only
carries requests: what an answer means is decided where it is used. DMTF DSP0266; IPMI 2.0.

The packages `sushy` and `redfish` do not fit. `sushy` repeats a failed connection three times with pauses of 2 s, which
cannot be switched off and is longer than a reading may take, and it models no EnvironmentMetrics. `redfish` checks
certificates only against a given file, and repeats a request ten times even if it switches something. Both take more
than 200 ms to import, and 8 to 22 MB.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import ssl
import subprocess
import urllib.error
import urllib.request
import zlib
from email.message import Message
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from partywall.errors import Problem, TrialError, UsageError
from partywall.power.values import FaultKind

MOST_BYTES = 1 << 20
"""The longest answer that is read, also after it is unpacked."""
GZIP = b"\x1f\x8b"
CIPHER_SUITES = (3, 17)
"""Tried in this order: 3 is what IPMI 2.0 requires of each controller, and 17 is the only one of newer controllers."""
OTHER_SUITE = re.compile(r"open session response message\s*:.*(cipher|algorithm|payload)", re.IGNORECASE)
"""What ipmitool says if the controller does not know the cipher suite."""
INSTALL = "apt-get install ipmitool"


class ControllerError(TrialError):
    """A controller that did not give what was requested. kind: as in `MeterFault`; status: of HTTP, if it answered."""

    def __init__(self, kind: FaultKind, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.kind: FaultKind = kind
        self.status = status


class Redfish:
    """A Redfish service.

    base: its URL. tls: `insecure` accepts any certificate, old versions of TLS and short keys. certificate: a PEM file
    with the controller's own certificate, or with that of the authority which signed it. UsageError if that file cannot
    be used.
    """

    def __init__(
        self, base: str, user: str = "", password: str = "", *, timeout_s: float, tls: str = "", certificate: str = ""
    ) -> None:
        self.base, self._timeout_s = base.rstrip("/"), timeout_s
        secure = urllib.request.HTTPSHandler(context=_context(tls, certificate))
        self._opener = urllib.request.build_opener(secure, _SameOrigin())
        # Some controllers answer 406 to those who do not accept gzip, or use it without being asked.
        self._headers = {"Accept": "application/json", "Accept-Encoding": "gzip"}
        if user:
            credentials = base64.b64encode(f"{user}:{password}".encode()).decode()
            self._headers["Authorization"] = f"Basic {credentials}"

    def get(self, path: str) -> dict[str, Any]:
        """A resource. ControllerError if there is none, or if it is not a JSON object."""
        body = self._answer(path, None)
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            raise ControllerError("garbage", f"{path} is not JSON") from None
        if not isinstance(document, dict):
            raise ControllerError("garbage", f"{path} is not a JSON object")
        return document

    def post(self, path: str, content: dict[str, Any]) -> None:
        """Carries out an action. ControllerError if the controller refuses it. The content of its answer is ignored."""
        self._answer(path, json.dumps(content).encode())

    def _answer(self, path: str, data: bytes | None) -> bytes:
        if not path.startswith("/"):
            raise ControllerError("garbage", f"{path[:80]!r} is not a path of this service")
        headers = self._headers | ({"Content-Type": "application/json"} if data is not None else {})
        try:
            request = urllib.request.Request(self.base + path, data, headers)  # noqa: S310 - see `_opener`
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                return _unpacked(answer.read(MOST_BYTES + 1), path)
        except urllib.error.HTTPError as error:
            with error:
                raise ControllerError(*_refused(error, path), error.code) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._unreached(path, error) from None

    def _unreached(self, path: str, error: Exception) -> ControllerError:
        why = getattr(error, "reason", error)
        if isinstance(why, TimeoutError):
            return ControllerError("silent", f"{path}: no answer within {self._timeout_s:g} s")
        if isinstance(why, ssl.SSLCertVerificationError):
            said = f"its certificate cannot be checked: {why.verify_message}"
            return ControllerError("gone", f"{said}; set `certificate` to a file with it, or `tls` to insecure")
        if isinstance(why, ssl.SSLError):
            return ControllerError("gone", f"{path}: {why}; if its TLS is old, set `tls` to insecure")
        return ControllerError("gone", f"{path}: {why or type(why).__name__}")


class _SameOrigin(urllib.request.HTTPRedirectHandler):
    """Follows redirects within one service, with method and content. Credentials are for no other service."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Message,
        newurl: str,
    ) -> urllib.request.Request:
        del msg, headers
        fp.close()
        if urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            to = "{}://{}".format(*urlsplit(newurl)[:2])
            raise ControllerError("gone", f"it redirects to {to}; if that is the controller, name that address")
        data = None if code == http.client.SEE_OTHER else req.data
        return urllib.request.Request(newurl, data, req.headers)  # noqa: S310 - the scheme is the same


def _context(tls: str, certificate: str) -> ssl.SSLContext:
    """How the certificate of a service is checked."""
    context = ssl.create_default_context()
    if tls == "insecure":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        context.set_ciphers("ALL:@SECLEVEL=0")
    elif certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # Controllers make their own certificates, for whatever name they have when they are made.
        context.check_hostname = False
        context.verify_flags = ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            context.load_verify_locations(certificate)
        except (OSError, ssl.SSLError) as error:
            why = "is not a PEM certificate" if isinstance(error, ssl.SSLError) else f"cannot be read: {error.strerror}"
            raise UsageError(Problem(f"the certificate file {certificate} {why}", "correct `certificate`")) from None
    return context


def _unpacked(body: bytes, path: str) -> bytes:
    """The body without its compression. ControllerError if it is too long or damaged."""
    if body.startswith(GZIP):
        try:
            body = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(body, MOST_BYTES + 1)
        except zlib.error:
            raise ControllerError("garbage", f"{path} is damaged: its gzip data cannot be unpacked") from None
    if len(body) > MOST_BYTES:
        raise ControllerError("garbage", f"{path} is longer than {MOST_BYTES >> 20} MiB")
    return body


def _refused(error: urllib.error.HTTPError, path: str) -> tuple[FaultKind, str]:
    """The fault of an HTTP status, and its text. A controller that answers is not gone, unless it answers nobody."""
    if error.code == http.client.UNAUTHORIZED:
        return "gone", f"{path}: user or password is wrong"
    said = _message(error)
    return "garbage", f"{path}: HTTP {error.code}" + (f": {said}" if said else "")


def _message(error: urllib.error.HTTPError) -> str:
    """The message of a Redfish error (DSP0266, "Error responses"); empty if there is none."""
    try:
        document = json.loads(_unpacked(error.read(MOST_BYTES + 1), ""))
    except (OSError, http.client.HTTPException, ValueError, RecursionError, ControllerError):
        return ""
    match document:
        case {"error": {"@Message.ExtendedInfo": [{"Message": str(said)}, *_]}} | {"error": {"message": str(said)}}:
            return " ".join(said.split())[:200]
    return ""


class Ipmitool:
    """`ipmitool` with one controller: this host's own if `host` is empty, else one in the network.

    cipher: its cipher suite; if None, the first of CIPHER_SUITES that it accepts. more: further options. The password
    is passed in the environment, where other users cannot see it.
    """

    def __init__(
        self, host: str = "", port: int | None = None, *,
        user: str = "", password: str = "", cipher: int | None = None, more: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self._place = ["-H", host, "-p", str(port or 623), "-U", user, "-E", *more] if host else []
        self._suites = CIPHER_SUITES if cipher is None else (cipher,)
        self._environment = os.environ | {"IPMI_PASSWORD": password}

    def run(self, *what: str, timeout_s: float) -> str:
        """What ipmitool prints. ControllerError if it fails."""
        for suite in self._suites:
            done = self._run(
                [*(["-I", "lanplus", "-C", str(suite), *self._place] if self._place else []), *what], timeout_s
            )
            if done.returncode == 0:
                self._suites = (suite,)
                return done.stdout
            if not OTHER_SUITE.search(done.stderr):
                break
        said = (done.stderr.strip() or done.stdout.strip()).partition("\n")[0]
        remedy = f"; suites tried: {', '.join(map(str, self._suites))}; set `cipher` to one that it accepts"
        raise ControllerError(
            "gone", f"ipmitool failed: {said or done.returncode}" + (remedy if OTHER_SUITE.search(said) else "")
        )

    def _run(self, argv: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                ["ipmitool", *argv], env=self._environment, capture_output=True, text=True, errors="replace",
                timeout=timeout_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ControllerError("silent", f"ipmitool did not end within {timeout_s:g} s") from None
        except OSError as error:
            raise ControllerError("gone", f"ipmitool cannot be started: {error.strerror}; {INSTALL}") from None


def first_line(password_file: str) -> str:
    """The password in the first line of a file. TrialError if it cannot be read."""
    try:
        return Path(password_file).read_text(encoding="utf-8-sig").partition("\n")[0].rstrip("\r")
    except OSError as error:
        raise TrialError(f"{password_file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TrialError(f"{password_file} is not UTF-8") from None
