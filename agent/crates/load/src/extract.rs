//! Extracts values from responses, and checks responses. It does not store variables or count failures.

use std::fmt;

use partywall_wire::load::{Check, Extract, Pick, Source};
use regex::bytes::Regex;
use scraper::{Html, Selector};
use serde_json::Value;
use serde_json_path::JsonPath;

use crate::feeder::text;
use crate::http1::Response;

/// A response for checks and extraction. Its body is parsed as JSON or HTML at most once.
pub(crate) struct View<'a> {
    pub status: u16,
    pub headers: &'a dyn Fn(&str) -> Vec<String>,
    pub body: &'a [u8],
    pub body_bytes: u64,
    pub took_ns: u64,
    json: Option<Value>,
    html: Option<Html>,
}

impl<'a> View<'a> {
    pub(crate) fn new(status: u16, headers: &'a dyn Fn(&str) -> Vec<String>, body: &'a [u8], body_bytes: u64, took_ns: u64) -> Self {
        Self { status, headers, body, body_bytes, took_ns, json: None, html: None }
    }

    fn json(&mut self) -> &Value {
        let body = self.body;
        // Invalid JSON becomes null, in which every path finds nothing but null.
        self.json.get_or_insert_with(|| serde_json::from_slice(body).unwrap_or_default())
    }

    fn html(&mut self) -> &Html {
        let body = self.body;
        self.html.get_or_insert_with(|| Html::parse_document(&String::from_utf8_lossy(body)))
    }
}

/// The values of a header of an HTTP/1.1 response.
pub(crate) fn header_values(response: &Response, name: &str) -> Vec<String> {
    response.header(name).map(|value| String::from_utf8_lossy(value).into_owned()).collect()
}

/// Location of a value.
#[derive(Debug)]
enum Place {
    Regex(Regex),
    Json(JsonPath),
    Css(Selector, Option<String>),
    Header(String),
}

/// One value to extract from a response.
#[derive(Debug)]
pub(crate) struct Extraction {
    place: Place,
    pick: Pick,
    default: Option<String>,
    /// The variable's name, for counting failures.
    pub name: Box<str>,
}

impl Extraction {
    pub(crate) fn new(extract: &Extract) -> Result<Self, String> {
        if extract.into.is_empty() || matches!(extract.into.as_str(), "user" | "iteration") {
            return Err(format!("{:?} is a reserved variable; choose another name", extract.into));
        }
        let place = match &extract.from {
            Source::Regex(pattern) => Place::Regex(regex(pattern)?),
            Source::JsonPath(path) => Place::Json(json_path(path)?),
            Source::Css { selector, attribute } => {
                let parsed = Selector::parse(selector)
                    .map_err(|_| format!("{selector:?} is not a CSS selector; write for example input[name=token]"))?;
                Place::Css(parsed, attribute.clone())
            }
            Source::Header(name) => Place::Header(name.clone()),
        };
        Ok(Self { place, pick: extract.pick, default: extract.default.clone(), name: extract.into.as_str().into() })
    }

    pub(crate) fn wants_head(&self) -> bool {
        matches!(self.place, Place::Header(_))
    }

    pub(crate) fn wants_body(&self) -> bool {
        !self.wants_head()
    }

    /// The value, or its default. None if there is neither.
    pub(crate) fn take(&self, view: &mut View<'_>, chance: &mut fastrand::Rng) -> Option<String> {
        let mut values = self.all(view);
        if values.is_empty() {
            return self.default.clone();
        }
        let at = match self.pick {
            Pick::First => 0,
            Pick::Last => values.len() - 1,
            Pick::Random => chance.usize(..values.len()),
        };
        Some(values.swap_remove(at))
    }

    fn all(&self, view: &mut View<'_>) -> Vec<String> {
        let owned = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match &self.place {
            // Mostly the first match is requested, and searching for all matches is costly.
            Place::Regex(regex) if self.pick == Pick::First => {
                regex.captures(view.body).and_then(|c| c.get(1).or(c.get(0))).map(|m| owned(m.as_bytes())).into_iter().collect()
            }
            Place::Regex(regex) => {
                regex.captures_iter(view.body).filter_map(|c| c.get(1).or(c.get(0))).map(|m| owned(m.as_bytes())).collect()
            }
            Place::Json(path) => path.query(view.json()).iter().map(|value| text(value)).collect(),
            Place::Css(selector, attribute) => {
                let value = |element: scraper::ElementRef<'_>| match attribute {
                    Some(name) => element.attr(name).map(Into::into),
                    None => Some(element.text().collect::<String>()),
                };
                view.html().select(selector).filter_map(value).collect()
            }
            Place::Header(name) => (view.headers)(name),
        }
    }
}

