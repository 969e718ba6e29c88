//! A running target reads its configuration again, at SIGHUP and through the management socket.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use feedrail_initiator::{Controller, ErrorKind, Namespace};
use feedrail_tests::process::{
    Bytes, Daemon, DaemonOptions, ManagementClient, SetWhenDropped, eventually, feedrail, host,
    loopback_address, write_configuration,
};
use nvme_proto::{HostNqn, Nsid};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

const SIZE_BYTES: usize = 1 << 20;
const NQN: &str = "nqn.2026-01.io.feedrail:reloaded";

struct Reloadable {
    folder: TempDir,
    head: String,
    daemon: Daemon,
}

impl Reloadable {
    /// A target of one subsystem, with these keys and tables.
    fn start(folder: TempDir, subsystem: &str) -> Self {
        let head = format!(
            "cores = 2\nstate_dir = \"state\"\nprovider = \"soft\"\nmanagement = \"socket\"\n\
             [[port]]\naddress = \"{}:4420\"\n[[subsystem]]\nnqn = \"{NQN}\"\n",
            loopback_address()
        );
        let configuration = write_configuration(folder.path(), &format!("{head}{subsystem}"));
        let daemon = DaemonOptions::default().arg("--config").arg(configuration).start();
        Self { folder, head, daemon }
    }

