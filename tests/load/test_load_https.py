"""Loads over TLS, HTTP/2 and Unix sockets against a real server, whose certificates an authority of the test signed."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import trustme

from partywall.errors import UsageError
from partywall.host import free_port
from partywall.load.measure import PreparedLoad, Setup
from partywall.load.quick import Quick, program
from partywall.load.second import Second
from tests.load.nginx_server import BODY_BYTES, NGINX, listener, nginx

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(NGINX is None, reason="needs nginx (apt-get install nginx-light)"),
]

KINDS = ("good", "http1", "expired", "elsewhere", "itself", "brief", "clear", "http1_clear")


@dataclass(frozen=True)
class Service:
    """Ports by what listens there; authority: its certificate in PEM; socket: of the listener that is no port."""

    ports: dict[str, int]
    authority: Path
    socket: Path

    def url(self, kind: str, path: str = "/", scheme: str = "https") -> str:
        return f"{scheme}://localhost:{self.ports[kind]}{path}"


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nginx")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "authority.pem"))
    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    certificates = {
        "good": authority.issue_cert("localhost", "127.0.0.1"),
        "expired": authority.issue_cert("localhost", not_before=past - datetime.timedelta(days=9), not_after=past),
        "elsewhere": authority.issue_cert("elsewhere.test"),
    }
    for name, certificate in certificates.items():
        certificate.private_key_and_cert_chain_pem.write_to_path(str(folder / f"{name}.pem"))
    (folder / "itself.pem").write_bytes(authority.private_key_pem.bytes() + authority.cert_pem.bytes())
    ports = {kind: free_port() for kind in KINDS}
    servers = [
        listener(folder, f"127.0.0.1:{ports['good']} ssl http2", folder / "good.pem"),
        listener(folder, f"127.0.0.1:{ports['http1']} ssl", folder / "good.pem", versions="TLSv1.2"),
        listener(folder, f"127.0.0.1:{ports['expired']} ssl", folder / "expired.pem"),
        listener(folder, f"127.0.0.1:{ports['elsewhere']} ssl", folder / "elsewhere.pem"),
        listener(folder, f"127.0.0.1:{ports['itself']} ssl", folder / "itself.pem"),
        listener(folder, f"127.0.0.1:{ports['brief']} ssl http2", folder / "good.pem", keepalive_requests=5),
        listener(folder, f"127.0.0.1:{ports['clear']} http2"),
        listener(folder, f"127.0.0.1:{ports['http1_clear']}"),
        listener(folder, f"unix:{folder}/socket"),
    ]
    with nginx(folder, servers, list(ports.values())):
        yield Service(ports, folder / "authority.pem", folder / "socket")


USERS = 2
# A handshake takes a hundred milliseconds beside other tests.
ENOUGH_NS = 2_000_000_000


def carry_out(url: str, protocol: str = "http1", for_ns: int = 300_000_000, **requested: object) -> SimpleNamespace:
    """A short load of two users who ask every 20 ms, and the sums of its seconds."""
    whole = program(replace(Quick(url=url, for_ns=1_000_000_000, users=USERS, think_ns=20_000_000), **requested))
    whole["connections"]["protocol"] = protocol
    whole["pacing"]["closed"]["stages"][-1]["for_ns"] = for_ns
    with PreparedLoad(whole, Setup(name="https", cpus=(0,))) as session:
        seconds: list[Second] = [second for second in session.run() if second is not None]
        spoken = session.started["origins"][0]["protocol"]
    return SimpleNamespace(
        spoken=spoken,
        errors={error.kind: error.detail for second in seconds for error in second.errors},
        answered=sum(sum(second.statuses.values()) for second in seconds),
        opened=sum(second.connections_opened for second in seconds),
        handshakes=sum(sum(second.tls.values()) for second in seconds),
        received_bytes=sum(second.received_bytes for second in seconds),
    )


def refusal(url: str, protocol: str = "http1", **requested: object) -> str:
    with pytest.raises(UsageError) as refused:
        carry_out(url, protocol, **requested)
    (problem,) = refused.value.problems
    return str(problem)


@pytest.mark.parametrize("protocol", ["http1", "http2", "negotiated"])
def test_a_trusted_server_is_requested_over_kept_connections(service, protocol):
    result = carry_out(service.url("good"), protocol, ENOUGH_NS, authorities=service.authority)
    assert result.errors == {}
    assert result.answered > USERS
    assert (result.opened, result.handshakes) == (2, 2)
    assert result.spoken == f"TLS 1.3, HTTP/{'1.1' if protocol == 'http1' else '2'}"


@pytest.mark.parametrize("protocol", ["http1", "http2"])
def test_without_keeping_connections_each_request_shakes_hands_again(service, protocol):
    options = {"authorities": service.authority, "keep_alive": False}
    result = carry_out(service.url("good"), protocol, ENOUGH_NS, **options)
    assert result.errors == {}
    assert result.answered > USERS
    assert result.opened == result.handshakes == result.answered


@pytest.mark.parametrize("protocol", ["http1", "http2"])
def test_bodies_larger_than_a_window_come_whole(service, protocol):
    result = carry_out(service.url("good", "/large"), protocol, authorities=service.authority)
    assert result.errors == {}
    assert result.received_bytes > result.answered * BODY_BYTES


def test_a_server_that_ends_connections_is_no_error_over_http2(service):
    result = carry_out(service.url("brief"), "http2", authorities=service.authority)
    assert result.errors == {}
    assert result.opened >= result.answered / 5


def test_http2_without_tls_is_spoken_where_it_is_requested_for(service):
    result = carry_out(service.url("clear", scheme="http"), "http2")
    assert (result.errors, result.opened, result.spoken) == ({}, 2, "HTTP/2")


def test_whichever_protocol_is_http1_where_the_server_has_no_other(service):
    assert carry_out(service.url("http1"), "negotiated", authorities=service.authority).spoken == "TLS 1.2, HTTP/1.1"


def test_who_answers_on_a_unix_socket_is_requested_there(service):
    result = carry_out("http://any.test/", connect_to=f"unix:{service.socket}")
    assert (result.errors, result.opened) == ({}, 2)
    assert result.answered > 4


@pytest.mark.parametrize(
    ("kind", "trusted", "said"),
    [
        ("good", False, ["authority is not trusted on this host", "add that authority's certificate"]),
        ("expired", True, ["it has expired", "renew it"]),
        ("elsewhere", True, ["does not contain the name", "localhost", "elsewhere.test"]),
        ("itself", True, ["the certificate of an authority", "CA:FALSE"]),
    ],
)
def test_a_certificate_that_cannot_be_trusted_is_refused_with_its_reason(service, kind, trusted, said):
    refused = refusal(service.url(kind), authorities=service.authority if trusted else None)
    assert all(words in refused for words in [*said, str(service.ports[kind])]), refused


@pytest.mark.parametrize("kind", ["good", "expired", "elsewhere"])
def test_any_certificate_will_do_where_that_was_requested_for(service, kind):
    result = carry_out(service.url(kind), verify=False)
    assert result.errors == {}
    assert result.answered > 4


def test_protocols_that_a_server_does_not_speak_are_refused_before_the_start(service):
    assert "use protocol http1" in refusal(service.url("http1"), "http2", authorities=service.authority)
    assert "does not support HTTP/2 without TLS" in refusal(service.url("http1_clear", scheme="http"), "http2")
    assert "check that the server uses TLS on this port" in refusal(service.url("http1_clear"))
