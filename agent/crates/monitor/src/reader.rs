//! The reader: opens available files, reports missing ones, and reads rows.

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use partywall_clock::SessionClock;
use partywall_facts::{under, Missing};

use crate::buffer::Buffer;
use crate::counter::{CounterInfo, Group, Sample};
use crate::sources;
use crate::targets::Targets;

/// The values of one source, in the order of its part of the header.
pub(crate) type Row = [Option<f64>];

/// Fills its part of a row. Values that it does not fill stay `None`.
pub(crate) trait Source: Send {
    fn read(&mut self, buffer: &mut Buffer, row: &mut Row);
}

/// A file and how its text is parsed into a row.
struct FileSource<F> {
    file: File,
    parse: F,
}

impl<F: FnMut(&[u8], &mut Row) + Send> Source for FileSource<F> {
    fn read(&mut self, buffer: &mut Buffer, row: &mut Row) {
        if let Ok(text) = buffer.read(&self.file) {
            (self.parse)(text, row);
        }
    }
}

/// Reads counters. Its header never changes, so subjects that start later need another reader.
pub struct Reader {
    header: Vec<CounterInfo>,
    sources: Vec<(Range<usize>, Box<dyn Source>)>,
    buffer: Buffer,
}

impl Reader {
    /// Opens the counters of the host and of `targets`. `root` is the folder that contains `proc` and `sys`. Also returns the counters
    /// that this host lacks, with reasons.
    #[must_use]
    pub fn new(root: &Path, targets: &Targets) -> (Self, Vec<Missing>) {
        let mut builder = Builder {
            root,
            targets,
            header: Vec::new(),
            groups: Vec::new(),
            sources: Vec::new(),
            missing: Vec::new(),
            buffer: Buffer::new(),
        };
        for open in sources::OPEN {
            open(&mut builder);
        }
        builder.finish()
    }

    /// The columns of every sample, in order.
    #[must_use]
    pub fn header(&self) -> &[CounterInfo] {
        &self.header
    }

    /// Reads all counters now. Times of the sample are those of `clock`.
    pub fn read(&mut self, clock: &SessionClock) -> Sample {
        let at_ns = clock.now();
        let values = self.values();
        Sample { at_ns, until_ns: clock.now(), values }
    }

    fn values(&mut self) -> Vec<Option<f64>> {
        let mut values = vec![None; self.header.len()];
        for (range, source) in &mut self.sources {
            source.read(&mut self.buffer, &mut values[range.clone()]);
        }
        values
    }
}

/// A reader under construction.
pub(crate) struct Builder<'a> {
    pub root: &'a Path,
    pub targets: &'a Targets,
    header: Vec<CounterInfo>,
    /// The group of each counter in the header.
    groups: Vec<&'static Group>,
    sources: Vec<(Range<usize>, Box<dyn Source>)>,
    missing: Vec<Missing>,
    buffer: Buffer,
}

impl Builder<'_> {
    /// Opens a file and reads its text. Stores the reason if that fails.
    pub fn open(&mut self, group: &Group, path: &str) -> Option<(File, Vec<u8>)> {
        let opened = File::open(under(self.root, path)).and_then(|file| {
            let text = self.buffer.read(&file)?.to_vec();
            Ok((file, text))
        });
        opened.map_err(|error| self.lack(group, format!("{path}: {error}"))).ok()
    }

    /// Like [`Builder::open`], for a file that many hosts lack.
    pub fn open_optional(&mut self, path: &str) -> Option<File> {
        let file = File::open(under(self.root, path)).ok()?;
        self.buffer.read(&file).is_ok().then_some(file)
    }

    pub fn lack(&mut self, group: &Group, why: String) {
        let names: Vec<&str> = group.columns.iter().map(|column| column.name).collect();
        self.missing.push(Missing { what: names.join(", "), why, cost: group.cost.into(), remedy: group.remedy.into() });
    }

    /// Adds a source whose row consists of `parts`, in sequence.
    pub fn add(&mut self, parts: Vec<(&'static Group, Vec<CounterInfo>)>, source: Box<dyn Source>) {
        let start = self.header.len();
        for (group, columns) in parts {
            self.groups.extend(columns.iter().map(|_| group));
            self.header.extend(columns);
        }
        self.sources.push((start..self.header.len(), source));
    }

    /// Adds a file whose text `parse` converts to a row.
    pub fn add_file(
        &mut self,
        parts: Vec<(&'static Group, Vec<CounterInfo>)>,
        file: File,
        parse: impl FnMut(&[u8], &mut Row) + Send + 'static,
    ) {
        self.add(parts, Box::new(FileSource { file, parse }));
    }

    fn finish(self) -> (Reader, Vec<Missing>) {
        let mut missing = self.missing;
        let mut reader = Reader { header: self.header, sources: self.sources, buffer: self.buffer };
        let values = reader.values();
        let silent = |place: &usize| values[*place].is_none();
        for place in (0..reader.header.len()).filter(silent) {
            keep_silent(&mut missing, &reader.header[place], self.groups[place]);
        }
        (reader, missing)
    }
}

/// Reports a counter that its file lacks, because the kernel is older or the subject has ended. Counters of several subjects share
/// one reason.
fn keep_silent(missing: &mut Vec<Missing>, counter: &CounterInfo, group: &Group) {
    let why = format!("{} does not contain it for {}", group.file, counter.subject.as_deref().unwrap_or("the host"));
    match missing.iter_mut().find(|missing| missing.why == why) {
        Some(known) => known.what = format!("{}, {}", known.what, counter.name),
        None => missing.push(Missing {
            what: counter.name.clone(),
            why,
            cost: "these columns stay empty".into(),
            remedy: "none needed: older kernels do not count it, or its object has ended".into(),
        }),
    }
}