    fn write_configuration(&self, subsystem: &str) {
        write_configuration(self.folder.path(), &format!("{}{subsystem}", self.head));
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn client(&self) -> ManagementClient {
        ManagementClient::connect(&self.socket())
    }

    fn reload(&self, dry_run: bool) -> Result<Value, Value> {
        let report =
            self.client().call("feedrail_reload_config", &json!({ "dry_run": dry_run }))?;
        assert_eq!((&report["dry_run"], &report["warnings"]), (&json!(dry_run), &json!([])));
        Ok(report["changes"].clone())
    }

    /// Message of a refused reload, which is the same with and without `--dry-run`.
    fn refusal(&self) -> String {
        let refused = self.reload(false).unwrap_err();
        assert_eq!(self.reload(true).unwrap_err(), refused);
        assert_eq!(refused["code"], json!(-32603));
        refused["message"].as_str().unwrap().to_owned()
    }

    /// NSIDs and names of what is exported.
    fn exported(&self) -> Vec<(u64, String)> {
        let subsystems = self.client().call("nvmf_get_subsystems", &json!({})).unwrap();
        let namespaces = subsystems[0]["namespaces"].as_array().unwrap().iter();
        let pair =
            |one: &Value| (one["nsid"].as_u64().unwrap(), one["name"].as_str().unwrap().to_owned());
        namespaces.map(pair).collect()
    }

    fn has_open(&self, path: &Path) -> bool {
        let links = fs::read_dir(format!("/proc/{}/fd", self.daemon.id())).unwrap().flatten();
        links.filter_map(|link| fs::read_link(link.path()).ok()).any(|open| open == path)
    }
}

fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Makes a file, and returns its bytes.
fn write(folder: &Path, name: &str, seed: u64) -> Vec<u8> {
    let bytes = Bytes::new(seed).take(SIZE_BYTES);
    fs::write(folder.join(name), &bytes).unwrap();
    bytes
}

fn replace(folder: &Path, name: &str, bytes: &[u8]) {
    fs::write(folder.join("new"), bytes).unwrap();
    fs::rename(folder.join("new"), folder.join(name)).unwrap();
}

fn open(controller: &Controller, nsid: u32) -> Namespace {
    controller.namespace(Nsid(nsid)).wait().unwrap()
}

fn read_all(namespace: &Namespace, bytes: usize) -> Vec<u8> {
    namespace.read_to_vec(0, bytes).wait().unwrap()
}

fn file(nsid: u32, path: &str) -> String {
    format!("[[subsystem.namespace]]\nnsid = {nsid}\npath = \"{path}\"\n")
}

fn names(exported: &[(u64, String)]) -> Vec<(u64, &str)> {
    exported.iter().map(|(nsid, name)| (*nsid, name.as_str())).collect()
}

#[test]
fn all_changes_are_made_under_verified_reads() {
    let folder = folder();
    let [kept, replaced] =
        [("kept", 1), ("replaced", 2)].map(|(name, seed)| write(folder.path(), name, seed));
    write(folder.path(), "removed", 3);
    let any = "allow_any_host = true\n";
    let [one, two] = [file(1, "kept"), file(2, "replaced")];
    let target = Reloadable::start(folder, &format!("{any}{one}{two}{}", file(3, "removed")));
    let host = host().build().unwrap();
    let controller = target.daemon.connect(&host);
    let [first, second] = [1, 2].map(|nsid| open(&controller, nsid));
    assert!(read_all(&second, SIZE_BYTES) == replaced);
    let over = AtomicBool::new(false);
    let reads = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let _over_at_the_end = SetWhenDropped(&over);
        let reader = scope.spawn(|| {
            let mut random = Bytes::new(9);
            while !over.load(Ordering::Relaxed) {
                let from = random.below(SIZE_BYTES as u64 - 4096) as usize;
                let bytes = first.read_to_vec(from as u64, 4096).wait().unwrap();
                assert!(bytes == kept[from..][..4096], "wrong bytes from {from} on");
                reads.fetch_add(1, Ordering::Relaxed);
            }
        });
        let added = write(target.folder.path(), "added", 4);
        let longer = Bytes::new(5).take(2 * SIZE_BYTES);
        replace(target.folder.path(), "replaced", &longer);
        target.write_configuration(&format!("{any}{one}{two}{}", file(7, "added")));
        let expected = json!([
            { "change": "remove_ns", "nqn": NQN, "nsid": 3, "name": "removed" },
            { "change": "replace_ns", "nqn": NQN, "nsid": 2, "name": "replaced",
              "size_bytes": 2 * SIZE_BYTES, "reason": "another file has its path" },
            { "change": "add_ns", "nqn": NQN, "nsid": 7, "name": "added", "size_bytes": SIZE_BYTES },
        ]);
        assert_eq!(target.reload(true), Ok(expected.clone()));
        let before = [(1, "kept"), (2, "replaced"), (3, "removed")];
        assert_eq!(names(&target.exported()), before, "nothing has changed");
        assert_eq!(target.reload(false), Ok(expected));
        assert_eq!(names(&target.exported()), [(1, "kept"), (2, "replaced"), (7, "added")]);
        assert_eq!(target.reload(false), Ok(json!([])), "it is as the file says");
        let nsids = controller.active_namespaces().wait().unwrap();
        assert_eq!(nsids, [1, 2, 7].map(Nsid));
        assert!(read_all(&open(&controller, 7), SIZE_BYTES) == added);
        assert!(read_all(&open(&controller, 2), 2 * SIZE_BYTES) == longer);
        let error = second.read_to_vec(0, 4096).wait().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Changed(_)), "{error}");
        let removed = fs::canonicalize(target.folder.path().join("removed")).unwrap();
        eventually("the file is closed", || !target.has_open(&removed));
        let before = reads.load(Ordering::Relaxed);
        eventually("reads continue", || {
            reads.load(Ordering::Relaxed) > before || reader.is_finished()
        });
        over.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
    assert_eq!(host.counters().connections_lost, 0);
}

