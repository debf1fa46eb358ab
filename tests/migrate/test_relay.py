"""An agent's stream follows its guest: nothing is lost, doubled or reordered, and what is sent meanwhile waits."""

import socket
import subprocess
import threading
import time

import pytest

from partywall.sandbox.qemu.relay import Relay


@pytest.fixture
def process():
    started = subprocess.Popen(["sleep", "60"])
    yield started
    started.kill()
    started.wait()


def read(relay, count):
    got = b""
    while len(got) < count:
        got += relay.stdout.read1(count - len(got))
    return got


def test_bytes_pass_both_ways(process):
    ours, guest = socket.socketpair()
    relay = Relay(process, ours)
    relay.stdin.write(b"to the guest\n")
    assert guest.recv(100) == b"to the guest\n"
    guest.sendall(b"to the client\n")
    assert read(relay, 14) == b"to the client\n"
    relay.close()
    assert relay.stdout.read() == b""


def test_a_move_loses_nothing_and_keeps_the_order(process):
    (old, old_guest), (new, new_guest) = socket.socketpair(), socket.socketpair()
    relay = Relay(process, old)
    relay.hold()
    relay.listen(new)
    relay.stdin.write(b"held\n")
    old_guest.sendall(b"last of the old QEMU\n")
    time.sleep(0.1)
    new_guest.sendall(b"first of the new one\n")
    relay.attach(process, new)
    assert read(relay, 42) == b"last of the old QEMU\nfirst of the new one\n"
    new_guest.settimeout(5)
    assert new_guest.recv(100) == b"held\n"
    old_guest.settimeout(0.2)
    with pytest.raises(TimeoutError):
        old_guest.recv(1)
    # The QEMU that the guest left ends, which the client does not notice.
    old_guest.close()
    relay.stdin.write(b"more\n")
    assert new_guest.recv(100) == b"more\n"
    relay.close()


def test_a_guest_that_stays_gets_what_was_held(process):
    (old, old_guest), (new, new_guest) = socket.socketpair(), socket.socketpair()
    relay = Relay(process, old)
    relay.hold()
    relay.listen(new)
    relay.stdin.write(b"held\n")
    relay.forget(new)
    relay.release()
    old_guest.settimeout(5)
    assert old_guest.recv(100) == b"held\n"
    new_guest.settimeout(5)
    assert new_guest.recv(1) == b""
    relay.close()


def test_a_guest_that_is_gone_ends_the_stream(process):
    ours, guest = socket.socketpair()
    relay = Relay(process, ours)
    guest.close()
    assert relay.stdout.read() == b""
    relay.close()


def test_much_passes_while_guests_change(process):
    """A megabyte each from the old and the new QEMU, with a reader that is slow."""
    (old, old_guest), (new, new_guest) = socket.socketpair(), socket.socketpair()
    relay = Relay(process, old)
    relay.hold()
    relay.listen(new)

    def send():
        old_guest.sendall(b"o" * (1 << 20))
        old_guest.close()
        time.sleep(0.05)
        new_guest.sendall(b"n" * (1 << 20))

    sender = threading.Thread(target=send)
    sender.start()
    got = read(relay, 2 << 20)
    sender.join()
    assert got == b"o" * (1 << 20) + b"n" * (1 << 20)
    relay.close()


def test_a_relay_that_ends_by_a_bug_ends_the_stream_at_once_and_says_why(process):
    """Calls waited for their whole time, up to two minutes, and then said nothing of the cause."""

    class Broken(socket.socket):
        def recv(self, *_):
            raise ValueError("a bug")

    ours, guest = socket.socketpair()
    relay = Relay(process, Broken(fileno=ours.detach()))
    guest.sendall(b"to the client\n")
    relay._thread.join(10)
    relay.stdin.close()
    assert (relay.stdout.read(), relay.stderr.read()) == (
        b"",
        b"the connection to the guest failed: ValueError('a bug')\n",
    )
    guest.settimeout(10)
    # What it sent last was not read.
    with pytest.raises(ConnectionResetError):
        guest.recv(1)
    relay.close()