/// A condition on a response.
#[derive(Debug)]
pub(crate) enum Test {
    Status(u16, u16),
    Contains(String),
    Lacks(String),
    Matches(Regex),
    Header(String, String),
    Json(JsonPath, String),
    BodyBytes(u64, u64),
    Within(u64),
}

impl Test {
    pub(crate) fn new(check: &Check) -> Result<Self, String> {
        Ok(match check {
            Check::Status { from, to } if from > to => {
                return Err(format!("status {from} to {to} is an empty range; give the lower value first"))
            }
            Check::BodyBytes { from, to } if from > to => {
                return Err(format!("{from} to {to} bytes is an empty range; give the lower value first"))
            }
            Check::Status { from, to } => Self::Status(*from, *to),
            Check::Contains(text) => Self::Contains(text.clone()),
            Check::Lacks(text) => Self::Lacks(text.clone()),
            Check::Matches(pattern) => Self::Matches(regex(pattern)?),
            Check::Header { name, contains } => Self::Header(name.clone(), contains.clone()),
            Check::JsonPath { path, equals } => Self::Json(json_path(path)?, equals.clone()),
            Check::BodyBytes { from, to } => Self::BodyBytes(*from, *to),
            Check::WithinNs(most) => Self::Within(*most),
        })
    }

    pub(crate) fn wants_head(&self) -> bool {
        matches!(self, Self::Header(..))
    }

    pub(crate) fn wants_body(&self) -> bool {
        matches!(self, Self::Contains(_) | Self::Lacks(_) | Self::Matches(_) | Self::Json(..))
    }

    pub(crate) fn holds(&self, view: &mut View<'_>) -> bool {
        match self {
            Self::Status(from, to) => (*from..=*to).contains(&view.status),
            Self::Contains(text) => memchr::memmem::find(view.body, text.as_bytes()).is_some(),
            Self::Lacks(text) => memchr::memmem::find(view.body, text.as_bytes()).is_none(),
            Self::Matches(regex) => regex.is_match(view.body),
            Self::Header(name, contains) => (view.headers)(name).iter().any(|value| value.contains(contains)),
            Self::Json(path, equals) => path.query(view.json()).iter().any(|value| text(value) == *equals),
            Self::BodyBytes(from, to) => (*from..=*to).contains(&view.body_bytes),
            Self::Within(most) => view.took_ns <= *most,
        }
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(from, to) if from == to => write!(f, "status is {from}"),
            Self::Status(from, to) => write!(f, "status is {from} to {to}"),
            Self::Contains(text) => write!(f, "body contains {text:?}"),
            Self::Lacks(text) => write!(f, "body lacks {text:?}"),
            Self::Matches(regex) => write!(f, "body matches {:?}", regex.as_str()),
            Self::Header(name, contains) if contains.is_empty() => write!(f, "header {name} exists"),
            Self::Header(name, contains) => write!(f, "header {name} contains {contains:?}"),
            Self::Json(path, equals) => write!(f, "{path} is {equals:?}"),
            Self::BodyBytes(from, to) => write!(f, "body has {from} to {to} bytes"),
            Self::Within(most) => write!(f, "complete within {} ms", *most as f64 / 1e6),
        }
    }
}

fn regex(pattern: &str) -> Result<Regex, String> {
    Regex::new(pattern).map_err(|error| {
        // The error draws the pattern and has its message on the last line. A problem here is one line.
        let said = error.to_string();
        let why = said.lines().last().unwrap_or_default().trim_start_matches("error: ");
        format!("{pattern:?} is not a regular expression: {why}")
    })
}

