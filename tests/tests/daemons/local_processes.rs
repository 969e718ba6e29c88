//! Processes of one user that share memory with a target.

use std::net::SocketAddr;

use feedrail_initiator::{Namespace, RdmaProvider};
use feedrail_tests::process::{
    Bytes, Daemon, DaemonOptions, Running, eventually, feedrail, host, loopback_address, slice_of,
    write_configuration,
};
use rustix::process::{Pid, Signal, kill_process};

/// Starts of the greedy process. A target gives it up after 4.3 s, which a loaded machine may need
/// for the reads beside it.
const ATTEMPTS: usize = 5;
const LENGTH_BYTES: usize = 1 << 20;

/// A daemon on shared memory with the least buffers of one core.
fn daemon() -> (tempfile::TempDir, Daemon) {
    let folder = tempfile::tempdir().unwrap();
    let address = SocketAddr::new(loopback_address(), 4420);
    let text = format!(
        "provider = \"shm\"\ncores = 1\n[limits]\npool_bytes = \"4MiB\"\n\
         [[subsystem]]\nnqn = \"nqn.2026-01.io.feedrail:local\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nkind = \"memory\"\nsize_bytes = \"8MiB\"\n\
         [[port]]\naddress = \"{address}\"\n"
    );
    let configuration = write_configuration(folder.path(), &text);
    let options = DaemonOptions::default().arg("--config").arg(configuration).at(address);
    let daemon = options.start();
    (folder, daemon)
}

/// A process that has many reads in flight and then stops, when the target has buffers for them.
fn greedy(daemon: &Daemon, name: &str) -> Running {
    let options = ["perf", "--provider", "shm", "--rw", "read", "--bs", "1M", "--iodepth", "32"];
    let program = feedrail(options).args(daemon.options()).args(["--hostnqn", name]);
    let running = program.start();
    eventually("it has buffers", || held_bytes(daemon) > 0);
    let pid = Pid::from_raw(running.id().cast_signed()).expect("a process id is not 0");
    kill_process(pid, Signal::STOP).expect("our own child can be signalled");
    running
}

fn held_bytes(daemon: &Daemon) -> u64 {
    daemon.stats()["pool"]["used_bytes"].as_u64().expect("a count")
}

/// Whether reads end while the greedy process still has its buffers.
fn reads_end_beside(daemon: &Daemon, namespace: &Namespace) -> bool {
    for number in 0..4 {
        let read = namespace.read_to_vec(number * LENGTH_BYTES as u64, LENGTH_BYTES).wait();
        if read.is_err() {
            return false;
        }
    }
    held_bytes(daemon) > 0
}

/// A process that takes nothing of what it asked for keeps only its part of the buffers, though a
/// second process has its user and its host NQN.
#[test]
fn a_process_that_reads_nothing_starves_no_other_of_its_user() {
    let (_folder, daemon) = daemon();
    let host = host().provider(RdmaProvider::Shm).build().unwrap();
    let name = host.nqn().to_string();
    let namespace = daemon.open(&host);
    // Reads of zeros need no buffers.
    let content = Bytes::new(1).take(8 * LENGTH_BYTES);
    namespace.write(0, slice_of(&content)).wait().result.unwrap();
    let served = (0..ATTEMPTS).any(|_| {
        let greedy = greedy(&daemon, &name);
        let served = reads_end_beside(&daemon, &namespace);
        greedy.kill();
        eventually("its buffers are back", || held_bytes(&daemon) == 0);
        served
    });
    assert!(served, "reads end only when the other process has lost its connections");
}
