//! Where the binaries under test are.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

/// The folders whose code is in the binaries.
const PARTS: [&str; 11] = [
    "nvme-proto",
    "roce-proto",
    "rdma",
    "target",
    "initiator",
    "dataset",
    "checkpoint",
    "checkpoint-store",
    "auth",
    "mount",
    "cli",
];

/// Path of `feedrail` or `feedrail-target`, of the profile that the tests were built with.
///
/// `cargo test --workspace` builds them; `cargo test -p feedrail-tests` does not, so they are built
/// here when they are missing or older than their source. `FEEDRAIL_BIN_DIR` names a folder of
/// binaries to test instead.
///
/// # Panics
/// If they cannot be built.
pub fn binary(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(folder).join(name)
}

fn folder() -> PathBuf {
    if let Some(folder) = std::env::var_os("FEEDRAIL_BIN_DIR") {
        return folder.into();
    }
    let test = std::env::current_exe().expect("a test knows its own path");
    let folder = test.ancestors().nth(2).expect("tests lie in <output>/<profile>/deps").to_owned();
    if !fresh(&folder) {
        build(&folder);
    }
    folder
}

fn fresh(folder: &Path) -> bool {
    let modified = |path: &Path| path.metadata()?.modified();
    let built = ["feedrail", "feedrail-target"].map(|name| modified(&folder.join(name)));
    let [Ok(cli), Ok(daemon)] = built else { return false };
    let source = PARTS.iter().map(|part| newest(&workspace().join(part))).max();
    source.is_some_and(|source| source <= cli.min(daemon))
}

/// When a source file under a folder was changed last.
fn newest(folder: &Path) -> SystemTime {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let times = entries.filter_map(|entry| {
        let path = entry.path();
        if entry.file_type().ok()?.is_dir() {
            let compiled_elsewhere = ["tests", "examples"].iter().any(|name| path.ends_with(name));
            return (!compiled_elsewhere).then(|| newest(&path));
        }
        let is_source =
            path.extension().is_some_and(|extension| extension == "rs" || extension == "toml");
        is_source.then(|| entry.metadata().ok()?.modified().ok()).flatten()
    });
    times.max().unwrap_or(SystemTime::UNIX_EPOCH)
}

fn build(folder: &Path) {
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(profile) => profile,
    };
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--quiet", "--workspace", "--bins", "--profile", profile])
        .current_dir(workspace())
        .status()
        .expect("cargo can be run");
    assert!(status.success(), "building the binaries under test failed: {status}");
}

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("this package is a folder of the workspace")
}
