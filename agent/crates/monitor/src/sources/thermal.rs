//! Temperature: how often each core was throttled by it, and the temperature of the package. Only CPU zones are read, because the
//! firmware can take milliseconds for others.

use partywall_facts::under;
use partywall_kernels::Resource::Cpu;

use super::frequency::cpus;
use super::open_each;
use crate::counter::{Column, Group, COUNT, MILLIDEGREES};
use crate::reader::Builder;

pub(crate) const THROTTLE: Group = Group {
    file: "/sys/devices/system/cpu/cpu*/thermal_throttle/core_throttle_count",
    subject: "each CPU",
    columns: &[Column::total(
        "",
        "cpu_thermal_throttles_count",
        "slowdowns for heat",
        COUNT,
        Cpu,
        "the core was slowed down because it was too hot",
    )],
    cost: "slowing down from heat is not seen",
    remedy: "none inside virtual machines; on metal only Intel CPUs report it",
};

const ZONES: &str = "/sys/class/thermal";

pub(crate) const ZONE: Group = Group {
    file: "/sys/class/thermal/thermal_zone*/temp",
    subject: "each thermal zone of a CPU",
    columns: &[Column::gauge("", "cpu_temperature_millidegrees", "temperature", MILLIDEGREES, Cpu, "near the limit, the clock falls")],
    cost: "heat is not seen",
    remedy: "none inside virtual machines; on metal load x86_pkg_temp_thermal",
};

pub(crate) fn open(builder: &mut Builder) {
    let throttles = cpus(builder).into_iter().map(|cpu| (THROTTLE.file.replace("cpu*", &cpu), cpu)).collect();
    open_each(builder, &THROTTLE, throttles);
    let zones = zones(builder);
    open_each(builder, &ZONE, zones);
}

/// Path and name of the zones that belong to a CPU.
fn zones(builder: &Builder) -> Vec<(String, String)> {
    let entries = std::fs::read_dir(under(builder.root, ZONES)).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names.retain(|name| name.starts_with("thermal_zone") && is_of_cpu(builder, name));
    names.into_iter().map(|name| (format!("{ZONES}/{name}/temp"), name)).collect()
}

fn is_of_cpu(builder: &Builder, zone: &str) -> bool {
    let kind = std::fs::read_to_string(under(builder.root, &format!("{ZONES}/{zone}/type"))).unwrap_or_default();
    ["x86_pkg_temp", "cpu", "soc"].iter().any(|prefix| kind.starts_with(prefix))
}
