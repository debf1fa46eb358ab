"""The parts of the qemu backend that touch no host: archives, modules, command lines, clocks, choices."""

import dataclasses
import gzip
import itertools
import json
import lzma
import os
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partywall.agent.catalogue import shipped
from partywall.cli import vm
from partywall.errors import CapabilityError, TrialError
from partywall.host.block import Throttle
from partywall.run.check.rules import check
from partywall.run.document.scenario import Scenario
from partywall.run.measure.execute import guarded
from partywall.run.plan import Topology, lay_out, make, room
from partywall.run.values.plan import Treatment
from partywall.sandbox import Settings, Spent, clock, reaper
from partywall.sandbox.cgroups import Cgroups, cpu_files
from partywall.sandbox.document import Disk
from partywall.sandbox.qemu import accelerator, balloon, kernel, modules, unpack
from partywall.sandbox.qemu.backend import last_lines
from partywall.sandbox.qemu.initramfs import initramfs, loaded
from partywall.sandbox.qemu.machine import Machine, Nic, drive, throttles
from partywall.sandbox.qemu.modules import collect, depends, ordered
from partywall.sandbox.qemu.vcpus import VcpuGroup, spent
from partywall.sandbox.switch import Port
from partywall.testing import fake_host

MACHINE = Machine(
    settings=Settings(name="victim", backend="qemu", cpus=(2, 3), memory=300_000_000),
    accel="tcg",
    kernel=Path("/cache/vmlinuz"),
    initramfs=Path("/run/initramfs"),
    console=Path("/run/a,b/console"),
    qmp=7,
)


