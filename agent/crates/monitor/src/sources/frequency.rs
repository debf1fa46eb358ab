//! `scaling_cur_freq`: the clock frequency of each CPU. Virtual machines rarely report it.

use partywall_facts::{cpulist, under};
use partywall_kernels::Resource::Cpu;

use super::{open_each, wants_cpu};
use crate::counter::{Column, Group, KILOHERTZ};
use crate::reader::Builder;

pub(crate) const GROUP: Group = Group {
    file: "/sys/devices/system/cpu/cpu*/cpufreq/scaling_cur_freq",
    subject: "each CPU",
    columns: &[Column::gauge(
        "",
        "cpu_frequency_hz",
        "clock frequency",
        KILOHERTZ,
        Cpu,
        "the clock changed: turbo budget shared with neighbours, heat, governor",
    )],
    cost: "a change of clock cannot be distinguished from another cause",
    remedy: "none inside most virtual machines; on metal load the cpufreq driver",
};

/// The requested CPUs that are online, as `cpu3`.
pub(super) fn cpus(builder: &Builder) -> Vec<String> {
    let text = std::fs::read_to_string(under(builder.root, "/sys/devices/system/cpu/online")).unwrap_or_default();
    let named = cpulist::parse(&text).unwrap_or_default().into_iter().map(|cpu| format!("cpu{cpu}"));
    named.filter(|cpu| wants_cpu(builder, cpu)).collect()
}

pub(crate) fn open(builder: &mut Builder) {
    let files = cpus(builder).into_iter().map(|cpu| (GROUP.file.replace("cpu*", &cpu), cpu)).collect();
    open_each(builder, &GROUP, files);
}
