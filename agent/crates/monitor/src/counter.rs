//! What a counter is and says of itself.

use partywall_clock::Nanos;
use partywall_kernels::Resource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::sources;

/// A column of every sample of a reader.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CounterInfo {
    /// What is counted, unit last: `cpu_steal_ns`.
    pub name: String,
    /// Of what: `cpu0`, `vda`, a process number, a cgroup's label; `None` of the host as a whole.
    pub subject: Option<String>,
    /// What the values are in.
    pub unit: CounterUnit,
    /// Whether it only grows.
    pub kind: Kind,
    /// The resource it is evidence of.
    pub resource: Resource,
    /// The smallest change it can show, in its unit: the kernel counts in ticks, sectors or milliseconds.
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

/// How a counter moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Grows from boot (or from the start of its subject) on; differences have a meaning.
    Total,
    /// The state at the moment of reading.
    Gauge,
}

/// One reading of all counters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sample {
    /// When the reading began.
    pub at_ns: Nanos,
    /// When it ended; a long reading was interrupted, and its values are of different moments.
    pub until_ns: Nanos,
    /// In the order of the header; `None` where the subject has gone or the kernel does not tell.
    pub values: Vec<Option<f64>>,
}

/// A counter as documentation lists it.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct CatalogueEntry {
    /// What is counted.
    pub name: &'static str,
    /// The same in words, to stand after "the victim's" or before "on CPU 0"; a total is spoken of as what it is per second.
    pub phrase: &'static str,
    /// The file it is read from.
    pub file: &'static str,
    /// What the file calls it.
    pub key: &'static str,
    /// What there is one of it for.
    pub subject: &'static str,
    /// What the values are in.
    pub unit: CounterUnit,
    /// Whether it only grows.
    pub kind: Kind,
    /// The resource it is evidence of.
    pub resource: Resource,
    /// The smallest change it can show.
    pub step: f64,
    /// What it means when it moves.
    pub meaning: &'static str,
}

/// Every counter that some host may have.
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

/// Counters that are read from one file, for one kind of subject.
pub(crate) struct Group {
    pub file: &'static str,
    pub subject: &'static str,
    pub columns: &'static [Column],
    /// What cannot be known if the file is not there.
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

/// Puts raw numbers of a line into the unit of each column; what was not there stays empty.
pub(crate) fn scaled(numbers: impl IntoIterator<Item = Option<f64>>, columns: &[Column], row: &mut [Option<f64>]) {
    for ((value, number), column) in row.iter_mut().zip(numbers).zip(columns) {
        *value = number.map(|number| number * column.step);
    }
}

/// A unit, and how many of it one count in the kernel's file stands for.
#[derive(Clone, Copy)]
pub(crate) struct Measure(CounterUnit, f64);

/// `USER_HZ` is 100 in the interface of every architecture that Rust runs Linux on, whatever the kernel's own tick is.
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
