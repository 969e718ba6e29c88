//! The page of counters, read strictly.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

/// The page of a target in the format with a media type.
///
/// # Panics
/// If it has none.
#[track_caller]
pub fn metrics_text(address: SocketAddr, media: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the target listens");
    let request = format!("GET /metrics HTTP/1.1\r\nHost: target\r\nAccept: {media}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("it answers with text");
    let (head, body) = response.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains(&format!("\r\nContent-Type: {media}")), "{head}");
    assert!(head.contains(&format!("\r\nContent-Length: {}", body.len())), "{head}");
    body.to_owned()
}

/// A page as a strict reader understands it.
#[derive(Debug, Default)]
pub struct OpenMetricsPage {
    /// Types of families by name.
    pub families: BTreeMap<String, String>,
    /// Values by name and labels, as they are written.
    pub samples: BTreeMap<String, f64>,
}

impl OpenMetricsPage {
    /// Scrapes the page that a target serves now.
    ///
    /// # Panics
    /// If that is not such a page.
    #[track_caller]
    pub fn scrape(address: SocketAddr) -> Self {
        let media = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        Self::parse(&metrics_text(address, media))
    }

    /// Reads the text format of OpenMetrics 1.0.
    ///
    /// # Panics
    /// If the text breaks a rule of the format.
    pub fn parse(text: &str) -> Self {
        let mut page = Self::default();
        let mut family = (String::new(), String::new());
        let body = text.strip_suffix("# EOF\n").expect("it ends with EOF");
        for line in body.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("a name and a type");
                family = (name.to_owned(), kind.to_owned());
                let before = page.families.insert(name.to_owned(), kind.to_owned());
                assert_eq!(before, None, "{name} is declared once");
                continue;
            }
            if let Some(rest) = line.strip_prefix("# ") {
                let mut words = rest.splitn(3, ' ');
                assert!(["HELP", "UNIT"].contains(&words.next().expect("a word")), "{line}");
                assert_eq!(words.next(), Some(&*family.0), "{line}");
                let text = words.next().expect("a text");
                assert!(!rest.starts_with("UNIT") || family.0.ends_with(text), "{line}");
                continue;
            }
            let (series, value) = line.rsplit_once(' ').expect("a value");
            let name = series.split('{').next().expect("a name");
            let suffix = name.strip_prefix(&family.0).unwrap_or_else(|| panic!("{line}"));
            let suffixes: &[&str] = match &*family.1 {
                "counter" => &["_total"],
                "gauge" => &[""],
                "info" => &["_info"],
                "histogram" => &["_bucket", "_count", "_sum"],
                kind => panic!("{kind} is no type"),
            };
            assert!(suffixes.contains(&suffix), "{line}");
            assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'));
            let value: f64 = value.parse().expect("a number");
            assert_eq!(
                page.samples.insert(series.to_owned(), value),
                None,
                "{series} is told once"
            );
        }
        page
    }

    /// A value, by name and labels.
    ///
    /// # Panics
    /// If the page has no such series.
    #[track_caller]
    pub fn get(&self, series: &str) -> f64 {
        *self.samples.get(series).unwrap_or_else(|| panic!("no {series} in {:#?}", self.samples))
    }
}
