//! Limits of hosts and namespaces: from the file, through the management socket and the command
//! line, and back into a saved configuration.

use std::path::PathBuf;

use feedrail_initiator::{Controller, Host};
use feedrail_tests::process::{
    Bytes, Daemon, DaemonOptions, ManagementClient, feedrail, host, loopback_address,
    write_configuration,
};
use nvme_proto::{HostNqn, Nsid};
use serde_json::{Value, json};
use tempfile::TempDir;

const NQN: &str = "nqn.2026-01.io.feedrail:limits";
const SLOW: &str = "nqn.2026-01.io.feedrail:host:slow";
const FAST: &str = "nqn.2026-01.io.feedrail:host:fast";
const SIZE_BYTES: usize = 1 << 20;

struct Limited {
    folder: TempDir,
    head: String,
    bytes: Vec<u8>,
    daemon: Daemon,
}

impl Limited {
    /// A target with these tables of hosts and keys of its namespace.
    fn start(hosts: &str, namespace: &str) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let bytes = Bytes::new(1).take(SIZE_BYTES);
        std::fs::write(folder.path().join("shard"), &bytes).unwrap();
        let head = format!(
            "cores = 2\nstate_dir = \"state\"\nprovider = \"soft\"\nmanagement = \"socket\"\n\
             [[port]]\naddress = \"{}:4420\"\n\
             [[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n",
            loopback_address()
        );
        let configuration = write_configuration(folder.path(), &text(&head, hosts, namespace));
        let daemon = DaemonOptions::default().arg("--config").arg(configuration).start();
        Self { folder, head, bytes, daemon }
    }

    fn write(&self, hosts: &str, namespace: &str) {
        write_configuration(self.folder.path(), &text(&self.head, hosts, namespace));
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn client(&self) -> ManagementClient {
        ManagementClient::connect(&self.socket())
    }

    fn connect(&self, name: &str) -> (Host, Controller) {
        let name: HostNqn = name.parse().unwrap();
        let host = host().host_nqn(name).build().unwrap();
        let controller = host.connect(self.daemon.target()).wait().unwrap();
        (host, controller)
    }

    /// Reads blocks of 4 KiB, and compares them.
    fn read(&self, controller: &Controller, count: usize) {
        let namespace = controller.namespace(Nsid(1)).wait().unwrap();
        let offsets = (0..count).map(|at| at * 4096 % SIZE_BYTES);
        let reads: Vec<_> =
            offsets.map(|offset| (offset, namespace.read_to_vec(offset as u64, 4096))).collect();
        for (offset, read) in reads {
            assert!(read.wait().unwrap() == self.bytes[offset..][..4096]);
        }
    }

    /// Commands of a host that have waited for its limits.
    fn throttled(&self, name: &str) -> u64 {
        let found = self.client().call("nvmf_subsystem_get_controllers", &json!({ "nqn": NQN }));
        let found = found.unwrap();
        let of_host = found.as_array().unwrap().iter().find(|one| one["hostnqn"] == name);
        of_host.unwrap()["throttled_commands"].as_u64().unwrap()
    }

    fn set_qos(&self, arguments: &[&str]) -> String {
        let socket = self.socket().display().to_string();
        let words = ["target", "set-qos", NQN, "--socket", &socket];
        let output = feedrail(words.into_iter().chain(arguments.iter().copied())).run().success();
        String::from_utf8(output).unwrap()
    }

    fn limits(&self) -> Value {
        serde_json::from_str(&self.set_qos(&["-o", "json"])).unwrap()
    }
}

fn text(head: &str, hosts: &str, namespace: &str) -> String {
    format!("{head}{hosts}\n[[subsystem.namespace]]\npath = \"shard\"\n{namespace}\n")
}

fn limited_host(limits: &str) -> String {
    format!("[[subsystem.host]]\nnqn = \"{SLOW}\"\n{limits}\n")
}

fn all(ios: u64, both: u64, read: u64, written: u64) -> Value {
    json!({
        "rw_ios_per_sec": ios, "rw_mbytes_per_sec": both,
        "r_mbytes_per_sec": read, "w_mbytes_per_sec": written,
    })
}