#[test]
fn what_is_refused_changes_nothing() {
    let folder = folder();
    let kept = write(folder.path(), "kept", 1);
    let any = "allow_any_host = true\n";
    let written = "[[subsystem.namespace]]\nnsid = 2\npath = \"written\"\nread_only = false\n";
    write(folder.path(), "written", 2);
    write(folder.path(), "other", 3);
    let one = file(1, "kept");
    let target = Reloadable::start(folder, &format!("{any}{one}{written}"));
    let host = host().build().unwrap();
    let namespace = open(&target.daemon.connect(&host), 1);
    let other = file(3, "other");
    let cases = [
        (format!("{any}{other}{}", file(4, "missing")), "No such file"),
        (format!("{any}{other}serail = 1\n"), "serail"),
        (format!("{any}serial = \"other\"\n{one}"), "serial of subsystem"),
        (format!("{any}deallocate = false\n{one}{other}"), "deallocate of subsystem"),
        (format!("{any}{other}{}", file(5, "other")), "take them for one disk"),
        (format!("{any}{one}{written}lba_bytes = 4096\n{other}"), "hosts may write it"),
        (format!("{any}{one}{}", file(9, "written")), "hosts may write it"),
        (
            format!("{any}{one}[[subsystem]]\nnqn = \"{NQN}2\"\n{any}{}", file(1, "missing")),
            "No such file",
        ),
        (
            format!("{any}{one}[[subsystem]]\nnqn = \"{NQN}2\"\n{any}{written}"),
            "hosts may write it",
        ),
    ];
    for (subsystem, expected) in cases {
        target.write_configuration(&subsystem);
        let refusal = target.refusal();
        assert!(refusal.contains(expected), "{refusal}\n{subsystem}");
        assert_eq!(refusal.lines().count(), 1, "{refusal}");
        assert_eq!(names(&target.exported()), [(1, "kept"), (2, "written")]);
        assert!(read_all(&namespace, SIZE_BYTES) == kept);
    }
    let starts = target.head.replace("cores = 2", "cores = 1\npolling_us = 7");
    write_configuration(target.folder.path(), &format!("{starts}{any}{one}{written}"));
    let refusal = target.refusal();
    assert!(refusal.contains("at the start only: cores, polling_us"), "{refusal}");
    fs::remove_file(target.folder.path().join("feedrail.toml")).unwrap();
    let refusal = target.refusal();
    assert!(refusal.contains("cannot read the configuration"), "{refusal}");
    let unknown = target.client().call("feedrail_reload_config", &json!({ "dryrun": true }));
    assert_eq!(unknown.unwrap_err()["code"], json!(-32602));
    target.write_configuration(&format!("{any}{one}{written}"));
    assert_eq!(target.reload(false), Ok(json!([])));
    assert!(read_all(&namespace, SIZE_BYTES) == kept);
    assert_eq!(host.counters().connections_lost, 0);
}

/// Two steps do what one cannot: a file that hosts write is closed before it is opened again.
#[test]
fn a_written_file_is_exported_differently_in_two_steps() {
    let folder = folder();
    write(folder.path(), "kept", 1);
    write(folder.path(), "written", 2);
    let written = "[[subsystem.namespace]]\nnsid = 2\npath = \"written\"\nread_only = false\n";
    let start = format!("allow_any_host = true\n{}", file(1, "kept"));
    let target = Reloadable::start(folder, &format!("{start}{written}"));
    target.write_configuration(&start);
    assert_eq!(target.reload(false).unwrap()[0]["change"], json!("remove_ns"));
    target.write_configuration(&format!("{start}{written}lba_bytes = 4096\n"));
    assert_eq!(target.reload(false).unwrap()[0]["change"], json!("add_ns"));
    let subsystems = target.client().call("nvmf_get_subsystems", &json!({})).unwrap();
    assert_eq!(subsystems[0]["namespaces"][1]["block_size"], json!(4096));
    // A file that only its owner makes longer stays as it is.
    let path = target.folder.path().join("written");
    fs::File::options().write(true).open(path).unwrap().set_len(4 * SIZE_BYTES as u64).unwrap();
    assert_eq!(target.reload(false), Ok(json!([])));
}

#[test]
fn files_of_a_directory_come_and_go_and_keep_their_ids() {
    let folder = folder();
    let shards = folder.path().join("shards");
    fs::create_dir(&shards).unwrap();
    for (name, seed) in [("b", 1), ("c", 2)] {
        write(&shards, name, seed);
    }
    let directory = "[[subsystem.directory]]\npath = \"shards\"\n";
    let target = Reloadable::start(folder, &format!("allow_any_host = true\n{directory}"));
    assert_eq!(names(&target.exported()), [(1, "b"), (2, "c")]);
    let a = write(&shards, "a", 3);
    fs::remove_file(shards.join("b")).unwrap();
    target.reload(true).unwrap();
    assert_eq!(target.reload(false).unwrap().as_array().unwrap().len(), 2);
    assert_eq!(names(&target.exported()), [(2, "c"), (3, "a")]);
    let host = host().build().unwrap();
    assert!(read_all(&open(&target.daemon.connect(&host), 3), SIZE_BYTES) == a);
    write(&shards, "b", 1);
    let longer = Bytes::new(7).take(SIZE_BYTES + 512);
    fs::write(shards.join("c"), &longer).unwrap();
    let changes = target.reload(false).unwrap();
    assert_eq!(changes[1]["reason"], json!("its file has another size"), "{changes}");
    assert_eq!(names(&target.exported()), [(1, "b"), (2, "c"), (3, "a")]);
    assert!(read_all(&open(&target.daemon.connect(&host), 2), longer.len()) == longer);
    for name in ["a", "b", "c"] {
        fs::remove_file(shards.join(name)).unwrap();
    }
    assert!(target.refusal().contains("holds no file to export"));
    assert_eq!(names(&target.exported()), [(1, "b"), (2, "c"), (3, "a")]);
}