fn json_path(path: &str) -> Result<JsonPath, String> {
    JsonPath::parse(path).map_err(|error| format!("{path:?} is not a JSON path: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = r#"<form><input name="t" value="x1"><input name="t" value="x2"><b>bold</b></form> id=17 id=18"#;

    fn take(from: Source, pick: Pick, body: &str) -> Option<String> {
        let extraction = Extraction::new(&Extract { into: "v".into(), from, pick, default: None }).unwrap();
        let headers = |name: &str| if name == "ETag" { vec!["e".to_string()] } else { Vec::new() };
        extraction.take(&mut View::new(200, &headers, body.as_bytes(), body.len() as u64, 0), &mut fastrand::Rng::with_seed(1))
    }

    #[test]
    fn values_are_extracted_by_regular_expression_json_path_selector_and_header() {
        assert_eq!(take(Source::Regex("id=([0-9]+)".into()), Pick::First, PAGE).as_deref(), Some("17"));
        assert_eq!(take(Source::Regex("id=[0-9]+".into()), Pick::Last, PAGE).as_deref(), Some("id=18"));
        let css = |attribute: Option<&str>, selector: &str| Source::Css { selector: selector.into(), attribute: attribute.map(Into::into) };
        assert_eq!(take(css(Some("value"), "input[name=t]"), Pick::Last, PAGE).as_deref(), Some("x2"));
        assert_eq!(take(css(None, "form b"), Pick::First, PAGE).as_deref(), Some("bold"));
        let json = r#"{"a":[{"n":1.5},{"n":"two"}]}"#;
        assert_eq!(take(Source::JsonPath("$.a[*].n".into()), Pick::Last, json).as_deref(), Some("two"));
        assert_eq!(take(Source::JsonPath("$.a[0].n".into()), Pick::First, json).as_deref(), Some("1.5"));
        assert_eq!(take(Source::JsonPath("$.a".into()), Pick::First, "no json"), None);
        assert_eq!(take(Source::Header("ETag".into()), Pick::First, "").as_deref(), Some("e"));
        assert_eq!(take(Source::Header("Age".into()), Pick::First, ""), None);
    }

    #[test]
    fn a_random_pick_is_one_of_the_matches() {
        let picked = take(Source::Regex("id=([0-9]+)".into()), Pick::Random, PAGE).unwrap();
        assert!(["17", "18"].contains(&picked.as_str()));
    }

    #[test]
    fn checks_pass_or_fail() {
        let headers = |name: &str| if name == "Content-Type" { vec!["text/html; x".to_string()] } else { Vec::new() };
        let body = r#"{"ok":true}"#;
        let check = |check: Check| Test::new(&check).unwrap().holds(&mut View::new(200, &headers, body.as_bytes(), 11, 5));
        let header = |name: &str, contains: &str| Check::Header { name: name.into(), contains: contains.into() };
        let json = |equals: &str| Check::JsonPath { path: "$.ok".into(), equals: equals.into() };
        let good = [
            Check::Status { from: 200, to: 299 },
            Check::Contains("ok".into()),
            Check::Lacks("error".into()),
            Check::Matches("tr.e".into()),
            header("Content-Type", "html"),
            header("Content-Type", ""),
            json("true"),
            Check::BodyBytes { from: 11, to: 11 },
            Check::WithinNs(5),
        ];
        assert!(good.into_iter().all(check));
        let bad = [
            Check::Status { from: 300, to: 399 },
            Check::Contains("error".into()),
            Check::Lacks("ok".into()),
            Check::Matches("^x".into()),
            header("Content-Type", "json"),
            header("Age", ""),
            json("false"),
            Check::BodyBytes { from: 0, to: 10 },
            Check::WithinNs(4),
        ];
        assert!(!bad.into_iter().any(check));
    }

    #[test]
    fn invalid_expressions_are_refused_with_their_text() {
        assert_eq!(Test::new(&Check::Matches("(".into())).unwrap_err(), "\"(\" is not a regular expression: unclosed group");
        assert!(Test::new(&Check::JsonPath { path: "a b".into(), equals: String::new() }).unwrap_err().contains("is not a JSON path"));
        let css = Source::Css { selector: ">>".into(), attribute: None };
        assert!(Extraction::new(&Extract { into: "v".into(), from: css, pick: Pick::First, default: None }).unwrap_err().contains("CSS"));
    }
}
