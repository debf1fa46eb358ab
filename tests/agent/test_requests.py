"""What a kernel asks of a disk follows from its entry in the catalogue and its parameters."""

import pytest

from partywall.agent.catalogue import shipped
from partywall.agent.requests import Requests, requests_of

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("kernel", "params", "threads", "result"),
    [
        ("disk-read", {}, 1, Requests("read", 128 * KIB, 128 * KIB, None)),
        ("disk-read", {"request_bytes": "1MiB", "queue_depth": 4}, 2, Requests("read", MIB, 8 * MIB, None)),
        ("disk-direct-read", {"request_blocks": 2, "queue_depth": 8}, 1, Requests("read", 16384, 131072, 16384)),
        ("disk-direct-read", {"request_bytes": MIB}, 1, Requests("read", MIB, MIB, None)),
        ("disk-write", {}, 3, Requests("write", 4 * MIB, 12 * MIB, None)),
        ("disk-rewrite", {"dirty_bytes": "1MiB"}, 1, Requests("write", 512 * KIB, 512 * KIB, None)),
        ("disk-direct-write", {"request_bytes": 128 * KIB}, 1, Requests("write", 128 * KIB, 128 * KIB, 128 * KIB)),
        ("disk-reread", {}, 1, None),
        ("memory-copy", {}, 1, None),
        (None, {}, 1, None),
    ],
)
def test_requests_follow_from_a_kernels_parameters_and_threads(kernel, params, threads, result):
    assert requests_of(kernel, params, threads, shipped()) == result