#[test]
fn what_was_changed_at_run_time_stays_only_if_the_file_says_it() {
    let folder = folder();
    for (name, seed) in [("first", 1), ("second", 2), ("third", 3)] {
        write(folder.path(), name, seed);
    }
    let path =
        |name: &str| fs::canonicalize(folder.path()).unwrap().join(name).display().to_string();
    let [second, third] = ["second", "third"].map(path);
    let any = "allow_any_host = true\n";
    let target = Reloadable::start(folder, &format!("{any}{}", file(1, "first")));
    let socket = target.socket().display().to_string();
    let run = |words: &[&str]| {
        let words = ["target"].into_iter().chain(words.iter().copied());
        let printed = feedrail(words.chain(["--socket", &socket])).run().success();
        String::from_utf8(printed).unwrap()
    };
    run(&["add-ns", NQN, &second, "--read-only"]);
    run(&["add-ns", NQN, &third, "--read-only"]);
    run(&["add-host", NQN, "nqn.2026-01.io.feedrail:host:a"]);
    let [one, two] = [file(1, "first"), file(2, &second)];
    target.write_configuration(&format!("{any}{one}{two}"));
    let shown = run(&["reload", "--dry-run"]);
    assert_eq!(shown, run(&["reload", "--dry-run"]));
    assert!(shown.contains("remove-ns") && shown.contains("remove-host"), "{shown}");
    assert!(!shown.contains("second"), "it stays: {shown}");
    let report: Value = serde_json::from_str(&run(&["reload", "-o", "json"])).unwrap();
    assert_eq!(report["changes"].as_array().unwrap().len(), 2, "{report}");
    assert_eq!(run(&["reload"]), "nothing to change\n");
    assert_eq!(names(&target.exported()), [(1, "first"), (2, "second")]);
}

#[test]
fn subsystems_and_their_addresses_follow_the_file() {
    let folder = folder();
    for (name, seed) in [("first", 1), ("second", 2)] {
        write(folder.path(), name, seed);
    }
    let any = "allow_any_host = true\n";
    let subsystem = |number: u32, rest: &str| {
        format!("[[subsystem]]\nnqn = \"{NQN}{number}\"\n{any}{rest}{}", file(1, "second"))
    };
    let start = format!("{any}{}", file(1, "first"));
    let target = Reloadable::start(folder, &format!("{start}{}", subsystem(2, "")));
    let host = host().build().unwrap();
    let first = target.daemon.connect(&host);
    let address = target.daemon.address();
    let at = |number: u32| {
        let nqn = format!("{NQN}{number}").parse().unwrap();
        feedrail_initiator::SubsystemAddress { nqn, ..target.daemon.target() }
    };
    let second = host.connect(at(2)).wait().unwrap();
    read_all(&open(&second, 1), 4096);
    target.write_configuration(&format!("{start}{}", subsystem(3, "serial = \"S3\"\n")));
    let expected = json!([
        { "change": "remove_subsystem", "nqn": format!("{NQN}2") },
        { "change": "add_subsystem", "nqn": format!("{NQN}3") },
        { "change": "add_listener", "nqn": format!("{NQN}3"), "address": address.to_string() },
        { "change": "add_ns", "nqn": format!("{NQN}3"), "nsid": 1, "name": "second",
          "size_bytes": SIZE_BYTES },
    ]);
    assert_eq!(target.reload(true), Ok(expected.clone()));
    assert_eq!(target.reload(false), Ok(expected));
    assert_eq!(target.reload(false), Ok(json!([])));
    assert!(host.connect(at(2)).wait().is_err());
    let third = host.connect(at(3)).wait().unwrap();
    read_all(&open(&third, 1), SIZE_BYTES);
    read_all(&open(&first, 1), SIZE_BYTES);
    target.write_configuration(&format!("{start}{}", subsystem(3, "serial = \"S4\"\n")));
    assert!(target.refusal().contains("serial of subsystem"));
    // The one port serves only one of them.
    let head = target.head.replace(":4420\"\n", &format!(":4420\"\nsubsystems = [\"{NQN}\"]\n"));
    let rest = subsystem(3, "serial = \"S3\"\n");
    write_configuration(target.folder.path(), &format!("{head}{start}{rest}"));
    let changes = target.reload(false).unwrap();
    assert_eq!(changes[0]["change"], json!("remove_listener"), "{changes}");
    assert!(host.connect(at(3)).wait().is_err());
    read_all(&open(&first, 1), 4096);
}

