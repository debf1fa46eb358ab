//! Files with one line per subject, such as `/proc/net/dev`.

use crate::counter::{scaled, Column, CounterInfo};
use crate::names::Places;
use crate::text::{lines, name};

/// The subject and the numbers of a line. `None` for a line of another kind.
pub(crate) type ParseLine<const N: usize> = fn(&[u8]) -> Option<(&[u8], [Option<f64>; N])>;

/// Finds the rows by the subjects of lines.
pub(crate) struct Table<const N: usize> {
    parse: ParseLine<N>,
    columns: &'static [Column],
    subjects: Vec<String>,
    places: Places,
}

impl<const N: usize> Table<N> {
    /// A table of the subjects in `text` for which `keep` returns true.
    pub fn new(text: &[u8], parse: ParseLine<N>, columns: &'static [Column], keep: impl Fn(&str) -> bool) -> Self {
        debug_assert_eq!(columns.len(), N);
        let mut subjects = Vec::new();
        let mut places = Places::default();
        for (subject, _) in lines(text).filter_map(parse) {
            if keep(&name(subject)) && !places.contains_key(subject) {
                places.insert(subject.to_vec(), subjects.len() * N);
                subjects.push(name(subject));
            }
        }
        Self { parse, columns, subjects, places }
    }

    pub fn subjects(&self) -> &[String] {
        &self.subjects
    }

    /// Number of values in a row of all subjects.
    pub fn width(&self) -> usize {
        self.subjects.len() * N
    }

    pub fn header(&self) -> Vec<CounterInfo> {
        let of = |subject: &String| self.columns.iter().map(|column| column.info(Some(subject))).collect::<Vec<_>>();
        self.subjects.iter().flat_map(of).collect()
    }

    /// Fills `row`, which has `N` values per subject.
    pub fn fill(&self, text: &[u8], row: &mut [Option<f64>]) {
        for (subject, numbers) in lines(text).filter_map(self.parse) {
            let Some(&place) = self.places.get(subject) else { continue };
            scaled(numbers, self.columns, &mut row[place..place + N]);
        }
    }
}
