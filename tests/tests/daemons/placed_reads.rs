//! Reads over shared memory whose data passes no buffer of the target.

use std::fs::{self, File};

use feedrail_initiator::{Host, Namespace, RdmaProvider};
use feedrail_tests::process::{Bytes, Daemon, DaemonOptions, empty_slice, host};
use rustix::fs::Advice;
use tempfile::TempDir;

const SIZE_BYTES: usize = (16 << 20) + 1234;
const RANGE_BYTES: usize = 128 << 10;

/// A daemon with a file that is in the page cache, and a host that shares memory with it.
struct Served {
    bytes: Vec<u8>,
    file: File,
    daemon: Daemon,
    host: Host,
    _folder: TempDir,
}

impl Served {
    fn new(direct_io: &str) -> Self {
        // Not in /tmp, which may be a file system in memory.
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (path, bytes) = (folder.path().join("shard.bin"), Bytes::new(7).take(SIZE_BYTES));
        fs::write(&path, &bytes).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        let daemon = DaemonOptions::files([path]).arg("--direct-io").arg(direct_io).start();
        let host = host().provider(RdmaProvider::Shm).build().unwrap();
        Self { bytes, file, daemon, host, _folder: folder }
    }

    /// Reads ranges from `first` on, each at a place of its own, all at the same time.
    fn check(&self, namespace: &Namespace, first: usize, count: usize, length: usize) {
        let offset = |index: usize| (first + index * 230_077) % (SIZE_BYTES - length);
        let reads: Vec<_> = (0..count)
            .map(|index| namespace.read(offset(index) as u64, empty_slice(length)))
            .collect();
        for (index, read) in reads.into_iter().enumerate() {
            let outcome = read.wait();
            outcome.result.unwrap();
            let expected = &self.bytes[offset(index)..][..length];
            assert!(outcome.slice.to_vec() == expected, "{index} of {count} x {length}");
        }
    }

    fn of_stats(&self, group: &str, name: &str) -> u64 {
        self.daemon.stats()[group][name].as_u64().unwrap()
    }
}

#[test]
fn data_in_the_page_cache_passes_no_buffer() {
    let served = Served::new("never");
    let namespace = served.daemon.open(&served.host);
    // Fewer bytes than a turn reads from the page cache.
    served.check(&namespace, 1, 4, RANGE_BYTES);
    served.check(&namespace, 3, 128, 2050);
    let peak = served.of_stats("pool", "peak_bytes");
    assert!(peak < RANGE_BYTES as u64, "{peak} bytes of buffers were in use");
    assert!(served.of_stats("io", "cached_read_bytes") >= 4 * RANGE_BYTES as u64);
}

#[test]
fn more_reads_than_the_ring_has_room_for_are_right() {
    for mode in ["never", "auto", "always"] {
        let served = Served::new(mode);
        let namespace = served.daemon.open(&served.host);
        for (round, length) in
            [2050, RANGE_BYTES, 3 * RANGE_BYTES + 1, 70_000].into_iter().enumerate()
        {
            served.check(&namespace, round, 200, length);
        }
        served.check(&namespace, 5, 1, SIZE_BYTES - 1);
    }
}

#[test]
fn data_that_left_the_page_cache_comes_through_a_buffer() {
    let served = Served::new("never");
    let namespace = served.daemon.open(&served.host);
    served.check(&namespace, 1, 8, RANGE_BYTES);
    let buffered = |served: &Served| served.of_stats("io", "buffered_read_bytes");
    // The kernel may keep a page that it is using.
    let missed = (0..100).any(|round| {
        rustix::fs::fadvise(&served.file, 0, None, Advice::DontNeed).unwrap();
        served.check(&namespace, round, 100, RANGE_BYTES);
        buffered(&served) > 0
    });
    assert!(missed);
}

/// Two hosts read at the same time, and one is gone in the middle of it.
#[test]
fn a_host_that_ends_takes_nothing_from_another() {
    let served = Served::new("never");
    let namespace = served.daemon.open(&served.host);
    for round in 0..10 {
        let other = host().provider(RdmaProvider::Shm).build().unwrap();
        let gone = served.daemon.open(&other);
        let reads: Vec<_> = (0..64u64)
            .map(|index| gone.read(index * RANGE_BYTES as u64, empty_slice(RANGE_BYTES)))
            .collect();
        drop((other, gone));
        served.check(&namespace, round, 64, RANGE_BYTES);
        // Each read has ended, with or without its bytes.
        reads.into_iter().for_each(|read| drop(read.wait()));
    }
}
