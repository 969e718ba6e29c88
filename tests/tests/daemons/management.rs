//! Namespaces come and go through the management socket while hosts work.

use std::fs;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use feedrail_initiator::{Controller, Error, ErrorKind, Namespace};
use feedrail_tests::process::{
    Bytes, Daemon, DaemonOptions, ManagementClient, SetWhenDropped, eventually, feedrail, host,
    slice_of, write_configuration,
};
use nvme_proto::{Nsid, Status};
use serde_json::{Value, json};
use tempfile::TempDir;

const SIZE_BYTES: usize = 1 << 20;
const NQN: &str = "nqn.2026-01.io.feedrail:managed";

struct Managed {
    folder: TempDir,
    daemon: Daemon,
    /// Content of namespace 1.
    first: Vec<u8>,
}

impl Managed {
    fn start() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let first = write(folder.path(), "first", 1);
        let address = feedrail_tests::process::loopback_address();
        let configuration = format!(
            "cores = 2\nstate_dir = \"state\"\nprovider = \"soft\"\n\
             [[port]]\naddress = \"{address}:4420\"\n\
             [[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\npath = \"first\"\n"
        );
        let configuration = write_configuration(folder.path(), &configuration);
        let options = DaemonOptions::default().arg("--config").arg(configuration);
        let daemon = options.arg("--management").arg(folder.path().join("socket")).start();
        Self { folder, daemon, first }
    }

    fn client(&self) -> ManagementClient {
        ManagementClient::connect(&self.socket())
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// Whether the daemon has a file open.
    fn has_open(&self, name: &str) -> bool {
        let path = fs::canonicalize(self.folder.path().join(name)).unwrap();
        let links = fs::read_dir(format!("/proc/{}/fd", self.daemon.id())).unwrap().flatten();
        links.filter_map(|link| fs::read_link(link.path()).ok()).any(|open| open == path)
    }

    fn create(&self, client: &mut ManagementClient, name: &str) {
        let filename = self.folder.path().join(name);
        let params = json!({ "name": name, "filename": filename, "block_size": 512 });
        assert_eq!(client.call("bdev_uring_create", &params), Ok(json!(name)));
    }
}

/// Makes a file, and returns its bytes.
fn write(folder: &Path, name: &str, seed: u64) -> Vec<u8> {
    let bytes = Bytes::new(seed).take(SIZE_BYTES);
    fs::write(folder.join(name), &bytes).unwrap();
    bytes
}

fn add(client: &mut ManagementClient, name: &str) -> Nsid {
    let params = json!({ "nqn": NQN, "namespace": { "bdev_name": name } });
    let nsid = client.call("nvmf_subsystem_add_ns", &params).unwrap();
    Nsid(u32::try_from(nsid.as_u64().unwrap()).unwrap())
}

fn remove(client: &mut ManagementClient, nsid: Nsid) -> Result<Value, Value> {
    client.call("nvmf_subsystem_remove_ns", &json!({ "nqn": NQN, "nsid": nsid.0 }))
}

/// A random range of a namespace, compared with what it holds.
fn read_some(namespace: &Namespace, held: &[u8], random: &mut Bytes) -> Result<(), Error> {
    let length = 1 + random.below(64 << 10) as usize;
    let from = random.below((held.len() - length) as u64) as usize;
    let bytes = namespace.read_to_vec(from as u64, length).wait()?;
    assert!(bytes == held[from..][..length], "wrong bytes from {from} on");
    Ok(())
}

/// How commands for a namespace end that was removed.
fn is_removed(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::Status(status) => status.is(Status::INVALID_NAMESPACE_OR_FORMAT),
        ErrorKind::Changed(_) => true,
        _ => false,
    }
}

fn active(controller: &Controller) -> Vec<u32> {
    let nsids = controller.active_namespaces().wait().unwrap();
    nsids.into_iter().map(|nsid| nsid.0).collect()
}

