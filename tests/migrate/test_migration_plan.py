"""Migration plans: every mistake at once, with its line."""

import pytest

from partywall.agent.catalogue import shipped
from partywall.core.capability import Options
from partywall.errors import UsageError
from partywall.events import silent
from partywall.migrate import check as plans
from partywall.migrate.capability import Migrations
from partywall.migrate.job import MigrationJob
from partywall.testing import fake_host

GOOD = b"""
partywall_migration: 1
name: good
link: {rate: 100Mbit/s, delay: 1ms}
workloads:
  idle: null
  writer: {kernel: memory-write}
methods:
  default: {}
  after: {postcopy: {after_passes: 2}}
"""


def read(text):
    return plans.loads(text, "plan.yaml", shipped())


def test_a_plan_is_read_with_its_defaults():
    plan = read(GOOD)
    assert plan.link.rate == 100_000_000
    assert plan.cells == [(w, m) for w in ("idle", "writer") for m in ("default", "after")]
    assert plan.methods["after"].postcopy.after_passes == 2
    # What a record keeps is read again as the same plan.
    assert type(plan).model_validate(plan.model_dump(mode="json", exclude_defaults=True)) == plan


def test_sizes_among_the_parameters_of_a_kernel_may_have_units():
    work = b"workloads: {x: {kernel: memory-dirty, params: {working_set_bytes: 16MiB}}}\n"
    assert read(b"partywall_migration: 1\nname: sizes\n" + work).workloads["x"].params == {
        "working_set_bytes": 16 << 20
    }


def test_all_comparisons_of_guestperf_are_shipped():
    methods = plans.load(plans.find("comparisons"), shipped()).methods
    families = ("stop-after", "post-copy", "throttle", "compressed", "multifd", "xbzrle")
    counts = {family: sum(name.startswith(family) for name in methods) for family in families}
    assert counts == {"stop-after": 4, "post-copy": 9, "throttle": 8, "compressed": 3, "multifd": 4, "xbzrle": 4}
    assert len(methods) == sum(counts.values()) + 2, "QEMU's defaults, and a null move"


def test_the_shipped_plan_is_good():
    for name in plans.names():
        plans.load(plans.find(name), shipped())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"link: {rate: 100}", "is not a bit rate"),
        (b"moves: 0", "is too small"),
        (b"workloads: {x: {kernel: memory-wirte}}", "there is no kernel 'memory-wirte'"),
        (b"methods: {x: {compression: zstd}}", "compression needs multifd"),
        (b"methods: {x: {postcopy: {}, multifd: 2}}", "cannot combine post-copy and multifd"),
        (b"methods: {x: {postcopy: {}, cancel: true}}", "cannot be cancelled"),
        (b"methods: {x: {post_copy: true}}", "post_copy"),
        (b"calibration: 1", "one move does not show how much costs vary"),
        (b"clients: {http: {}}", "virtual users need a web server"),
        (b"workloads: {x: {http: {users: 5}}}", "virtual users need a web server"),
        (b"guest: {service: [nginx]}", "nginx is not in the guest"),
        (b"guest: {storage: moved}", "no disk that could be moved along or served"),
        (b"guest: {storage: network}", "no disk that could be moved along or served"),
        (b"bystander: {kernel: intger}", "there is no kernel 'intger'"),
        (b"bystander: {kernel: integer, params: {sise: 1}}", "bystander.params.sise: integer has no parameter 'sise'"),
        (b"workloads: {x: {kernel: memory-dirty, params: {working_set_bytes: 9TX}}}", "'9TX' is not a size"),
        (b"workloads: {x: {params: {sise: 1}}}", "params are for kernels"),
        (b"methods: {x: {xbzrle: true, multifd: 2}}", "cannot combine xbzrle and multifd"),
        (b"workloads: {x: {kernel: integer, command: [/a]}}", "a kernel or a command"),
        (b"workloads: {x: {command: [sysbench]}}", "sysbench is not in the guest"),
        (b"workloads: {x: {kernel: integer, metric: {regex: (.)}}}", "only a command has a metric"),
        (b"workloads: {x: {command: [/a], metric: {regex: a}}}", "group"),
        (b"methods: {x: {xbzrle_cache: 16MiB}}", "the cache is that of xbzrle"),
        (b"methods: {x: {xbzrle: true, xbzrle_cache: 10MiB}}", "a power of two"),
        (b"methods: {x: {throttle_step: 5}}", "the step is that of auto_converge"),
        (b"methods: {x: {stop_after: 1, cancel: true}}", "cannot be handed over or stay"),
        (b"methods: {x: {dirty_limit: 8MiB, auto_converge: true}}", "cannot combine dirty_limit"),
    ],
)
def test_a_mistake_is_reported_at_its_line(line, message):
    with pytest.raises(UsageError) as raised:
        read(b"partywall_migration: 1\nname: bad\n" + line)
    (problem,) = raised.value.problems
    assert message in str(problem)
    assert problem.line == 3


def test_all_mistakes_are_reported_at_once():
    text = b"partywall_migration: 1\nmoves: 0\nworkloads: {x: {kernel: nothing}}\nmethods: {x: {compression: zstd}}\n"
    with pytest.raises(UsageError) as raised:
        read(text)
    assert len(raised.value.problems) == 4


def test_a_plan_that_is_not_there_is_named():
    with pytest.raises(UsageError, match="there is no migration plan 'migratoin'"):
        plans.find("migratoin")


def test_a_workload_may_have_users_of_its_own_or_none():
    text = GOOD.replace(
        b"workloads:",
        b"""guest: {root: [nginx-light], service: [nginx]}
clients: {http: {users: 20}}
workloads:
  many: {http: {users: 120}}
  none: {kernel: integer, http: null}""",
    )
    plan = read(text)
    usual = plan.clients.http
    result = {name: each.users(usual) if each else usual for name, each in plan.workloads.items()}
    assert {name: http and http.users for name, http in result.items()} == {
        "many": 120, "none": None, "idle": 20, "writer": 20
    }  # fmt: skip
    again = type(plan).model_validate(plan.model_dump(mode="json", exclude_unset=True))
    assert again.workloads["none"].users(usual) is None


def test_a_record_that_exists_is_refused_before_a_guest_is_started(tmp_path):
    options = Options(fake_host(), out=tmp_path)
    with pytest.raises(UsageError, match="exists already; give another --out"):
        Migrations().begin(MigrationJob(plan=read(GOOD)), options, silent)
