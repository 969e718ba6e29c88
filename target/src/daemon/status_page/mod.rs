//! Status page: one HTML file, whose script requests `/status.json` every 2 s while it is visible.

use uuid::Uuid;

const PAGE: &str = include_str!("page.html");

/// Status page with its HTTP headers, which allow only the page's own script to run and to connect
/// only to this server (Content Security Policy Level 3).
pub(super) struct StatusPage {
    pub(super) headers: String,
    pub(super) body: String,
}

impl StatusPage {
    /// Creates the page with a new nonce for its script.
    pub(super) fn new() -> Self {
        let nonce = Uuid::new_v4().simple().to_string();
        let headers = format!(
            "Content-Security-Policy: default-src 'none'; script-src 'nonce-{nonce}'; \
             style-src 'nonce-{nonce}'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
             frame-ancestors 'none'\r\n\
             X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
             Cache-Control: no-store\r\n"
        );
        Self { headers, body: PAGE.replace("{nonce}", &nonce) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_script_runs() {
        let (one, other) = (StatusPage::new(), StatusPage::new());
        assert_ne!(one.headers, other.headers);
        let (_, nonce) = one.headers.split_once("script-src 'nonce-").expect("a policy");
        let nonce = &nonce[..32];
        assert_eq!(one.body.matches(&format!("nonce=\"{nonce}\"")).count(), 2);
        assert!(!one.body.contains("{nonce}"));
        for loads in ["src=", "@import", "url(", "innerHTML", "eval(", "onclick", " style=\""] {
            assert!(!PAGE.contains(loads), "{loads}");
        }
    }
}
