//! Files that appear in and vanish from a watched directory do so as namespaces, while hosts work.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use feedrail_tests::process::{
    Bytes, Daemon, DaemonOptions, ManagementClient, eventually, feedrail, host, loopback_address,
    write_configuration,
};
use nvme_proto::Nsid;
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

const SIZE_BYTES: usize = 1 << 20;
const NQN: &str = "nqn.2026-01.io.feedrail:watched";

struct Watched {
    folder: TempDir,
    daemon: Daemon,
}

impl Watched {
    /// A target of a directory with a file `a` and a folder `sub` in it, and of a file beside.
    fn start(keys: &str) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        fs::create_dir_all(folder.path().join("shards/sub")).unwrap();
        symlink("nowhere", folder.path().join("shards/dangling")).unwrap();
        for (name, seed) in [("shards/a", 1), ("beside", 2)] {
            fs::write(folder.path().join(name), Bytes::new(seed).take(SIZE_BYTES)).unwrap();
        }
        let configuration = format!(
            "state_dir = \"state\"\nprovider = \"soft\"\n{keys}[[port]]\naddress = \"{}:4420\"\n\
             [[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\nnsid = 10\npath = \"beside\"\n\
             [[subsystem.directory]]\npath = \"shards\"\nwatch = true\n",
            loopback_address()
        );
        let configuration = write_configuration(folder.path(), &configuration);
        let daemon = DaemonOptions::default().arg("--config").arg(configuration).start();
        Self { folder, daemon }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, seed: u64) {
        fs::write(self.path(name), Bytes::new(seed).take(SIZE_BYTES)).unwrap();
    }

    fn socket(&self) -> String {
        self.path("socket").display().to_string()
    }

    /// The names and sizes of what is exported.
    fn exported(&self) -> Vec<(String, u64)> {
        let mut client = ManagementClient::connect(&self.path("socket"));
        let subsystems = client.call("nvmf_get_subsystems", &json!({})).unwrap();
        let namespaces = subsystems[0]["namespaces"].as_array().unwrap().iter();
        let described = |one: &Value| {
            (one["name"].as_str().unwrap().to_owned(), one["size_bytes"].as_u64().unwrap())
        };
        let mut exported: Vec<_> = namespaces.map(described).collect();
        exported.sort();
        exported
    }

    fn is_exported(&self, names: &[&str]) -> bool {
        self.exported().iter().map(|(name, _)| name.as_str()).eq(names.iter().copied())
    }

    fn nsid(&self, name: &str) -> u32 {
        let mut client = ManagementClient::connect(&self.path("socket"));
        let subsystems = client.call("nvmf_get_subsystems", &json!({})).unwrap();
        let namespaces = subsystems[0]["namespaces"].as_array().unwrap();
        let found = namespaces.iter().find(|one| one["name"] == name).unwrap();
        u32::try_from(found["nsid"].as_u64().unwrap()).unwrap()
    }

    fn target(&self, arguments: &[&str]) {
        let socket = self.socket();
        let at_socket = ["--socket", &socket];
        feedrail(["target"].iter().chain(arguments).chain(&at_socket)).run().success();
    }
}

