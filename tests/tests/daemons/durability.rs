//! Acknowledged writes are there after the daemon was killed.

use std::fs;

use feedrail_initiator::{Host, Namespace, WriteRange};
use feedrail_tests::process::{Bytes, Daemon, DaemonOptions, eventually, feedrail, host, slice_of};
use tempfile::TempDir;

const SIZE_BYTES: u64 = 96 << 20;
/// How much is written in all.
const WRITTEN_BYTES: u64 = 64 << 20;
const LONGEST_BYTES: u64 = 300_000;

struct Disk {
    folder: TempDir,
    model: Vec<u8>,
}

impl Disk {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let model = Bytes::new(20).take(SIZE_BYTES as usize);
        fs::write(folder.path().join("disk.img"), &model).unwrap();
        Self { folder, model }
    }

    fn serve(&self) -> Daemon {
        DaemonOptions::files([self.folder.path().join("disk.img")]).arg("--writable").start()
    }

    /// Writes a batch of random ranges that do not overlap, and enters the acknowledged ones into
    /// the model.
    fn write_some(&mut self, host: &Host, namespace: &Namespace, random: &mut Bytes) -> u64 {
        let mut ranges = Vec::new();
        let slots = SIZE_BYTES / LONGEST_BYTES;
        let first = random.below(slots);
        for slot in 0..16 {
            let start = (first + slot * 17) % slots * LONGEST_BYTES;
            let length = 1 + random.below(LONGEST_BYTES);
            let offset = start + random.below(LONGEST_BYTES - length + 1);
            ranges.push((offset as usize, random.take(length as usize)));
        }
        let batch = ranges.iter().map(|(offset, bytes)| WriteRange {
            namespace: namespace.clone(),
            offset: *offset as u64,
            from: slice_of(bytes),
        });
        let mut acknowledged = 0;
        for (outcome, (offset, bytes)) in host.write_many(batch).wait().into_iter().zip(&ranges) {
            outcome.result.expect("a healthy target takes every write");
            self.model[*offset..*offset + bytes.len()].copy_from_slice(bytes);
            acknowledged += bytes.len() as u64;
        }
        acknowledged
    }
}

#[test]
fn flushed_writes_survive_a_kill() {
    let mut disk = Disk::new();
    let daemon = disk.serve();
    let host = host().io_queues(2).build().unwrap();
    let namespace = daemon.open(&host);
    let mut random = Bytes::new(21);
    let mut written = 0;
    while written < WRITTEN_BYTES {
        written += disk.write_some(&host, &namespace, &mut random);
    }
    namespace.flush().wait().expect("the medium takes it");
    daemon.kill();
    drop((namespace, host));

    let daemon = disk.serve();
    let read = feedrail(["read"]).args(daemon.options()).run().success();
    assert!(read == disk.model, "acknowledged data is missing after the restart");
}

#[test]
fn a_kill_while_writing_loses_nothing_acknowledged() {
    let mut disk = Disk::new();
    let daemon = disk.serve();
    let host = host().io_timeout(std::time::Duration::from_secs(3)).build().unwrap();
    let namespace = daemon.open(&host);
    let mut random = Bytes::new(22);
    disk.write_some(&host, &namespace, &mut random);

    // Then ranges, each in an area of its own. Some are in flight when the daemon dies.
    let areas: Vec<(u64, Vec<u8>)> =
        (0..200).map(|area| (area * LONGEST_BYTES, random.take(LONGEST_BYTES as usize))).collect();
    let batch: Vec<WriteRange> = areas
        .iter()
        .map(|(offset, bytes)| WriteRange {
            namespace: namespace.clone(),
            offset: *offset,
            from: slice_of(bytes),
        })
        .collect();
    let writes = || daemon.stats()["io"]["writes"].as_u64().unwrap();
    let before = writes();
    let pending = host.write_many(batch);
    let waiting = std::thread::spawn(move || pending.wait());
    eventually("some were written", || writes() > before + 40);
    daemon.kill();
    let outcomes = waiting.join().unwrap();
    drop((namespace, host));

    let daemon = disk.serve();
    let read = feedrail(["read"]).args(daemon.options()).run().success();
    let mut acknowledged = 0;
    for (outcome, (offset, bytes)) in outcomes.iter().zip(&areas) {
        let area = *offset as usize..*offset as usize + bytes.len();
        if outcome.result.is_ok() {
            acknowledged += 1;
            assert!(read[area] == **bytes, "an acknowledged write at {offset} is gone");
        } else {
            // Not acknowledged: each block is the old one or the new one.
            let old = &disk.model[area.clone()];
            let torn = read[area]
                .iter()
                .zip(old)
                .zip(bytes)
                .any(|((now, old), new)| now != old && now != new);
            assert!(!torn, "the range at {offset} holds bytes of no write");
        }
    }
    println!("{acknowledged} of {} were acknowledged", areas.len());
}
