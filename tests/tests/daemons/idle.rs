//! Idle connections stay, and cost nothing.

use std::fs;
use std::time::Duration;

use feedrail_initiator::RdmaProvider;
use feedrail_tests::process::{Bytes, Daemon, host, pause};

const KEEP_ALIVE_MS: u32 = 2_000;
const INTERVALS: u32 = 4;

#[test]
fn an_idle_host_stays_connected_at_little_cost() {
    stay_idle(RdmaProvider::Soft);
}

#[test]
fn an_idle_host_in_shared_memory_does_too() {
    stay_idle(RdmaProvider::Shm);
}

fn stay_idle(provider: RdmaProvider) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shard.bin");
    let content = Bytes::new(2).take(100_000);
    fs::write(&path, &content).unwrap();
    let daemon = Daemon::serving([path]);
    let host = host().provider(provider).keep_alive_ms(KEEP_ALIVE_MS).build().unwrap();
    let namespace = daemon.open(&host);
    let before = daemon.vitals();

    pause(Duration::from_millis(u64::from(KEEP_ALIVE_MS)) * INTERVALS);

    let after = daemon.vitals();
    let bytes = namespace.read_to_vec(777, 5000).wait().expect("still connected");
    assert!(bytes == content[777..5777]);
    let counters = host.counters();
    assert_eq!((counters.reconnects, counters.connections_lost), (0, 0), "{counters:?}");
    assert!(counters.keep_alives >= u64::from(INTERVALS), "{counters:?}");
    // One percent of a core for eight seconds is eight ticks of 10 ms.
    let ticks = after.cpu_ticks - before.cpu_ticks;
    println!(
        "{ticks} ticks of 10 ms in {} ms, {} MiB resident",
        KEEP_ALIVE_MS * INTERVALS,
        after.resident_bytes >> 20
    );
    assert!(ticks <= 8, "an idle daemon used {ticks} ticks of CPU");
}
