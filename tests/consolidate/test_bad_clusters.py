"""Cluster files with mistakes: each is reported at its line, and all of a file at once."""

import pytest

from partywall.consolidate import check
from partywall.errors import UsageError

HOSTS = (
    b"hosts: {a: {cpus: 4, memory: 8GiB, power: cervera-dl120-g6}, b: {cpus: 4, memory: 8GiB, power: hp-ml110-g4}}\n"
)
GUESTS = b"guests: {g: {host: a}, h: {host: b}}\n"
HEAD = b"partywall_cluster: 1\nname: bad\n"


def problems(text, **options):
    with pytest.raises(UsageError) as raised:
        check.loads(text, "cluster.yaml", **options)
    return raised.value.problems


def guest(keys):
    return HOSTS + b"guests: {g: {host: a, " + keys + b"}}\n"


def host(keys, rest=GUESTS):
    return (
        b"hosts: {a: {cpus: 4, memory: 8GiB, power: cervera-dl120-g6, "
        + keys
        + b"}, b: {cpus: 4, memory: 8GiB, "
        + (b"power: hp-ml110-g4}}\n")
        + rest
    )


def curve(keys):
    return (
        b"power: {mine: {boot: {time: 75s, energy: 1Wh}, shutdown: {time: 35s, energy: 1Wh}, " + keys + b"}}\n"
        b"hosts: {a: {cpus: 4, memory: 8GiB, power: mine}}\nguests: {g: {host: a}}\n"
    )


CORPUS = {
    "no hosts": (GUESTS, "hosts"),
    "no guests": (HOSTS, "guests"),
    "an unknown key": (HOSTS + GUESTS + b"guest_limit: 3\n", "guest_limit"),
    "a misspelt key of a host": (host(b"contrl: {kind: ipmi}"), "contrl"),
    "an unknown power curve": (HOSTS.replace(b"hp-ml110-g4", b"proliant-g6") + GUESTS, "there is no power curve"),
    "no CPUs": (HOSTS.replace(b"cpus: 4", b"cpus: 0", 1) + GUESTS, "cpus"),
    "memory without sense": (HOSTS.replace(b"8GiB", b"8 apples", 1) + GUESTS, "is not a size"),
    "an unknown host of a guest": (HOSTS + b"guests: {g: {host: c}}\n", "there is no host 'c'"),
    "a guest without a host": (HOSTS + b"guests: {g: {}}\n", "it is not known where this guest runs"),
    "demand above the CPUs": (guest(b"cpus: 1, demand: 2"), "2 cores are more than its 1 CPUs"),
    "a negative demand": (guest(b"demand: -1"), "demand"),
    "a peak below the mean": (guest(b"demand: 0.5, peak: 0.2"), "the peak 0.2 is below the mean 0.5"),
    "a promise above the CPUs": (guest(b"cpus: 1, promise: 2"), "2 cores are more than its 1 CPUs"),
    "more content than memory": (guest(b"memory: 1GiB, content: 2GiB"), "the content is larger than the memory"),
    "a working set alone": (guest(b"working_set: 1MiB"), "a working set needs a dirty rate"),
    "a goal for an unknown p99": (guest(b"slo: {p99: 50ms}"), "without its present p99"),
    "a goal that is broken already": (guest(b"p99: 90ms, slo: {p99: 50ms}"), "it breaks its goal already"),
    "a goal of isolation without figures": (guest(b"slo: {isolation: 90%}"), "cannot be predicted"),
    "an interval the wrong way": (guest(b"suffers: {disk: {factor: 0.5, low: 0.7}}"), "is above the factor"),
    "use of more than a host has": (guest(b"uses: {disk: 2}"), "disk"),
    "apart: an unknown guest": (HOSTS + GUESTS + b"apart: [[g, x]]\n", "there is no guest 'x'"),
    "apart: one guest": (HOSTS + GUESTS + b"apart: [[g]]\n", "keeps nothing apart"),
    "apart: the same guest twice": (HOSTS + GUESTS + b"apart: [[g, g]]\n", "g is named 2 times"),
    "apart: together now": (HOSTS + b"guests: {g: {host: a}, h: {host: a}}\napart: [[g, h]]\n", "2 of them are on a"),
    "apart: too few hosts": (
        HOSTS + b"guests: {g: {host: a}, h: {host: b}, i: {host: b}}\napart: [[g, h, i]]\n",
        "cannot be apart on fewer hosts",
    ),
    "a relief below the fill": (
        HOSTS + GUESTS + b"limits: {overload_risk: 0.2, relief_risk: 0.1}\n",
        "relief_risk 0.1 is below overload_risk 0.2",
    ),
    "hours that are none": (HOSTS + GUESTS + b"limits: {hours: evenings}\n", "'evenings' are not hours"),
    "hours that never come": (HOSTS + GUESTS + b"limits: {hours: 20:00-20:00}\n", "begin and end at the same minute"),
    "a solver without time": (HOSTS + GUESTS + b"limits: {solver: 1ms}\n", "give at least 100ms"),
    "a short horizon": (HOSTS + GUESTS + b"limits: {horizon: 1s}\n", "give at least 60s"),
    "a meter of an unknown kind": (host(b"meter: 'redfsh://bmc'"), "did you mean redfish"),
    "a meter with an unknown option": (host(b"meter: 'redfish://bmc?tsl=off'"), "it has no option 'tsl'"),
    "a meter of the manager's host at another host": (
        host(b"meter: rapl, uri: 'qemu+ssh://b/system'"),
        "rapl measures the host on which the manager runs",
    ),
    "a meter with a password": (host(b"meter: 'redfish://a:hunter2@bmc'"), "contains a password"),
    "a curve without power": (curve(b"watts: [0, 0]"), "takes no power at any load"),
    "more hosts on than there are": (HOSTS + GUESTS + b"limits: {keep_on: 3}\n", "3 hosts cannot stay on"),
    "no moves at all": (HOSTS + GUESTS + b"limits: {moves_at_once: 0}\n", "moves_at_once"),
    "a rate without a unit": (HOSTS + GUESTS + b"link: {rate: 100}\n", "is not a bit rate"),
    "a guest on a host that is off": (host(b"state: off"), "it is off, but g runs on it"),
    "more memory than the host has": (guest(b"memory: 9GiB"), "more than its 8192 MiB"),
    "more promised than the host has": (
        HOSTS + b"guests: {g: {host: a, cpus: 3, promise: 3}, h: {host: a, cpus: 2, promise: 2}}\n",
        "5 cores are promised to its guests",
    ),
    "power that falls": (curve(b"watts: [50, 40]"), "power falls as load grows"),
    "more power off than idle": (curve(b"watts: [50, 60], off: 55"), "a host that is off takes 55 W"),
    "an energy without a unit": (curve(b"watts: [50, 60]").replace(b"1Wh", b"3600", 1), "is not an energy"),
    "a power control of an unknown kind": (host(b"control: {kind: magic}"), "kind"),
    "redfish without an address": (host(b"control: {kind: redfish, system: x}"), "redfish needs address"),
    "redfish without a URL": (host(b"control: {kind: redfish, system: x, address: bmc1}"), "is not a URL"),
    "redfish with a cipher suite": (
        host(b"control: {kind: redfish, system: x, address: 'https://b', cipher: 17}"),
        "redfish has no cipher",
    ),
    "ipmi with a certificate": (
        host(b"control: {kind: ipmi, address: b, user: u, password_file: f, certificate: c.pem}"),
        "ipmi has no certificate",
    ),
    "a certificate that is not checked": (
        host(b"control: {kind: redfish, system: x, address: 'https://b', tls: insecure, certificate: c.pem}"),
        "no certificate is checked",
    ),
    "ipmi without a password": (host(b"control: {kind: ipmi, address: b, user: u}"), "a user needs a password"),
    "wake-on-LAN to no address": (
        host(b"control: {kind: wol, mac: 'no', 'off': [x], state: [x]}"),
        "is not a hardware address",
    ),
    "commands without a state": (host(b"control: {kind: command, 'on': [x], 'off': [x]}"), "command needs state"),
    "libvirt without URIs": (HOSTS + GUESTS + b"hypervisor: libvirt\n", "libvirt needs the host's URI"),
    "practice without a folder": (HOSTS + GUESTS + b"hypervisor: practice\n", "practice needs a folder"),
    "two hosts of one name": (
        b"hosts: {a: {count: 2, cpus: 4, memory: 8GiB, power: hp-ml110-g4}, a-1: {cpus: 4, memory: 8GiB, "
        b"power: hp-ml110-g4}}\nguests: {g: {host: a-1}}\n",
        "two hosts are named a-1",
    ),
    "another version": (HOSTS + GUESTS, "partywall_cluster"),
}


