//! Counters and their descriptions.

use partywall_clock::Nanos;
use partywall_kernels::Resource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::sources;

/// A column of every sample of a reader.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CounterInfo {
    /// What is counted, with the unit last: `cpu_steal_ns`.
    pub name: String,
    /// Subject of the counter: `cpu0`, `vda`, a process ID, a cgroup's label; `None` for the host as a whole.
    pub subject: Option<String>,
    /// Unit of the values.
    pub unit: CounterUnit,
    /// Whether it only increases.
    pub kind: Kind,
    /// The resource that it describes.
    pub resource: Resource,
    /// Resolution, in its unit: the kernel counts in ticks, sectors or milliseconds.
    pub step: f64,
}

/// Unit of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CounterUnit {
    /// Time.
    Nanoseconds,
    /// Amount.
    Bytes,
    /// Events or things.
    Count,
    /// Frequency.
    Hertz,
    /// Temperature in thousandths of a degree Celsius.
    Millidegrees,
}

/// How a counter changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Increases from boot, or from the start of its subject. Only differences are meaningful.
    Total,
    /// The state at the time of reading.
    Gauge,
}

/// One reading of all counters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sample {
    /// Start of the reading.
    pub at_ns: Nanos,
    /// End of the reading. A long reading was interrupted, and its values are of different times.
    pub until_ns: Nanos,
    /// In the order of the header. `None` if the subject is gone or the kernel does not report it.
    pub values: Vec<Option<f64>>,
}

/// Description of a counter in the documentation.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct CatalogueEntry {
    /// What is counted.
    pub name: &'static str,
    /// The same in words, to follow "the victim's" or precede "on CPU 0". For a total, the phrase describes its rate per second.
    pub phrase: &'static str,
    /// The file it is read from.
    pub file: &'static str,
    /// Its key in the file.
    pub key: &'static str,
    /// The kind of subject.
    pub subject: &'static str,
    /// Unit of the values.
    pub unit: CounterUnit,
    /// Whether it only increases.
    pub kind: Kind,
    /// The resource that it describes.
    pub resource: Resource,
    /// Resolution, in the counter's unit.
    pub step: f64,
    /// Meaning of a change.
    pub meaning: &'static str,
}

/// Every counter that any host may have.
#[must_use]
pub fn catalogue() -> Vec<CatalogueEntry> {
    let entry = |group: &Group, column: &Column| CatalogueEntry {
        name: column.name,
        phrase: column.phrase,
        file: group.file,
        key: column.key,
        subject: group.subject,
        unit: column.unit,
        kind: column.kind,
        resource: column.resource,
        step: column.step,
        meaning: column.meaning,
    };
    sources::GROUPS.iter().flat_map(|group| group.columns.iter().map(move |column| entry(group, column))).collect()
}

/// Counters from one file, for one kind of subject.
pub(crate) struct Group {
    pub file: &'static str,
    pub subject: &'static str,
    pub columns: &'static [Column],
    /// What is unknown if the file is missing.
    pub cost: &'static str,
    pub remedy: &'static str,
}

/// A counter before it has a subject.
#[derive(Clone, Copy)]
pub(crate) struct Column {
    pub key: &'static str,
    pub name: &'static str,
    pub phrase: &'static str,
    pub unit: CounterUnit,
    pub kind: Kind,
    pub resource: Resource,
    pub step: f64,
    pub meaning: &'static str,
}

impl Column {
    pub const fn total(
        key: &'static str,
        name: &'static str,
        phrase: &'static str,
        measure: Measure,
        resource: Resource,
        meaning: &'static str,
    ) -> Self {
        Self { key, name, phrase, unit: measure.0, kind: Kind::Total, resource, step: measure.1, meaning }
    }

    pub const fn gauge(
        key: &'static str,
        name: &'static str,
        phrase: &'static str,
        measure: Measure,
        resource: Resource,
        meaning: &'static str,
    ) -> Self {
        Self { kind: Kind::Gauge, ..Self::total(key, name, phrase, measure, resource, meaning) }
    }

    pub fn info(&self, subject: Option<&str>) -> CounterInfo {
        CounterInfo {
            name: self.name.to_owned(),
            subject: subject.map(str::to_owned),
            unit: self.unit,
            kind: self.kind,
            resource: self.resource,
            step: self.step,
        }
    }
}

/// Converts raw numbers of a line to the unit of each column. Missing numbers stay `None`.
pub(crate) fn scaled(numbers: impl IntoIterator<Item = Option<f64>>, columns: &[Column], row: &mut [Option<f64>]) {
    for ((value, number), column) in row.iter_mut().zip(numbers).zip(columns) {
        *value = number.map(|number| number * column.step);
    }
}

/// A unit, and its amount per count in the kernel's file.
#[derive(Clone, Copy)]
pub(crate) struct Measure(CounterUnit, f64);

/// `USER_HZ` is 100 on every architecture that Rust supports on Linux, regardless of the kernel's own tick.
pub(crate) const TICKS: Measure = Measure(CounterUnit::Nanoseconds, 10_000_000.0);
pub(crate) const NANOSECONDS: Measure = Measure(CounterUnit::Nanoseconds, 1.0);
pub(crate) const MICROSECONDS: Measure = Measure(CounterUnit::Nanoseconds, 1e3);
pub(crate) const MILLISECONDS: Measure = Measure(CounterUnit::Nanoseconds, 1e6);
pub(crate) const BYTES: Measure = Measure(CounterUnit::Bytes, 1.0);
pub(crate) const KIBIBYTES: Measure = Measure(CounterUnit::Bytes, 1024.0);
pub(crate) const SECTORS: Measure = Measure(CounterUnit::Bytes, 512.0);
pub(crate) const COUNT: Measure = Measure(CounterUnit::Count, 1.0);
pub(crate) const KILOHERTZ: Measure = Measure(CounterUnit::Hertz, 1e3);
pub(crate) const MILLIDEGREES: Measure = Measure(CounterUnit::Millidegrees, 1.0);
