//! Parses the lines that a target daemon prints at its start.

use std::net::SocketAddr;

use nvme_proto::Nqn;
use serde_json::Value;

/// Addresses of a target that has started. There is at least one, as it does not start without any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Announcement {
    pub(crate) listening: Vec<ListeningLine>,
    /// Address of the HTTP server for metrics.
    pub(crate) metrics: Option<SocketAddr>,
    ready: bool,
}

/// Contents of a `listening` line of the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListeningLine {
    pub(crate) address: SocketAddr,
    pub(crate) nqn: Nqn,
    pub(crate) namespaces: u64,
    pub(crate) provider: String,
    pub(crate) reason: String,
}

impl Announcement {
    /// Parses a line of the daemon. Returns true once it is ready.
    pub(super) fn add(&mut self, line: &str) -> bool {
        let Ok(line) = serde_json::from_str::<Value>(line) else { return self.ready };
        match line["event"].as_str() {
            Some("listening") => self.listening.extend(ListeningLine::parse(&line)),
            Some("ready") => {
                self.ready = true;
                self.metrics = line["metrics"].as_str().and_then(|address| address.parse().ok());
            }
            _ => {}
        }
        self.ready
    }
}

impl ListeningLine {
    fn parse(line: &Value) -> Option<Self> {
        let text = |key: &str| line.get(key)?.as_str();
        Some(Self {
            address: text("address")?.parse().ok()?,
            nqn: text("nqn")?.parse().ok()?,
            namespaces: line.get("namespaces").and_then(Value::as_u64).unwrap_or(0),
            provider: text("provider")?.to_owned(),
            reason: text("reason").unwrap_or_default().to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_lines_are_found_among_others() {
        let mut announcement = Announcement::default();
        for other in ["", "{}", "listening", r#"{"event":"stats"}"#, r#"{"event":"listening"}"#] {
            assert!(!announcement.add(other), "{other}");
        }
        let line = r#"{"event":"listening","address":"127.3.2.1:4420","provider":"soft","reason":"no RDMA device","nqn":"nqn.x","namespaces":7,"more":1}"#;
        assert!(!announcement.add(line));
        assert!(announcement.add(r#"{"event":"ready","metrics":"127.0.0.1:9420"}"#));
        assert_eq!(announcement.metrics, "127.0.0.1:9420".parse().ok());
        let [listening] = &announcement.listening[..] else { panic!("{announcement:?}") };
        assert_eq!(listening.address, "127.3.2.1:4420".parse().unwrap());
        assert_eq!((listening.provider.as_str(), listening.nqn.as_str()), ("soft", "nqn.x"));
        assert_eq!(listening.namespaces, 7);
    }
}
