//! A file is replaced or changed under a host that reads it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

use feedrail_initiator::{Error, ErrorKind, Namespace};
use feedrail_tests::process::{Bytes, Daemon, DaemonOptions, eventually, host};

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
