//! `feedrail checkpoint verify`: reads checkpoints and compares their checksums.

use anyhow::{Context as _, Result, bail};
use clap::Args;
use feedrail_checkpoint_store::{DamagedUnit, StoreError, VerifyReport};
use serde_json::{Value, json};

use super::volume_args::VolumeArgs;
use crate::interrupt::{Interrupt, Interrupted};
use crate::options::{Format, Local, Output};
use crate::output;
use crate::transfer::TransferArgs;

const EXAMPLES: &str = "\
Examples:
  feedrail checkpoint verify nvmf://192.0.2.10/nqn.2026-01.org.example:ckpt
  feedrail checkpoint verify nvmf://192.0.2.10/nqn.2026-01.org.example:ckpt step-1200 -o json";

/// Reads all bytes of a checkpoint, or of all, and prints the parts that are damaged
///
/// Damaged are bytes whose checksum differs, or that the target cannot read. The exit status is
/// then 1.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct VerifyCheckpoint {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Name of the checkpoint [default: all checkpoints]
    #[arg(value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    local: Local,
    #[command(flatten)]
    output: Output,
}

impl VerifyCheckpoint {
    pub(super) fn run(&self) -> Result<()> {
        let store = self.volume.open(&self.local)?;
        let wanted = |name: &str| self.name.as_deref().is_none_or(|one| one == name);
        let listed = store.list()?;
        let bytes = listed.iter().filter(|one| wanted(&one.name)).map(|one| one.bytes).sum::<u64>();
        let replicas = store.current();
        let total = bytes * replicas.len() as u64;
        let interrupt = Interrupt::install()?;
        let mut transfer = TransferArgs::begin("verified", Some(total));
        let mut reports = Vec::new();
        for (index, replica) in replicas {
            let report = replica.verify(self.name.as_deref(), &mut |bytes| {
                transfer.add(bytes);
                interrupt.control_flow()
            });
            match report {
                Err(StoreError::Stopped) => bail!(Interrupted),
                report => {
                    let url = self.volume.url(index);
                    reports.push((report.with_context(|| url.clone())?, url));
                }
            }
        }
        output::print(&match self.output.output_format {
            Format::Json => output::json(&to_json(&reports)),
            Format::Normal => to_text(&reports),
        })?;
        let damaged: usize = reports.iter().map(|(report, _)| report.damaged.len()).sum();
        for (report, url) in &reports {
            if report.damaged_manifest_copies.contains(&true) {
                output::note(format_args!(
                    "feedrail: {url}: a copy of the manifest is damaged; the next change writes it \
                     again"
                ));
            }
        }
        if damaged > 0 {
            drop(transfer);
            bail!("{}: {damaged} units are damaged", self.volume.name());
        }
        transfer.end();
        Ok(())
    }
}

/// Results of replicas, with their URLs.
type VolumeReports = [(VerifyReport, String)];

fn to_json(reports: &VolumeReports) -> Value {
    let unit = |(unit, url): (&DamagedUnit, &String)| {
        let mut value = unit_json(unit);
        value["url"] = json!(url);
        value
    };
    json!({
        "replicas": reports.len(),
        "damaged_manifest_copies":
            reports.iter().map(|(report, _)| report.damaged_manifest_copies).collect::<Vec<_>>(),
        "entries": reports.iter().map(|(report, _)| report.entries).sum::<usize>(),
        "bytes": reports.iter().map(|(report, _)| report.bytes).sum::<u64>(),
        "damaged": damaged(reports).map(unit).collect::<Value>(),
    })
}

/// Facts about a damaged unit, without the URL of its replica.
pub(super) fn unit_json(unit: &DamagedUnit) -> Value {
    json!({
        "checkpoint": unit.checkpoint,
        "entry": unit.entry,
        "offset": unit.offset,
        "length": unit.length,
        "namespace_offset": unit.namespace_offset,
        "error": unit.cause.as_ref().map(ToString::to_string),
    })
}

fn to_text(reports: &VolumeReports) -> String {
    let row = |(unit, url): (&DamagedUnit, &String)| {
        vec![
            output::printable(&unit.checkpoint),
            output::printable(&unit.entry),
            unit.offset.to_string(),
            unit.length.to_string(),
            unit.namespace_offset.to_string(),
            unit.cause.as_ref().map_or("its checksum differs".to_owned(), ToString::to_string),
            url.clone(),
        ]
    };
    let rows: Vec<_> = damaged(reports).map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let heading = ["Checkpoint", "Entry", "Offset", "Bytes", "In namespace", "Damage", "Volume"];
    output::table(&heading, &rows)
}

fn damaged(reports: &VolumeReports) -> impl Iterator<Item = (&DamagedUnit, &String)> {
    reports.iter().flat_map(|(report, url)| report.damaged.iter().map(move |unit| (unit, url)))
}