def unpacked(archive):
    """Names with mode and content, as the kernel reads them."""
    result, at = {}, 0
    while at < len(archive):
        assert archive[at : at + 6] == b"070701"
        fields = [int(archive[at + 6 + 8 * n : at + 14 + 8 * n], 16) for n in range(13)]
        mode, size, length = fields[1], fields[6], fields[11]
        name = archive[at + 110 : at + 110 + length - 1].decode()
        body = at + -(-(110 + length) // 4) * 4
        if name == "TRAILER!!!":
            return result
        result[name] = (mode, archive[body : body + size])
        at = body + -(-size // 4) * 4
    raise AssertionError("the archive has no end")


@given(
    st.binary(max_size=50), st.dictionaries(st.from_regex(r"[a-z_]{1,9}\.ko", fullmatch=True), st.binary(max_size=30))
)
def test_an_initramfs_is_read_back_with_agent_modules_and_their_order(agent, modules):
    result = unpacked(initramfs(agent, modules))
    assert result["init"] == (0o100755, agent)
    assert {name: result[f"lib/modules/{name}"][1] for name in modules} == modules
    assert result["lib/modules/order"][1].decode().splitlines() == list(modules)
    assert result["dev/console"][0] == 0o20600
    for name in result:
        assert "/" not in name or name.rpartition("/")[0] in result or name.startswith("dev/"), name


def test_an_executable_still_runs_without_what_is_never_loaded(tmp_path):
    whole = Path(sys.executable).resolve().read_bytes()
    path = tmp_path / "python"
    path.write_bytes(loaded(whole))
    path.chmod(0o755)
    assert path.stat().st_size <= len(whole)
    done = subprocess.run([path, "-c", "print(6 * 7)"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr
    assert loaded(b"#!/bin/sh") == b"#!/bin/sh"


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.sets(st.sampled_from("abcdefgh")), min_size=8, max_size=8))
def test_modules_come_after_all_they_depend_on(needs):
    # A later letter may need earlier ones only, so that nothing goes round in a circle.
    needs = {name: {other for other in others if other < name} for name, others in needs.items()}
    result = list(ordered(tuple(needs), lambda name: b"\0depends=" + ",".join(sorted(needs[name])).encode() + b"\0"))
    assert sorted(result) == sorted(f"{name}.ko" for name in needs)
    for name, others in needs.items():
        assert all(result.index(f"{other}.ko") < result.index(f"{name}.ko") for other in others)


def test_dashes_in_a_dependency_mean_underscores():
    assert depends(b"x\0depends=virtio-ring,failover\0name=y\0") == ("virtio_ring", "failover")


def test_a_kernel_without_a_needed_module_is_named(tmp_path):
    with pytest.raises(CapabilityError, match=r"no module virtio_\w+"):
        collect(tmp_path)


def test_modules_that_are_built_in_are_not_looked_for():
    assert ordered(("virtio",), lambda name: pytest.fail(name), frozenset({"virtio"})) == {}


def test_a_machine_has_what_its_settings_say():
    argv = MACHINE.argv()
    after = dict(itertools.pairwise(argv))
    assert argv[:4] == ["setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64"]
    assert after["-smp"] == "2"
    assert after["-m"] == "287M"
    assert after["-accel"].startswith("tcg")
    assert "file,id=console,path=/run/a,,b/console" in argv
    assert not any(word.startswith("virtio-blk") for word in argv)
    assert after["-append"].startswith("console=")
    reported = dict(itertools.pairwise(dataclasses.replace(MACHINE, tsc_khz=2_596_118).argv()))
    assert reported["-append"] == f"tsc_early_khz=2596118 {after['-append']}"
    more = dataclasses.replace(MACHINE, accel="kvm", image=Path("/work/disk.img")).argv()
    assert more[more.index("-accel") + 1] == "kvm"
    ring = dataclasses.replace(MACHINE, accel="kvm", movable=True, dirty_ring=True).argv()
    assert ring[ring.index("-accel") + 1] == "kvm,dirty-ring-size=4096"
    assert "dirty-ring" not in " ".join(dataclasses.replace(MACHINE, movable=True, dirty_ring=True).argv())
    assert any(word.startswith("virtio-blk") for word in more)


def test_a_guests_memory_is_bound_to_the_nodes_that_are_named():
    bound = dataclasses.replace(MACHINE, settings=dataclasses.replace(MACHINE.settings, memory_nodes=(0, 2)))
    argv = bound.argv()
    reported = dict(itertools.pairwise(argv))
    # Both sizes must agree.
    assert reported["-object"] == "memory-backend-ram,id=ram,size=287M,host-nodes=0,host-nodes=2,policy=bind"
    assert reported["-m"] == "287M"
    assert reported["-machine"].endswith(",memory-backend=ram")
    moved = dict(itertools.pairwise(dataclasses.replace(bound, movable=True).argv()))
    assert moved["-object"].endswith(",share=on,host-nodes=0,host-nodes=2,policy=bind")
    assert not any("memory-backend" in word for word in MACHINE.argv())


def test_a_root_is_shared_and_never_written_and_a_network_interface_has_its_addresses():
    port = Port("run-1", "tap3", "52:54:00:00:01:03", "198.18.1.3/16")
    argv = dataclasses.replace(MACHINE, root=Path("/cache/root.ext4"), nic=Nic.on(port)).argv()
    assert argv[:5] == ["setpriv", "--pdeathsig", "KILL", "nsenter", "--net=/run/netns/run-1"]
    drive_option = next(word for word in argv if word.startswith("file=/cache/root.ext4"))
    assert "snapshot=on" in drive_option
    assert "virtio-blk-pci,drive=root,serial=partywall-root" in argv
    assert "tap,id=nic,ifname=tap3,script=no,downscript=no" in argv
    assert argv[argv.index("-append") + 1].endswith("-- init --address 198.18.1.3/16 --gateway 198.18.0.1")
    assert not any("host_mtu" in word for word in argv)
    small = dataclasses.replace(MACHINE, nic=Nic.on(dataclasses.replace(port, mtu=1052))).argv()
    assert any(word.startswith("virtio-net-pci,") and word.endswith(",host_mtu=1052") for word in small)
    without = dataclasses.replace(MACHINE, nic=Nic.on(dataclasses.replace(port, ipv6=False))).argv()
    texts = [each[each.index("-append") + 1] for each in (argv, without)]
    assert ["ipv6.disable=1" in text.partition(" -- ")[0].split() for text in texts] == [False, True]
    user = dataclasses.replace(MACHINE, nic=Nic.user()).argv()
    assert "nsenter" not in user
    assert "user,id=nic" in user


def test_a_disk_is_throttled_and_cached_as_requested():
    option = drive(Path("/d"), Disk(read_bps=1000, write_iops=7, cache="writeback"))
    assert option == (
        "file=/d,if=none,id=disk,format=raw,cache=writeback,throttling.bps-read=1000,throttling.iops-write=7"
    )
    assert "cache=none" in drive(Path("/d"), None)


def test_a_disks_limits_are_changed_all_at_once_and_none_is_nought():
    requested = throttles(Throttle(read_bps=1000, write_iops=7))
    assert requested == {"bps": 0, "bps_rd": 1000, "bps_wr": 0, "iops": 0, "iops_rd": 0, "iops_wr": 7}


def test_limits_of_vcpu_threads_are_those_of_a_container():
    v1 = {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "50000", "cpu.shares": "1024"}
    assert cpu_files((0, 1), 0.25, None, v2=False) == v1
    assert cpu_files((0,), 0.25, 300, v2=True) == {"cpu.max": "25000 100000", "cpu.weight": "300"}


def test_a_weight_stands_where_the_other_sandboxes_are_siblings_and_a_ceiling_on_the_vcpus_alone(tmp_path):
    group = VcpuGroup(Cgroups(unified=tmp_path, unified_controllers=frozenset({"cpu"})), "/partywall/run/guest")
    (tmp_path / "partywall/run/other").mkdir(parents=True)
    group.create(1, [2])
    group.set((0,), 0.25, 300)
    guest = tmp_path / "partywall/run/guest"
    assert (guest / "cpu.weight").read_text() == "300"
    assert (guest / "vcpus/cpu.max").read_text() == "25000 100000"
    assert not (guest / "vcpus/cpu.weight").exists()
    assert not (guest / "cpu.max").exists()


@pytest.mark.parametrize(("emulated", "guest"), [(False, 350), (True, 420)])
def test_the_hosts_side_of_a_guest_is_its_process_without_its_virtual_cpus(tmp_path, emulated, guest):
    def stat(folder, own, kernel, guest):
        fields = ["S", *["0"] * 10, own, kernel, *["0"] * 27, guest, "0"]
        folder.mkdir(parents=True)
        (folder / "stat").write_text(f"7 (CPU 0/KVM) x) {' '.join(map(str, fields))}\n")

    stat(tmp_path / "7", 470, 130, 350)
    stat(tmp_path / "7" / "task" / "8", 300, 10, 250)
    stat(tmp_path / "7" / "task" / "9", 100, 10, 100)
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    times = Spent(guest * tick_ns, (470 + 130 - guest) * tick_ns)
    assert spent(7, [8, 9], emulated=emulated, proc=tmp_path) == times
    assert spent(7, [8, 10], emulated=emulated, proc=tmp_path) is None
    assert Spent.total([times, Spent(1, 2)]) == (times.guest_ns + 1, times.host_side_ns + 2)


def test_of_version_1_all_stands_in_the_one_group(tmp_path):
    group = VcpuGroup(Cgroups(v1={"cpu": tmp_path}), "/partywall/run/guest")
    group.create(1, [2])
    group.set((0,), 0.25, 300)
    result = {path.name for path in (tmp_path / "partywall/run/guest").iterdir()}
    assert result == {"tasks", "cpu.cfs_period_us", "cpu.cfs_quota_us", "cpu.shares"}


# Clocks


class Guest:
    """A guest's clock that is ahead by `ahead_ns` and too fast by `drift_ppb`; a round trip takes what chance says."""

    def __init__(self, ahead_ns, drift_ppb, delays):
        self.now_ns = 1_000_000_000
        self._began_ns, self._ahead, self._rate = self.now_ns, float(ahead_ns), drift_ppb
        self._delays = delays

    def advance(self, ns):
        self._ahead += ns * self._rate / 1e9
        self.now_ns += ns

    @property
    def error_ns(self):
        return self._ahead

    def call(self, method, **params):
        there, back = next(self._delays)
        if method == "clock.adjust":
            self._ahead += params.get("shift_ns", 0)
            if "frequency_ppb" in params:
                self._rate += params["frequency_ppb"] - getattr(self, "_set", 0)
                self._set = params["frequency_ppb"]
            return {"monotonic_ns": 0}
        self.advance(there)
        reported = round(self.now_ns + self._ahead)
        self.advance(back)
        return {"monotonic_ns": reported}


def delays(seed, slow_ns):
    chance = random.Random(seed)
    while True:
        longest = slow_ns if chance.random() < 0.5 else 90_000
        yield chance.randint(50_000, longest), chance.randint(50_000, longest)


DRIFTS = st.integers(-40_000, 40_000)
SLOW = st.sampled_from([100_000, 400_000, 20_000_000])


@given(st.integers(-(10**12), 10**12), DRIFTS, st.integers(0, 2**32), SLOW)
def test_a_clock_stays_within_the_bound_that_is_reported_of_it(ahead_ns, drift_ppb, seed, slow_ns):
    guest = Guest(ahead_ns, drift_ppb, delays(seed, slow_ns))
    kept = clock.GuestClock(guest.call, lambda: guest.now_ns)
    kept.shift()
    for _ in range(30):
        guest.advance(2_000_000_000)
        look = kept.keep()
        assert abs(guest.error_ns) <= look.error_ns(guest.now_ns) + 1
    assert look.error_ns(guest.now_ns) < 2_000_000


@given(DRIFTS, st.integers(0, 2**32), SLOW, st.lists(st.integers(1, 70_000), min_size=8, max_size=8))
def test_a_bound_holds_all_the_way_to_the_next_look_however_far_that_is(drift_ppb, seed, slow_ns, spans_ms):
    guest = Guest(7_000_000, drift_ppb, delays(seed, slow_ns))
    kept = clock.GuestClock(guest.call, lambda: guest.now_ns)
    kept.shift()
    for span_ms in spans_ms:
        look = kept.keep(span_ms * 1_000_000)
        bound_ns = look.error_ns(look.offset.at_ns + span_ms * 1_000_000)
        for _ in range(10):
            assert abs(guest.error_ns) <= bound_ns + 1
            guest.advance(max(0, look.offset.at_ns + span_ms * 1_000_000 - guest.now_ns) // 5)


def test_a_clock_far_faster_than_was_thought_is_bounded_once_that_is_known():
    guest = Guest(0, 300_000, delays(1, 100_000))
    kept = clock.GuestClock(guest.call, lambda: guest.now_ns)
    kept.shift()
    guest.advance(10_000_000_000)
    kept.keep()
    for span_ns in (1_000_000_000, 20_000_000_000, 70_000_000_000):
        look = kept.keep(span_ns)
        guest.advance(span_ns)
        assert abs(guest.error_ns) <= look.error_ns(guest.now_ns)


def test_a_rate_that_stands_for_long_does_not_carry_the_clock_past_the_hosts():
    earlier, later = clock.Offset(0, 0, 0), clock.Offset(10 * clock.LOOK_NS, 300_000, 300_000)
    span_ns = 70_000_000_000
    drift_ppb = 10_000
    left_ns = 300_000 + (clock.frequency(0, earlier, later, span_ns) + drift_ppb) * span_ns // 10**9
    assert abs(left_ns) <= 100
    assert 300_000 + (clock.frequency(0, earlier, later) + drift_ppb) * span_ns // 10**9 < -1_000_000


def test_a_clock_that_jumps_is_reported_and_one_that_drifts_more_than_was_thought_is_followed():
    guest = Guest(5_000_000_000, 0, itertools.repeat((100_000, 100_000)))
    kept = clock.GuestClock(guest.call, lambda: guest.now_ns)
    kept.shift()
    guest._ahead += 2_000_000
    look = kept.keep()
    assert look.error_ns(guest.now_ns) >= 2_000_000
    assert look.offset.certain_ns > 1_500_000
    guest._ahead += 7_700_000_000
    with pytest.raises(TrialError, match=r"jumped by \+7\.7\d\d s .* could be off by \d\.\d ms at most"):
        kept.keep()


@given(st.integers(0, 10**7), st.integers(0, 500_000), st.integers(1, 12), st.sampled_from([10**6, 10**10]))
def test_guards_of_a_block_are_wide_enough_for_clocks_at_its_own_last_switch(off_ns, rate_ppb, count, slot_ns):
    looks = clock.Looks(0, (clock.Look(clock.Offset(0, -off_ns, 0), rate_ppb), clock.Look(clock.Offset(0, 0, 5), 1)))

    def laid_out(*, clock_error_ns):
        treatments = [treatment(f"t{n}", slot_ns) for n in range(count)]
        return lay_out(treatments, 10**9, None, grid_ns=10**7, clock_error_ns=clock_error_ns)

    block, error_ns = guarded(laid_out, looks, 10**9)
    assert error_ns >= looks.error_ns(block[-1].end_ns + 2 * error_ns)
    assert block == laid_out(clock_error_ns=error_ns)
    assert error_ns >= off_ns


def treatment(id_, slot_ns):
    return Treatment(id=id_, label=id_, role="baseline", slot_ns=slot_ns, guard_ns=10**6, release_ns=0)


def test_trips_that_contradict_each_other_leave_the_shortest():
    assert clock.offset_of([(0, 100, 10), (20, 1000, 24)]) == clock.Offset(24, 976, 980)


# Choices


def test_kvm_is_tried_once_and_what_came_of_it_is_remembered(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path))
    tried = []

    def carries(_within_s):
        tried.append(1)
        return "hello was not answered"

    host = with_kvm(tmp_path, try_kvm=carries)
    for _ in range(2):
        chosen = accelerator.choose("auto", host)
        assert (chosen.name, "hello was not answered" in chosen.why) == ("tcg", True)
    assert len(tried) == 1
    with pytest.raises(CapabilityError, match=r"accel: kvm .* use accel: tcg"):
        accelerator.choose("kvm", host)
    assert not accelerator.verdict(host).works
    accelerator.choose("auto", with_kvm(tmp_path, try_kvm=carries, output=lambda _: "another version"))
    assert len(tried) == 2


def with_kvm(root, **changes):
    (root / "dev").mkdir(exist_ok=True)
    (root / "dev/kvm").touch()
    return fake_host(root=root, **changes)


def test_a_kernel_that_never_came_up_does_not_condemn_kvm_for_the_next_one(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("PARTYWALL_CACHE", str(tmp_path / "cache"))
    image = tmp_path / "cache/guest-kernel/vmlinuz"
    image.parent.mkdir(parents=True)
    image.write_bytes(b"bad")
    assert accelerator.choose("auto", with_kvm(tmp_path, try_kvm=lambda _within_s: "it panicked")).name == "tcg"
    image.write_bytes(b"better")
    assert accelerator.choose("auto", with_kvm(tmp_path, try_kvm=lambda _within_s: "")).name == "kvm"
    again = with_kvm(tmp_path, try_kvm=lambda _within_s: pytest.fail("it was tried again"))
    assert accelerator.choose("auto", again).name == "kvm"


def test_without_the_device_nothing_is_tried(tmp_path):
    host = fake_host(root=tmp_path, try_kvm=lambda _within_s: pytest.fail("it was tried"))
    chosen = accelerator.choose("auto", host)
    assert (chosen.name, "does not exist" in chosen.why) == ("tcg", True)
    assert accelerator.choose("tcg", host).name == "tcg"


def test_a_kernel_that_was_not_prepared_or_is_broken_is_reported_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_CACHE", str(tmp_path))
    with pytest.raises(CapabilityError, match=r"no kernel .* partywall vm prepare"):
        kernel.GuestKernel.prepared()
    folder = tmp_path / "guest-kernel"
    folder.mkdir()
    (folder / "kernel.json").write_text(json.dumps({"release": "6", "source": "here", "modules": ["a.ko"]}))
    with pytest.raises(CapabilityError, match=r"vmlinuz is not there"):
        kernel.GuestKernel.prepared()
    (folder / "kernel.json").write_text("{")
    with pytest.raises(CapabilityError, match=r"cannot be used"):
        kernel.GuestKernel.prepared()


def test_a_prepared_kernel_replaces_the_one_before_whole(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_CACHE", str(tmp_path / "cache"))
    tree = kernel_tree(tmp_path)
    for content in (b"old", b"new"):
        (tmp_path / "vmlinuz").write_bytes(content)
        made = kernel.prepare(lambda _: None, image=tmp_path / "vmlinuz", tree=tree)
    assert made == kernel.GuestKernel.prepared()
    assert made.image.read_bytes() == b"new"
    assert sorted(made.module_contents()) == sorted(file.name for file in tree.iterdir())
    assert [path.name for path in made.folder.parent.iterdir()] == ["guest-kernel"]


def test_a_kernel_of_the_hosts_that_guests_cannot_use_is_reported_and_another_one_fetched(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    (tmp_path / "vmlinuz").write_bytes(b"the host's own")
    (tmp_path / "modules").mkdir()
    monkeypatch.setattr(kernel, "_own", lambda: (tmp_path / "vmlinuz", tmp_path / "modules"))
    fetched = kernel.GuestKernel("6", "a package", ())
    monkeypatch.setattr(kernel, "_fetched", lambda _say: fetched)
    said = []
    assert kernel.prepare(said.append) is fetched
    assert "is unusable" in said[-1]
    assert "no module virtio" in said[-1]
    assert not list((tmp_path / "cache").glob("*"))


def test_what_a_killed_fetch_left_goes_with_the_next_start(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    kernels = "from partywall.sandbox.qemu import kernel\nimport os\n"
    killed = f"{kernels}with kernel._scratch() as folder: (folder / 'x').touch(); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", killed], check=False)
    assert list((tmp_path / "cache").glob("*/x"))
    reaper.reap()
    assert not list((tmp_path / "cache").glob("*"))


def kernel_tree(folder):
    tree = folder / "6.1-test"
    tree.mkdir()
    for name in modules.WANTED:
        (tree / f"{name}.ko").write_bytes(b"\0depends=\0" + name.encode())
    return tree


def test_a_file_system_that_is_a_module_goes_into_the_guest_with_its_checksums(tmp_path):
    tree = kernel_tree(tmp_path)
    (tree / "ext4.ko").write_bytes(b"\0depends=jbd2,crc16\0")
    for name in ("jbd2", "crc16", "crc32c_generic"):
        (tree / f"{name}.ko").write_bytes(b"\0depends=\0")
    listed = list(modules.collect(tree))
    assert listed.index("jbd2.ko") < listed.index("ext4.ko")
    assert "crc32c_generic.ko" in listed


def test_why_a_guest_stopped_is_told_though_firmware_cleared_the_screen_on_the_same_line():
    firmware, cleared = "\x1bc\x1b[?7l\x1b[2J\x1b[0mSeaBIOS\r\nBooting from ROM..", "\x1bc\x1b[?7l\x1b[2J"
    shown = last_lines(f"{firmware}{cleared}partywall-init: mounting ext4: no\r\nend\r\n")
    assert len(shown) == 2
    assert shown[0].endswith("partywall-init: mounting ext4: no")


@pytest.mark.long
def test_a_kernel_is_exported_as_it_was_shipped_or_without_its_packing(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_CACHE", str(tmp_path / "cache"))
    whole = elf(PVH)
    (tmp_path / "vmlinuz").write_bytes(packed(whole, lzma.compress))
    kernel.prepare(lambda _: None, image=tmp_path / "vmlinuz", tree=kernel_tree(tmp_path))
    vm.export(tmp_path / "out")
    assert (tmp_path / "out/vmlinuz").read_bytes() == (tmp_path / "vmlinuz").read_bytes()
    vm.export(tmp_path / "out", uncompressed=True)
    assert (tmp_path / "out/vmlinuz").read_bytes() == whole
    assert (tmp_path / "out/initramfs").stat().st_size > 0


def test_a_kernel_that_could_not_be_unpacked_is_not_exported_as_if_it_were(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "vmlinuz").write_bytes(b"no kernel that is known")
    kernel.prepare(lambda _: None, image=tmp_path / "vmlinuz", tree=kernel_tree(tmp_path))
    with pytest.raises(CapabilityError, match=r"could not be unpacked.*leave out --uncompressed.*--fetch"):
        vm.export(tmp_path / "out", uncompressed=True)
    assert not (tmp_path / "out").exists()


def test_a_kernel_that_is_ready_is_not_fetched_again_unless_requested(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PARTYWALL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "vmlinuz").write_bytes(b"kernel")
    tree = kernel_tree(tmp_path)
    kernel.prepare(lambda _: None, image=tmp_path / "vmlinuz", tree=tree)
    requested = []
    monkeypatch.setattr(vm.qemu, "prepare", lambda _say, **how: requested.append(how) or kernel.GuestKernel.prepared())
    vm.prepare()
    assert requested == []
    assert "ready: guests boot 6.1-test" in capsys.readouterr().out
    vm.prepare(fetch=True)
    vm.prepare(kernel=tmp_path / "vmlinuz", modules=tree)
    assert [how["fetch"] for how in requested] == [True, False]


def test_a_kernel_that_an_earlier_version_prepared_is_prepared_again(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "vmlinuz").write_bytes(b"kernel")
    made = kernel.prepare(lambda _: None, image=tmp_path / "vmlinuz", tree=kernel_tree(tmp_path))
    about = made.folder / "kernel.json"
    about.write_text(json.dumps({"release": "6", "source": "a package", "modules": []}))
    requested = []
    monkeypatch.setattr(vm.qemu, "prepare", lambda _say, **how: requested.append(how) or kernel.GuestKernel.prepared())
    vm.prepare()
    assert len(requested) == 1


def elf(*notes):
    """A 64-bit ELF file with one segment, of notes."""
    section = b"".join(
        struct.pack("<III", len(name), 4, kind) + name.ljust(-(-len(name) // 4) * 4, b"\0") + b"\1\0\0\0"
        for name, kind in notes
    )
    header = struct.pack("<5s27xQ14xHH4x", b"\x7fELF\x02", 64, 56, 1)
    return header.ljust(64, b"\0") + struct.pack("<I4xQ16xQ", 4, 120, len(section)).ljust(56, b"\0") + section


def packed(kernel, pack):
    payload = pack(kernel)
    image = bytearray(2 * 512)
    image[0x1F1] = 1
    image[0x202:0x206] = b"HdrS"
    struct.pack_into("<II", image, 0x248, 16, len(payload))
    return bytes(image) + bytes(16) + payload + b"relocations"


PVH = (b"Xen\0", 18)


@pytest.mark.parametrize("pack", [lzma.compress, gzip.compress])
def test_a_kernel_is_booted_without_its_packing_if_a_machine_can_enter_it(pack):
    kernel = elf((b"GNU\0", 3), PVH)
    assert unpack.unpacked(packed(kernel, pack)) == kernel
    assert unpack.unpacked(packed(elf((b"Xen\0", 6)), pack)) is None
    assert unpack.unpacked(packed(kernel, bytes)) is None
    assert unpack.unpacked(packed(kernel, lambda data: pack(data)[:9])) is None
    assert unpack.unpacked(b"no kernel at all") is None
    assert unpack.unpacked(kernel) == kernel


# Scenarios


def mistakes(sandbox, **work):
    content = {"partywall": 1, "name": "x", "victims": {"v": (work or {"probe": "integer"}) | {"sandbox": sandbox}}}
    result = check(Scenario.model_validate(content | {"budget": "10min"}), shipped())
    return [(".".join(map(str, m.path)), m.message) for m in result]


def test_a_guest_can_do_all_that_a_container_can_and_has_settings_of_its_own():
    limits = {"cpu_limit": "50%", "cpu_reservation": "20%", "memory": "1GiB", "disk": {"read_bps": "10MB/s"}}
    machine_only = {"vcpus": 2, "host_cpus": "0,1", "accel": "tcg"}
    assert mistakes({"backend": "qemu"} | limits | machine_only) == []
    assert mistakes({"backend": "container"} | limits) == []
    result = mistakes({"backend": "container"} | machine_only)
    assert [path for path, _ in result] == [f"victims.v.sandbox.{key}" for key in machine_only]
    assert mistakes({"backend": "container", "disk": {"cache": "none"}})[0][0] == "victims.v.sandbox.disk.cache"


def test_a_command_in_a_guest_needs_a_root_that_holds_it():
    command = {"command": ["vmstat", "1"], "metric": {"csv_column": 1}}
    path, message = mistakes({"backend": "qemu"}, **command)[0]
    assert path == "victims.v.command"
    assert "without a root image contains only the agent and no programs" in message
    for backend in ("qemu", "process", "container"):
        assert mistakes({"backend": backend, "root": ["procps"]}, **command) == []


def test_a_peer_of_ours_needs_a_network_on_which_it_is_reached():
    talk = {"probe": "tcp-request", "params": {"to": "peer"}}
    assert mistakes({"backend": "qemu"}, **talk)[0][0] == "victims.v.params.to"
    assert mistakes({"backend": "process"}, **talk)[0][0] == "victims.v.params.to"
    for network in ("user", "bridge"):
        assert mistakes({"backend": "qemu", "network": network}, **talk) == []
    assert mistakes({"backend": "container", "network": "bridge"})[0][0] == "victims.v.sandbox.network"


def test_virtual_users_in_a_guest_need_a_network_that_leads_to_the_host():
    users = {"load": "http://10.0.2.2:8080/"}
    assert mistakes({"backend": "qemu"}, **users)[0][0] == "victims.v.sandbox.network"
    assert mistakes({"backend": "qemu", "network": "user"}, **users) == []


MIB = 1 << 20


def planned(**victim):
    return plan_of(**victim).trials


def plan_of(**victim):
    content = {
        "partywall": 1,
        "name": "x",
        "victims": {"v": {"probe": "integer"} | victim},
        "factors": {"victim.sandbox.memory": ["256MiB", "1GiB"]},
    }
    return make(Scenario.model_validate(content), Topology((0, 1), ((0, 1),)), shipped())


def test_a_guests_memory_is_switched_by_slot_and_it_is_made_with_the_most_of_it():
    (trial,) = planned(sandbox={"backend": "qemu"})
    assert trial.victim.sandbox.memory == 1024 * MIB
    limits = [t.victim_limits for t in trial.treatments if t.role == "limit"]
    assert [limit.memory for limit in limits] == [256 * MIB, 1024 * MIB]
    assert all(t.guard_ns >= 3_000_000_000 for t in trial.treatments if t.victim_limits)
    (more,) = planned(sandbox={"backend": "qemu", "memory": "2GiB"})
    assert more.victim.sandbox.memory == 2048 * MIB


def test_a_containers_memory_makes_trials_of_its_own():
    assert [t.victim.sandbox.memory for t in planned(sandbox={"backend": "container"})] == [256 * MIB, 1024 * MIB]


def test_a_level_of_memory_below_what_a_kernel_holds_is_refused_before_the_run():
    params = {"block_bytes": "512MiB"}
    (trial,) = planned(probe="memory-copy", params=params, sandbox={"backend": "qemu"})
    result = list(room.beyond_memory(trial, {}))
    assert [problem.key for problem in result] == ["victims.v.sandbox.memory"]


def on_a_disk(files, **disk):
    box = {"backend": "qemu"} | ({"disk": disk} if disk else {})
    return plan_of(probe="disk-direct-read", params={"file_bytes": files}, sandbox=box)


def test_files_that_a_guests_own_disk_cannot_hold_are_refused_before_the_run():
    (trial, *_) = on_a_disk("2GiB", size="2GiB").trials
    (problem,) = room.beyond_disk(trial)
    assert problem.key == "victims.v.sandbox.disk.size"
    assert "give a size of 2.75 GiB" in problem.remedy
    (larger, *_) = on_a_disk("2GiB", size="2816MiB").trials
    assert not list(room.beyond_disk(larger))


def test_a_guest_whose_disk_has_no_size_gets_one_that_holds_its_files():
    (small, *_), (large, *_) = (on_a_disk(files).trials for files in ("128MiB", "2GiB"))
    assert room.with_room(small, {}).victim.sandbox.disk is None
    assert room.with_room(large, {}).victim.sandbox.disk == Disk(size=2816 * MIB)


def test_the_disks_of_guests_count_for_the_work_folder_in_full(tmp_path):
    with pytest.raises(CapabilityError, match=r"guests' disks.* 1024 TiB"):
        room.check_disk(on_a_disk("1MiB", size="1024TiB"), fake_host(disk_usage=shutil.disk_usage), tmp_path)


class Balloon:
    """A monitor whose guest gives memory up in steps, down to what it cannot do without."""

    def __init__(self, least, actual=1024 * MIB):
        self.least, self.actual, self.wanted = least, actual, actual

    def execute(self, command, **arguments):
        if command == "balloon":
            self.wanted = arguments["value"]
            return None
        step = 64 * MIB
        towards = max(self.wanted, self.least)
        self.actual = max(towards, self.actual - step) if self.actual > towards else min(towards, self.actual + step)
        return {"actual": self.actual}


def test_a_balloon_is_waited_for_and_one_that_is_stuck_is_reported(monkeypatch):
    monkeypatch.setattr(balloon, "STUCK_S", 0.05)
    monitor = Balloon(least=200 * MIB)
    balloon.resize(monitor, 256 * MIB, "guest")
    assert monitor.actual == 256 * MIB
    balloon.resize(monitor, 1024 * MIB, "guest")
    assert monitor.actual == 1024 * MIB
    with pytest.raises(TrialError, match=r"should leave 100 MiB of memory, but its guest keeps 200 MiB"):
        balloon.resize(monitor, 100 * MIB, "guest")


def test_guests_get_slots_that_are_smooth_over_their_ticks():
    content = {"partywall": 1, "name": "x", "victims": {"v": {"probe": "integer", "sandbox": {"backend": "qemu"}}}}
    trial = make(Scenario.model_validate(content), Topology((0, 1), ((0, 1),)), shipped()).trials[0]
    assert all(t.slot_ns >= 100_000_000 and t.guard_ns >= 10_000_000 for t in trial.treatments)