#[test]
fn a_signal_reloads() {
    let folder = folder();
    write(folder.path(), "first", 1);
    let second = write(folder.path(), "second", 2);
    let [listed, other] =
        ["listed", "other"].map(|name| format!("nqn.2026-01.io.feedrail:host:{name}"));
    let hosts = |nqn: &str| format!("allowed_hosts = [\"{nqn}\"]\n");
    let one = file(1, "first");
    let target = Reloadable::start(folder, &format!("{}{one}", hosts(&listed)));
    let named = |nqn: &str| {
        let nqn: HostNqn = nqn.parse().unwrap();
        host().host_nqn(nqn).build().unwrap()
    };
    let connected = named(&listed);
    let controller = target.daemon.connect(&connected);
    target.daemon.signal(Signal::HUP);
    target.daemon.wait_for_log("reloaded changes=0");
    target.write_configuration("nonsense");
    target.daemon.signal(Signal::HUP);
    target.daemon.wait_for_log("cannot reload");
    assert!(read_all(&open(&controller, 1), 4096).len() == 4096, "it still reads");
    target.write_configuration(&format!("{}{one}{}", hosts(&other), file(2, "second")));
    target.daemon.signal(Signal::HUP);
    target.daemon.wait_for_log("reloaded changes=3");
    let admitted = named(&other);
    assert!(read_all(&open(&target.daemon.connect(&admitted), 2), SIZE_BYTES) == second);
    eventually("the other host is gone", || {
        let params = json!({ "nqn": NQN });
        let all = target.client().call("nvmf_subsystem_get_controllers", &params).unwrap();
        all.as_array().unwrap().iter().all(|one| one["hostnqn"] != json!(listed))
    });
    assert!(target.daemon.terminate().0.success());
}

#[test]
fn without_a_file_there_is_nothing_to_reload() {
    let folder = folder();
    write(folder.path(), "first", 1);
    let socket = folder.path().join("socket");
    let options = DaemonOptions::files([folder.path().join("first")]);
    let daemon = options.arg("--management").arg(&socket).start();
    let refused = ManagementClient::connect(&socket).call("feedrail_reload_config", &json!({}));
    let message = refused.unwrap_err()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("without a configuration file"), "{message}");
    daemon.signal(Signal::HUP);
    daemon.wait_for_log("SIGHUP is ignored");
    assert!(daemon.terminate().0.success());
}

#[test]
fn many_reloads_leave_nothing_behind() {
    let folder = folder();
    for (name, seed) in [("first", 1), ("second", 2), ("third", 3)] {
        write(folder.path(), name, seed);
    }
    let start = format!("allow_any_host = true\n{}", file(1, "first"));
    let target = Reloadable::start(folder, &start);
    let host = host().build().unwrap();
    let namespace = open(&target.daemon.connect(&host), 1);
    let round = |number: u32| {
        let [two, three] = [file(2 + number % 2, "second"), file(4, "third")];
        target.write_configuration(&format!("{start}{two}{three}"));
        target.reload(false).unwrap();
        target.write_configuration(&start);
        assert_eq!(target.reload(false).unwrap().as_array().unwrap().len(), 2);
        read_all(&namespace, 4096);
    };
    (0..5).for_each(round);
    let before = target.daemon.vitals();
    (0..100).for_each(round);
    before.wait_until_restored(16 << 20, || target.daemon.vitals());
    assert_eq!(host.counters().connections_lost, 0);
}
