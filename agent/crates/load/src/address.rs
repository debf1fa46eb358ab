//! Parses URLs into the place to connect to and the request target. It does not resolve names.

use std::fmt;

/// Destination of requests: scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub tls: bool,
    /// In lower case, without the brackets of an IPv6 address.
    pub host: String,
    pub port: u16,
}

/// Error in a URL.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UrlError {
    #[error("{0:?} is not a valid URL; write for example http://127.0.0.1:8080/path")]
    Scheme(String),
    #[error("{0:?} contains a user or password; give an Authorization header instead")]
    User(String),
    #[error("{0:?} has no host; write for example http://127.0.0.1:8080/path")]
    Host(String),
    #[error("{0:?} has an invalid port; give 1 to 65535")]
    Port(String),
    #[error("{0:?} has a variable before its path; write the server's name and port literally")]
    Variable(String),
    #[error("{0:?} contains a blank or control character; encode it, for example as %20")]
    Blank(String),
}

impl Place {
    /// `host:port`, as in a program's `addresses`.
    pub(crate) fn host_and_port(&self) -> String {
        format!("{}:{}", self.bracketed(), self.port)
    }

    /// The value of the Host header.
    pub(crate) fn authority(&self) -> String {
        let usual = if self.tls { 443 } else { 80 };
        if self.port == usual {
            self.bracketed()
        } else {
            self.host_and_port()
        }
    }

    pub(crate) fn scheme(&self) -> &'static str {
        if self.tls {
            "https"
        } else {
            "http"
        }
    }

    fn bracketed(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]", self.host)
        } else {
            self.host.clone()
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme(), self.host_and_port())
    }
}

/// Splits a URL into its place and the rest, which begins with a slash. The fragment is dropped, because servers never receive it.
pub(crate) fn split(url: &str) -> Result<(Place, String), UrlError> {
    let (tls, rest) = scheme(url).ok_or_else(|| UrlError::Scheme(url.into()))?;
    if url.bytes().any(|byte| byte <= b' ' || byte == 0x7f) {
        return Err(UrlError::Blank(url.into()));
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, target) = rest.split_at(end);
    if authority.contains('$') {
        return Err(UrlError::Variable(url.into()));
    }
    if authority.contains('@') {
        return Err(UrlError::User(url.into()));
    }
    let (host, port) = host_and_port(authority, if tls { 443 } else { 80 }).ok_or_else(|| UrlError::Port(url.into()))?;
    if host.is_empty() {
        return Err(UrlError::Host(url.into()));
    }
    let target = target.split('#').next().unwrap_or_default();
    let target = if target.starts_with('/') { target.to_string() } else { format!("/{target}") };
    Ok((Place { tls, host: host.to_ascii_lowercase(), port }, target))
}

fn scheme(url: &str) -> Option<(bool, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    match scheme.to_ascii_lowercase().as_str() {
        "http" => Some((false, rest)),
        "https" => Some((true, rest)),
        _ => None,
    }
}

fn host_and_port(authority: &str, usual: u16) -> Option<(&str, u16)> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            (host, if after.is_empty() { None } else { Some(after.strip_prefix(':')?) })
        }
        None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
    };
    let port = port.map_or(Some(usual), |digits| digits.parse().ok())?;
    (port > 0).then_some((host, port))
}

/// The URL of a redirect's Location header, relative to `target` at `from`.
pub(crate) fn redirected(from: &Place, target: &str, location: &[u8]) -> Result<(Place, String), UrlError> {
    let location = &in_ascii(location);
    if scheme(location).is_some() {
        return split(location);
    }
    if let Some(rest) = location.strip_prefix("//") {
        return split(&format!("{}://{rest}", from.scheme()));
    }
    let path = target.split('?').next().unwrap_or("/");
    let whole = match location.bytes().next() {
        Some(b'/') => location.clone(),
        Some(b'?') => format!("{path}{location}"),
        None | Some(b'#') => target.to_string(),
        Some(_) => format!("{}{location}", &path[..=path.rfind('/').unwrap_or(0)]),
    };
    let (_, target) = split(&format!("http://x{}", without_dots(&whole)))?;
    Ok((from.clone(), target))
}