#[test]
fn a_limited_host_waits_and_another_does_not() {
    let target = Limited::start(&limited_host("rw_ios_per_sec = 1000"), "");
    let (slow, fast) = (target.connect(SLOW), target.connect(FAST));
    target.read(&slow.1, 100);
    target.read(&fast.1, 100);
    // The burst has the tokens of 10 ms.
    assert!((50..100).contains(&target.throttled(SLOW)), "{}", target.throttled(SLOW));
    assert_eq!(target.throttled(FAST), 0);
    let before = target.throttled(SLOW);
    target.set_qos(&["--host", SLOW, "--rw-ios-per-sec", "0"]);
    target.read(&slow.1, 100);
    assert_eq!(target.throttled(SLOW), before, "the limit is gone");
    target.write(&limited_host("r_mbytes_per_sec = 1"), "rw_mbytes_per_sec = 900");
    let report = target.client().call("feedrail_reload_config", &json!({})).unwrap();
    let changes: Vec<_> = report["changes"].as_array().unwrap().clone();
    let kinds: Vec<_> = changes.iter().map(|one| one["change"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["limit_host", "limit_ns"], "{changes:?}");
    target.read(&slow.1, 50);
    assert!(target.throttled(SLOW) > before, "the new limit holds");
    for (host, _) in [&slow, &fast] {
        assert_eq!(host.counters().connections_lost, 0);
    }
}

#[test]
fn limits_are_set_shown_and_saved() {
    let target = Limited::start("", "w_mbytes_per_sec = 7");
    let mut client = target.client();
    target.set_qos(&["--each-host", "--r-mbytes-per-sec", "500"]);
    target.set_qos(&["--host", SLOW, "--rw-ios-per-sec", "2000", "--r-mbytes-per-sec", "0"]);
    target.set_qos(&["--nsid", "1", "--rw-ios-per-sec", "3000"]);
    let expected = json!({
        "each_host": all(0, 0, 500, 0),
        "hosts": [{ "nqn": SLOW, "limits": { "rw_ios_per_sec": 2000, "r_mbytes_per_sec": 0 } }],
        "namespaces": [{ "nsid": 1, "limits": all(3000, 0, 0, 7) }],
    });
    assert_eq!(target.limits(), expected);
    let name = client.call("nvmf_get_subsystems", &json!({ "nqn": NQN })).unwrap();
    let name = name[0]["namespaces"][0]["bdev_name"].clone();
    let set = json!({ "name": name, "w_mbytes_per_sec": 8 });
    assert_eq!(client.call("bdev_set_qos_limit", &set), Ok(json!(true)));
    assert_eq!(target.limits()["namespaces"][0]["limits"], all(3000, 0, 0, 8));

    // The file with these limits changes nothing.
    let saved = client.call("feedrail_get_config_toml", &json!({})).unwrap();
    write_configuration(target.folder.path(), saved["toml"].as_str().unwrap());
    let report = client.call("feedrail_reload_config", &json!({ "dry_run": true })).unwrap();
    assert_eq!(report["changes"], json!([]), "{saved}");

    // So do the calls that restore them, and another target has the same limits by them.
    let parts = ["bdev", "nvmf"]
        .map(|part| client.call("framework_get_config", &json!({ "name": part })).unwrap());
    let calls: Vec<Value> =
        parts.iter().flat_map(|part| part.as_array().unwrap().clone()).collect();
    let loaded = client.call("feedrail_load_config", &json!({ "calls": calls })).unwrap();
    assert_eq!(loaded["made"], 0, "{loaded}");
    let set: Vec<_> =
        calls.iter().filter(|call| call["method"].as_str().unwrap().contains("qos")).collect();
    assert_eq!(set.len(), 3, "{set:?}");
}

#[test]
fn calls_that_limit_nothing_are_refused() {
    let target = Limited::start("", "");
    let mut client = target.client();
    let mut refused = |method: &str, params: Value, words: &str| {
        let error = client.call(method, &params).expect_err(words);
        assert!(error.to_string().contains(words), "{words}: {error}");
    };
    refused(
        "bdev_set_qos_limit",
        json!({ "name": "none", "rw_ios_per_sec": 1000 }),
        "no bdev none",
    );
    refused("bdev_set_qos_limit", json!({ "name": "shard" }), "give one of");
    refused(
        "bdev_set_qos_limit",
        json!({ "name": "shard", "rw_ios_per_sec": 1500 }),
        "multiple of 1000",
    );
    refused("bdev_set_qos_limit", json!({ "name": "shard", "ios": 1000 }), "unknown field");
    refused(
        "feedrail_set_host_qos",
        json!({ "nqn": "nqn.2026-01.a:b", "rw_ios_per_sec": 0 }),
        "no subsystem",
    );
    let host = json!({ "nqn": NQN, "host": SLOW, "r_mbytes_per_sec": -1 });
    refused("feedrail_set_host_qos", host, "r_mbytes_per_sec: -1 is not a whole number");
    let disable = json!({ "nqn": NQN, "allow_any_host": false });
    assert_eq!(target.client().call("nvmf_subsystem_allow_any_host", &disable), Ok(json!(true)));
    let host = json!({ "nqn": NQN, "host": SLOW, "r_mbytes_per_sec": 1 });
    refused("feedrail_set_host_qos", host, "is not among those");
    assert_eq!(target.limits()["hosts"], json!([]));
}
