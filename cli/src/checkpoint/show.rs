//! `feedrail checkpoint show`: facts about a volume, or about one checkpoint.

use anyhow::{Context as _, Result};
use clap::Args;
use feedrail_checkpoint_store::{CheckpointStore, StoredEntry, VolumeSummary};
use serde_json::{Value, json};

use super::list::{checkpoint_json, volume_json};
use super::metadata;
use super::utc::utc;
use super::volume_args::VolumeArgs;
use crate::options::{Format, Local, Output};
use crate::output;
use crate::size::human;

const EXAMPLES: &str = "\
Examples:
  feedrail checkpoint show nvmf://192.0.2.10/nqn.2026-01.org.example:ckpt
  feedrail checkpoint show nvmf://192.0.2.10/nqn.2026-01.org.example:ckpt step-1200";

/// Shows a volume, or the metadata and entries of a checkpoint
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct ShowCheckpoint {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Name of the checkpoint
    #[arg(value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    local: Local,
    #[command(flatten)]
    output: Output,
}

impl ShowCheckpoint {
    pub(super) fn run(&self) -> Result<()> {
        let store = self.volume.open(&self.local)?;
        let store = store.newest()?;
        let json = self.output.output_format == Format::Json;
        let text = match &self.name {
            Some(name) => self.checkpoint(store, name, json)?,
            None if json => output::json(&volume_json(&store.summary())),
            None => volume_text(&store.summary()),
        };
        output::print(&text)
    }

    fn checkpoint(&self, store: &CheckpointStore, name: &str, json: bool) -> Result<String> {
        let entries = store.entries(name).with_context(|| self.volume.name())?;
        let found = store.list().into_iter().find(|one| one.name == name);
        let found = found.context("it was just found")?;
        if json {
            let mut value = checkpoint_json(&found);
            value["entries"] = entries.iter().map(entry_json).collect();
            return Ok(output::json(&value));
        }
        let metadata = match metadata::to_json(&found.metadata) {
            Value::Null => String::new(),
            metadata => format!("metadata  {metadata}\n"),
        };
        let rows: Vec<_> = entries
            .iter()
            .map(|entry| {
                let name = output::printable(&entry.name);
                vec![name, human(entry.length), entry.length.to_string()]
            })
            .collect();
        Ok(format!(
            "step      {}\ncreated   {}\nsize      {} in {} entries\n{metadata}\n{}",
            found.step,
            utc(found.created_ms),
            human(found.bytes),
            found.entries,
            output::table(&["Entry", "Size", "Bytes"], &rows)
        ))
    }
}

fn entry_json(entry: &StoredEntry) -> Value {
    json!({ "name": entry.name, "bytes": entry.length, "crc32c": entry.checksums })
}

fn volume_text(volume: &VolumeSummary) -> String {
    let lease = match volume.lease {
        Some(lease) => format!("of host {} until {}", lease.host, utc(lease.expiry_ms)),
        None => "none".to_owned(),
    };
    let fallen_back = match volume.is_fallen_back {
        true => "A superblock or manifest is damaged: a newer commit may be lost.\n",
        false => "",
    };
    format!(
        "uuid        {}\ngeneration  {}\nunit        {}\ncapacity    {}\nfree        {}\nlease       {lease}\n{fallen_back}",
        volume.uuid,
        volume.generation,
        human(volume.unit_bytes),
        human(volume.capacity_bytes),
        human(volume.free_bytes),
    )
}
