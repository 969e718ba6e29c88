//! Verified I/O while either side is killed again and again: nothing acknowledged is lost, hosts
//! recover by themselves, and nothing grows. `cargo xtask soak` runs it for longer.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use feedrail_initiator::{Host, Namespace, ReadRange, WriteRange};
use feedrail_tests::process::{
    Bytes, Daemon, DaemonOptions, SetWhenDropped, Vitals, empty_slice, eventually, feedrail, host,
    pause, slice_of,
};
use rustix::rand::{GetRandomFlags, getrandom};
use rusty_fork::rusty_fork_test;
use tempfile::TempDir;

/// Kills of each side in one run; more on demand.
const KILLS: u64 = 3;
const KILLS_VARIABLE: &str = "FEEDRAIL_SOAK_KILLS";

/// Hosts that write, each in its own part of the disk.
const WRITERS: usize = 2;
/// A part is cut into slots, and every write stays in one.
const SLOTS: u64 = 32;
const SLOT_BYTES: u64 = 256 << 10;
const PART_BYTES: u64 = SLOTS * SLOT_BYTES;
/// Writes of one host that are in flight together.
const BATCH: u64 = 12;
/// Longer than any restart of the daemon takes.
const RESTART_TIMEOUT: Duration = Duration::from_secs(120);
/// The daemon is killed within this time after all hosts write.
const KILL_WITHIN_MS: u64 = 300;
/// Growth of a process that does not leak, in bytes: its allocator keeps some.
const SLACK_BYTES: u64 = 32 << 20;

fn kills() -> u64 {
    std::env::var(KILLS_VARIABLE).map_or(KILLS, |text| text.parse().expect("a number of kills"))
}

/// A new seed, for the message of a failed run.
pub(crate) fn seed() -> u64 {
    let mut bytes = [0; 8];
    let got = getrandom(&mut bytes, GetRandomFlags::empty());
    assert_eq!(got, Ok(bytes.len()), "the kernel has randomness");
    let seed = u64::from_ne_bytes(bytes);
    println!("seed {seed}");
    seed
}

/// The values that a slot may hold.
struct Slot {
    /// The bytes that were acknowledged last.
    settled: Vec<u8>,
    /// Writes since that were not: any byte may be theirs.
    doubtful: Vec<(usize, Vec<u8>)>,
}

impl Slot {
    fn may_hold(&self, at: usize, byte: u8) -> bool {
        let doubtful = |(from, bytes): &(usize, Vec<u8>)| {
            at.checked_sub(*from).and_then(|at| bytes.get(at)) == Some(&byte)
        };
        self.settled[at] == byte || self.doubtful.iter().any(doubtful)
    }

    #[track_caller]
    fn check(&mut self, bytes: &[u8]) {
        let wrong = (0..bytes.len()).find(|&at| !self.may_hold(at, bytes[at]));
        assert_eq!(wrong, None, "at this place of a slot is a byte of no acknowledged write");
        self.settled.copy_from_slice(bytes);
        self.doubtful.clear();
    }
}

/// A host that writes into its part of the disk, with the expected content.
struct Writer {
    host: Host,
    namespace: Namespace,
    start: u64,
    slots: Vec<Slot>,
    random: Bytes,
    failed: u64,
}

impl Writer {
    fn new(daemon: &Daemon, part: usize, image: &[u8], seed: u64) -> Self {
        let host = host().io_queues(2).loss_timeout(RESTART_TIMEOUT).io_timeout(RESTART_TIMEOUT);
        let host = host.build().unwrap();
        let start = part as u64 * PART_BYTES;
        let image = &image[start as usize..][..PART_BYTES as usize];
        let slots = image.chunks(SLOT_BYTES as usize);
        let slots = slots.map(|bytes| Slot { settled: bytes.to_vec(), doubtful: Vec::new() });
        let (namespace, slots) = (daemon.open(&host), slots.collect());
        Self { host, namespace, start, slots, random: Bytes::new(seed), failed: 0 }
    }

