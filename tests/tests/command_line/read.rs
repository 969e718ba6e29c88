//! `feedrail read`, `discover`, `list`, `id-ctrl` and `id-ns` against a daemon in another process.

use std::fs;
use std::io::Read;
use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::time::Duration;

use feedrail_tests::process::{
    Bytes, Daemon, DaemonOptions, Outcome, binary, feedrail, loopback_address,
};
use serde_json::Value;
use tempfile::TempDir;

const SMALL_BYTES: usize = 18_071;
/// Longer than several commands of any size that the daemon may offer, and no multiple of a block.
const LARGE_BYTES: usize = (5 << 20) + 333;

struct Exported {
    daemon: Daemon,
    content: Vec<u8>,
    _folder: TempDir,
}

fn export(bytes: usize) -> Exported {
    let folder = tempfile::tempdir().unwrap();
    let content = Bytes::new(bytes as u64).take(bytes);
    let path = folder.path().join("shard.bin");
    fs::write(&path, &content).unwrap();
    Exported { daemon: Daemon::serving([path]), content, _folder: folder }
}

impl Exported {
    fn feedrail(&self, verb: &str, more: &[&str]) -> Outcome {
        feedrail([verb]).args(self.daemon.options()).args(more).run()
    }

    fn range(&self, offset: usize, length: usize) -> Outcome {
        self.feedrail("read", &["--offset", &offset.to_string(), "--length", &length.to_string()])
    }

    #[track_caller]
    fn check_range(&self, offset: usize, length: usize) {
        let read = self.range(offset, length).success();
        assert!(read == self.content[offset..offset + length], "range {offset} + {length} differs");
    }
}

#[test]
fn a_whole_file_and_any_part_of_it() {
    let exported = export(SMALL_BYTES);
    assert!(exported.feedrail("read", &[]).success() == exported.content);
    for (offset, length) in [
        (1, 1),
        (0, 1),
        (511, 2),
        (512, 512),
        (500, 13_000),
        (18_070, 1),
        (17_919, 152),
        (17_920, 151),
        (9, 18_062),
    ] {
        exported.check_range(offset, length);
    }
    let tail = exported.feedrail("read", &["--offset", "18000"]).success();
    assert!(tail == exported.content[18_000..]);
    assert!(exported.range(7, 0).success().is_empty());
}

#[test]
fn ranges_across_the_largest_transfer() {
    let exported = export(LARGE_BYTES);
    for limit_bytes in [128 << 10, 1 << 20, 2 << 20] {
        exported.check_range(limit_bytes - 1, 2);
        exported.check_range(limit_bytes - 700, 1 << 20);
        exported.check_range(3, limit_bytes + 5);
    }
    exported.check_range(LARGE_BYTES - 1000, 1000);
    assert!(exported.feedrail("read", &[]).success() == exported.content);
}

#[test]
fn into_a_file() {
    let exported = export(LARGE_BYTES);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("copy");
    let written = exported.feedrail("read", &["--file", path.to_str().unwrap(), "--offset", "1K"]);
    assert!(written.success().is_empty());
    assert!(fs::read(path).unwrap() == exported.content[1024..]);
}

#[test]
fn past_the_end_is_an_error() {
    let exported = export(SMALL_BYTES);
    for (offset, length) in [
        (SMALL_BYTES, 1),
        (SMALL_BYTES - 1, 2),
        (0, SMALL_BYTES + 1),
        (1 << 40, 1),
        (usize::MAX, 1),
    ] {
        let outcome = exported.range(offset, length);
        assert!(outcome.stdout.is_empty(), "{outcome}");
        let line = outcome.failure();
        assert!(line.contains("18071"), "names the size: {line}");
    }
}

#[test]
fn a_read_only_namespace_refuses_writes() {
    let exported = export(SMALL_BYTES);
    let outcome = feedrail(["write", "--length", "512"])
        .args(exported.daemon.options())
        .input(vec![0xFF; 512])
        .run();
    let line = outcome.failure();
    assert!(line.contains("Namespace Is Write Protected"), "{line}");
    assert!(exported.feedrail("read", &[]).success() == exported.content);
}

