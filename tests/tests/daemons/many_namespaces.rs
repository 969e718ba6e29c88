//! A target of 1,000 subsystems and 10,000 namespaces stays cheap, and changes like a small one.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::net::SocketAddr;

use feedrail_initiator::{Controller, Host, Nsid, SubsystemAddress};
use feedrail_tests::process::{
    Daemon, DaemonOptions, ManagementClient, free_address, host, loopback_address, metrics_text,
    write_configuration,
};
use nvme_proto::log::SubsystemType;
use serde_json::json;
use tempfile::TempDir;

const SUBSYSTEMS: usize = 1_000;
/// Namespaces of a subsystem.
const NAMESPACES: usize = 10;
const FILE_BYTES: u64 = 8_192;
/// Descriptors of a target beside those of its files.
const OTHER_DESCRIPTORS: usize = 100;
/// The longest page of counters, in bytes.
const PAGE_BYTES: usize = 1_000_000;
/// The most memory that the target may have, in bytes: about 100 MiB are used.
const MEMORY_BYTES: u64 = 200 << 20;

fn nqn(subsystem: usize) -> String {
    format!("nqn.2026-01.io.feedrail:many-{subsystem}")
}

/// The file of a namespace; its first bytes are its number.
fn file(folder: &TempDir, number: usize) -> String {
    folder.path().join(format!("shard-{number}")).display().to_string()
}

fn write_file(folder: &TempDir, number: usize) -> String {
    let path = file(folder, number);
    let mut file = File::create(&path).unwrap();
    file.write_all(&number.to_le_bytes()).unwrap();
    file.set_len(FILE_BYTES).unwrap();
    path
}

fn start(folder: &TempDir, metrics: SocketAddr) -> Daemon {
    let address = loopback_address();
    let mut text = format!(
        "state_dir = \"state\"\nmanagement = \"socket\"\nmetrics = \"{metrics}\"\n[[port]]\n\
         address = \"{address}:4420\"\n"
    );
    for subsystem in 0..SUBSYSTEMS {
        let nqn = nqn(subsystem);
        writeln!(text, "[[subsystem]]\nnqn = \"{nqn}\"\nallow_any_host = true").unwrap();
        for number in subsystem * NAMESPACES..(subsystem + 1) * NAMESPACES {
            let path = write_file(folder, number);
            writeln!(text, "[[subsystem.namespace]]\npath = \"{path}\"").unwrap();
        }
    }
    let configuration = write_configuration(folder.path(), &text);
    DaemonOptions::default().arg("--config").arg(configuration).start()
}

/// Whether a process may have as many descriptors as that takes.
fn may_open_all() -> bool {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    // Some files have a second one, which is at most a quarter of all.
    let needed = (SUBSYSTEMS * NAMESPACES + OTHER_DESCRIPTORS) as u64 * 4 / 3;
    limit.is_none_or(|limit| limit >= needed)
}

fn connect(daemon: &Daemon, host: &Host, subsystem: usize) -> Controller {
    let nqn = nqn(subsystem).parse().unwrap();
    let target = SubsystemAddress { address: daemon.address(), nqn };
    host.connect(target).wait().unwrap()
}

/// The number that the file of a namespace begins with.
fn number(controller: &Controller, nsid: u32) -> usize {
    let namespace = controller.namespace(Nsid(nsid)).wait().unwrap();
    assert_eq!(namespace.size_bytes(), FILE_BYTES);
    let bytes = namespace.read_to_vec(0, 8).wait().unwrap();
    usize::from_le_bytes(bytes.try_into().unwrap())
}

#[test]
fn ten_thousand_namespaces_are_served() {
    if !may_open_all() {
        eprintln!("left out: a process may not have as many descriptors here");
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let metrics = free_address();
    let daemon = start(&folder, metrics);
    let host = host().build().unwrap();
    let log = host.discover(daemon.address()).wait().unwrap();
    let listed = log.entries.iter().filter(|entry| entry.subtype == SubsystemType::NVM);
    assert_eq!(listed.count(), SUBSYSTEMS);
    for subsystem in [0, 499, SUBSYSTEMS - 1] {
        let controller = connect(&daemon, &host, subsystem);
        let nsids = controller.active_namespaces().wait().unwrap();
        assert_eq!(nsids, (1..=10).map(Nsid).collect::<Vec<_>>());
        let numbers = nsids.iter().map(|nsid| number(&controller, nsid.0));
        assert!(numbers.eq(subsystem * NAMESPACES..(subsystem + 1) * NAMESPACES));
    }
    let page = metrics_text(metrics, "text/plain; version=0.0.4; charset=utf-8");
    assert!(page.len() < PAGE_BYTES, "{}", page.len());
    assert!(page.contains(&format!("\nfeedrail_subsystem_reads_total{{nqn=\"{}\"}}", nqn(499))));
    let vitals = daemon.vitals();
    let files = SUBSYSTEMS * NAMESPACES;
    assert!(vitals.descriptors >= files, "{vitals:?}");
    assert!(vitals.resident_bytes < MEMORY_BYTES, "{vitals:?}");
    // One more comes and goes, while a host is connected to its subsystem and a second reads.
    let (changed, reading) = (connect(&daemon, &host, 7), connect(&daemon, &host, 8));
    let mut client = ManagementClient::connect(&folder.path().join("socket"));
    let params = json!({ "nqn": nqn(7), "namespace": { "bdev_name": "more" } });
    let path = write_file(&folder, files);
    let named = json!({ "name": "more", "filename": path, "readonly": true });
    client.call("bdev_uring_create", &named).unwrap();
    assert_eq!(client.call("nvmf_subsystem_add_ns", &params), Ok(json!(11)));
    assert_eq!(number(&changed, 11), files);
    assert_eq!(number(&reading, 1), 80);
    let removed = json!({ "nqn": nqn(7), "nsid": 11 });
    client.call("nvmf_subsystem_remove_ns", &removed).unwrap();
    assert_eq!(changed.active_namespaces().wait().unwrap().len(), NAMESPACES);
    assert_eq!(host.counters().connections_lost, 0);
    let (status, _) = daemon.terminate();
    assert!(status.success(), "{status}");
}
