//! Data that users read row by row. It does not interpret the values.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use partywall_wire::load::{Feeder, Order, Rows, Share, WhenSpent};
use serde_json::Value;

/// A feeder's rows, and the position of its users.
#[derive(Debug)]
pub(crate) struct Table {
    pub columns: Vec<String>,
    /// The variables that receive the columns' values.
    pub variables: Vec<u16>,
    rows: Vec<Vec<Box<str>>>,
    order: Order,
    shared: bool,
    leave: bool,
    /// This generator's share of rows that all users take from one sequence, including users of other generators.
    share: Share,
    next: AtomicUsize,
}

/// One user's position in each feeder that is not shared.
pub(crate) type Places = BTreeMap<u32, usize>;

impl Table {
    /// Reads all rows.
    pub(crate) fn read(feeder: &Feeder, share: Share) -> Result<Self, String> {
        let (columns, rows) = match &feeder.rows {
            Rows::Inline { columns, rows } => (columns.clone(), rows.clone()),
            Rows::Csv(path) => csv(path)?,
            Rows::JsonLines(path) => json_lines(path)?,
        };
        if columns.is_empty() || rows.is_empty() {
            return Err("the feeder has no rows; give at least one".into());
        }
        if let Some(at) = rows.iter().position(|row| row.len() != columns.len()) {
            return Err(format!(
                "row {} has {} values, but there are {} columns; give one value a column",
                at + 1,
                rows[at].len(),
                columns.len()
            ));
        }
        let rows = rows.into_iter().map(|row| row.into_iter().map(String::into_boxed_str).collect()).collect();
        let leave = feeder.when_spent == WhenSpent::Leave;
        let (order, shared, next) = (feeder.order, feeder.shared, AtomicUsize::new(0));
        Ok(Self { columns, variables: Vec::new(), rows, order, shared, leave, share, next })
    }

    /// The next row. None if no rows are left and the user must leave.
    pub(crate) fn next(&self, number: u32, places: &mut Places, chance: &mut fastrand::Rng) -> Option<&[Box<str>]> {
        let at = match self.order {
            Order::Random => chance.usize(..self.rows.len()),
            Order::Sequential if self.shared => {
                self.share.number as usize + self.share.of as usize * self.next.fetch_add(1, Ordering::Relaxed)
            }
            Order::Sequential => {
                let place = places.entry(number).or_default();
                *place += 1;
                *place - 1
            }
        };
        if at >= self.rows.len() && self.leave {
            return None;
        }
        Some(&self.rows[at % self.rows.len()])
    }
}

type Read = (Vec<String>, Vec<Vec<String>>);

/// The text of a file, without the byte-order mark with which some programs begin it.
fn content(path: &Path) -> Result<String, String> {
    let wrong = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let bytes = std::fs::read(path).map_err(|error| wrong(&error))?;
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        return Err(wrong(&"the file is in UTF-16; save it in UTF-8"));
    }
    let marked = bytes.starts_with("\u{feff}".as_bytes());
    String::from_utf8(if marked { bytes[3..].to_vec() } else { bytes }).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = before.split(|&byte| byte == b'\n').count();
        wrong(&format!("line {line} is not in UTF-8; save the file in UTF-8"))
    })
}

fn csv(path: &Path) -> Result<Read, String> {
    let shown = path.display();
    let content = content(path)?;
    let mut reader = csv::Reader::from_reader(content.as_bytes());
    let columns = reader.headers().map_err(|error| format!("{shown}: {error}"))?.iter().map(Into::into).collect();
    let row = |record: Result<csv::StringRecord, csv::Error>| {
        record.map(|record| record.iter().map(Into::into).collect()).map_err(|error| format!("{shown}: {error}"))
    };
    Ok((columns, reader.records().map(row).collect::<Result<_, _>>()?))
}

fn json_lines(path: &Path) -> Result<Read, String> {
    let shown = path.display();
    let content = content(path)?;
    let (mut columns, mut rows) = (Vec::new(), Vec::new());
    for (number, line) in content.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |why: String| format!("{shown}, line {}: {why}", number + 1);
        let object: serde_json::Map<String, Value> =
            serde_json::from_str(line).map_err(|error| wrong(format!("not a JSON object: {error}")))?;
        if columns.is_empty() {
            columns = object.keys().cloned().collect();
        }
        let value = |column: &String| {
            object.get(column).map(text).ok_or_else(|| wrong(format!("{column:?} is missing; give it on every line, as on the first")))
        };
        rows.push(columns.iter().map(value).collect::<Result<Vec<String>, String>>()?);
    }
    Ok((columns, rows))
}

