//! A file is replaced or changed under a host that reads it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

use feedrail_initiator::{Error, ErrorKind, Namespace};
use feedrail_tests::process::{Bytes, Daemon, DaemonOptions, eventually, host};
use nvme_proto::Nsid;

const SIZE_BYTES: usize = 100_000;

fn read(namespace: &Namespace) -> Result<Vec<u8>, Error> {
    namespace.read_to_vec(1_000, 50_000).wait()
}

#[test]
fn a_replaced_file_fails_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shard.bin");
    let [old, new] = [1, 2].map(|seed| Bytes::new(seed).take(SIZE_BYTES));
    fs::write(&path, &old).unwrap();
    let mut daemon = Daemon::serving([&path]);
    let address = daemon.address();
    let host = host().build().unwrap();
    let namespace = daemon.open(&host);
    assert!(read(&namespace).unwrap() == old[1_000..51_000]);
    let restart = || DaemonOptions::files([&path]).at(address).start();
    daemon.terminate();
    daemon = restart();
    assert!(read(&namespace).unwrap() == old[1_000..51_000], "it is the same file");
    daemon.terminate();
    let replacement = folder.path().join("replacement");
    fs::write(&replacement, &new).unwrap();
    fs::rename(&replacement, &path).unwrap();
    daemon = restart();
    for _ in 0..2 {
        let error = read(&namespace).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Changed(_)), "{error}");
    }
    assert!(read(&daemon.open(&host)).unwrap() == new[1_000..51_000]);
}

/// The target keeps serving the file that it opened, and says so. Its hosts never read the other
/// one.
#[test]
fn a_replaced_file_keeps_its_content_until_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shard.bin");
    let [old, new] = [1, 2].map(|seed| Bytes::new(seed).take(SIZE_BYTES));
    fs::write(&path, &old).unwrap();
    let daemon = Daemon::serving([&path]);
    let host = host().build().unwrap();
    let namespace = daemon.open(&host);
    let replacement = folder.path().join("replacement");
    fs::write(&replacement, &new).unwrap();
    fs::rename(&replacement, &path).unwrap();
    eventually("the daemon tells of the replacement", || {
        assert!(read(&namespace).unwrap() == old[1_000..51_000]);
        daemon.log().contains("another file has this path")
    });
    for namespace in [&namespace, &daemon.open(&host)] {
        assert!(read(namespace).unwrap() == old[1_000..51_000]);
    }
    assert_eq!(host.counters().connections_lost, 0);
}

/// The daemon tells the host by an asynchronous event, and the host stops using the namespace.
#[test]
fn a_file_written_while_connected_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shard.bin");
    let [old, new] = [1, 2].map(|seed| Bytes::new(seed).take(SIZE_BYTES));
    fs::write(&path, &old).unwrap();
    let daemon = Daemon::serving([&path]);
    let host = host().build().unwrap();
    let namespace = daemon.open(&host);
    assert!(read(&namespace).unwrap() == old[1_000..51_000]);
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(&new, 0).unwrap();
    eventually("the host knows of the change", || match read(&namespace) {
        // The page cache is one: until then the host reads the same bytes as any local reader.
        Ok(bytes) => {
            assert!(bytes == new[1_000..51_000]);
            false
        }
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::Changed(_)), "{error}");
            true
        }
    });
    for _ in 0..2 {
        let error = read(&namespace).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Changed(_)), "{error}");
        assert!(error.to_string().contains("open it again"), "{error}");
        let error = namespace.flush().wait().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Changed(_)), "{error}");
    }
    let reopened = daemon.open(&host);
    assert!(read(&reopened).unwrap() == new[1_000..51_000]);
    assert_ne!(namespace.info().generation, reopened.info().generation);
    let counters = host.counters();
    assert_eq!((counters.connections_lost, counters.reconnects), (0, 0));
}

/// A host that reads nothing learns of changes as well, and of a target that was started again.
#[test]
fn changes_are_told_to_a_host_that_reads_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shard.bin");
    fs::write(&path, Bytes::new(1).take(SIZE_BYTES)).unwrap();
    let daemon = Daemon::serving([&path]);
    let address = daemon.address();
    let host = host().build().unwrap();
    let controller = daemon.connect(&host);
    let namespace = controller.namespace(Nsid(1)).wait().unwrap();
    let mut seen = controller.namespace_changes(u64::MAX).wait().unwrap();
    daemon.terminate();
    let daemon = DaemonOptions::files([&path]).at(address).start();
    loop {
        seen = controller.namespace_changes(seen).wait().unwrap();
        if controller.is_connected() {
            break;
        }
    }
    assert!(namespace.change().is_none(), "it is the same file");

    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(&Bytes::new(2).take(SIZE_BYTES), 0).unwrap();
    let change = loop {
        match namespace.change() {
            Some(change) => break change,
            None => seen = controller.namespace_changes(seen).wait().unwrap(),
        }
    };
    assert!(matches!(change.kind(), ErrorKind::Changed(_)), "{change}");
    let again = controller.namespace(Nsid(1)).wait().unwrap();
    assert!(again.change().is_none() && namespace.change().is_some());
    assert!(daemon.terminate().0.success());
}
