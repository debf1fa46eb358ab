"""Management controllers for tests: a Redfish service with given answers, and a program in place of ipmitool."""

from __future__ import annotations

import gzip
import json
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Service:
    """A Redfish service on the loopback interface.

    answers: of each path (status, document, bytes, or a function of nothing that returns bytes); what is not there is
    404, and a function that raises ConnectionError drops the connection. seen: requests as (method, path, body).
    zipped: answers are compressed, whether they were requested so or not. slash: paths without a slash are redirected.
    """

    def __init__(self, answers=None, *, zipped=False, slash=False, certificate=None):
        self.answers, self.seen, self.authorizations = answers or {}, [], []
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                service.seen.append((self.command, self.path, self._body()))
                service.authorizations.append(self.headers.get("Authorization"))
                if slash and not self.path.endswith("/"):
                    return self._send(308, b"", Location=self.path + "/")
                status, content = service.answers.get(self.path.rstrip("/"), (404, {"error": {"code": "none"}}))
                if isinstance(content, str):
                    return self._send(status, b"", Location=content)
                body = _bytes(content)
                if zipped:
                    return self._send(status, gzip.compress(body), **{"Content-Encoding": "gzip"})
                return self._send(status, body)

            do_POST = do_GET  # noqa: N815 - http.server looks for this name

            def _body(self):
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))

            def _send(self, status, body, **headers):
                self.send_response(status)
                for name, value in ({"Content-Length": str(len(body))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None
        self.place = f"127.0.0.1:{self._server.server_port}"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.set_ciphers("ALL:@SECLEVEL=0")
            context.load_cert_chain(certificate, certificate.with_suffix(".key"))
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _bytes(content):
    if callable(content):
        return content()
    return content if isinstance(content, bytes) else json.dumps(content).encode()


def self_signed(folder, bits=2048):
    """The certificate that a controller made for itself when it was delivered: for another name, of no authority."""
    file = folder / f"own-{bits}.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", f"rsa:{bits}", "-nodes", "-keyout", file.with_suffix(".key"),
         "-out", file, "-days", "2", "-subj", "/CN=bmc.invalid"],
        check=True, capture_output=True,
    )  # fmt: skip
    return file


DCMI = """
    Instantaneous power reading:                   {watts} Watts
    Minimum during sampling period:                {watts} Watts
    Maximum during sampling period:                {watts} Watts
    Average power reading over sample period:      {watts} Watts
    IPMI timestamp:                           Thu Jan  1 00:00:00 1970
    Sampling period:                          00000000 Seconds.
    Power reading state is:                   {state}
"""
ACTIVATED = DCMI.format(watts=150, state="activated")


def ipmitool(folder, monkeypatch, suite, said=ACTIVATED):
    """Puts a program in place of ipmitool, whose controller knows one cipher suite. Returns the file with its calls."""
    calls, answer = folder / "calls", folder / "answer"
    answer.write_text(said)
    tool = folder / "ipmitool"
    tool.write_text(f"""#!/bin/sh
echo "$IPMI_PASSWORD: $*" >> {calls}
case " $* " in
*" -C {suite} "*) cat {answer} ;;
*)
  echo "Error in open session response message : no matching cipher suite" >&2
  printf '\\nError: Unable to establish IPMI v2 / RMCP+ session\\n' >&2
  exit 1 ;;
esac
""")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return calls