#[test]
fn files_come_and_go_while_a_host_reads() {
    let watched = Watched::start("management = \"socket\"\n");
    assert!(watched.is_exported(&["a", "beside"]));
    let host = host().build().unwrap();
    let controller = watched.daemon.connect(&host);
    let stays = controller.namespace(Nsid(watched.nsid("a"))).wait().unwrap();

    watched.write("shards/b", 3);
    eventually("the new file is there", || watched.is_exported(&["a", "b", "beside"]));
    let b = controller.namespace(Nsid(watched.nsid("b"))).wait().unwrap();
    assert!(b.read_to_vec(0, SIZE_BYTES).wait().unwrap() == Bytes::new(3).take(SIZE_BYTES));

    // A file that is still written is none, and neither is what directories leave out.
    let mut unfinished = File::create(watched.path("shards/unfinished")).unwrap();
    unfinished.write_all(&[1; 4096]).unwrap();
    watched.write("shards/.hidden", 4);
    fs::create_dir_all(watched.path("shards/sub/deep")).unwrap();
    watched.write("shards/sub/deep/c", 5);
    watched.write("new", 6);
    fs::rename(watched.path("new"), watched.path("shards/moved")).unwrap();
    let names = ["a", "b", "beside", "moved", "sub/deep/c"];
    eventually("the others are there", || watched.is_exported(&names));
    unfinished.write_all(&[2; 4096]).unwrap();
    drop(unfinished);
    eventually("the finished file is there", || {
        watched.exported().contains(&("unfinished".to_owned(), 8192))
    });

    // Another file in place of one, and one that grows.
    fs::write(watched.path("new"), [7; 12288]).unwrap();
    fs::rename(watched.path("new"), watched.path("shards/moved")).unwrap();
    let mut growing = File::options().append(true).open(watched.path("shards/unfinished")).unwrap();
    growing.write_all(&[3; 4096]).unwrap();
    drop(growing);
    eventually("their sizes have changed", || {
        let exported = watched.exported();
        ["moved", "unfinished"].iter().all(|name| exported.contains(&(name.to_string(), 12288)))
    });

    fs::remove_file(watched.path("shards/b")).unwrap();
    fs::remove_dir_all(watched.path("shards/sub")).unwrap();
    eventually("two are gone", || watched.is_exported(&["a", "beside", "moved", "unfinished"]));
    assert!(b.read_to_vec(0, 4096).wait().is_err());
    assert!(stays.read_to_vec(0, SIZE_BYTES).wait().unwrap() == Bytes::new(1).take(SIZE_BYTES));
    let log = watched.daemon.log();
    assert_eq!(log.matches("the symlink leads nowhere").count(), 1, "once, and not at each look");
    assert!(watched.daemon.terminate().0.success());
}

/// Other changes by operators stay.
#[test]
fn changes_of_operators_stay() {
    let watched = Watched::start("management = \"socket\"\n");
    watched.write("added", 7);
    watched.target(&["add-ns", NQN, &watched.path("added").display().to_string()]);
    watched.target(&["remove-ns", NQN, &watched.nsid("a").to_string()]);
    watched.target(&["remove-ns", NQN, "10"]);
    assert!(watched.is_exported(&["added"]));
    watched.write("shards/b", 8);
    eventually("b is there", || watched.is_exported(&["added", "b"]));
    // Until it has been away, and comes again.
    fs::rename(watched.path("shards/a"), watched.path("a")).unwrap();
    watched.write("shards/c", 9);
    eventually("c is there", || watched.is_exported(&["added", "b", "c"]));
    fs::rename(watched.path("a"), watched.path("shards/a")).unwrap();
    eventually("a is back", || watched.is_exported(&["a", "added", "b", "c"]));
    watched.target(&["reload"]);
    assert!(watched.is_exported(&["a", "b", "beside", "c"]));
    assert!(watched.daemon.terminate().0.success());
}

/// A directory without files is a mistake, and changes nothing; a target without a management
/// socket follows directories as well.
#[test]
fn an_empty_directory_changes_nothing() {
    let watched = Watched::start("");
    let host = host().build().unwrap();
    let controller = watched.daemon.connect(&host);
    let nsids = || controller.active_namespaces().wait().unwrap();
    assert_eq!(nsids(), [Nsid(1), Nsid(10)]);
    fs::rename(watched.path("shards/a"), watched.path("a")).unwrap();
    watched.daemon.wait_for_log("cannot follow the watched directories");
    assert_eq!(nsids(), [Nsid(1), Nsid(10)]);
    fs::create_dir_all(watched.path("shards/sub/more")).unwrap();
    fs::rename(watched.path("a"), watched.path("shards/sub/more/b")).unwrap();
    eventually("the new file has the NSID after that of the old one", || {
        nsids() == [Nsid(2), Nsid(10)]
    });
    watched.daemon.signal(Signal::HUP);
    watched.daemon.wait_for_log("reloaded");
    watched.write("shards/c", 3);
    eventually("c is there", || nsids().len() == 3);
    assert!(watched.daemon.terminate().0.success());
}