@pytest.mark.parametrize("case", CORPUS)
def test_a_mistake_is_reported_at_its_line_with_a_remedy(case):
    text, expected = CORPUS[case]
    head = HEAD.replace(b": 1", b": 7") if case == "another version" else HEAD
    result = problems(head + text)
    assert any(expected in str(problem) for problem in result), [str(problem) for problem in result]
    for problem in result:
        assert problem.file == "cluster.yaml"
        assert problem.line is not None
        assert problem.remedy or problem.key


def test_all_mistakes_of_a_file_are_reported_at_once():
    text = (
        HEAD
        + HOSTS.replace(b"hp-ml110-g4", b"g9")
        + (
            b"guests: {g: {host: c, demand: 3}, h: {host: b, peak: 0.1, demand: 0.5}}\n"
            b"limits: {hours: never, keep_on: 9}\n"
            b"apart: [[g, x], [h]]\n"
        )
    )
    assert len(problems(text)) == 8


def test_every_shipped_cluster_is_good():
    for name in check.names():
        cluster = check.load(check.find(name), placed=name != "data-centre")
        # A record keeps a cluster as JSON.
        kept = cluster.model_dump(mode="json", exclude_unset=True)
        assert type(cluster).model_validate(kept) == cluster


def test_a_simulation_needs_no_hosts_of_guests():
    check.loads(HEAD + HOSTS + b"guests: {g: {count: 5}}\n", "cluster.yaml", placed=False)


@pytest.mark.parametrize("text", [b"", b"[1, 2]", b"\xff\xfe", b"a: [", b"partywall_cluster"])
def test_files_of_another_form_are_refused_without_a_traceback(text):
    assert problems(text)
