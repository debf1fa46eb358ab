//! Cookies of one user (RFC 6265, as far as a load needs it): kept by host, path and scheme, gone when told so. Deliberately not here:
//! expiry dates in the future, for no load lasts that long, and lists of public suffixes, for the servers asked are the user's own.

use crate::address::Place;

/// The cookies of one user.
#[derive(Clone, Debug, Default)]
pub(crate) struct Jar(Vec<Cookie>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Cookie {
    name: String,
    value: String,
    host: String,
    /// Also for hosts below `host`.
    below: bool,
    path: String,
    tls: bool,
}

impl Jar {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes what a Set-Cookie header says that came from `target` at `place`; odd ones are left out, as browsers do.
    pub(crate) fn take(&mut self, header: &[u8], place: &Place, target: &str) {
        let Some((cookie, gone)) = read(header, place, target) else { return };
        self.0.retain(|kept| (&kept.name, &kept.host, &kept.path) != (&cookie.name, &cookie.host, &cookie.path));
        if !gone {
            self.0.push(cookie);
        }
    }

    /// Appends the value of the Cookie header for `target` at `place`; nothing if there is no cookie for it.
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

/// The cookie, and whether it is to be forgotten.
fn read(header: &[u8], place: &Place, target: &str) -> Option<(Cookie, bool)> {
    let text = std::str::from_utf8(header).ok()?;
    let mut parts = text.split(';');
    let (name, value) = parts.next()?.split_once('=')?;
    let (name, value) = (name.trim(), value.trim());
    if name.is_empty() || text.chars().any(char::is_control) {
        return None;
    }
    let path = target.split('?').next().unwrap_or("/");
    let folder = path.rfind('/').filter(|&at| at > 0).map_or("/", |at| &path[..at]);
    let mut cookie =
        Cookie { name: name.into(), value: value.into(), host: place.host.clone(), below: false, path: folder.into(), tls: false };
    let mut gone = false;
    for part in parts {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        let value = value.trim();
        match key.trim().to_ascii_lowercase().as_str() {
            "domain" if !value.is_empty() => {
                let domain = value.trim_start_matches('.').to_ascii_lowercase();
                if domain != place.host && !is_below(&place.host, &domain) {
                    return None;
                }
                (cookie.host, cookie.below) = (domain, true);
            }
            "path" if value.starts_with('/') => cookie.path = value.into(),
            "secure" => cookie.tls = true,
            "max-age" => gone |= value.parse::<i64>().is_ok_and(|seconds| seconds <= 0),
            // What servers send to delete a cookie is a date of long ago.
            "expires" => gone |= value.contains("1970") || value.contains("-70 "),
            _ => {}
        }
    }
    Some((cookie, gone))
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
    fn cookies_go_back_to_where_they_came_from() {
        let jar = jar("http://a.b/shop/x", &["s=1; HttpOnly", "t=2; Path=/", "u=3; Secure; Path=/", "v=4; Domain=b; Path=/"]);
        assert_eq!(sent(&jar, "http://a.b/shop/y"), "s=1; t=2; v=4");
        assert_eq!(sent(&jar, "http://a.b/shopping"), "t=2; v=4");
        assert_eq!(sent(&jar, "https://a.b/"), "t=2; u=3; v=4");
        assert_eq!(sent(&jar, "http://c.b/"), "v=4");
        assert_eq!(sent(&jar, "http://cb/"), "");
    }

    #[test]
    fn a_cookie_is_replaced_by_its_next_value_and_gone_when_told_so() {
        assert_eq!(sent(&jar("http://a/", &["s=1", "s=2"]), "http://a/"), "s=2");
        assert!(jar("http://a/", &["s=1", "s=; Max-Age=0"]).is_empty());
        assert!(jar("http://a/", &["s=1", "s=; Expires=Thu, 01 Jan 1970 00:00:00 GMT"]).is_empty());
    }

    #[test]
    fn odd_cookies_are_left_out() {
        assert!(jar("http://a/", &["=x", "no value", "s=1; Domain=elsewhere", "s=a\u{1}b"]).is_empty());
    }
}
