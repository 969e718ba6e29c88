//! `feedrail write` against a daemon in another process.

use std::fs;

use feedrail_tests::process::{Bytes, Daemon, DaemonOptions, Outcome, feedrail};
use tempfile::TempDir;

const SIZE_BYTES: usize = 3 << 20;

struct Writable {
    daemon: Daemon,
    model: Vec<u8>,
    folder: TempDir,
}

fn writable() -> Writable {
    let folder = tempfile::tempdir().unwrap();
    let model = Bytes::new(9).take(SIZE_BYTES);
    let path = folder.path().join("disk.img");
    fs::write(&path, &model).unwrap();
    let daemon = DaemonOptions::files([path]).arg("--writable").start();
    Writable { daemon, model, folder }
}

impl Writable {
    fn write(&self, options: &[&str], input: &[u8]) -> Outcome {
        feedrail(["write"]).args(self.daemon.options()).args(options).input(input).run()
    }

    /// Writes, and checks the whole namespace and the file behind it.
    #[track_caller]
    fn check_write(&mut self, offset: usize, bytes: &[u8]) {
        let (offset_text, length) = (offset.to_string(), bytes.len().to_string());
        self.write(&["--offset", &offset_text, "--length", &length], bytes).success();
        self.model[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.check();
    }

    #[track_caller]
    fn check(&self) {
        let read = feedrail(["read"]).args(self.daemon.options()).run().success();
        assert!(read == self.model, "the namespace differs from what was written");
        let file = fs::read(self.folder.path().join("disk.img")).unwrap();
        assert!(file == self.model, "the file differs from what was written");
    }
}

#[test]
fn any_range_and_nothing_else() {
    let mut disk = writable();
    let mut bytes = Bytes::new(10);
    for (offset, length) in [
        (0, 512),
        (1, 1),
        (511, 2),
        (700, 5000),
        (4096, 4096),
        ((1 << 20) - 3, 1_100_000),
        (SIZE_BYTES - 1, 1),
    ] {
        let data = bytes.take(length);
        disk.check_write(offset, &data);
    }
}

#[test]
fn from_a_file_and_up_to_the_end() {
    let mut disk = writable();
    let data = Bytes::new(11).take(SIZE_BYTES);
    let source = disk.folder.path().join("source");
    fs::write(&source, &data).unwrap();
    disk.write(&["--file", source.to_str().unwrap()], &[]).success();
    disk.model = data;
    disk.check();

    let tail = Bytes::new(12).take(1000);
    let offset = (SIZE_BYTES - 1000).to_string();
    disk.write(&["--offset", &offset], &tail).success();
    disk.model[SIZE_BYTES - 1000..].copy_from_slice(&tail);
    disk.check();
}

#[test]
fn oversized_input_is_refused() {
    let disk = writable();
    let end = SIZE_BYTES.to_string();
    let line = disk.write(&["--offset", &end, "--length", "1"], b"x").failure();
    assert!(line.contains(&end), "names the size: {line}");
    let whole = vec![0; SIZE_BYTES + 1];
    let source = disk.folder.path().join("too-long");
    fs::write(&source, whole).unwrap();
    disk.write(&["--file", source.to_str().unwrap()], &[]).failure();
    disk.check();
}

#[test]
fn short_input_is_an_error() {
    let mut disk = writable();
    let line = disk.write(&["--length", "4K"], b"abc").failure();
    assert!(line.contains("after 3 of 4096"), "{line}");
    disk.model[..3].copy_from_slice(b"abc");
    disk.check();
}
