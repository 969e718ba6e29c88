//! Random rows of a file that are read in lists, from the page cache and from the medium.

use std::fs::{self, File};

use feedrail_initiator::{Entry, Grant, Host, RdmaProvider, Region, Shards, Submit};
use feedrail_tests::process::{Bytes, Daemon, DaemonOptions, host};
use feedrail_tests::world::Random;
use rustix::fs::Advice;
use tempfile::TempDir;

const SIZE_BYTES: usize = (16 << 20) + 1234;
const PROVIDERS: [RdmaProvider; 2] = [RdmaProvider::Shm, RdmaProvider::Soft];

/// A daemon with a file, and the bytes of it.
struct Served {
    bytes: Vec<u8>,
    file: File,
    daemon: Daemon,
    _folder: TempDir,
}

/// A host with its memory.
struct Reader {
    host: Host,
    shards: Shards,
    region: Region,
}

impl Served {
    fn new(arguments: &[&str]) -> Self {
        // Not in /tmp, which may be a file system in memory.
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (path, bytes) = (folder.path().join("shard.bin"), Bytes::new(9).take(SIZE_BYTES));
        fs::write(&path, &bytes).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        let options = DaemonOptions::files([path]);
        let options = arguments.iter().fold(options, |options, argument| options.arg(argument));
        Self { bytes, file, daemon: options.start(), _folder: folder }
    }

    fn reader(&self, provider: RdmaProvider) -> Reader {
        let host = host().provider(provider).build().unwrap();
        let shards = Shards::new([self.daemon.open(&host)]).unwrap();
        let region = Region::allocate(4 << 20, Grant::Persistent).unwrap();
        Reader { host, shards, region }
    }

    fn evict(&self) {
        rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed).unwrap();
    }

    /// Reads a batch of rows of random places and lengths, and compares the bytes.
    fn check(&self, reader: &Reader, random: &mut Random, rows: u64, longest: u64) {
        let mut dst = 0;
        let plan: Vec<Entry> = (0..rows)
            .map(|_| {
                let length = random.within(1..longest + 1);
                let offset = random.within(0..SIZE_BYTES as u64 - length + 1);
                let entry = Entry { shard: 0, length: length as u32, offset, dst };
                dst += length;
                entry
            })
            .collect();
        let Reader { host, shards, region } = reader;
        let ticket = host.submit(shards, &plan, region, Submit::default()).unwrap();
        ticket.wait(ticket.len(), None);
        assert_eq!(ticket.progress().failed, 0, "{:?}", ticket.error(0));
        let mut got = vec![0; longest as usize];
        for entry in &plan {
            let got = &mut got[..entry.length as usize];
            region.copy_out(entry.dst as usize, got).unwrap();
            let expected = &self.bytes[entry.offset as usize..][..got.len()];
            assert!(got == expected, "{entry:?}");
        }
    }
}

#[test]
fn rows_in_the_page_cache_come_in_lists() {
    let served = Served::new(&["--direct-io", "never"]);
    for provider in PROVIDERS {
        let (reader, mut random) = (served.reader(provider), Random::new(1));
        for longest in [40, 4000, 30_000, 200_000] {
            served.check(&reader, &mut random, 480.min(4_000_000 / longest), longest);
        }
        let counters = reader.host.counters();
        let all = 480 + 480 + 133 + 20;
        assert!(counters.listed_ranges > all / 2, "{provider:?}: {counters:?}");
        assert!(counters.commands < counters.listed_ranges / 2, "{provider:?}: {counters:?}");
    }
}

/// The whole file, half of it, or none is in the page cache.
#[test]
fn rows_of_the_medium_are_right() {
    let arguments = [["--direct-io", "never"], ["--direct-io", "auto"], ["--direct-io", "always"]];
    for (seed, arguments) in arguments.iter().enumerate() {
        let served = Served::new(arguments);
        for provider in PROVIDERS {
            let (reader, mut random) = (served.reader(provider), Random::new(seed as u64));
            for round in 0..12 {
                if round % 3 == 0 {
                    served.evict();
                }
                served.check(&reader, &mut random, 300, 4000);
            }
        }
    }
}

/// Hosts end while the target reads their lists.
#[test]
fn a_host_that_ends_takes_nothing_from_the_lists_of_another() {
    let served = Served::new(&["--direct-io", "never"]);
    let (reader, mut random) = (served.reader(RdmaProvider::Shm), Random::new(5));
    for _ in 0..10 {
        let gone = served.reader(RdmaProvider::Shm);
        let plan: Vec<Entry> = (0..480)
            .map(|row| Entry { shard: 0, length: 2050, offset: row * 30_001, dst: row * 2050 })
            .collect();
        let ticket =
            gone.host.submit(&gone.shards, &plan, &gone.region, Submit::default()).unwrap();
        drop((ticket, gone));
        served.check(&reader, &mut random, 300, 4000);
    }
}
