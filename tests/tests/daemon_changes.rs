//! A file is replaced under a host that reads it.

use std::fs;

use feedrail_initiator::{Error, ErrorKind, Namespace};
use feedrail_tests::process::{Bytes, Daemon, DaemonOptions, host};

const SIZE_BYTES: usize = 100_000;

fn read(namespace: &Namespace) -> Result<Vec<u8>, Error> {
    namespace.read_to_vec(1_000, 50_000).wait()
}

#[test]
fn a_replaced_file_is_an_error_after_a_restart() {
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