/// A JSON value as text for a request: strings without quotes.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(rows: &[&str], order: Order, shared: bool, when_spent: WhenSpent, share: Share) -> Table {
        let rows = Rows::Inline { columns: vec!["a".into()], rows: rows.iter().map(|row| vec![(*row).into()]).collect() };
        Table::read(&Feeder { rows, order, shared, when_spent }, share).unwrap()
    }

    fn inline(rows: &[&str], order: Order, shared: bool, when_spent: WhenSpent) -> Table {
        part(rows, order, shared, when_spent, Share::default())
    }

    fn take(table: &Table, places: &mut Places) -> Option<String> {
        table.next(0, places, &mut fastrand::Rng::with_seed(1)).map(|row| row[0].to_string())
    }

    #[test]
    fn shared_rows_go_to_one_user_each_and_private_rows_to_every_user() {
        let (mut first, mut second) = (Places::new(), Places::new());
        let shared = inline(&["x", "y"], Order::Sequential, true, WhenSpent::Repeat);
        assert_eq!([take(&shared, &mut first), take(&shared, &mut second), take(&shared, &mut first)].map(Option::unwrap), ["x", "y", "x"]);
        let own = inline(&["x", "y"], Order::Sequential, false, WhenSpent::Leave);
        assert_eq!([take(&own, &mut first), take(&own, &mut second), take(&own, &mut first)].map(Option::unwrap), ["x", "x", "y"]);
        assert_eq!(take(&own, &mut first), None);
    }

    #[test]
    fn generators_that_share_rows_take_every_row_once() {
        let takes = |number| {
            let table = part(&["a", "b", "c", "d", "e"], Order::Sequential, true, WhenSpent::Leave, Share { number, of: 2 });
            std::iter::from_fn(move || take(&table, &mut Places::new())).collect::<String>()
        };
        assert_eq!([takes(0), takes(1)], ["ace", "bd"]);
    }

    #[test]
    fn files_are_read_and_their_errors_have_line_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let (csv, json) = (folder.path().join("a.csv"), folder.path().join("a.jsonl"));
        std::fs::write(&csv, "name,n\n\"Ada, L\",1\n").unwrap();
        std::fs::write(&json, "{\"name\":\"Ada\",\"n\":1}\n\n{\"name\":\"Alan\"}\n").unwrap();
        let read =
            |rows| Table::read(&Feeder { rows, order: Order::Sequential, shared: true, when_spent: WhenSpent::Repeat }, Share::default());
        let table = read(Rows::Csv(csv.clone())).unwrap();
        assert_eq!((table.columns.join(" "), table.rows[0].join("|")), ("name n".into(), "Ada, L|1".into()));
        assert!(read(Rows::JsonLines(json)).unwrap_err().contains("line 3: \"n\" is missing"));
        std::fs::write(&csv, "a,b\n1\n").unwrap();
        assert!(read(Rows::Csv(csv)).unwrap_err().contains("a.csv"));
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_column() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rows");
        for (rows, text) in [
            (Rows::Csv(file.clone()), "first,n\r\nAda,1\r\n"),
            (Rows::Csv(file.clone()), "\"first\",\"n\"\r\nAda,1\r\n"),
            (Rows::JsonLines(file.clone()), "{\"first\":\"Ada\",\"n\":1}\r\n"),
        ] {
            let read = |bytes: &[u8]| {
                std::fs::write(&file, bytes).unwrap();
                let feeder = Feeder { rows: rows.clone(), order: Order::Sequential, shared: true, when_spent: WhenSpent::Repeat };
                Table::read(&feeder, Share::default())
            };
            let table = read(format!("\u{feff}{text}").as_bytes()).unwrap();
            assert_eq!((table.columns.join(" "), table.rows[0].join("|")), ("first n".into(), "Ada|1".into()), "{text}");
            let utf16: Vec<u8> = format!("\u{feff}{text}").encode_utf16().flat_map(u16::to_le_bytes).collect();
            assert!(read(&utf16).unwrap_err().ends_with("the file is in UTF-16; save it in UTF-8"));
            assert!(read(&[text.as_bytes(), b"\xe9,1\n"].concat()).unwrap_err().contains("is not in UTF-8; save"));
        }
    }
}
