//! The sources of counters, one file each: their columns, and the parser of their text.

mod cgroup;
mod disk;
mod frequency;
mod meminfo;
mod net_dev;
mod netstat;
mod pressure;
mod process;
mod schedstat;
mod snmp;
mod softnet;
mod stat;
mod thermal;
mod vmstat;

use crate::counter::{Column, CounterInfo, Group};
use crate::keyed::{fill_single, Keyed};
use crate::reader::{Builder, Row};

/// Opens every source, in the order of the header.
pub(crate) const OPEN: &[fn(&mut Builder)] = &[
    stat::open,
    schedstat::open,
    frequency::open,
    thermal::open,
    pressure::open,
    meminfo::open,
    vmstat::open,
    disk::open,
    net_dev::open,
    softnet::open,
    snmp::open,
    netstat::open,
    cgroup::open,
    process::open,
];

/// Every group of counters there is, in the same order.
pub(crate) const GROUPS: &[&Group] = &[
    &stat::CPU,
    &stat::HOST,
    &schedstat::GROUP,
    &frequency::GROUP,
    &thermal::THROTTLE,
    &thermal::ZONE,
    &pressure::CPU,
    &pressure::MEMORY,
    &pressure::IO,
    &meminfo::GROUP,
    &vmstat::GROUP,
    &disk::GROUP,
    &net_dev::GROUP,
    &softnet::GROUP,
    &snmp::GROUP,
    &netstat::GROUP,
    &cgroup::V1_CPU,
    &cgroup::V1_CPUACCT,
    &cgroup::V1_MEMORY_USAGE,
    &cgroup::V1_MEMORY_FAILCNT,
    &cgroup::V1_MEMORY_OOM,
    &cgroup::V2_CPU,
    &cgroup::V2_MEMORY_CURRENT,
    &cgroup::V2_MEMORY_EVENTS,
    &cgroup::V2_SWAP,
    &cgroup::V2_CPU_PRESSURE,
    &cgroup::V2_MEMORY_PRESSURE,
    &cgroup::V2_IO_PRESSURE,
    &process::STAT,
    &process::SCHEDSTAT,
    &process::STATUS,
];

/// The columns of `group` for one subject.
fn header(columns: &[Column], subject: Option<&str>) -> Vec<CounterInfo> {
    columns.iter().map(|column| column.info(subject)).collect()
}

/// Opens a file about the host as a whole.
fn open_host(builder: &mut Builder, group: &'static Group, fill: impl Fn(&[u8], &mut Row) + Send + 'static) {
    if let Some((file, _)) = builder.open(group, group.file) {
        builder.add_file(vec![(group, header(group.columns, None))], file, fill);
    }
}

/// Opens a file of keys and numbers about the host.
fn open_keyed(builder: &mut Builder, group: &'static Group) {
    let keyed = Keyed::new(group.columns);
    open_host(builder, group, move |text, row| keyed.fill(text, row));
}

/// Adds a single-number file for each of these paths and subjects that exists.
fn open_each(builder: &mut Builder, group: &'static Group, files: Vec<(String, String)>) {
    let mut any = false;
    for (path, subject) in files {
        if let Some(file) = builder.open_optional(&path) {
            any = true;
            let fill = |text: &[u8], row: &mut _| fill_single(text, group.columns[0].step, row);
            builder.add_file(vec![(group, header(group.columns, Some(&subject)))], file, fill);
        }
    }
    if !any {
        builder.lack(group, format!("{} does not exist", group.file));
    }
}

/// Whether `targets` include this CPU, given as `cpu3`.
fn wants_cpu(builder: &Builder, subject: &str) -> bool {
    let number = || subject.strip_prefix("cpu")?.parse::<u32>().ok();
    builder.targets.cpus.as_ref().is_none_or(|cpus| number().is_some_and(|number| cpus.contains(&number)))
}

#[cfg(test)]
pub(crate) mod testing {
    use crate::counter::Column;
    use crate::reader::Row;

    /// What `fill` makes of `text` in a row of `columns`.
    pub fn filled(columns: &[Column], text: &[u8], fill: impl FnOnce(&[u8], &mut Row)) -> Vec<Option<f64>> {
        let mut row = vec![None; columns.len()];
        fill(text, &mut row);
        row
    }

    /// The value of a column in a row of `columns`.
    pub fn value(columns: &[Column], row: &[Option<f64>], name: &str) -> Option<f64> {
        row[columns.iter().position(|column| column.name == name).unwrap_or_else(|| panic!("no column {name}"))]
    }
}
