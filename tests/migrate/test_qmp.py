"""What is set in QEMU before a move: everything, so that nothing of the move before stays."""

import pytest

from partywall.errors import CapabilityError, TrialError
from partywall.migrate.document import Method
from partywall.migrate.measure import qmp


class Monitor:
    """A QEMU that remembers what it was told."""

    def __init__(self):
        self.parameters = {
            "max-bandwidth": 134217728, "downtime-limit": 300, "multifd-channels": 2, "multifd-compression": "none",
            "cpu-throttle-initial": 20,
        }  # fmt: skip
        self.compressions = ["none", "zlib", "zstd"]
        self.capabilities = dict.fromkeys(
            ["events", "postcopy-ram", "multifd", "xbzrle", "auto-converge", "return-path"], False
        )

    def execute(self, command, **arguments):
        match command:
            case "query-migrate-parameters":
                return dict(self.parameters)
            case "query-migrate-capabilities":
                return [{"capability": name, "state": state} for name, state in self.capabilities.items()]
            case "query-qmp-schema":
                return self.schema()
            case "migrate-set-parameters":
                self.parameters |= arguments
            case "migrate-set-capabilities":
                self.capabilities |= {each["capability"]: each["state"] for each in arguments["capabilities"]}
        return {"qemu": {"major": 7, "minor": 2, "micro": 0}}

    def schema(self):
        """As QEMU describes both commands. Names of types are numbers, as there."""
        arguments = [{"name": name, "type": "2" if "compression" in name else "int"} for name in self.parameters]
        return [
            {"name": "migrate-set-parameters", "meta-type": "command", "arg-type": "1"},
            {"name": "1", "meta-type": "object", "members": arguments},
            {"name": "2", "meta-type": "enum", "values": self.compressions},
            {"name": "migrate-set-capabilities", "meta-type": "command", "arg-type": "3"},
            {"name": "3", "meta-type": "object", "members": [{"name": "capabilities", "type": "[4]"}]},
            {"name": "[4]", "meta-type": "array", "element-type": "4"},
            {"name": "4", "meta-type": "object", "members": [{"name": "capability", "type": "5"}]},
            {"name": "5", "meta-type": "enum", "values": list(self.capabilities)},
        ]


def test_a_qemu_of_the_user_s_has_its_own_settings_again():
    monitor = Monitor()
    monitor.capabilities["xbzrle"] = True
    before = dict(monitor.capabilities), dict(monitor.parameters)
    usual, switched = qmp.defaults(monitor), qmp.switches(monitor)
    qmp.prepare(Method(multifd=8, compression="zstd", downtime="50ms"), monitor, usual)
    assert not monitor.capabilities["xbzrle"]
    qmp.restore(monitor, usual, switched)
    assert (monitor.capabilities, monitor.parameters) == before


def test_a_method_leaves_nothing_behind():
    monitor = Monitor()
    fresh, usual = dict(monitor.parameters), qmp.defaults(monitor)
    qmp.prepare(Method(multifd=8, compression="zstd", downtime="50ms", bandwidth="8Mbit/s"), monitor, usual)
    assert monitor.parameters["multifd-compression"] == "zstd"
    assert monitor.parameters["max-bandwidth"] == 1_000_000
    assert monitor.capabilities["multifd"]
    qmp.prepare(Method(postcopy={}), monitor, usual)
    assert monitor.parameters == fresh
    assert {name for name, state in monitor.capabilities.items() if state} == {"events", "postcopy-ram"}


def test_what_a_qemu_lacks_is_named():
    monitor = Monitor()
    del monitor.capabilities["xbzrle"], monitor.parameters["multifd-compression"]
    methods = {"small": Method(xbzrle=True), "packed": Method(multifd=2, compression="zstd"), "plain": Method()}
    reasons = qmp.lacking(methods, qmp.features(monitor), f"QEMU {qmp.version(monitor)}")
    assert len(reasons) == 2
    assert "method small: this QEMU 7.2.0 has no xbzrle" in reasons[0]
    assert "method packed: this QEMU 7.2.0 has no multifd-compression zstd" in reasons[1]


def test_a_qemu_that_was_built_without_a_way_of_compression_is_refused_for_it_alone():
    monitor = Monitor()
    monitor.compressions = ["none", "zlib"]
    methods = {name: Method(multifd=2, compression=name) for name in ("zlib", "zstd")}
    (reason,) = qmp.lacking(methods, qmp.features(monitor), "QEMU 7.2.0")
    assert "method zstd: this QEMU 7.2.0 has no multifd-compression zstd" in reason


def test_a_qemu_that_describes_no_migration_has_no_feature_of_it():
    assert not qmp.Schema([]).values("migrate-set-capabilities", "capabilities", "capability")
    assert not qmp.Schema([]).members("migrate-set-parameters")


class Refusing(Monitor):
    """A QEMU without KVM: it knows limits of dirty rates, and refuses them."""

    def __init__(self):
        super().__init__()
        self.capabilities["dirty-limit"] = False
        self.parameters["vcpu-dirty-limit"] = 1

    def execute(self, command, **arguments):
        wanted = {each["capability"] for each in arguments.get("capabilities", ()) if each["state"]}
        if "dirty-limit" in wanted:
            raise TrialError("dirty-limit requires KVM with accelerator property 'dirty-ring-size' set")
        return super().execute(command, **arguments)


def test_what_a_qemu_has_and_refuses_for_this_guest_is_named_before_anything_moves():
    monitor = Refusing()
    monitor.capabilities["xbzrle"] = True
    before = dict(monitor.capabilities)
    with pytest.raises(CapabilityError) as raised:
        qmp.require({"limited": Method(dirty_limit="20MiB"), "plain": Method(postcopy={})}, monitor)
    assert "method limited: this QEMU 7.2.0 refuses it for this guest (dirty-limit requires KVM" in str(raised.value)
    assert "plain" not in str(raised.value)
    assert monitor.capabilities == before


def test_methods_that_a_qemu_carries_out_are_required_without_a_trace():
    monitor = Monitor()
    before = dict(monitor.capabilities)
    qmp.require({"both": Method(postcopy={}), "packed": Method(xbzrle=True)}, monitor)
    assert monitor.capabilities == before