#[test]
fn a_namespace_comes_and_goes_under_verified_reads() {
    let managed = Managed::start();
    let second = write(managed.folder.path(), "second", 2);
    let mut client = managed.client();
    let host = host().build().unwrap();
    let controller = managed.daemon.connect(&host);
    let first = controller.namespace(Nsid(1)).wait().unwrap();
    managed.create(&mut client, "second");
    let over = AtomicBool::new(false);
    let reads = AtomicU64::new(0);
    thread::scope(|scope| {
        let (over, reads, first, held) = (&over, &reads, &first, &managed.first);
        let _over_at_the_end = SetWhenDropped(over);
        for seed in 0..2 {
            scope.spawn(move || {
                let mut random = Bytes::new(100 + seed);
                while !over.load(Ordering::Relaxed) {
                    read_some(first, held, &mut random).unwrap();
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for round in 0..3 {
            assert_eq!(active(&controller), [1]);
            let nsid = add(&mut client, "second");
            assert_eq!((nsid, active(&controller)), (Nsid(2), vec![1, 2]));
            let added = controller.namespace(nsid).wait().unwrap();
            let added_reads = Arc::new(AtomicU64::new(0));
            let readers: Vec<_> = (0..4)
                .map(|seed| {
                    let (added, second) = (added.clone(), &second);
                    let added_reads = Arc::clone(&added_reads);
                    scope.spawn(move || {
                        let mut random = Bytes::new(1_000 * round + seed);
                        loop {
                            match read_some(&added, second, &mut random) {
                                Ok(()) => {
                                    added_reads.fetch_add(1, Ordering::Relaxed);
                                }
                                Err(error) if is_removed(&error) => return,
                                Err(error) => panic!("{error}"),
                            }
                        }
                    })
                })
                .collect();
            let before = reads.load(Ordering::Relaxed);
            eventually("both are read", || {
                reads.load(Ordering::Relaxed) > before + 50
                    && added_reads.load(Ordering::Relaxed) > 50
            });
            assert!(managed.has_open("second"));
            assert_eq!(remove(&mut client, nsid), Ok(json!(true)));
            assert_eq!(active(&controller), [1]);
            readers.into_iter().for_each(|reader| reader.join().unwrap());
            eventually("the file is closed", || !managed.has_open("second"));
        }
    });
    assert_eq!(host.counters().connections_lost, 0);
}

/// Acknowledged bytes are in the file when the namespace is gone, though they were never flushed.
#[test]
fn acknowledged_writes_survive_the_removal() {
    let managed = Managed::start();
    let mut held = write(managed.folder.path(), "second", 2);
    let mut client = managed.client();
    let host = host().build().unwrap();
    let controller = managed.daemon.connect(&host);
    managed.create(&mut client, "second");
    for round in 0..10_u64 {
        let nsid = add(&mut client, "second");
        let namespace = controller.namespace(nsid).wait().unwrap();
        let writer = thread::spawn(move || {
            let mut acknowledged = 0;
            loop {
                let at = acknowledged * 4096 % SIZE_BYTES as u64;
                let bytes = Bytes::new(round << 32 | acknowledged).take(4096);
                match namespace.write(at, slice_of(&bytes)).wait().result {
                    Ok(()) => acknowledged += 1,
                    Err(error) if is_removed(&error) => return acknowledged,
                    Err(error) => panic!("{error}"),
                }
            }
        });
        eventually("something was written", || {
            fs::read(managed.folder.path().join("second")).unwrap() != held
        });
        assert_eq!(remove(&mut client, nsid), Ok(json!(true)));
        let acknowledged = writer.join().unwrap();
        for number in 0..acknowledged {
            let at = (number * 4096) as usize % SIZE_BYTES;
            held[at..][..4096].copy_from_slice(&Bytes::new(round << 32 | number).take(4096));
        }
        let mut found = fs::read(managed.folder.path().join("second")).unwrap();
        // One more may have been written that was not acknowledged.
        let at = (acknowledged * 4096) as usize % SIZE_BYTES;
        let last = Bytes::new(round << 32 | acknowledged).take(4096);
        if found[at..][..4096] == last[..] {
            held[at..][..4096].copy_from_slice(&last);
        }
        assert!(found == held, "round {round}: an acknowledged write is lost");
        found.clear();
    }
}

#[test]
fn many_rounds_leave_nothing_behind() {
    let managed = Managed::start();
    let second = write(managed.folder.path(), "second", 2);
    let mut client = managed.client();
    let host = host().build().unwrap();
    let controller = managed.daemon.connect(&host);
    managed.create(&mut client, "second");
    let malloc = json!({ "name": "memory", "num_blocks": 2048, "block_size": 512 });
    assert_eq!(client.call("bdev_malloc_create", &malloc), Ok(json!("memory")));
    let mut random = Bytes::new(3);
    let mut round = |client: &mut ManagementClient| {
        let nsids = [add(client, "second"), add(client, "memory")];
        assert_eq!(nsids, [Nsid(2), Nsid(3)]);
        let namespace = controller.namespace(nsids[0]).wait().unwrap();
        read_some(&namespace, &second, &mut random).unwrap();
        for nsid in nsids {
            assert_eq!(remove(client, nsid), Ok(json!(true)));
        }
    };
    // The first rounds open what stays open.
    (0..5).for_each(|_| round(&mut client));
    eventually("the file is closed", || !managed.has_open("second"));
    let before = managed.daemon.vitals();
    (0..200).for_each(|_| round(&mut client));
    before.wait_until_restored(16 << 20, || managed.daemon.vitals());
    assert_eq!(active(&controller), [1]);
    assert_eq!(managed.daemon.vitals().threads, before.threads);
    assert_eq!(host.counters().connections_lost, 0);
}

#[test]
fn hostile_clients_disturb_neither_hosts_nor_operators() {
    let managed = Managed::start();
    let host = host().build().unwrap();
    let namespace = managed.daemon.open(&host);
    let mut client = managed.client();
    let mut random = Bytes::new(4);
    let mut hostile = Vec::new();
    for round in 0..300_u64 {
        let mut stream = UnixStream::connect(managed.socket()).unwrap();
        let bytes = random.take(1 + random.clone().below(4096) as usize);
        // The daemon may have hung up already.
        let _ = match round % 4 {
            0 => stream.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"rpc_get"),
            1 => stream.write_all(&bytes),
            2 => stream.write_all(&vec![b'{'; 512 << 10]),
            _ => stream
                .write_all(&br#"{"jsonrpc":"2.0","id":1,"method":"rpc_get_methods"}"#.repeat(500)),
        };
        hostile.push(stream);
        read_some(&namespace, &managed.first, &mut random).unwrap();
        if round % 50 == 0 {
            client = managed.client();
        }
        if round % 10 == 0 {
            let listed = client.call("nvmf_get_subsystems", &json!({})).unwrap();
            assert_eq!(listed[0]["nqn"], json!(NQN));
        }
    }
    let threads = managed.daemon.vitals().threads;
    assert!(threads < 60, "{threads} threads");
    drop(hostile);
    let fewer = || managed.daemon.vitals().threads < 20;
    eventually("the threads of clients end", fewer);
    assert_eq!(host.counters().connections_lost, 0);
}

#[test]
fn operators_use_the_command_line() {
    let managed = Managed::start();
    let second = write(managed.folder.path(), "second", 2);
    let socket = managed.socket().display().to_string();
    let path = managed.folder.path().join("second").display().to_string();
    let run = |words: &[&str]| {
        let words = ["target"].into_iter().chain(words.iter().copied());
        feedrail(words.chain(["--socket", &socket])).run()
    };
    let added = run(&["add-ns", NQN, &path]).success();
    assert_eq!(String::from_utf8(added).unwrap().trim(), "2");
    let host = host().build().unwrap();
    let controller = managed.daemon.connect(&host);
    let namespace = controller.namespace(Nsid(2)).wait().unwrap();
    read_some(&namespace, &second, &mut Bytes::new(5)).unwrap();
    let shown: Value = serde_json::from_slice(&run(&["show", "-o", "json"]).success()).unwrap();
    let namespaces = shown["subsystems"][0]["namespaces"].as_array().unwrap();
    assert_eq!(namespaces.len(), 2);
    assert_eq!(namespaces[1]["size_bytes"], json!(SIZE_BYTES));
    let table = String::from_utf8(run(&["show"]).success()).unwrap();
    assert!(table.contains(NQN) && table.contains("second"), "{table}");
    let error = run(&["add-ns", NQN, &path]).failure();
    assert!(error.contains("already"), "{error}");
    run(&["remove-ns", NQN, "2"]).success();
    eventually("the file is closed", || !managed.has_open("second"));
    let error = run(&["remove-ns", NQN, "2"]).failure();
    assert!(error.contains("has no namespace 2"), "{error}");
    // The name of the medium is free again.
    assert_eq!(String::from_utf8(run(&["add-ns", NQN, &path]).success()).unwrap().trim(), "2");
}

#[test]
fn namespaces_removed_during_a_list_are_left_out() {
    const LISTS: usize = 20;
    const REMOVED: u32 = 40;
    let managed = Managed::start();
    let mut client = managed.client();
    for nsid in 2..=REMOVED {
        let media = json!({ "name": format!("n{nsid}"), "num_blocks": 8, "block_size": 512 });
        client.call("bdev_null_create", &media).unwrap();
    }
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over_at_the_end = SetWhenDropped(&over);
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for nsid in 2..=REMOVED {
                    let namespace = json!({ "bdev_name": format!("n{nsid}"), "nsid": nsid });
                    let params = json!({ "nqn": NQN, "namespace": namespace });
                    client.call("nvmf_subsystem_add_ns", &params).unwrap();
                }
                for nsid in 2..=REMOVED {
                    let params = json!({ "nqn": NQN, "nsid": nsid });
                    client.call("nvmf_subsystem_remove_ns", &params).unwrap();
                }
            }
        });
        let address = managed.daemon.address().ip().to_string();
        for _ in 0..LISTS {
            let list = feedrail(["list", "-a", &address, "--provider", "soft", "-o", "json"]).run();
            let list: Value = serde_json::from_slice(&list.success()).unwrap();
            assert_eq!(list["namespaces"][0]["name"], "first");
        }
    });
}
