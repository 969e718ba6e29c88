//! The report on RDMA on machines that have none, or only a part of it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use feedrail_tests::process::{Outcome, Program, binary, feedrail};
use serde_json::Value;

/// A folder where the dynamic linker finds this file before the system's libibverbs.
fn fake_library(contents: &[u8]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("libibverbs.so.1"), contents).unwrap();
    folder
}

fn devices_with(library: &[u8]) -> String {
    let folder = fake_library(library);
    let outcome = feedrail(["devices"]).env("LD_LIBRARY_PATH", folder.path()).run();
    String::from_utf8(outcome.success()).unwrap()
}

/// A shared object that this process has loaded, by the beginning of its file name.
fn loaded(name: &str) -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| Path::new(&line[at..])));
    let found = paths.into_iter().find(|path| {
        path.file_name().and_then(|file| file.to_str()).is_some_and(|file| file.starts_with(name))
    });
    found.unwrap_or_else(|| panic!("no {name} in {maps}")).to_owned()
}

fn has_rdma_devices() -> bool {
    fs::read_dir("/sys/class/infiniband").is_ok_and(|mut entries| entries.next().is_some())
}

#[test]
fn an_invalid_library_is_one_line() {
    let text = devices_with(b"");
    assert!(text.contains("libibverbs.so.1 cannot be loaded (") && text.contains("soft"), "{text}");
    let text =
        devices_with("no shared object, but long enough to be read as one. ".repeat(40).as_bytes());
    assert!(text.contains("invalid ELF header"), "{text}");
    assert_eq!(text.lines().count() == 1, !has_rdma_devices(), "{text}");
}

#[test]
fn a_library_without_the_functions_is_named() {
    let stranger = fs::read(loaded("libgcc_s")).unwrap();
    let text = devices_with(&stranger);
    assert!(text.contains("libibverbs.so.1 is broken or too old: it has no ibv_"), "{text}");
}

#[test]
fn every_local_address_has_a_provider() {
    let text = feedrail(["devices", "-o", "json"]).run().success();
    let value: Value = serde_json::from_slice(&text).unwrap();
    let addresses = value["addresses"].as_array().unwrap();
    let loopback = addresses.iter().find(|address| address["address"] == "127.0.0.1").unwrap();
    assert_eq!((&loopback["interface"], &loopback["provider"]), (&"lo".into(), &"soft".into()));
    assert!(loopback["reason"].as_str().unwrap().contains("RDMA device"), "{loopback}");
    assert_eq!(value["devices"].as_array().unwrap().is_empty(), !has_rdma_devices());
}

/// The binary alone, with what it was linked with, in a root folder of its own; `None` where this
/// user may not.
fn run_without_libraries(arguments: &[&str]) -> Option<Outcome> {
    let root = tempfile::tempdir().unwrap();
    let copy = |file: &Path| {
        let to = root.path().join(file.strip_prefix("/").unwrap());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(file, to).unwrap();
    };
    for name in ["libc.so", "libgcc_s", "ld-linux"] {
        copy(&loaded(name));
    }
    // Named inside the binary, independent of the system's links.
    let interpreter = Path::new("/lib64/ld-linux-x86-64.so.2");
    if interpreter.exists() {
        copy(interpreter);
    }
    let program = root.path().join("feedrail");
    // A child of another test could inherit a descriptor of ours that writes the copy, and then the
    // kernel refuses to run it.
    Program::new("cp").args([&binary("feedrail"), &program]).run().success();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let chroot = || Program::new("unshare").args(["--map-root-user", "chroot"]).args([root.path()]);
    let version = chroot().args(["/feedrail", "--version"]).run();
    if !version.status.is_some_and(|status| status.success()) {
        eprintln!("skipped, because unshare or chroot is not available: {version}");
        return None;
    }
    Some(chroot().args(["/feedrail"]).args(arguments).run())
}

#[test]
fn the_same_binary_runs_without_the_libraries() {
    let Some(outcome) = run_without_libraries(&["devices"]) else { return };
    let text = String::from_utf8(outcome.success()).unwrap();
    let expected = "/sys/class/infiniband does not exist, and libibverbs.so.1 cannot be loaded";
    assert!(text.contains(expected), "{text}");
    assert!(text.contains("No such file") && text.contains("soft provider"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}