/// A URL as servers write it in headers, with blanks and letters beyond ASCII encoded, as browsers do.
fn in_ascii(url: &[u8]) -> String {
    let mut encoded = Vec::new();
    for &byte in url.trim_ascii() {
        if byte > b' ' && byte < 0x7f {
            encoded.push(byte);
        } else {
            url_encode(&[byte], &mut encoded);
        }
    }
    String::from_utf8_lossy(&encoded).into_owned()
}

/// A path without `.` and `..` (RFC 3986, section 5.2.4).
fn without_dots(target: &str) -> String {
    let (path, query) = target.find('?').map_or((target, ""), |at| target.split_at(at));
    let mut kept: Vec<&str> = Vec::new();
    for part in path.split('/').skip(1) {
        match part {
            "." => {}
            ".." => drop(kept.pop()),
            part => kept.push(part),
        }
    }
    if path.ends_with("/.") || path.ends_with("/..") {
        kept.push("");
    }
    format!("/{}{query}", kept.join("/"))
}

/// A variable's value as part of a URL. Characters that would change the URL's structure are written as %XX.
pub(crate) fn url_encode(bytes: &[u8], into: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~/:@!$'()*,;".contains(&byte) {
            into.push(byte);
        } else {
            into.extend_from_slice(&[b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place(url: &str) -> (String, String) {
        let (place, target) = split(url).unwrap();
        (format!("{place} {}", place.authority()), target)
    }

    #[test]
    fn urls_are_split_into_place_and_target() {
        assert_eq!(place("http://Example.org"), ("http://example.org:80 example.org".into(), "/".into()));
        assert_eq!(place("https://a:8443/x?y#z"), ("https://a:8443 a:8443".into(), "/x?y".into()));
        assert_eq!(place("http://[::1]:81?q"), ("http://[::1]:81 [::1]:81".into(), "/?q".into()));
        assert_eq!(place("HTTP://a/${id}").1, "/${id}");
    }

    #[test]
    fn invalid_urls_are_refused_by_name() {
        for (url, why) in [
            ("ftp://a/", UrlError::Scheme("ftp://a/".into())),
            ("localhost:80", UrlError::Scheme("localhost:80".into())),
            ("http://u:p@a/", UrlError::User("http://u:p@a/".into())),
            ("http:///x", UrlError::Host("http:///x".into())),
            ("http://a:0/", UrlError::Port("http://a:0/".into())),
            ("http://a:99999/", UrlError::Port("http://a:99999/".into())),
            ("http://${h}/", UrlError::Variable("http://${h}/".into())),
            ("http://a/ b", UrlError::Blank("http://a/ b".into())),
        ] {
            assert_eq!(split(url), Err(why));
        }
    }

    #[test]
    fn redirects_are_relative_to_their_source() {
        let from = split("http://a:81/x/y?z").unwrap();
        for (location, wanted) in [
            ("/b", "http://a:81 /b"),
            ("b?c", "http://a:81 /x/b?c"),
            ("../b/./c", "http://a:81 /b/c"),
            ("?n", "http://a:81 /x/y?n"),
            ("//h/b", "http://h:80 /b"),
            ("https://h/b#f", "https://h:443 /b"),
            ("/a b", "http://a:81 /a%20b"),
            ("/\u{e9}?\u{e9}", "http://a:81 /%C3%A9?%C3%A9"),
        ] {
            let (place, target) = redirected(&from.0, &from.1, location.as_bytes()).unwrap();
            assert_eq!(format!("{place} {target}"), wanted, "{location}");
        }
    }

    proptest! {
        #[test]
        fn any_location_is_followed_or_refused(location in proptest::collection::vec(any::<u8>(), 0..40)) {
            let (place, target) = split("http://a/x/y?z").unwrap();
            if let Ok((_, target)) = redirected(&place, &target, &location) {
                prop_assert!(target.starts_with('/'));
            }
        }
    }
}
