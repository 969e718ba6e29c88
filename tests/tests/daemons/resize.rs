//! Namespaces get another size while hosts use them.

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use feedrail_initiator::{Controller, Error, ErrorKind, Namespace};
use feedrail_tests::process::{
    Bytes, Daemon, DaemonOptions, ManagementClient, SetWhenDropped, eventually, feedrail, host,
    loopback_address, slice_of, write_configuration,
};
use nvme_proto::Nsid;
use serde_json::{Value, json};
use tempfile::TempDir;

const NQN: &str = "nqn.2026-01.io.feedrail:resized";
const MIB: u64 = 1 << 20;

struct Resizable {
    folder: TempDir,
    daemon: Daemon,
}

impl Resizable {
    /// A target with a file that is written (1), one that is read (2), zeros (3) and memory (4).
    fn start() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        for (name, seed) in [("written", 1), ("read", 2)] {
            fs::write(folder.path().join(name), Bytes::new(seed).take(MIB as usize)).unwrap();
        }
        let configuration = format!(
            "cores = 2\nstate_dir = \"state\"\nprovider = \"soft\"\nmanagement = \"socket\"\n\
             [[port]]\naddress = \"{}:4420\"\n[[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\npath = \"written\"\nread_only = false\nlba_bytes = 4096\n\
             [[subsystem.namespace]]\npath = \"read\"\n\
             [[subsystem.namespace]]\nkind = \"null\"\nsize_bytes = \"1MiB\"\n\
             [[subsystem.namespace]]\nkind = \"memory\"\nsize_bytes = \"1MiB\"\n",
            loopback_address()
        );
        let configuration = write_configuration(folder.path(), &configuration);
        let daemon = DaemonOptions::default().arg("--config").arg(configuration).start();
        Self { folder, daemon }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn set_length(&self, name: &str, bytes: u64) {
        File::options().write(true).open(self.path(name)).unwrap().set_len(bytes).unwrap();
    }

    fn client(&self) -> ManagementClient {
        ManagementClient::connect(&self.path("socket"))
    }

    fn resize(&self, nsid: u32, size_bytes: Option<u64>) -> Result<Value, Value> {
        let mut params = json!({ "nqn": NQN, "nsid": nsid });
        if let Some(bytes) = size_bytes {
            params["size_bytes"] = bytes.into();
        }
        self.client().call("feedrail_resize_ns", &params)
    }

    fn refusal(&self, nsid: u32, size_bytes: Option<u64>) -> String {
        let error = self.resize(nsid, size_bytes).unwrap_err();
        error["message"].as_str().unwrap().to_owned()
    }
}

fn open(controller: &Controller, nsid: u32) -> Namespace {
    controller.namespace(Nsid(nsid)).wait().unwrap()
}

fn is_changed(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Changed(_))
}

/// Writes and reads back until `over` is set, with a new handle after each change of the size. No
/// command fails for another reason, and nothing that was acknowledged is lost.
fn write_until(over: &AtomicBool, controller: &Controller, writes: &AtomicU64) -> Vec<Vec<u8>> {
    let mut random = Bytes::new(9);
    let mut namespace = open(controller, 1);
    let bytes = namespace.read_to_vec(0, MIB as usize).wait().unwrap();
    let mut held: Vec<Vec<u8>> = bytes.chunks(4096).map(<[u8]>::to_vec).collect();
    while !over.load(Ordering::Relaxed) {
        // Always within the least size.
        let at = random.below(held.len() as u64);
        let bytes = random.take(4096);
        let done = loop {
            match namespace.write(at * 4096, slice_of(&bytes)).wait().result {
                Err(error) if is_changed(&error) => namespace = open(controller, 1),
                done => break done,
            }
        };
        done.unwrap();
        held[at as usize] = bytes;
        writes.fetch_add(1, Ordering::Relaxed);
        let at = random.below(held.len() as u64);
        match namespace.read_to_vec(at * 4096, 4096).wait() {
            Ok(found) => assert!(found == held[at as usize], "block {at} has other bytes"),
            Err(error) => {
                assert!(is_changed(&error), "{error}");
                namespace = open(controller, 1);
            }
        }
    }
    held
}

