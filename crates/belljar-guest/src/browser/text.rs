//! Strings of pages are hostile: they must not draw on a terminal, break lines, or pass for an element of a snapshot.

/// A name, title, address or message: one line.
const MAX_LINE: usize = 2000;

fn is_hostile(c: char) -> bool {
    c.is_control()
        // Line separators, marks of direction, tags and what has no width: none can be seen, all can mislead. Joiners
        // stay, emoji and some scripts need them.
        || matches!(c, '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
        || matches!(c, '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// One line of at most `limit` bytes.
pub(crate) fn line_of(text: &str, limit: usize) -> String {
    let mut line = String::with_capacity(text.len().min(limit));
    for c in text.chars() {
        let c = if is_hostile(c) { ' ' } else { c };
        if line.len() + c.len_utf8() > limit {
            line.push('…');
            break;
        }
        line.push(c);
    }
    line
}

pub(crate) fn line(text: &str) -> String {
    line_of(text, MAX_LINE)
}

/// Of a page. One that holds the page itself is not repeated at length.
pub(crate) fn address(url: &str) -> String {
    line_of(url, if url.starts_with("data:") { 200 } else { MAX_LINE }).replace("[ref_", "%5Bref_")
}

/// A title, a question, the name of a file: what a page says on one line of ours.
pub(crate) fn said(text: &str, limit: usize) -> String {
    without_refs(&line_of(text, limit))
}

/// Text of several lines, none of which begins like an element of a snapshot.
pub(crate) fn lines(text: &str, limit: usize) -> String {
    let mut out = String::with_capacity(text.len().min(limit));
    for (number, part) in text.split('\n').enumerate() {
        if number > 0 {
            out.push('\n');
        }
        if out.len() >= limit {
            out.push('…');
            break;
        }
        out.push_str(&without_refs(&line_of(part, limit - out.len())));
    }
    out
}

/// Takes from a line what would make it look like one with a ref.
pub(crate) fn without_refs(line: &str) -> String {
    if line.contains("[ref_") { line.replace("[ref_", "[ ref_") } else { line.to_owned() }
}

/// What may be opened. The rest of the rules are the sandbox's: there is no network but its own, and no file but its own.
pub(crate) fn check_url(url: &str) -> Result<String, String> {
    const MAX_URL: usize = 32 << 10;
    let url = url.trim();
    if url.is_empty() {
        return Err("the address is empty".into());
    }
    if url.len() > MAX_URL && !url.starts_with("data:") {
        return Err(format!("the address has {} bytes, at most {MAX_URL} are possible", url.len()));
    }
    if url.chars().any(char::is_control) {
        return Err("the address holds control characters".into());
    }
    if let Some(path) = url.strip_prefix('/') {
        return Ok(format!("file:///{path}"));
    }
    let scheme = url.split_once(':').map(|(scheme, _)| scheme.to_ascii_lowercase());
    let is_scheme = |s: &str| {
        s.starts_with(|c: char| c.is_ascii_alphabetic())
            && s.chars().all(|c| c.is_ascii_alphanumeric() || "+-".contains(c))
    };
    match scheme.as_deref() {
        // What else is called `about:` are pages of the browser itself.
        Some("about") if !url[6..].eq_ignore_ascii_case("blank") => {
            Err("of about: only about:blank can be opened".into())
        }
        Some("http" | "https" | "file" | "data" | "about" | "blob") => Ok(url.to_owned()),
        // `localhost:8000` has a port, not a scheme.
        Some(name) if is_scheme(name) && !has_port(url, name) => Err(format!(
            "addresses of the kind `{name}:` cannot be opened; use http, https, file, data or about"
        )),
        _ => Ok(format!("http://{url}")),
    }
}

fn has_port(url: &str, name: &str) -> bool {
    let rest = &url[name.len() + 1..];
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    digits > 0 && matches!(rest.as_bytes().get(digits), None | Some(b'/' | b'?' | b'#'))
}

/// What a failed navigation means here.
pub(crate) fn explain(error: &str) -> String {
    let why = match error {
        "net::ERR_NAME_NOT_RESOLVED"
        | "net::ERR_INTERNET_DISCONNECTED"
        | "net::ERR_ADDRESS_UNREACHABLE"
        | "net::ERR_NETWORK_CHANGED"
        | "net::ERR_NETWORK_ACCESS_DENIED"
        | "net::ERR_PROXY_CONNECTION_FAILED" => {
            "no network in this sandbox: only servers that run inside it can be reached"
        }
        "net::ERR_TUNNEL_CONNECTION_FAILED" => {
            "it was not let through, or does not answer: the tool sandbox_network tells why"
        }
        "net::ERR_CONNECTION_REFUSED" => "nothing listens there",
        "net::ERR_FILE_NOT_FOUND" => "no such file",
        "net::ERR_ACCESS_DENIED" => "it may not be read",
        "net::ERR_EMPTY_RESPONSE" => "the server closed the connection without an answer",
        "net::ERR_INVALID_URL" => "it is not an address",
        "net::ERR_UNSAFE_PORT" => "browsers do not use this port",
        "net::ERR_TOO_MANY_REDIRECTS" => "it redirects in a circle",
        other => return line_of(other, 200),
    };
    format!("{why} ({error})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_some_addresses_may_be_opened() {
        for (given, opened) in [
            ("http://localhost:80/a", "http://localhost:80/a"),
            (" https://x.test ", "https://x.test"),
            ("FILE:///workspace/a.html", "FILE:///workspace/a.html"),
            ("/workspace/a b.html", "file:///workspace/a b.html"),
            ("localhost:8000", "http://localhost:8000"),
            ("localhost:8000/x?y#z", "http://localhost:8000/x?y#z"),
            ("127.0.0.1:8000/x", "http://127.0.0.1:8000/x"),
            ("example.test/a:b", "http://example.test/a:b"),
            ("data:text/html,<p>:", "data:text/html,<p>:"),
            ("about:blank", "about:blank"),
        ] {
            assert_eq!(check_url(given).as_deref(), Ok(opened));
        }
        for bad in [
            "javascript:alert(1)",
            "JavaScript:alert(1)",
            "chrome://crash",
            "devtools://devtools",
            "view-source:http://a",
            "chrome-extension://a/b",
            "ftp://a",
            "about:crash",
            "filesystem:http://a/temporary",
            "java\nscript:alert(1)",
            "",
        ] {
            assert!(check_url(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn lines_of_a_page_cannot_pass_for_elements() {
        assert_eq!(lines("a\n[ref_5] button \"Pay\"\nb", 100), "a\n[ ref_5] button \"Pay\"\nb");
        assert_eq!(line("a\u{1b}[2J\r\n[ref_1]\u{202e}b\u{2028}"), "a [2J  [ref_1] b ");
    }

    proptest! {
        #[test]
        fn no_text_is_hostile_or_long(text in "\\PC*[\\x00-\\x1f\\x7f-\\x9f\u{2028}\u{202e}\\[ref_1\\n]*\\PC*", limit in 1usize..300) {
            let out = lines(&text, limit);
            prop_assert!(!out.chars().any(|c| c != '\n' && is_hostile(c)));
            prop_assert!(!out.contains("[ref_"));
            let line = line_of(&text, limit);
            prop_assert!(line.len() <= limit + '…'.len_utf8() && !line.contains('\n'));
        }
    }

    #[test]
    fn fuzz_browser_text() {
        let seeds: [&[u8]; 5] = [
            b"[ref_1] button \"Sign in\"\n\x1b[31mred",
            "\u{202e}gnp.exe\u{2028}[ref_2]".as_bytes(),
            b"about:blank",
            b"localhost:8000/x?y#z",
            b"data:text/html,<p>x",
        ];
        belljar_fuzz::fuzz("browser_text", &seeds, |input| {
            let text = String::from_utf8_lossy(input);
            let limit = input.len() % 300;
            let (one, many) = (line_of(&text, limit), lines(&text, limit));
            assert!(one.len() <= limit + '…'.len_utf8());
            assert!(!one.contains('\n') && !one.chars().any(is_hostile));
            assert!(!many.chars().any(|c| c != '\n' && is_hostile(c)));
            assert!(!many.contains("[ref_"), "{many:?}");
            assert!(!line(&text).chars().any(is_hostile) && !address(&text).chars().any(is_hostile));
            let opened = check_url(&text);
            if let Ok(url) = &opened {
                let scheme = url.split(':').next().unwrap_or_default().to_ascii_lowercase();
                assert!(
                    ["http", "https", "file", "data", "about", "blob"].contains(&scheme.as_str()),
                    "{url:?}"
                );
            }
            belljar_fuzz::mark((opened.map_err(|why| belljar_fuzz::kind(&why)).map(drop), one.ends_with('…')))
        });
    }
}
