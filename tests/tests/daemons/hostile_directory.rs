//! A user who may write into a watched directory swaps its files for symlinks and FIFOs while the
//! target looks at them.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use feedrail_initiator::Controller;
use feedrail_tests::process::{
    Daemon, DaemonOptions, SetWhenDropped, eventually, host, loopback_address, slice_of,
    write_configuration,
};
use nvme_proto::Nsid;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;

const NAMES: usize = 64;
const BYTES: usize = 4096;
const SECRET: u8 = b'S';
/// Changes of the exports that a test waits for while names are swapped.
const LOOKS: usize = 40;

struct Hostile {
    folder: TempDir,
    daemon: Daemon,
}

impl Hostile {
    fn start(read_only: bool) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let shards = folder.path().join("shards");
        fs::create_dir(&shards).unwrap();
        fs::write(shards.join("quiet"), [b'q'; BYTES]).unwrap();
        for folder in [folder.path().join("outside"), shards.join(".real")] {
            fs::create_dir(folder).unwrap();
        }
        for name in names() {
            fs::write(shards.join(".real").join(&name), [b'r'; BYTES]).unwrap();
            fs::write(folder.path().join("outside").join(name), [SECRET; BYTES]).unwrap();
        }
        let configuration = format!(
            "state_dir = \"state\"\nprovider = \"soft\"\n[[port]]\naddress = \"{}:4420\"\n\
             [[subsystem]]\nnqn = \"nqn.2026-01.io.feedrail:hostile\"\nallow_any_host = true\n\
             [[subsystem.directory]]\npath = \"shards\"\nwatch = true\nread_only = {read_only}\n",
            loopback_address()
        );
        let configuration = write_configuration(folder.path(), &configuration);
        let daemon = DaemonOptions::default().arg("--config").arg(configuration).start();
        Self { folder, daemon }
    }

    fn shards(&self) -> PathBuf {
        self.folder.path().join("shards")
    }

    /// Swaps each name between a regular file and what `put` makes there, until told to stop.
    fn swap(&self, stop: &AtomicBool, put: impl Fn(&str, &Path)) {
        let (shards, next) = (self.shards(), self.shards().join(".next"));
        while !stop.load(Ordering::Relaxed) {
            for name in names() {
                put(&name, &next);
                fs::rename(&next, shards.join(&name)).unwrap();
            }
            for name in names() {
                self.put_file(&name);
            }
        }
    }

    fn put_file(&self, name: &str) {
        let next = self.shards().join(".next");
        fs::hard_link(self.shards().join(".real").join(name), &next).unwrap();
        fs::rename(&next, self.shards().join(name)).unwrap();
        // A rename to another name of the same file does nothing.
        _ = fs::remove_file(&next);
    }

    /// Looks at what is exported after each of some changes of it, while names are swapped.
    fn at_changes(
        &self,
        put: impl Fn(&str, &Path) + Send + Sync,
        look: impl Fn(&Controller, Nsid),
    ) {
        let host = host().build().unwrap();
        let controller = self.daemon.connect(&host);
        let exported =
            || controller.active_namespaces().wait().unwrap().into_iter().collect::<BTreeSet<_>>();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| self.swap(&stop, put));
            let _stopped = SetWhenDropped(&stop);
            let mut before = exported();
            for _ in 0..LOOKS {
                eventually("the target has looked", || exported() != before);
                before = exported();
                before.iter().for_each(|nsid| look(&controller, *nsid));
            }
        });
        names().for_each(|name| self.put_file(&name));
        eventually("the files are exported", || exported().len() == NAMES + 1);
    }

    /// Asserts that the files outside of the directory are as they were.
    fn assert_outside_is_untouched(&self) {
        for name in names() {
            let bytes = fs::read(self.folder.path().join("outside").join(&name)).unwrap();
            assert!(bytes == [SECRET; BYTES], "{name} was written");
        }
    }
}

fn names() -> impl Iterator<Item = String> {
    (0..NAMES).map(|number| format!("shard{number:02}"))
}

/// Reads a namespace, unless it is gone by now.
fn read(controller: &Controller, nsid: Nsid) {
    let Ok(namespace) = controller.namespace(nsid).wait() else { return };
    let Ok(bytes) = namespace.read_to_vec(0, BYTES).wait() else { return };
    assert!(!bytes.contains(&SECRET), "{nsid} has bytes of a file outside of the directory");
}

fn read_and_write(controller: &Controller, nsid: Nsid) {
    read(controller, nsid);
    let Ok(namespace) = controller.namespace(nsid).wait() else { return };
    // It may be gone by now.
    _ = namespace.write(0, slice_of(&[b'w'; BYTES])).wait().result;
}

#[test]
fn symlinks_lead_nobody_out_of_a_directory() {
    for read_only in [true, false] {
        let hostile = Hostile::start(read_only);
        let outside = hostile.folder.path().join("outside");
        let put = |name: &str, place: &Path| symlink(outside.join(name), place).unwrap();
        hostile.at_changes(put, if read_only { read } else { read_and_write });
        hostile.assert_outside_is_untouched();
        assert!(hostile.daemon.terminate().0.success());
    }
}

#[test]
fn no_fifo_is_waited_for() {
    let hostile = Hostile::start(true);
    let put = |_: &str, place: &Path| {
        mknodat(CWD, place, FileType::Fifo, Mode::RWXU, 0).unwrap();
    };
    hostile.at_changes(put, read);
    assert!(hostile.daemon.terminate().0.success());
}