#[test]
fn a_file_grows_and_shrinks_under_verified_writes() {
    let target = Resizable::start();
    let host = host().build().unwrap();
    let controller = target.daemon.connect(&host);
    let (over, writes) = (AtomicBool::new(false), AtomicU64::new(0));
    let held = thread::scope(|scope| {
        let _over_at_the_end = SetWhenDropped(&over);
        let writer = scope.spawn(|| write_until(&over, &controller, &writes));
        let before = target.daemon.vitals().descriptors;
        for round in 0..40 {
            let bytes = MIB * (1 + round % 4);
            target.set_length("written", bytes);
            assert_eq!(target.resize(1, None), Ok(json!(bytes)));
            assert_eq!(target.resize(1, None), Ok(json!(bytes)), "it has that size");
            let other = host.connect(target.daemon.target()).wait().unwrap();
            let last = open(&other, 1).read_to_vec(bytes - 4096, 4096).wait().unwrap();
            assert!(round % 4 == 0 || last == [0; 4096], "what was added are zeros");
            let seen = writes.load(Ordering::Relaxed);
            eventually("the writer continues", || {
                writes.load(Ordering::Relaxed) > seen + 3 || writer.is_finished()
            });
        }
        eventually("descriptors are as before", || {
            target.daemon.vitals().descriptors <= before + 2
        });
        over.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    let found = fs::read(target.path("written")).unwrap();
    assert!(found[..MIB as usize] == held.concat(), "an acknowledged write is lost");
    // Other processes are still kept from it.
    let error = std::process::Command::new("flock")
        .args(["--nonblock", "--shared"])
        .arg(target.path("written"))
        .arg("true")
        .status()
        .unwrap();
    assert!(!error.success(), "the lock is still there");
    assert_eq!(host.counters().connections_lost, 0);
}

#[test]
fn what_is_behind_the_new_end_is_out_of_range() {
    let target = Resizable::start();
    let host = host().build().unwrap();
    let controller = target.daemon.connect(&host);
    target.set_length("written", 2 * MIB);
    assert_eq!(target.resize(1, None), Ok(json!(2 * MIB)));
    let namespace = open(&controller, 1);
    assert_eq!(namespace.info().size_bytes, 2 * MIB);
    let bytes = Bytes::new(3).take(4096);
    namespace.write(2 * MIB - 4096, slice_of(&bytes)).wait().result.unwrap();
    assert!(namespace.read_to_vec(2 * MIB - 4096, 4096).wait().unwrap() == bytes);
    target.set_length("written", MIB);
    assert_eq!(target.resize(1, None), Ok(json!(MIB)));
    eventually("the host hears of it", || {
        namespace.read_to_vec(0, 4096).wait().is_err_and(|error| is_changed(&error))
    });
    let namespace = open(&controller, 1);
    assert_eq!(namespace.info().size_bytes, MIB);
    let error = namespace.read_to_vec(MIB, 4096).wait().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::OutOfRange { .. }), "{error}");
    namespace.write(MIB - 4096, slice_of(&bytes)).wait().result.unwrap();
    namespace.flush().wait().unwrap();
}

#[test]
fn files_that_are_read_and_zeros_are_resized() {
    let target = Resizable::start();
    let host = host().build().unwrap();
    let controller = target.daemon.connect(&host);
    let longer = Bytes::new(4).take(3 * MIB as usize + 7);
    fs::write(target.path("read"), &longer).unwrap();
    assert_eq!(target.resize(2, None), Ok(json!(longer.len())));
    assert!(open(&controller, 2).read_to_vec(0, longer.len()).wait().unwrap() == longer);
    assert_eq!(target.resize(3, Some(8 * MIB)), Ok(json!(8 * MIB)));
    assert!(open(&controller, 3).read_to_vec(8 * MIB - 512, 512).wait().unwrap() == [0; 512]);
    let socket = target.path("socket").display().to_string();
    let run = |words: &[&str]| {
        let words = ["target", "resize", NQN].into_iter().chain(words.iter().copied());
        feedrail(words.chain(["--socket", &socket])).run()
    };
    assert_eq!(run(&["3", "--size", "2M"]).success(), b"2097152\n");
    assert_eq!(run(&["2"]).success(), format!("{}\n", longer.len()).into_bytes());
    let error = run(&["9"]).failure();
    assert!(error.contains("has no namespace 9"), "{error}");
}

