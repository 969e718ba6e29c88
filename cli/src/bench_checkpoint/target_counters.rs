//! Bytes that targets read for a namespace, from their pages of metrics.

use core::time::Duration;
use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::str::FromStr;

use anyhow::{Context as _, Result, bail};

use crate::clock::sleep;

/// Limit for the connection, and for each part of the page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which a page is not an older one: targets send a page again for 100 ms.
const PAGE_AGE: Duration = Duration::from_millis(250);
/// Counter of a target, with a sample for each namespace.
const READ_BYTES: &str = "feedrail_namespace_read_bytes_total{";

/// Address of a target's metrics, as `--metrics` takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MetricsUrl {
    /// Host and port as in the URL, an IPv6 address in brackets.
    authority: String,
    path: String,
}

impl FromStr for MetricsUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed = || "expected http://host:port/metrics".to_owned();
        let rest = text.strip_prefix("http://").ok_or_else(malformed)?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let port = authority.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        if port.is_none() || text.contains(char::is_whitespace) {
            return Err(malformed());
        }
        let path = if path.is_empty() { "metrics" } else { path };
        Ok(Self { authority: authority.to_owned(), path: format!("/{path}") })
    }
}

impl MetricsUrl {
    /// Returns the bytes that the target has read until now for the namespaces of a subsystem.
    pub(super) fn read_bytes(&self, nqn: &str) -> Result<u64> {
        sleep(PAGE_AGE);
        let about = || format!("cannot read http://{}{}", self.authority, self.path);
        let page = self.page().with_context(about)?;
        sum(&page, nqn).with_context(about)
    }

    fn page(&self) -> Result<String> {
        let address = self.authority.to_socket_addrs()?.next().context("no address")?;
        let mut stream = TcpStream::connect_timeout(&address, PAGE_TIMEOUT)?;
        stream.set_read_timeout(Some(PAGE_TIMEOUT))?;
        stream.set_write_timeout(Some(PAGE_TIMEOUT))?;
        let Self { authority, path } = self;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut response = String::new();
        stream.read_to_string(&mut response)?;
        let (head, body) = response.split_once("\r\n\r\n").context("no HTTP response")?;
        let status = head.lines().next().unwrap_or_default();
        if !status.contains(" 200") {
            bail!("{status}");
        }
        Ok(body.to_owned())
    }
}

/// Adds the samples of a subsystem's namespaces.
fn sum(page: &str, nqn: &str) -> Result<u64> {
    let label = format!("nqn=\"{nqn}\"");
    let lines = page.lines().filter_map(|line| line.strip_prefix(READ_BYTES));
    let samples = lines.filter_map(|line| line.rsplit_once("} "));
    let own = samples.filter(|(labels, _)| labels.split(',').any(|one| one == label));
    let values: Vec<&str> = own.map(|(_, value)| value).collect();
    if values.is_empty() {
        bail!("it has no counters of {nqn}");
    }
    values.into_iter().map(|value| Ok(value.trim().parse::<u64>()?)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_a_port_and_a_path() {
        let url: MetricsUrl = "http://[::1]:9420".parse().unwrap();
        assert_eq!((url.authority.as_str(), url.path.as_str()), ("[::1]:9420", "/metrics"));
        let url: MetricsUrl = "http://h:1/a/b".parse().unwrap();
        assert_eq!(url.path, "/a/b");
        for text in ["", "h:1", "https://h:1/", "http://h/metrics", "http://h:1/ x", "http://h:x/"]
        {
            assert!(text.parse::<MetricsUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_counters_of_one_subsystem_are_added() {
        let page = "# TYPE x counter\n\
            feedrail_namespace_read_bytes_total{nqn=\"a\",nsid=\"1\",name=\"x\"} 5\n\
            feedrail_namespace_read_bytes_total{nqn=\"a\",nsid=\"2\",name=\"y\"} 6\n\
            feedrail_namespace_read_bytes_total{nqn=\"ab\",nsid=\"1\",name=\"x\"} 70\n\
            feedrail_namespace_reads_total{nqn=\"a\",nsid=\"1\",name=\"x\"} 800\n";
        assert_eq!(sum(page, "a").unwrap(), 11);
        assert_eq!(sum(page, "ab").unwrap(), 70);
        assert!(sum(page, "b").is_err());
    }
}