    /// Writes and reads until told to stop, and counts the bytes that were acknowledged.
    fn work(&mut self, stop: &AtomicBool, acknowledged: &AtomicU64) {
        while !stop.load(Ordering::Relaxed) {
            acknowledged.fetch_add(self.write_some(), Ordering::Relaxed);
            self.read_some();
        }
    }

    /// Different slots, at random.
    fn choose(&mut self) -> impl Iterator<Item = u64> + use<> {
        let first = self.random.below(SLOTS);
        // 5 is prime to the number of slots.
        (0..BATCH).map(move |index| (first + index * 5) % SLOTS)
    }

    /// Writes one range into each of some slots; returns how many bytes were acknowledged.
    fn write_some(&mut self) -> u64 {
        let mut ranges = Vec::new();
        for slot in self.choose() {
            let length = 1 + self.random.below(SLOT_BYTES);
            let from = self.random.below(SLOT_BYTES - length + 1);
            ranges.push((slot, from, self.random.take(length as usize)));
        }
        let batch = ranges.iter().map(|(slot, from, bytes)| WriteRange {
            namespace: self.namespace.clone(),
            offset: self.start + slot * SLOT_BYTES + from,
            from: slice_of(bytes),
        });
        let outcomes = self.host.write_many(batch).wait();
        let mut acknowledged = 0;
        for (outcome, (slot, from, bytes)) in outcomes.into_iter().zip(ranges) {
            let (slot, from) = (&mut self.slots[slot as usize], from as usize);
            if outcome.result.is_ok() {
                acknowledged += bytes.len() as u64;
                slot.settled[from..from + bytes.len()].copy_from_slice(&bytes);
            } else {
                self.failed += 1;
                slot.doubtful.push((from, bytes));
            }
        }
        acknowledged
    }

    /// Reads some slots and checks every byte.
    fn read_some(&mut self) {
        let chosen: Vec<u64> = self.choose().collect();
        let batch = chosen.iter().map(|slot| ReadRange {
            namespace: self.namespace.clone(),
            offset: self.start + slot * SLOT_BYTES,
            into: empty_slice(SLOT_BYTES as usize),
        });
        for (outcome, slot) in self.host.read_many(batch).wait().into_iter().zip(chosen) {
            // While the daemon is away for too long a read may fail; it must not lie.
            if outcome.result.is_ok() {
                self.slots[slot as usize].check(&outcome.slice.bytes());
            }
        }
    }

    /// Checks the whole part in the file behind the disk; no write may be in flight.
    #[track_caller]
    fn check_file(&mut self, image: &[u8]) {
        let part = &image[self.start as usize..];
        for (slot, bytes) in self.slots.iter_mut().zip(part.chunks(SLOT_BYTES as usize)) {
            slot.check(bytes);
        }
    }
}

struct Disk {
    _folder: TempDir,
    path: PathBuf,
}

impl Disk {
    fn new(seed: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        fs::write(&path, Bytes::new(seed).take(WRITERS * PART_BYTES as usize)).unwrap();
        Self { _folder: folder, path }
    }

    fn image(&self) -> Vec<u8> {
        fs::read(&self.path).unwrap()
    }

    fn options(&self) -> DaemonOptions {
        DaemonOptions::files([&self.path]).arg("--writable")
    }
}

