//! Whether loads were cold: what targets sent, and what the page cache had.

use anyhow::Result;
use serde_json::{Value, json};

use crate::bench_loader::Residency;

/// Evidence from the loads so far.
#[derive(Clone, Debug, Default)]
pub(super) struct ColdReads {
    /// Least bytes that the ranks of a load received from targets, by the initiators' counters.
    received_bytes: Option<u64>,
    /// Least bytes that the targets read during a load, by their counters.
    target_bytes: Option<u64>,
    /// Pages of the volume's file after it was dropped from the page cache, of the load with most.
    volume: Option<Residency>,
    /// Likewise, of the files beside it.
    files: Option<Residency>,
}

impl ColdReads {
    pub(super) fn note_load(&mut self, received_bytes: u64, target_bytes: Option<u64>) {
        self.received_bytes =
            Some(self.received_bytes.map_or(received_bytes, |least| least.min(received_bytes)));
        self.target_bytes = match (self.target_bytes, target_bytes) {
            (Some(least), Some(bytes)) => Some(least.min(bytes)),
            (least, bytes) => least.or(bytes),
        };
    }

    pub(super) fn note_residency(&mut self, found: Option<Residency>) {
        self.volume = most(self.volume, found);
    }

    /// Drops files from the page cache if that is asked for.
    pub(super) fn prepare_files(
        &mut self,
        is_dropped: bool,
        drop_cache: impl FnOnce() -> Result<Option<Residency>>,
    ) -> Result<()> {
        if is_dropped {
            self.files = most(self.files, drop_cache()?);
        }
        Ok(())
    }

    /// Whether all bytes of a checkpoint came from the targets in each load; `None` without loads.
    fn is_client_cold(&self, bytes: u64) -> Option<bool> {
        let counted = self.target_bytes.or(self.received_bytes);
        counted.map(|counted| counted >= bytes)
    }

    pub(super) fn to_json(&self, bytes: u64) -> Value {
        let resident = |found: Option<Residency>| found.map(Residency::resident_bytes);
        json!({
            "client_cold": self.is_client_cold(bytes),
            "counted_by": if self.target_bytes.is_some() { "target" } else { "initiator" },
            "target_read_bytes": self.target_bytes,
            "received_bytes": self.received_bytes,
            "target_cache_cold": self.volume.map(|found| is_cold(found, bytes)),
            "target_cache_resident_bytes": resident(self.volume),
            "beside_cache_cold": self.files.map(|found| is_cold(found, bytes)),
            "beside_cache_resident_bytes": resident(self.files),
        })
    }

    /// Lines below the table.
    pub(super) fn to_text(&self, bytes: u64) -> String {
        let Some(is_cold_client) = self.is_client_cold(bytes) else { return String::new() };
        let client = if is_cold_client { "cold" } else { "NOT COLD" };
        let counted = match (self.target_bytes, self.received_bytes) {
            (Some(bytes), _) => format!("the targets read at least {bytes} bytes for each"),
            (None, received) => format!(
                "the ranks received at least {} bytes in each",
                received.unwrap_or_default()
            ),
        };
        format!(
            "loads: clients {client} (new processes; {counted})\npage cache of the target: {}\n\
             page cache of the files beside: {}\n",
            cache_text(self.volume, bytes),
            cache_text(self.files, bytes),
        )
    }
}

fn cache_text(found: Option<Residency>, bytes: u64) -> String {
    match found {
        None => "not dropped, or not known".to_owned(),
        Some(found) => format!(
            "{} (dropped before each load; at most {} bytes stayed)",
            if is_cold(found, bytes) { "cold" } else { "NOT COLD" },
            found.resident_bytes(),
        ),
    }
}

/// Whether at most 1 % of the bytes of a checkpoint are in the page cache.
fn is_cold(found: Residency, bytes: u64) -> bool {
    found.resident_bytes() <= bytes / 100
}

fn most(one: Option<Residency>, other: Option<Residency>) -> Option<Residency> {
    match (one, other) {
        (Some(one), Some(other)) if one.resident_bytes() > other.resident_bytes() => Some(one),
        (one, other) => other.or(one),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_with_the_least_evidence_counts() {
        let mut cold = ColdReads::default();
        assert_eq!(cold.to_json(100)["client_cold"], Value::Null);
        assert_eq!(cold.to_text(100), "");
        cold.note_load(120, None);
        cold.note_load(100, None);
        assert_eq!(cold.to_json(100)["client_cold"], true);
        assert_eq!(cold.to_json(101)["client_cold"], false);
        cold.note_load(100, Some(90));
        cold.note_load(100, Some(95));
        let json = cold.to_json(91);
        assert_eq!((&json["client_cold"], &json["counted_by"]), (&false.into(), &"target".into()));
        assert!(cold.to_text(91).contains("NOT COLD"));
    }
}
