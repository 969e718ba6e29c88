//! Files that daemons serve as checkpoint volumes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use feedrail_tests::process::{Daemon, DaemonOptions, Program, feedrail};
use serde_json::Value;
use tempfile::TempDir;

pub(crate) const MIB: u64 = 1 << 20;

/// A file that is served, with room for sources and results beside it.
pub(crate) struct Volume {
    pub(crate) folder: TempDir,
    pub(crate) daemon: Daemon,
    pub(crate) provider: &'static str,
}

impl Volume {
    /// A file of zeroes, which is served but not formatted.
    pub(crate) fn new(bytes: u64, provider: &'static str) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let image = fs::File::create(folder.path().join("volume.img")).unwrap();
        image.set_len(bytes).unwrap();
        let daemon = options(folder.path(), provider).arg("--writable").start();
        Self { folder, daemon, provider }
    }

    pub(crate) fn formatted(bytes: u64, provider: &'static str) -> Self {
        let volume = Self::new(bytes, provider);
        volume.command(&["format"], &[]).run().success();
        volume
    }

    /// Kills the daemon, and starts a new one at its address.
    pub(crate) fn restart(&mut self) {
        self.restart_after(|| ());
    }

    /// Kills the daemon, calls a function, and starts a new one at its address.
    pub(crate) fn restart_after(&mut self, call: impl FnOnce()) {
        self.daemon.crash();
        call();
        let options = options(self.folder.path(), self.provider).arg("--writable");
        self.daemon = options.at(self.daemon.address()).start();
    }

    pub(crate) fn url(&self) -> String {
        format!("nvmf://{}/{}", self.daemon.address(), self.daemon.nqn())
    }

    /// `feedrail checkpoint`, the words, the URL and the other arguments.
    pub(crate) fn command(&self, words: &[&str], arguments: &[&str]) -> Program {
        feedrail(["checkpoint"]).args(words).args([self.url()]).args(arguments).args([
            "--provider",
            self.provider,
            "--timeout",
            "5000",
        ])
    }

    pub(crate) fn json(&self, words: &[&str], arguments: &[&str]) -> Value {
        let arguments = [arguments, &["-o", "json"]].concat();
        let text = self.command(words, &arguments).run().success();
        serde_json::from_slice(&text).unwrap()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let list = self.json(&["list"], &[]);
        let names = list["checkpoints"].as_array().unwrap().iter();
        names.map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn image(&self) -> fs::File {
        fs::File::options().read(true).write(true).open(self.path("volume.img")).unwrap()
    }

    /// Writes a folder with one file, and returns its path.
    pub(crate) fn source(&self, name: &str, bytes: &[u8]) -> String {
        let folder = self.path(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("model.bin"), bytes).unwrap();
        folder.display().to_string()
    }

    /// Reads a checkpoint back, and compares it.
    #[track_caller]
    pub(crate) fn check(&self, name: &str, source: &str) {
        let copy = tempfile::tempdir_in(self.folder.path()).unwrap();
        let to = copy.path().display().to_string();
        self.command(&["get"], &[name, &to]).run().success();
        assert!(files(copy.path()) == files(source.as_ref()), "{name} differs from {source}");
    }
}

pub(crate) fn options(folder: &Path, provider: &str) -> DaemonOptions {
    DaemonOptions::files([folder.join("volume.img")]).arg("--provider").arg(provider)
}

/// All files of a folder by their relative paths.
pub(crate) fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_owned();
                found.insert(name, fs::read(path).unwrap());
            }
        }
    }
    found
}
