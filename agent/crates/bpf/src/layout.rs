//! Struct layouts of a compiled program, from the type information (BTF) in its object. Tests compare them, field by field, with
//! code that accesses these structs as words. It parses only the parts of ELF and BTF that this needs.

use std::fmt;

const STRUCT: u32 = 4;
const ELF_SECTIONS_AT: usize = 0x28;
const ELF_SECTION_LENGTH: usize = 0x3a;

/// A struct of a program.
#[derive(Clone, PartialEq, Eq)]
pub struct Layout {
    /// Size in bytes.
    pub size: usize,
    /// Names and offsets in bytes.
    pub fields: Vec<(String, usize)>,
}

impl fmt::Debug for Layout {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} bytes {:?}", self.size, self.fields)
    }
}

impl Layout {
    /// The layout of struct `name` in `object`. None if there is no such struct, or no type information.
    #[must_use]
    pub fn of(object: &[u8], name: &str) -> Option<Self> {
        let btf = section(object, ".BTF")?;
        let header = half(btf, 4)?;
        let part = |at: usize| btf.get(header + half(btf, at)?..)?.get(..half(btf, at + 4)?);
        let (mut types, strings) = (part(8)?, part(16)?);
        while !types.is_empty() {
            let (info, size) = (half(types, 4)? as u32, half(types, 8)?);
            let (kind, count) = (info >> 24 & 0x1f, info as usize & 0xffff);
            let rest = types.get(12..)?;
            if kind == STRUCT && text(strings, half(types, 0)?)? == name {
                let field = |at: usize| Some((text(strings, half(rest, at * 12)?)?.to_owned(), half(rest, at * 12 + 8)? / 8));
                return Some(Self { size, fields: (0..count).map(field).collect::<Option<_>>()? });
            }
            types = rest.get(extra(kind, count)?..)?;
        }
        None
    }

    /// The layout that [`Layout::of`] must return for a struct of words with these names.
    #[must_use]
    pub fn words(size: usize, fields: &[(&str, usize)]) -> Self {
        Self { size: size * 8, fields: fields.iter().map(|&(name, word)| (name.to_owned(), word * 8)).collect() }
    }
}

/// Number of bytes after the common part of a type (kernel documentation, BPF Type Format, section 2.2).
fn extra(kind: u32, count: usize) -> Option<usize> {
    Some(match kind {
        2 | 7..=12 | 16 | 18 => 0,
        1 | 14 | 17 => 4,
        3 => 12,
        6 | 13 => 8 * count,
        STRUCT | 5 | 15 | 19 => 12 * count,
        _ => return None,
    })
}

/// A section of a 64-bit ELF object.
fn section<'a>(object: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let headers = object.get(long(object, ELF_SECTIONS_AT)?..)?;
    let [length, count, names] = [0, 2, 4].map(|at| short(object, ELF_SECTION_LENGTH + at));
    let header = |at: usize| headers.get(at * length?..);
    let body = |header: &[u8]| object.get(long(header, 24)?..)?.get(..long(header, 32)?);
    let names = body(header(names?)?)?;
    (0..count?).filter_map(header).find(|header| half(header, 0).and_then(|at| text(names, at)) == Some(name)).and_then(body)
}

fn text(strings: &[u8], at: usize) -> Option<&str> {
    std::str::from_utf8(strings.get(at..)?.split(|&byte| byte == 0).next()?).ok()
}

fn short(bytes: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?)))
}

fn half(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize)
}

fn long(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_object_have_no_structs() {
        assert_eq!(Layout::of(&[], "rates"), None);
        assert_eq!(Layout::of(&[255; 4096], "rates"), None);
    }

    #[test]
    fn a_missing_struct_is_not_found() {
        let Ok(object) = crate::object("guard") else { return eprintln!("skipped: no eBPF in this build") };
        assert_eq!(Layout::of(object, "nobody"), None);
        let fields = Layout::of(object, "control").unwrap().fields;
        assert_eq!(fields[0], ("heartbeat_ns".to_owned(), 0));
    }
}
