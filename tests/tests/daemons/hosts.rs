//! Many hosts come and go, and the daemon's resources stay the same.

use std::fs;
use std::thread;

use feedrail_initiator::{RdmaProvider, ReadRange};
use feedrail_tests::process::{Bytes, Daemon, DaemonOptions, empty_slice, eventually, host};
use nvme_proto::Nsid;

const IO_QUEUES: u16 = 4;
const SIZE_BYTES: usize = 1 << 20;
/// Hosts that one thread of the test connects, one after the other, and holds.
const PER_THREAD: usize = 16;
const READS: u64 = 16;

struct Scene {
    daemon: Daemon,
    content: Vec<u8>,
    _folder: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        Self::with(DaemonOptions::default())
    }

    fn with(options: DaemonOptions) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shard.bin");
        let content = Bytes::new(6).take(SIZE_BYTES);
        fs::write(&path, &content).unwrap();
        Self { daemon: options.arg(path).start(), content, _folder: folder }
    }

    /// `hosts` hosts connect, read, and leave.
    fn round(&self, hosts: usize) {
        thread::scope(|scope| {
            for first in (0..hosts).step_by(PER_THREAD) {
                let count = PER_THREAD.min(hosts - first);
                scope.spawn(move || self.visit(first, count));
            }
        });
        eventually("all hosts are gone", || self.daemon.stats()["connections"] == 0);
    }

    fn visit(&self, first: usize, count: usize) {
        let mut connected = Vec::with_capacity(count);
        for number in 0..count {
            let host = host().provider(RdmaProvider::Soft).io_queues(IO_QUEUES).build().unwrap();
            let controller = self.daemon.connect(&host);
            assert_eq!(controller.limits().unwrap().io_queues, IO_QUEUES);
            let namespace = controller.namespace(Nsid(1)).wait().unwrap();
            connected.push((number, host, namespace));
        }
        for (number, host, namespace) in &connected {
            let mut random = Bytes::new((first + number) as u64);
            let offsets: Vec<u64> =
                (0..READS).map(|_| random.below(SIZE_BYTES as u64 - 10_000)).collect();
            let ranges = offsets.iter().map(|offset| ReadRange {
                namespace: namespace.clone(),
                offset: *offset,
                into: empty_slice(10_000),
            });
            for (outcome, offset) in host.read_many(ranges).wait().into_iter().zip(&offsets) {
                outcome.result.unwrap();
                let offset = *offset as usize;
                assert!(*outcome.slice.bytes() == self.content[offset..offset + 10_000]);
            }
        }
    }

    /// Runs the rounds; what the daemon holds after the last is what it held after the second.
    fn rounds(&self, rounds: usize, hosts: usize) {
        let mut second = self.daemon.vitals();
        for round in 1..=rounds {
            self.round(hosts);
            let vitals = self.daemon.vitals();
            println!("after round {round}: {vitals:?}");
            if round == 2 {
                second = vitals;
            }
        }
        second.wait_until_restored(1 << 20, || self.daemon.vitals());
    }
}

#[test]
fn hosts_leave_nothing_behind() {
    Scene::new().rounds(5, 8);
}

/// Each host's packets, connection management included, all come to one core's socket or the
/// connection manager's, by chance. Every core that sleeps must wake for them, and so must the core
/// that they are for.
#[test]
fn hosts_are_served_without_kernel_steering() {
    let scene = Scene::with(
        DaemonOptions { without_steering: true, ..DaemonOptions::default() }
            .arg("--cores")
            .arg("4"),
    );
    scene.daemon.wait_for_log("the kernel does not steer packets");
    scene.round(32);
}

#[test]
#[ignore = "takes minutes"]
fn twenty_rounds_of_sixty_four_hosts() {
    let scene = Scene::new();
    scene.rounds(20, 64);
    let network = &scene.daemon.stats()["network"];
    let number = |key: &str| network[key].as_u64().unwrap();
    let (sent, again) = (number("packets_sent"), number("packets_retransmitted"));
    println!("{again} of {sent} packets of the daemon were retransmitted");
    assert!(again * 100 < sent, "one percent or more of the packets were retransmitted");
}
