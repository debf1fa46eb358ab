//! Cookies of one user (RFC 6265, as far as a load needs it). They are stored by host, path and scheme, and deleted on request of
//! the server. Expiry dates are ignored, because no load lasts that long. Public suffix lists are not used, because the servers
//! belong to the user.

use cookie::time::OffsetDateTime;

use crate::address::Place;

/// The cookies of one user.
#[derive(Clone, Debug, Default)]
pub(crate) struct Jar(Vec<Cookie>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Cookie {
    name: String,
    value: String,
    host: String,
    /// Also valid for subdomains of `host`.
    below: bool,
    path: String,
    tls: bool,
}

impl Jar {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Stores the cookie of a Set-Cookie header from `target` at `place`. Malformed cookies are ignored, as in browsers.
    pub(crate) fn take(&mut self, header: &[u8], place: &Place, target: &str) {
        let Some((cookie, gone)) = read(header, place, target) else { return };
        self.0.retain(|kept| (&kept.name, &kept.host, &kept.path) != (&cookie.name, &cookie.host, &cookie.path));
        if !gone {
            self.0.push(cookie);
        }
    }

    /// Appends the value of the Cookie header for `target` at `place`. Appends nothing if no cookie matches.
    pub(crate) fn render(&self, place: &Place, target: &[u8], into: &mut Vec<u8>) {
        let mut separator: &[u8] = b"";
        for cookie in self.0.iter().filter(|cookie| cookie.is_for(place, target)) {
            for part in [separator, cookie.name.as_bytes(), b"=", cookie.value.as_bytes()] {
                into.extend_from_slice(part);
            }
            separator = b"; ";
        }
    }
}

impl Cookie {
    fn is_for(&self, place: &Place, target: &[u8]) -> bool {
        let host = self.host == place.host || self.below && is_below(&place.host, &self.host);
        let path = target.split(|&byte| byte == b'?').next().unwrap_or_default();
        let under =
            path.strip_prefix(self.path.as_bytes()).is_some_and(|rest| rest.is_empty() || rest[0] == b'/' || self.path.ends_with('/'));
        host && under && (place.tls || !self.tls)
    }
}

fn is_below(host: &str, parent: &str) -> bool {
    host.strip_suffix(parent).is_some_and(|rest| rest.ends_with('.'))
}

/// The cookie, and whether the header deletes it.
fn read(header: &[u8], place: &Place, target: &str) -> Option<(Cookie, bool)> {
    let text = std::str::from_utf8(header).ok()?;
    let parsed = cookie::Cookie::parse(text).ok().filter(|_| !text.contains(char::is_control))?;
    let (host, below) = match parsed.domain().map(str::to_ascii_lowercase).filter(|domain| !domain.is_empty()) {
        Some(domain) if domain == place.host || is_below(&place.host, &domain) => (domain, true),
        Some(_) => return None,
        None => (place.host.clone(), false),
    };
    let path = target.split('?').next().unwrap_or("/");
    let folder = path.rfind('/').filter(|&at| at > 0).map_or("/", |at| &path[..at]);
    let kept = Cookie {
        name: parsed.name().into(),
        value: parsed.value().into(),
        host,
        below,
        path: parsed.path().filter(|path| path.starts_with('/')).unwrap_or(folder).into(),
        tls: parsed.secure() == Some(true),
    };
    Some((kept, is_gone(&parsed, OffsetDateTime::now_utc())))
}

fn is_gone(parsed: &cookie::Cookie, now: OffsetDateTime) -> bool {
    match parsed.max_age() {
        Some(age) => !age.is_positive(),
        None => parsed.expires_datetime().is_some_and(|day| day <= now),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::split;

    fn jar(from: &str, headers: &[&str]) -> Jar {
        let (place, target) = split(from).unwrap();
        let mut jar = Jar::default();
        for header in headers {
            jar.take(header.as_bytes(), &place, &target);
        }
        jar
    }

    fn sent(jar: &Jar, to: &str) -> String {
        let (place, target) = split(to).unwrap();
        let mut out = Vec::new();
        jar.render(&place, target.as_bytes(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn cookies_are_sent_to_their_origin() {
        let jar = jar("http://a.b/shop/x", &["s=1; HttpOnly", "t=2; Path=/", "u=3; Secure; Path=/", "v=4; Domain=b; Path=/"]);
        assert_eq!(sent(&jar, "http://a.b/shop/y"), "s=1; t=2; v=4");
        assert_eq!(sent(&jar, "http://a.b/shopping"), "t=2; v=4");
        assert_eq!(sent(&jar, "https://a.b/"), "t=2; u=3; v=4");
        assert_eq!(sent(&jar, "http://c.b/"), "v=4");
        assert_eq!(sent(&jar, "http://cb/"), "");
    }

    #[test]
    fn a_cookie_is_replaced_by_its_next_value_and_deleted_on_request() {
        assert_eq!(sent(&jar("http://a/", &["s=1", "s=2"]), "http://a/"), "s=2");
        assert!(jar("http://a/", &["s=1", "s=; Max-Age=0"]).is_empty());
        for long_ago in ["Thu, 01 Jan 1970 00:00:00 GMT", "Thu, 01-Jan-1970 00:00:01 GMT", "Sun, 06 Nov 1994 08:49:37 GMT"] {
            assert!(jar("http://a/", &["s=1", &format!("s=; Expires={long_ago}")]).is_empty(), "{long_ago}");
        }
    }

    #[test]
    fn a_cookie_with_days_to_live_is_kept() {
        assert_eq!(sent(&jar("http://a/", &["s=1; Expires=Fri, 01 Jan 2100 00:00:00 GMT"]), "http://a/"), "s=1");
        assert_eq!(sent(&jar("http://a/", &["s=1; Max-Age=60; Expires=Thu, 01 Jan 1970 00:00:00 GMT"]), "http://a/"), "s=1");
    }

    #[test]
    fn malformed_cookies_are_ignored() {
        assert!(jar("http://a/", &["=x", "no value", "s=1; Domain=elsewhere", "s=a\u{1}b"]).is_empty());
    }
}
