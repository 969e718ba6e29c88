//! Saves checkpoints whose entries are written by processes of their own, like the ranks of a
//! training job: a program that tests kill.
#![forbid(unsafe_code)]

use std::env;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::{Parser, Subcommand};
use feedrail_checkpoint_store::{
    EntryReservation, RankWriter, ReplicatedStore, StoreError, StoreOptions, VolumeNamespace,
    WrittenEntry,
};
use feedrail_initiator::RdmaProvider;
use feedrail_tests::checkpoint_content::CheckpointContent;
use feedrail_tests::process::{Program, Running, host, pause};

/// Bytes of one call of a rank; no unit is a multiple of it.
const PIECE_BYTES: usize = 100_003;
/// How often the coordinator looks after its ranks and its lease.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Saves one checkpoint from several processes, or writes an entry of it.
#[derive(Parser)]
struct Args {
    /// URL of the volume's namespace
    url: String,
    /// RDMA provider by name, such as `shm`
    provider: String,
    /// Seed of the content
    seed: u64,
    /// Length of the lease in seconds
    lease: u64,
    #[command(subcommand)]
    part: Part,
}

#[derive(Subcommand)]
enum Part {
    /// Takes the lease, starts the ranks, and commits
    Save { name: String, keep: usize },
    /// Writes the entry of this index; its reservation is read from the standard input
    Rank { index: usize },
}

fn main() -> ExitCode {
    let args = Args::parse();
    let ended = match &args.part {
        Part::Save { name, keep } => args.save(name, *keep),
        Part::Rank { index } => args.write_entry(*index),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

impl Args {
    fn connect(&self) -> Result<VolumeNamespace> {
        let provider = match self.provider.as_str() {
            "soft" => RdmaProvider::Soft,
            "shm" => RdmaProvider::Shm,
            other => bail!("no provider is called {other}"),
        };
        let host = host().provider(provider).build()?;
        Ok(VolumeNamespace::connect(&host, &self.url.parse()?)?)
    }

    fn options(&self) -> StoreOptions {
        StoreOptions { lease: Duration::from_secs(self.lease), ..StoreOptions::default() }
    }

    /// Opens the volume when the lease of an earlier writer has ended.
    fn open_writer(&self) -> Result<ReplicatedStore> {
        let place = self.connect()?;
        loop {
            match ReplicatedStore::open_writer(vec![Ok(place.clone())], 1, self.options()) {
                Err(StoreError::Leased { rest, .. }) => pause(rest.min(10 * LOOK_EVERY)),
                opened => return Ok(opened?),
            }
        }
    }

    fn save(&self, name: &str, keep: usize) -> Result<()> {
        let mut store = self.open_writer()?;
        let mut saves = store.begin_saves(name, 0, &[])?;
        saves.keep(keep);
        let mut ranks = Vec::new();
        for (index, (entry, bytes)) in CheckpointContent::of(self.seed).entries.iter().enumerate() {
            let entry = saves.add(&mut store, entry, bytes.len() as u64)?;
            let reservations = saves.reserve(&store, entry)?;
            ranks.push((entry, self.start_rank(index, &reservations)?));
        }
        let mut failed = None;
        for (entry, mut rank) in ranks {
            while !rank.has_ended() {
                store.renew_if_due()?;
                pause(LOOK_EVERY);
            }
            let outcome = rank.wait();
            let code = outcome.status.and_then(|status| status.code());
            if code == Some(0) {
                let written: WrittenEntry = serde_json::from_slice(&outcome.stdout)?;
                saves.accept(&mut store, entry, &written)?;
            } else {
                if code.is_some() {
                    saves.withdraw(entry);
                }
                failed.get_or_insert(outcome.stderr);
            }
        }
        if let Some(error) = failed {
            bail!("a rank failed: {}", error.trim());
        }
        saves.commit(&mut store)?;
        if let Err(error) = store.close() {
            eprintln!("the lease ends by its time: {error}");
        }
        Ok(())
    }

    fn start_rank(
        &self,
        index: usize,
        reservations: &[Option<EntryReservation>],
    ) -> Result<Running> {
        let numbers = [self.seed.to_string(), self.lease.to_string(), "rank".to_owned()];
        let rank = Program::new(env::current_exe()?).args([&self.url, &self.provider]);
        let rank = rank.args(numbers).args([index.to_string()]);
        Ok(rank.input(serde_json::to_vec(reservations)?).start())
    }

    fn write_entry(&self, index: usize) -> Result<()> {
        let reservations: Vec<Option<EntryReservation>> = serde_json::from_reader(io::stdin())?;
        let places = vec![Ok(self.connect()?)];
        let mut writer = RankWriter::open(places, reservations, 1, self.options())?;
        let content = CheckpointContent::of(self.seed);
        let (_, bytes) = content.entries.get(index).context("the content has fewer entries")?;
        for piece in bytes.chunks(PIECE_BYTES) {
            writer.append(piece)?;
        }
        Ok(io::stdout().write_all(&serde_json::to_vec(&writer.finish()?)?)?)
    }
}
