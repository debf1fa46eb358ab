//! Texts with variables: `${name}` stands for a variable, `$$` for `$`. It does not store the values.

/// A text that is parsed once and rendered often.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Template(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Variable(u16),
}

/// Error in a template.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TemplateError {
    #[error("{0:?} has ${{ without }}; write $$ for a dollar sign")]
    Open(String),
    #[error("{0:?} has a dollar sign without a variable; write $$ for a dollar sign")]
    Bare(String),
    #[error("unknown variable {0:?}; define it in the kind, a feeder or an extraction, or use user or iteration")]
    Unknown(String),
}

impl Template {
    /// Parses `text`; `number` returns a variable's number.
    pub(crate) fn parse(text: &str, mut number: impl FnMut(&str) -> Option<u16>) -> Result<Self, TemplateError> {
        let (mut pieces, mut rest) = (Vec::new(), text);
        while let Some(at) = rest.find('$') {
            let (before, after) = (&rest[..at], &rest[at + 1..]);
            push(&mut pieces, before);
            if let Some(tail) = after.strip_prefix('$') {
                push(&mut pieces, "$");
                rest = tail;
            } else if let Some(tail) = after.strip_prefix('{') {
                let (name, tail) = tail.split_once('}').ok_or_else(|| TemplateError::Open(text.into()))?;
                pieces.push(Piece::Variable(number(name).ok_or_else(|| TemplateError::Unknown(name.into()))?));
                rest = tail;
            } else {
                return Err(TemplateError::Bare(text.into()));
            }
        }
        push(&mut pieces, rest);
        Ok(Self(pieces))
    }

    /// The text, if it holds no variable.
    pub(crate) fn fixed(&self) -> Option<&str> {
        match self.0.as_slice() {
            [] => Some(""),
            [Piece::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Appends the text with the values of its variables.
    pub(crate) fn render<'v>(&self, value: impl Fn(u16) -> &'v str, into: &mut Vec<u8>) {
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => into.extend_from_slice(text.as_bytes()),
                Piece::Variable(number) => into.extend_from_slice(value(*number).as_bytes()),
            }
        }
    }

    /// Whether `test` is true for the value of any of its variables.
    pub(crate) fn any_value<'v>(&self, value: impl Fn(u16) -> &'v str, test: impl Fn(&str) -> bool) -> bool {
        self.0.iter().any(|piece| matches!(piece, Piece::Variable(number) if test(value(*number))))
    }

    /// Like [`Template::render`], with each value encoded by `encode`.
    pub(crate) fn render_encoded<'v>(&self, value: impl Fn(u16) -> &'v str, encode: fn(&[u8], &mut Vec<u8>), into: &mut Vec<u8>) {
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => into.extend_from_slice(text.as_bytes()),
                Piece::Variable(number) => encode(value(*number).as_bytes(), into),
            }
        }
    }
}

fn push(pieces: &mut Vec<Piece>, text: &str) {
    match pieces.last_mut() {
        _ if text.is_empty() => {}
        Some(Piece::Text(last)) => last.push_str(text),
        _ => pieces.push(Piece::Text(text.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<Template, TemplateError> {
        Template::parse(text, |name| ["a", "b"].iter().position(|known| *known == name).map(|at| at as u16))
    }

    #[test]
    fn variables_are_replaced_and_doubled_dollars_are_dollars() {
        let mut out = Vec::new();
        parse("x=${a}&$$y=${b}${a}").unwrap().render(|n| ["1", "two"][usize::from(n)], &mut out);
        assert_eq!(out, b"x=1&$y=two1");
        assert_eq!(parse("no $$ here").unwrap().fixed(), Some("no $ here"));
        assert_eq!(parse("").unwrap().fixed(), Some(""));
        assert_eq!(parse("${a}").unwrap().fixed(), None);
    }

    #[test]
    fn errors_are_named() {
        assert_eq!(parse("${c}"), Err(TemplateError::Unknown("c".into())));
        assert_eq!(parse("a ${b"), Err(TemplateError::Open("a ${b".into())));
        assert_eq!(parse("5$"), Err(TemplateError::Bare("5$".into())));
    }

    proptest! {
        #[test]
        fn a_text_with_its_dollars_doubled_is_itself(text in ".{0,40}") {
            let template = parse(&text.replace('$', "$$")).unwrap();
            prop_assert_eq!(template.fixed().unwrap(), text);
        }
    }
}
