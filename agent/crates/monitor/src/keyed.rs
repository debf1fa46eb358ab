//! Files of lines with a key and a number, such as `/proc/vmstat` and `/proc/meminfo`.

use crate::counter::Column;
use crate::names::Places;
use crate::text::{lines, number, words};

/// Kernels up to 4.8 split some counters of `/proc/vmstat` by zone, and some still do.
const ZONES: [&str; 7] = ["", "_dma", "_dma32", "_normal", "_high", "_movable", "_device"];

/// Finds columns by the keys of lines. A counter that is split by zone is summed.
pub(crate) struct Keyed {
    places: Places,
    steps: Vec<f64>,
}

impl Keyed {
    pub fn new(columns: &[Column]) -> Self {
        let spellings = |(place, column): (usize, &Column)| ZONES.map(|zone| (format!("{}{zone}", column.key).into_bytes(), place));
        Self { places: columns.iter().enumerate().flat_map(spellings).collect(), steps: columns.iter().map(|column| column.step).collect() }
    }

    /// Fills `row`, which has one value per column.
    pub fn fill(&self, text: &[u8], row: &mut [Option<f64>]) {
        for line in lines(text) {
            let mut words = words(line);
            let Some(key) = words.next() else { continue };
            let Some(&place) = self.places.get(key.strip_suffix(b":").unwrap_or(key)) else { continue };
            if let Some(value) = words.next().and_then(number) {
                row[place] = Some(row[place].unwrap_or(0.0) + value * self.steps[place]);
            }
        }
    }
}

/// Fills the single column of a file that holds a single number.
pub(crate) fn fill_single(text: &[u8], step: f64, row: &mut [Option<f64>]) {
    row[0] = words(text).next().and_then(number).map(|value| value * step);
}
