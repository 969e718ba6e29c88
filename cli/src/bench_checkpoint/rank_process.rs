//! A rank: this program again, with a hidden first argument.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead as _, Read as _, Write as _};
use std::ops::ControlFlow;
use std::os::unix::process::parent_id;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Parser as _;
use feedrail_checkpoint_store::{
    EntryReservation, RankWriter, ReplicaPlace, ReplicatedStore, StoreOptions, VolumeNamespace,
};
use feedrail_dataset::url::SourceUrl;
use feedrail_initiator::Host;
use rustix::process::Signal;

use super::messages::{RankAnswer, RankDirection, RankJob, RankSetup};
use super::seeded_bytes::SeededBytes;
use crate::args::{Cli, CliCommand};
use crate::clock::now;
use crate::options::Local;
use crate::{output, session};

/// First argument that makes this program a rank; hidden from help and completions.
pub(super) const RANK_PROCESS: &str = "checkpoint-rank";
/// Value of bytes that no load has written.
const UNREAD: u8 = 0xA5;

/// Command line of a rank to run in this process.
#[derive(Debug)]
pub(crate) struct RankProcess {
    /// Process id of the parent. The rank is killed when the parent ends.
    parent: u32,
    /// Command line of the parent, whose connection options are the rank's.
    arguments: Vec<OsString>,
}

impl RankProcess {
    /// Parses the command line of a rank; `None` for any other command.
    pub(crate) fn of_command_line(mut words: impl Iterator<Item = OsString>) -> Option<Self> {
        words.nth(1).filter(|word| word == RANK_PROCESS)?;
        let parent = words.next()?.to_str()?.parse().ok()?;
        Some(Self { parent, arguments: words.collect() })
    }

    pub(crate) fn run(self) -> ExitCode {
        let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
        // If the parent has exited before the call above, no signal is sent.
        if parent_id() != self.parent {
            return ExitCode::FAILURE;
        }
        let program = [OsString::from("feedrail")].into_iter();
        match Cli::parse_from(program.chain(self.arguments)).command {
            CliCommand::BenchCheckpoint(bench) => match serve(&bench.connection) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    output::note(format_args!("{error:#}"));
                    ExitCode::FAILURE
                }
            },
            _ => ExitCode::FAILURE,
        }
    }
}

/// A rank with its memory and its connections.
struct RankState {
    setup: RankSetup,
    host: Host,
    places: Vec<ReplicaPlace>,
    memory: Vec<u8>,
}

/// Executes jobs until stdin is closed.
fn serve(local: &Local) -> Result<()> {
    let mut lines = io::stdin().lock().lines();
    let setup = lines.next().context("no setup")??;
    let mut rank = RankState::new(serde_json::from_str(&setup)?, local)?;
    for line in lines {
        let job = serde_json::from_str(&line?)?;
        answer(&rank.execute(job).unwrap_or_else(|error| failed(&error)))?;
    }
    Ok(())
}

fn failed(error: &anyhow::Error) -> RankAnswer {
    RankAnswer::Failed { error: format!("{error:#}") }
}

fn answer(answer: &RankAnswer) -> Result<()> {
    let mut line = serde_json::to_string(answer)?;
    line.push('\n');
    let mut stdout = io::stdout().lock();
    stdout.write_all(line.as_bytes())?;
    Ok(stdout.flush()?)
}

impl RankState {
    /// Fills the memory, connects, and answers that the rank is ready.
    fn new(setup: RankSetup, local: &Local) -> Result<Self> {
        // No page of it is allocated later, while time is measured.
        let mut memory = vec![UNREAD; usize::try_from(setup.bytes)?];
        if setup.direction == RankDirection::Save {
            SeededBytes::of_seed(setup.seed).fill(&mut memory);
        }
        let host = session::host(local)?;
        let began = now();
        let connect = |url: &String| {
            let url: SourceUrl = url.parse()?;
            Ok(VolumeNamespace::connect(&host, &url))
        };
        let places = setup.urls.iter().map(connect).collect::<Result<Vec<_>>>()?;
        answer(&RankAnswer::Ready { connect_seconds: began.elapsed().as_secs_f64() })?;
        Ok(Self { setup, host, places, memory })
    }

