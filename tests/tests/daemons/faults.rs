//! Faults that a user asks for: networks and disks that misbehave on purpose.

use std::fs;
use std::path::PathBuf;

use feedrail_tests::process::{
    Bytes, DaemonOptions, feedrail, loopback_address, write_configuration,
};
use tempfile::TempDir;

const SIZE_BYTES: usize = 8 << 20;
const VARIABLE: &str = "FEEDRAIL_SOFT_FAULTS";
const FAULTS: &str = "loss=1%,corrupt=0.5%,duplicate=1%,delay=2%:2ms,seed=1";
const REPAIRED: [&str; 2] = ["packets_retransmitted", "icrc_failures"];

fn shard() -> (TempDir, PathBuf, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shard.bin");
    let content = Bytes::new(3).take(SIZE_BYTES);
    fs::write(&path, &content).unwrap();
    (folder, path, content)
}

#[test]
fn a_bad_network_costs_time_and_no_byte() {
    let (_folder, path, content) = shard();
    let daemon = DaemonOptions::files([path]).env(VARIABLE, FAULTS).start();
    for part in ["mistreated on purpose", "loss=1%"] {
        daemon.wait_for_log(part);
    }
    // One read sends the target some 400 packets; now and then none of them is damaged.
    let mut network = daemon.stats()["network"].clone();
    for _ in 0..20 {
        let read = feedrail(["read"]).args(daemon.options()).env(VARIABLE, FAULTS).run().success();
        assert!(read == content);
        network = daemon.stats()["network"].clone();
        if REPAIRED.iter().all(|counter| network[counter].as_u64().unwrap() > 0) {
            return;
        }
    }
    panic!("not all of {REPAIRED:?} were counted: {network}");
}

#[test]
fn damaged_packets_are_sent_again() {
    let (_folder, path, content) = shard();
    let daemon = DaemonOptions::files([path]).env(VARIABLE, "corrupt-sent=1%,seed=3").start();
    let read = feedrail(["read"]).args(daemon.options()).run().success();
    assert!(read == content);
    let network = &daemon.stats()["network"];
    assert!(network["packets_retransmitted"].as_u64().unwrap() > 0, "{network}");
}

#[test]
fn a_bad_disk_fails_as_configured() {
    let (folder, path, content) = shard();
    let configuration = format!(
        r#"
        [[port]]
        address = "{address}:4420"
        [[subsystem]]
        nqn = "nqn.2026-01.org.example:bad-disks"
        allow_any_host = true
        [[subsystem.namespace]]
        path = "{path}"
        faults = {{ delay_us = 1000 }}
        [[subsystem.namespace]]
        kind = "memory"
        size_bytes = "1MiB"
        faults = {{ fail_every = 1 }}
        "#,
        address = loopback_address(),
        path = path.display(),
    );
    let file = write_configuration(folder.path(), &configuration);
    let daemon = DaemonOptions::default().arg("--config").arg(file).start();
    let read = |nsid| feedrail(["read", "--namespace-id", nsid]).args(daemon.options()).run();
    assert!(read("1").success() == content, "it is only slow");
    let line = read("2").failure();
    assert!(line.contains("Unrecovered Read Error"), "{line}");
    daemon.wait_for_log("misbehaves on purpose");
    let told = ["failed: medium error: Input/output error", "bytes at 0", "bad-disks", "memory-2"];
    told.iter().for_each(|part| daemon.wait_for_log(part));
    let stats = daemon.stats();
    let failed = &stats["storage_errors"][0];
    assert_eq!((failed["nsid"].as_u64(), failed["name"].as_str()), (Some(2), Some("memory-2")));
    assert!(failed["read_errors"].as_u64().unwrap() > 0, "{stats}");
    assert_eq!(stats["peer_errors"].as_array().map(Vec::len), Some(0), "no host is to blame");
}

#[test]
fn nonsense_is_refused() {
    let (_folder, path, _) = shard();
    let refused = DaemonOptions::files([&path]).env(VARIABLE, "loss=2").try_start();
    let line = refused.expect_err("nonsense").stderr;
    assert!(line.contains(VARIABLE) && line.contains("loss=1%"), "{line}");

    let daemon = DaemonOptions::files([path]).start();
    let line = feedrail(["read"]).args(daemon.options()).env(VARIABLE, "speed=1%").run().failure();
    assert!(line.contains(VARIABLE) && line.contains("speed=1%"), "{line}");
}
