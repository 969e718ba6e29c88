//! Report of `feedrail index`.

use std::path::PathBuf;

use anyhow::Result;
use feedrail_dataset::Name;
use feedrail_dataset::formats::ShardFormat;
use serde_json::{Value, json};

use crate::options::Format;
use crate::output;

/// Index file that was written, with its shards.
pub(super) struct IndexReport {
    pub(super) index: PathBuf,
    pub(super) shards: Vec<ShardReport>,
}

/// Format and number of samples of a shard.
pub(super) struct ShardReport {
    pub(super) name: Name,
    pub(super) bytes: u64,
    pub(super) format: ShardFormat,
    pub(super) samples: u64,
}

impl IndexReport {
    pub(super) fn print(&self, output_format: Format) -> Result<()> {
        output::print(&match output_format {
            Format::Json => output::json(&self.to_json()),
            Format::Normal => self.to_text(),
        })
    }

    fn samples(&self) -> u64 {
        self.shards.iter().map(|shard| shard.samples).sum()
    }

    fn to_json(&self) -> Value {
        json!({
            "index": self.index.display().to_string(),
            "samples": self.samples(),
            "shards": self.shards.iter().map(ShardReport::to_json).collect::<Value>(),
        })
    }

    fn to_text(&self) -> String {
        let rows: Vec<_> = self.shards.iter().map(ShardReport::row).collect();
        let table = output::table(&["Shard", "Format", "Bytes", "Samples"], &rows);
        format!("{table}{}: {} samples\n", self.index.display(), self.samples())
    }
}

impl ShardReport {
    fn to_json(&self) -> Value {
        json!({
            "name": self.name.as_str(),
            "format": self.format.name(),
            "bytes": self.bytes,
            "samples": self.samples,
        })
    }

    fn row(&self) -> Vec<String> {
        vec![
            output::printable(self.name.as_str()),
            self.format.to_string(),
            self.bytes.to_string(),
            self.samples.to_string(),
        ]
    }
}
