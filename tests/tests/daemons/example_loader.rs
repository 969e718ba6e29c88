//! The loader that users start from, against a daemon in another process.

use std::fs;

use feedrail_tests::process::{Bytes, Daemon};
use loader::LoaderOptions;

#[expect(dead_code, reason = "its `main` is for `cargo run --example`")]
#[path = "../../../initiator/examples/loader.rs"]
mod loader;

/// No multiple of a block.
const SIZE_BYTES: usize = (3 << 20) + 77;

#[test]
fn every_row_has_the_bytes_of_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.bin");
    let content = Bytes::new(31).take(SIZE_BYTES);
    fs::write(&path, &content).unwrap();
    let daemon = Daemon::serving([path]);
    let target = daemon.target();
    let options = |name: &str| {
        let (address, nqn) = (target.address.to_string(), target.nqn.to_string());
        let arguments = [&address, &nqn, name, "--batches", "7", "--rows", "100"];
        LoaderOptions::parse(arguments.into_iter().map(str::to_owned)).unwrap()
    };
    let mut rows = 0;
    let rate = loader::run(options("train.bin"), |entry, bytes| {
        assert!(content[entry.offset as usize..][..entry.length as usize] == *bytes);
        rows += 1;
    });
    assert!(rate.unwrap() > 0.0);
    assert_eq!(rows, 700);
    let error = loader::run(options("absent"), |_, _| {}).unwrap_err();
    assert!(error.to_string().contains("no active namespace of that name"), "{error}");
}