    fn execute(&mut self, job: RankJob) -> Result<RankAnswer> {
        match job {
            RankJob::SaveEntry { reservations } => self.save_entry(reservations),
            RankJob::LoadEntry { checkpoint, entry } => self.load_entry(&checkpoint, &entry),
            RankJob::SaveFile { folder } => self.save_file(&folder),
            RankJob::LoadFile { folder } => self.load_file(&folder),
            RankJob::Compare => Ok(self.compare()),
        }
    }

    fn save_entry(&self, reservations: Vec<Option<EntryReservation>>) -> Result<RankAnswer> {
        let began = now();
        let (places, options) = (self.places.clone(), self.options());
        let mut writer = RankWriter::open(places, reservations, self.setup.quorum, options)?;
        writer.append(&self.memory)?;
        let written = writer.finish()?;
        Ok(RankAnswer::Done {
            seconds: began.elapsed().as_secs_f64(),
            written: Some(written),
            received_bytes: 0,
        })
    }

    fn load_entry(&mut self, checkpoint: &str, entry: &str) -> Result<RankAnswer> {
        let before = self.received_bytes();
        let began = now();
        let (places, options) = (self.places.clone(), self.options());
        let store = ReplicatedStore::open(places, self.setup.quorum, options)?;
        let memory = &mut self.memory;
        store.read_with(checkpoint, entry, 0..memory.len() as u64, &mut |at, bytes| {
            let at = at as usize;
            memory[at..at + bytes.len()].copy_from_slice(bytes);
            ControlFlow::Continue(())
        })?;
        Ok(RankAnswer::Done {
            seconds: began.elapsed().as_secs_f64(),
            written: None,
            received_bytes: self.received_bytes() - before,
        })
    }

    /// Writes a file under another name, makes it durable, and gives it its name.
    fn save_file(&self, folder: &Path) -> Result<RankAnswer> {
        let began = now();
        let path = self.file(folder);
        let about = || format!("cannot write {}", path.display());
        let partial = path.with_extension("partial");
        let write = || -> io::Result<()> {
            let mut file = File::create(&partial)?;
            file.write_all(&self.memory)?;
            file.sync_all()?;
            fs::rename(&partial, &path)?;
            File::open(folder)?.sync_all()
        };
        write().with_context(about)?;
        Ok(RankAnswer::Done {
            seconds: began.elapsed().as_secs_f64(),
            written: None,
            received_bytes: 0,
        })
    }

    fn load_file(&mut self, folder: &Path) -> Result<RankAnswer> {
        let began = now();
        let path = self.file(folder);
        let about = || format!("cannot read {}", path.display());
        let mut file = File::open(&path).with_context(about)?;
        file.read_exact(&mut self.memory).with_context(about)?;
        if file.read(&mut [0]).with_context(about)? > 0 {
            bail!("{} is longer than what was saved", path.display());
        }
        Ok(RankAnswer::Done {
            seconds: began.elapsed().as_secs_f64(),
            written: None,
            received_bytes: 0,
        })
    }

    fn file(&self, folder: &Path) -> std::path::PathBuf {
        folder.join(format!("rank{}.bin", self.setup.rank))
    }

    /// Compares the memory, and overwrites it, so that the next load cannot find the bytes of this
    /// one.
    fn compare(&mut self) -> RankAnswer {
        let wrong_byte = SeededBytes::of_seed(self.setup.seed).first_difference(&self.memory);
        self.memory.fill(UNREAD);
        RankAnswer::Compared { wrong_byte }
    }

    fn options(&self) -> StoreOptions {
        StoreOptions { staging_bytes: self.setup.staging_bytes, ..StoreOptions::default() }
    }

    fn received_bytes(&self) -> u64 {
        let counters = self.host.counters();
        counters.direct_bytes + counters.bounced_bytes
    }
}
