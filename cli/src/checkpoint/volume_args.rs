//! The namespaces of a volume on the command line, and the lease of a writer.

use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use feedrail_checkpoint_store::{
    ReplicaPlace, ReplicaState, ReplicatedStore, StoreError, StoreOptions, VolumeNamespace,
};
use feedrail_dataset::url::{self, SourceUrl};

use crate::clock::{now, sleep};
use crate::interrupt::Interrupt;
use crate::options::Local;
use crate::{output, session};

/// Longest sleep before Ctrl-C is checked.
const LOOK_UP_AFTER: Duration = Duration::from_millis(100);

/// Namespace of a volume, and those of its replicas.
#[derive(Args, Clone, Debug)]
pub(super) struct VolumeArgs {
    /// Namespace of the volume: `nvmf://host[:port]/<nqn>[/<name or nsid:N>]`; name or number can
    /// be left out if the subsystem has one namespace
    #[arg(value_name = "URL", value_parser = parse_url)]
    url: SourceUrl,
    /// Namespace of another replica of the volume; can be repeated
    #[arg(long = "replica", value_name = "URL", value_parser = parse_url)]
    replicas: Vec<SourceUrl>,
    /// Number of replicas that must have a commit [default: more than half]
    #[arg(long, value_name = "K", requires = "replicas")]
    write_quorum: Option<usize>,
}

/// Lease of a command that writes.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct LeaseArgs {
    /// Length of the lease in seconds, which keeps other writers away and is renewed. If this
    /// process is killed, the next writer can begin after that time and 30 s
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    lease: u64,
    /// Wait so many seconds for the end of another writer's lease
    #[arg(long, value_name = "S", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    wait: u64,
}

/// Purpose for which a store is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenFor {
    Writing,
    Repair,
}

fn parse_url(text: &str) -> Result<SourceUrl, String> {
    text.parse().map_err(|error: url::Error| error.to_string())
}

impl VolumeArgs {
    /// Connects to the namespaces. One that cannot be reached is no error beside replicas that can.
    pub(super) fn connect(&self, local: &Local) -> Result<Vec<ReplicaPlace>> {
        let host = session::host(local)?;
        Ok(self.urls().map(|url| VolumeNamespace::connect(&host, url)).collect())
    }

    fn urls(&self) -> impl Iterator<Item = &SourceUrl> {
        std::iter::once(&self.url).chain(&self.replicas)
    }

    fn quorum(&self) -> usize {
        self.write_quorum.unwrap_or(self.urls().count() / 2 + 1)
    }

    /// Opens the volume for reading.
    pub(super) fn open(&self, local: &Local) -> Result<ReplicatedStore> {
        let places = self.connect(local)?;
        let store = ReplicatedStore::open(places, self.quorum(), StoreOptions::default());
        let store = store.with_context(|| self.name())?;
        self.note_others(&store);
        Ok(store)
    }

    pub(super) fn open_writer(
        &self,
        open_for: OpenFor,
        local: &Local,
        lease: LeaseArgs,
        interrupt: &Interrupt,
    ) -> Result<ReplicatedStore> {
        let places = self.connect(local)?;
        let options =
            StoreOptions { lease: Duration::from_secs(lease.lease), ..StoreOptions::default() };
        let open = match open_for {
            OpenFor::Writing => ReplicatedStore::open_writer,
            OpenFor::Repair => ReplicatedStore::open_repair,
        };
        let limit = Duration::from_secs(lease.wait);
        let began = now();
        loop {
            match open(places.clone(), self.quorum(), options) {
                Err(StoreError::Leased { rest, .. }) if began.elapsed() < limit => {
                    interrupt.check()?;
                    sleep(rest.min(LOOK_UP_AFTER).max(Duration::from_millis(1)));
                }
                opened => return opened.with_context(|| self.name()),
            }
        }
    }

    /// Prints which replicas do not have the newest checkpoints.
    pub(super) fn note_others(&self, store: &ReplicatedStore) {
        if self.replicas.is_empty() {
            return;
        }
        for (url, state) in self.urls().zip(store.replicas()) {
            match state {
                ReplicaState::Stale => output::note(format_args!(
                    "feedrail: {url} has other checkpoints; `feedrail checkpoint repair` makes it equal"
                )),
                ReplicaState::Away(error) => {
                    output::note(format_args!("feedrail: without {url}: {error}"));
                }
                _ => {}
            }
        }
    }

    /// Gives the lease back. The change is made by then, so that a failure only delays the next
    /// writer.
    pub(super) fn close(&self, store: ReplicatedStore) {
        if let Err(error) = store.close() {
            let name = self.name();
            output::note(format_args!("feedrail: {name}: the lease ends by its time: {error}"));
        }
    }

    pub(super) fn url(&self, replica: usize) -> String {
        self.urls().nth(replica).unwrap_or(&self.url).to_string()
    }

    /// Name of the volume in messages.
    pub(super) fn name(&self) -> String {
        self.url.to_string()
    }
}