#[test]
fn discovery_and_lists() {
    let exported = export(SMALL_BYTES);
    let address = exported.daemon.address_options();
    let json = |verb: &str, options: &[String]| -> Value {
        let text = feedrail([verb, "-o", "json"]).args(options).run().success();
        serde_json::from_slice(&text).unwrap()
    };
    let log = json("discover", &address);
    assert!(log["genctr"].is_u64(), "{log}");
    let records = log["records"].as_array().unwrap();
    let record = records.iter().find(|record| record["subnqn"] == exported.daemon.nqn()).unwrap();
    let expected = exported.daemon.address();
    assert_eq!(record["trtype"], "rdma");
    assert_eq!(record["adrfam"], "ipv4");
    assert_eq!(record["subtype"], "nvme subsystem");
    assert_eq!(record["traddr"], expected.ip().to_string());
    assert_eq!(record["trsvcid"], expected.port().to_string());

    let list = json("list", &address);
    let namespaces = list["namespaces"].as_array().unwrap();
    assert_eq!(namespaces.len(), 1, "{list}");
    assert_eq!(namespaces[0]["subnqn"], exported.daemon.nqn());
    assert_eq!(namespaces[0]["nsid"], 1);
    assert_eq!(namespaces[0]["length"], SMALL_BYTES);
    assert_eq!(namespaces[0]["name"], "shard.bin");

    let options = exported.daemon.options();
    let controller = json("id-ctrl", &options);
    assert_eq!(controller["subnqn"], exported.daemon.nqn());
    assert_eq!(controller["cntrltype"], 1);
    let namespace = json("id-ns", &options);
    assert_eq!(namespace["nsze"], SMALL_BYTES.div_ceil(512));
    assert_eq!(namespace["lbafs"][0]["ds"], 9);
    assert_eq!(namespace["feedrail"]["length"], SMALL_BYTES);

    for verb in ["id-ctrl", "id-ns"] {
        assert!(!feedrail([verb]).args(&options).run().success().is_empty());
    }
    for verb in ["discover", "list"] {
        let text = feedrail([verb]).args(&address).run().success();
        assert!(String::from_utf8(text).unwrap().contains(exported.daemon.nqn()));
    }
}

#[test]
fn missing_objects_are_one_line_errors() {
    let exported = export(SMALL_BYTES);
    let address = exported.daemon.address_options();
    let wrong_name =
        feedrail(["read", "-n", "nqn.2026-01.org.example:nothing"]).args(&address).run();
    let line = wrong_name.failure();
    assert!(line.contains("nqn.2026-01.org.example:nothing"), "{line}");

    let line = exported.feedrail("read", &["--namespace-id", "2"]).failure();
    assert!(line.contains("namespace 2"), "{line}");

    let unused = loopback_address().to_string();
    let options = ["-a", &unused, "-n", "nqn.2026-01.org.example:a", "--timeout", "2000"];
    let line = feedrail(["read"]).args(options).run().failure();
    assert!(line.contains(&unused), "{line}");
}

#[test]
fn a_silent_peer_costs_the_requested_timeout() {
    let address = loopback_address();
    let _silent = UdpSocket::bind((address, 4791)).unwrap();
    let address = address.to_string();
    for command in [&["discover"][..], &["list"], &["id-ctrl", "-n", "nqn.2026-01.org.example:a"]] {
        let program = feedrail(command).args(["-a", &address, "--timeout", "1000"]);
        let line = program.limit(Duration::from_secs(8)).run().failure();
        assert!(line.contains(&address), "{line}");
    }
}

#[test]
fn a_host_that_is_not_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shard.bin");
    fs::write(&file, [7; 4096]).unwrap();
    let configuration = format!(
        r#"
        [[port]]
        address = "{address}:4420"

        [[subsystem]]
        nqn = "nqn.2026-01.org.example:private"
        allowed_hosts = ["nqn.2026-01.org.example:friend"]

        [[subsystem.namespace]]
        nsid = 1
        path = "{file}"
        "#,
        address = loopback_address(),
        file = file.display(),
    );
    let configuration = feedrail_tests::process::write_configuration(folder.path(), &configuration);
    let daemon = DaemonOptions::default().arg("--config").arg(configuration).start();
    let as_host = |nqn: &str| feedrail(["read", "-q", nqn]).args(daemon.options()).run();

    assert_eq!(as_host("nqn.2026-01.org.example:friend").success(), [7; 4096]);
    let line = as_host("nqn.2026-01.org.example:stranger").failure();
    assert!(line.to_lowercase().contains("host"), "{line}");
}

#[test]
fn a_reader_that_has_seen_enough() {
    let exported = export(LARGE_BYTES);
    let mut child = Command::new(binary("feedrail"))
        .arg("read")
        .args(exported.daemon.options())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 10];
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut first).unwrap();
    drop(stdout);
    let ended = child.wait_with_output().unwrap();
    assert_eq!(first, exported.content[..10]);
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
    assert_eq!(ended.status.code(), Some(141));
}
