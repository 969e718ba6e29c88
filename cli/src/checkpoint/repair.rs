//! `feedrail checkpoint repair`: makes replicas equal, and rewrites damaged units.

use anyhow::{Context as _, Result, bail};
use clap::Args;
use feedrail_checkpoint_store::{
    RepairReport, RepairScope, ReplicaState, ReplicatedStore, StoreError,
};
use serde_json::{Value, json};

use super::verify::unit_json;
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

/// Makes replicas that missed commits equal to the newest one, and rewrites damaged parts
///
/// The replicas must be all replicas of the volume, and so many must answer that the newest commit
/// is among them. Checkpoints that the newest one does not have are deleted from the others. Then
/// all bytes of all replicas are read, and parts that are damaged on one are rewritten with the
/// bytes of another. The exit status is 1 if none has them.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct RepairReplicas {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Only what replicas missed: do not read all bytes to find damaged parts
    #[arg(long)]
    missed_only: bool,
    /// Print which replicas missed commits, and write nothing; `verify` finds damaged parts
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
            let would = |(replica, _)| RepairReport { replica, ..RepairReport::default() };
            return self.print(&stale.map(would).collect::<Vec<_>>());
        }
        let interrupt = Interrupt::install()?;
        let (volume, local) = (&self.volume, &self.local);
        let mut store = volume.open_writer(OpenFor::Repair, local, self.lease, &interrupt)?;
        let scope = if self.missed_only { RepairScope::Missed } else { RepairScope::AllUnits };
        let total = match scope {
            RepairScope::Missed => None,
            RepairScope::AllUnits => Some(bytes_of_all(&store)?),
        };
        let mut transfer = TransferArgs::begin("copied or read", total);
        let repaired = store.repair(scope, &mut |bytes| {
            transfer.add(bytes);
            interrupt.control_flow()
        });
        let reports = match repaired {
            Err(StoreError::Stopped) => bail!(Interrupted),
            repaired => repaired.with_context(|| volume.name())?,
        };
        volume.note_others(&store);
        volume.close(store);
        let damaged: usize = reports.iter().map(|report| report.damaged.len()).sum();
        if damaged == 0 {
            transfer.end();
        } else {
            drop(transfer);
        }
        self.print(&reports)?;
        if damaged > 0 {
            let name = volume.name();
            bail!("{name}: {damaged} units are damaged, and no other replica has their bytes");
        }
        Ok(())
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
                        "rewritten": report.rewritten,
                        "damaged": report.damaged.iter().map(unit_json).collect::<Value>(),
                    })
                };
                output::json(&json!({
                    "repaired": reports.iter().map(report).collect::<Value>(),
                    "dry_run": self.dry_run,
                }))
            }
            Format::Normal => {
                let line = |report: &RepairReport| {
                    let url = self.volume.url(report.replica);
                    let (copied, deleted) = (report.copied.len(), report.deleted.len());
                    match (self.dry_run, report.damaged.len()) {
                        (true, _) => format!("{url} would be repaired\n"),
                        (false, 0) => format!(
                            "{url} is repaired: {copied} checkpoints copied, {deleted} deleted, {} \
                             units rewritten\n",
                            report.rewritten
                        ),
                        (false, damaged) => format!(
                            "{url}: {copied} checkpoints copied, {deleted} deleted, {} units \
                             rewritten, {damaged} still damaged\n",
                            report.rewritten
                        ),
                    }
                };
                match (reports, self.dry_run) {
                    ([], true) => "no replica missed a commit\n".to_owned(),
                    ([], false) => "nothing to repair\n".to_owned(),
                    (reports, _) => reports.iter().map(line).collect(),
                }
            }
        })
    }
}

/// Returns the bytes of the newest checkpoints on all replicas that answer.
fn bytes_of_all(store: &ReplicatedStore) -> Result<u64> {
    let states = store.replicas();
    let answering = states.iter().filter(|one| !matches!(one, ReplicaState::Away(_))).count();
    Ok(store.list()?.iter().map(|one| one.bytes).sum::<u64>() * answering as u64)
}
