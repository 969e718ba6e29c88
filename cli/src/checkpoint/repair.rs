//! `feedrail checkpoint repair`: makes replicas equal to the newest one.

use anyhow::{Context as _, Result, bail};
use clap::Args;
use feedrail_checkpoint_store::{RepairReport, ReplicaState, StoreError};
use serde_json::{Value, json};

use super::volume_args::{LeaseArgs, OpenFor, VolumeArgs};
use crate::interrupt::{Interrupt, Interrupted};
use crate::options::{Format, Local, Output};
use crate::output;
use crate::transfer::TransferArgs;

const EXAMPLES: &str = "\
Examples:
  feedrail checkpoint repair nvmf://192.0.2.10/nqn.2026-01.org.example:ckpt \\
      --replica nvmf://192.0.2.11/nqn.2026-01.org.example:ckpt \\
      --replica nvmf://192.0.2.12/nqn.2026-01.org.example:ckpt";

/// Makes replicas that missed commits equal to the newest one
///
/// The replicas must be all replicas of the volume, and so many must answer that the newest commit
/// is among them. Checkpoints that the newest one does not have are deleted from the others.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct RepairReplicas {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Print which replicas would be repaired, and write nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    lease: LeaseArgs,
    #[command(flatten)]
    local: Local,
    #[command(flatten)]
    output: Output,
}

impl RepairReplicas {
    pub(super) fn run(&self) -> Result<()> {
        if self.dry_run {
            let store = self.volume.open(&self.local)?;
            let states = store.replicas();
            let stale = (0..).zip(&states).filter(|(_, one)| matches!(one, ReplicaState::Stale));
            let would = |(replica, _)| RepairReport {
                replica,
                copied: Vec::new(),
                deleted: Vec::new(),
                bytes: 0,
            };
            return self.print(&stale.map(would).collect::<Vec<_>>());
        }
        let interrupt = Interrupt::install()?;
        let (volume, local) = (&self.volume, &self.local);
        let mut store = volume.open_writer(OpenFor::Repair, local, self.lease, &interrupt)?;
        let mut transfer = TransferArgs::begin("copied", None);
        let repaired = store.repair(&mut |bytes| {
            transfer.add(bytes);
            interrupt.control_flow()
        });
        let reports = match repaired {
            Err(StoreError::Stopped) => bail!(Interrupted),
            repaired => repaired.with_context(|| volume.name())?,
        };
        volume.close(store);
        transfer.end();
        self.print(&reports)
    }

    fn print(&self, reports: &[RepairReport]) -> Result<()> {
        output::print(&match self.output.output_format {
            Format::Json => {
                let report = |report: &RepairReport| {
                    json!({
                        "url": self.volume.url(report.replica),
                        "copied": report.copied,
                        "deleted": report.deleted,
                        "bytes": report.bytes,
                    })
                };
                output::json(&json!({
                    "repaired": reports.iter().map(report).collect::<Value>(),
                    "dry_run": self.dry_run,
                }))
            }
            Format::Normal => {
                let verb = if self.dry_run { "would be repaired" } else { "is repaired" };
                let line = |report: &RepairReport| {
                    let url = self.volume.url(report.replica);
                    let (copied, deleted) = (report.copied.len(), report.deleted.len());
                    match self.dry_run {
                        true => format!("{url} {verb}\n"),
                        false => format!("{url} {verb}: {copied} copied, {deleted} deleted\n"),
                    }
                };
                reports.iter().map(line).collect()
            }
        })
    }
}