#[test]
fn sizes_that_can_not_be_are_refused() {
    let target = Resizable::start();
    let host = host().build().unwrap();
    let controller = target.daemon.connect(&host);
    let namespaces: Vec<_> = (1..=4).map(|nsid| open(&controller, nsid)).collect();
    assert!(target.refusal(1, Some(MIB)).contains("its size is that of its file"));
    assert!(target.refusal(3, None).contains("say which size"));
    assert!(target.refusal(3, Some(513)).contains("not a multiple"));
    assert!(target.refusal(4, Some(MIB)).contains("fixed size"));
    assert!(target.refusal(9, None).contains("has no namespace 9"));
    target.set_length("written", MIB + 512);
    assert!(target.refusal(1, None).contains("needs a multiple of its 4096-byte"));
    target.set_length("written", MIB);
    fs::write(target.path("new"), [1; 8192]).unwrap();
    fs::rename(target.path("new"), target.path("read")).unwrap();
    assert!(target.refusal(2, None).contains("another file has its path"));
    for namespace in &namespaces {
        assert_eq!(namespace.read_to_vec(0, MIB as usize).wait().unwrap().len(), MIB as usize);
    }
    assert_eq!(host.counters().connections_lost, 0);
}

/// SPDK's methods name the medium.
#[test]
fn named_media_are_resized() {
    let target = Resizable::start();
    let host = host().build().unwrap();
    let controller = target.daemon.connect(&host);
    fs::write(target.path("other"), [7; 8192]).unwrap();
    let mut client = target.client();
    let filename = target.path("other");
    let file = json!({ "name": "file", "filename": filename, "block_size": 512 });
    assert_eq!(client.call("bdev_aio_create", &file), Ok(json!("file")));
    let null = json!({ "name": "null", "num_blocks": 2048, "block_size": 512 });
    assert_eq!(client.call("bdev_null_create", &null), Ok(json!("null")));
    let null_resize = json!({ "name": "null", "new_size": 3 });
    assert_eq!(client.call("bdev_null_resize", &null_resize), Ok(json!(true)), "it is not used");
    for (name, nsid) in [("file", 5), ("null", 6)] {
        let params = json!({ "nqn": NQN, "namespace": { "bdev_name": name } });
        assert_eq!(client.call("nvmf_subsystem_add_ns", &params), Ok(json!(nsid)));
    }
    assert_eq!(open(&controller, 6).info().size_bytes, 3 * MIB);
    let null_resize = json!({ "name": "null", "new_size": 5 });
    assert_eq!(client.call("bdev_null_resize", &null_resize), Ok(json!(true)));
    assert_eq!(open(&controller, 6).info().size_bytes, 5 * MIB);
    target.set_length("other", 12_288);
    assert_eq!(client.call("bdev_aio_rescan", &json!({ "name": "file" })), Ok(json!(true)));
    assert_eq!(open(&controller, 5).info().size_bytes, 12_288);
    for (method, params) in [
        ("bdev_uring_rescan", json!({ "name": "file" })),
        ("bdev_aio_rescan", json!({ "name": "nothing" })),
        ("bdev_null_resize", json!({ "name": "file", "new_size": 1 })),
        ("bdev_null_resize", json!({ "name": "null", "new_size": 0 })),
        ("bdev_null_resize", json!({ "name": "null", "new_size": u64::MAX })),
    ] {
        assert_eq!(client.call(method, &params).unwrap_err()["code"], json!(-32602), "{method}");
    }
}