/// All hosts write, the daemon is killed in the middle and started again, and all hosts come back
/// by themselves.
fn kill_in_the_middle(
    disk: &Disk,
    daemon: Daemon,
    writers: &mut [Writer],
    delay: Duration,
) -> (Daemon, u64) {
    let stop = AtomicBool::new(false);
    let acknowledged: Vec<AtomicU64> = writers.iter().map(|_| AtomicU64::new(0)).collect();
    let counts = || acknowledged.iter().map(|count| count.load(Ordering::Relaxed));
    thread::scope(|scope| {
        let _stopper = SetWhenDropped(&stop);
        for (writer, acknowledged) in writers.iter_mut().zip(&acknowledged) {
            scope.spawn(|| writer.work(&stop, acknowledged));
        }
        eventually("all hosts write", || counts().all(|bytes| bytes > 0));
        pause(delay);
        let address = daemon.address();
        daemon.kill();
        let daemon = disk.options().at(address).start();
        // A batch that the old daemon had acknowledged may be counted only now, so one is not
        // enough.
        let at_restart: Vec<u64> = counts().collect();
        let mut first: Option<Vec<u64>> = None;
        eventually("all hosts write again", || {
            let grown = |since: &[u64]| counts().zip(since).all(|(now, then)| now > *then);
            match &first {
                Some(first) => grown(first),
                None => {
                    first = grown(&at_restart).then(|| counts().collect());
                    false
                }
            }
        });
        (daemon, counts().sum())
    })
}

rusty_fork_test! {
    #[test]
    fn acknowledged_writes_survive_a_killed_daemon() {
        let (seed, kills) = (seed(), kills());
        let disk = Disk::new(seed);
        let mut random = Bytes::new(seed.rotate_left(32));
        let mut daemon = disk.options().start();
        let image = disk.image();
        let writer = |part| Writer::new(&daemon, part, &image, random.next_u64());
        let mut writers: Vec<Writer> = (0..WRITERS).map(writer).collect();
        let (mut settled, mut total) = (None, 0);
        for kill in 1..=kills {
            let delay = Duration::from_millis(random.below(KILL_WITHIN_MS));
            let acknowledged;
            (daemon, acknowledged) = kill_in_the_middle(&disk, daemon, &mut writers, delay);
            total += acknowledged;
            let image = disk.image();
            writers.iter_mut().for_each(|writer| writer.check_file(&image));
            let failed: u64 = writers.iter().map(|writer| writer.failed).sum();
            let vitals = Vitals::of(std::process::id());
            println!(
                "kill {kill} after {delay:?}: {acknowledged} bytes acknowledged and there; {failed} writes failed \
                 so far; hosts: {vitals:?}; daemon: {:?}",
                daemon.vitals()
            );
            // The first rounds fill caches.
            if kill == 2 {
                settled = Some(vitals);
            }
        }
        if let Some(settled) = settled {
            settled.wait_until_restored(SLACK_BYTES, || Vitals::of(std::process::id()));
        }
        println!("{kills} kills: {total} bytes were acknowledged, none was lost");
        let hosts: Vec<Host> = writers.into_iter().map(|writer| writer.host).collect();
        drop(hosts);
        eventually("all hosts are gone", || daemon.stats()["connections"] == 0);
        assert!(daemon.terminate().0.success());
    }
}

/// A process that reads and writes as fast as it can, and is killed in the middle.
fn victim(daemon: &Daemon, delay: Duration) {
    let reads = || daemon.stats()["io"]["reads"].as_u64().unwrap();
    let before = reads();
    let busy = ["--rw", "randread", "--bs", "16k", "--iodepth", "16", "--runtime", "100"];
    let perf = feedrail(["perf"]).args(daemon.options()).args(busy).start();
    eventually("it reads", || reads() > before);
    pause(delay);
    perf.kill();
}

#[test]
fn nothing_grows_when_hosts_are_killed() {
    let (seed, kills) = (seed(), kills());
    let disk = Disk::new(seed);
    let mut random = Bytes::new(seed);
    let daemon = disk.options().start();
    let mut settled = None;
    for kill in 1..=kills {
        victim(&daemon, Duration::from_millis(random.below(KILL_WITHIN_MS)));
        eventually("its connections are gone", || daemon.stats()["connections"] == 0);
        println!("kill {kill} of a host; daemon: {:?}", daemon.vitals());
        settled.get_or_insert_with(|| daemon.vitals());
    }
    let stats = daemon.stats();
    assert_eq!(stats["pool"]["used_bytes"], 0, "every buffer came back");
    settled.expect("there was a kill").wait_until_restored(SLACK_BYTES, || daemon.vitals());
}
