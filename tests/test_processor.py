"""A processor that NumPy's wheels do not run on is refused by name, before anything is imported that would crash."""

import pytest

from partywall import cli, processor
from partywall.errors import CapabilityError

# QEMU's default CPU model under emulation.
QEMU64 = (
    "fpu de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat clflush mmx fxsr sse sse2 ht syscall nx lm pni cx16"
)


def cpu_info(tmp_path, line):
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor\t: 0\nmodel name\t: QEMU Virtual CPU version 2.5+\n{line}\n")
    return file


def test_an_old_processor_is_refused_with_what_it_lacks(tmp_path):
    with pytest.raises(CapabilityError, match=r"lacks popcnt, sse4_1, sse4_2, ssse3 — .*newer CPU model"):
        processor.check_baseline(cpu_info(tmp_path, f"flags\t\t: {QEMU64}"))


def test_others_pass(tmp_path):
    processor.check_baseline(cpu_info(tmp_path, f"flags\t\t: {QEMU64} popcnt sse4_1 sse4_2 ssse3"))
    processor.check_baseline(cpu_info(tmp_path, "Features\t: fp asimd evtstrm"))
    processor.check_baseline(tmp_path / "missing")


def test_extensions_that_a_processor_lacks_are_named_with_the_reason(tmp_path):
    sse2 = cpu_info(tmp_path, f"flags\t\t: {QEMU64}")
    assert processor.lacking(sse2) == {"avx": "the processor lacks AVX"}
    assert processor.lacking(cpu_info(tmp_path, f"flags\t\t: {QEMU64} avx")) == {}
    arm = processor.lacking(cpu_info(tmp_path, "Features\t: fp asimd evtstrm"))
    assert set(arm) == {"sse2", "avx"}
    assert "not x86-64" in arm["avx"]


def test_a_file_of_any_bytes_names_no_instruction_sets(tmp_path):
    (tmp_path / "cpuinfo").write_bytes(b"\x00\xff\x80 - : = ,,--\n\n- -\n")
    processor.check_baseline(tmp_path / "cpuinfo")
    assert set(processor.lacking(tmp_path / "cpuinfo")) == {"sse2", "avx"}


def test_the_command_line_asks_before_it_starts(tmp_path, monkeypatch, capsys):
    old = cpu_info(tmp_path, f"flags: {QEMU64}")
    monkeypatch.setattr(cli, "check_baseline", lambda: processor.check_baseline(old))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 4
    assert "x86-64-v2" in capsys.readouterr().err
