//! Limits of a daemon that serves, and of clients of its management sockets.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};

use feedrail_tests::process::{
    Bytes, Daemon, DaemonOptions, ManagementClient, eventually, host, loopback_address,
    write_configuration,
};
use nvme_proto::Nsid;
use serde_json::{Value, json};
use tempfile::TempDir;

const SIZE_BYTES: usize = 1 << 20;
const NQN: &str = "nqn.2026-01.io.feedrail:confined";
/// Variable with the harm that the daemon of a debug build tries once it serves.
const HARM: &str = "FEEDRAIL_DELIBERATE_HARM";

fn folder_with(names: &[&str]) -> TempDir {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for (seed, name) in (1..).zip(names) {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, Bytes::new(seed).take(SIZE_BYTES)).unwrap();
    }
    folder
}

/// A target with the namespace `first`, and sockets for all methods and for reading.
fn start(folder: &Path, keys: &str) -> Daemon {
    let path = configure(folder, keys, &["first"]);
    DaemonOptions::default().arg("--config").arg(path).start()
}

fn configure(folder: &Path, keys: &str, files: &[&str]) -> PathBuf {
    let address = match fs::read_to_string(folder.join("address")) {
        Ok(address) => address,
        Err(_) => loopback_address().to_string(),
    };
    fs::write(folder.join("address"), &address).unwrap();
    let mut text = format!(
        "state_dir = \"state\"\nprovider = \"soft\"\nmanagement = \"socket\"\nconfinement = \"on\"\n{keys}\
         management_read_only = \"reading\"\n[[port]]\naddress = \"{address}:4420\"\n\
         [[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n"
    );
    for file in files {
        text.push_str(&format!("[[subsystem.namespace]]\npath = \"{file}\"\n"));
    }
    write_configuration(folder, &text)
}

fn create(client: &mut ManagementClient, path: &Path) -> Result<Value, String> {
    let name = path.file_name().unwrap().to_str().unwrap();
    let params = json!({ "name": name, "filename": path, "block_size": 512 });
    client.call("bdev_uring_create", &params).map_err(|error| error["message"].to_string())?;
    let params = json!({ "nqn": NQN, "namespace": { "bdev_name": name } });
    let added = client.call("nvmf_subsystem_add_ns", &params);
    added.map_err(|error| error["message"].to_string())
}

/// Tries harm with a confinement, and returns how the process ended and what it logged; `None` if
/// it still serves.
fn try_harm(harm: &str, mode: &str) -> (Option<i32>, String) {
    let folder = folder_with(&["first"]);
    let options = DaemonOptions::files([folder.path().join("first")]);
    let daemon = match options.arg("--confinement").arg(mode).env(HARM, harm).try_start() {
        Ok(daemon) => daemon,
        // It may end before it has written that it listens.
        Err(ended) => return (ended.status.signal(), ended.stderr),
    };
    let mut signal = None;
    eventually("it ends, or tells the result", || {
        let status = fs::read_to_string(format!("/proc/{}/stat", daemon.id())).unwrap();
        let is_over = status.rsplit_once(") ").unwrap().1.starts_with('Z');
        is_over || daemon.log().contains("deliberate harm")
    });
    let log = daemon.log();
    if !log.contains("deliberate harm") {
        signal = daemon.wait().signal();
    }
    (signal, log)
}

#[test]
fn a_system_call_outside_the_list_ends_the_daemon() {
    for number in [libc::SYS_execve, libc::SYS_ptrace, libc::SYS_io_uring_setup, libc::SYS_setuid] {
        let (signal, log) = try_harm(&format!("call:{number}"), "on");
        assert_eq!(signal, Some(libc::SIGSYS), "{number}: {log}");
    }
    let (signal, log) = try_harm(&format!("call:{}", libc::SYS_ptrace), "warn");
    assert_eq!(signal, None, "{log}");
    assert!(log.contains("deliberate harm: -1"), "{log}");
}

#[test]
fn other_files_and_machines_are_out_of_reach() {
    let other = folder_with(&["secret"]);
    let secret = format!("read:{}", other.path().join("secret").display());
    for (mode, refused) in [("on", true), ("off", false)] {
        let (signal, log) = try_harm(&secret, mode);
        assert_eq!(signal, None, "{log}");
        assert_eq!(log.contains("PermissionDenied"), refused, "{mode}: {log}");
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (_, log) = try_harm(&format!("connect:{address}"), "on");
    assert!(log.contains("PermissionDenied"), "{log}");
}

#[test]
fn each_thread_is_confined() {
    let folder = folder_with(&["first"]);
    let daemon = start(folder.path(), "metrics = \"127.0.0.1:0\"\n");
    // A client has a thread of its own.
    let mut client = ManagementClient::connect(&folder.path().join("socket"));
    client.call("spdk_get_version", &json!({})).unwrap();
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.id())).unwrap();
    let mut threads = 0;
    for task in tasks.flatten() {
        let status = fs::read_to_string(task.path().join("status")).unwrap();
        let value = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim_start_matches(':').trim().to_owned()
        };
        assert_eq!((value("NoNewPrivs"), value("Seccomp")), ("1".into(), "2".into()), "{status}");
        let kept = u64::from_str_radix(&value("CapPrm"), 16).unwrap();
        // CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_NET_BIND_SERVICE, CAP_IPC_LOCK, CAP_LEASE.
        assert_eq!(
            kept & !((1 << 1) | (1 << 2) | (1 << 10) | (1 << 14) | (1 << 28)),
            0,
            "{status}"
        );
        threads += 1;
    }
    assert!(threads >= 8, "{threads}");
    daemon.wait_for_log("confinement on");
}

#[test]
fn only_what_lies_below_the_roots_is_added() {
    let folder = folder_with(&["first", "roots/second", "third"]);
    let daemon = start(folder.path(), "export_roots = [\"roots\"]\n");
    let mut client = ManagementClient::connect(&folder.path().join("socket"));
    assert_eq!(create(&mut client, &folder.path().join("roots/second")), Ok(json!(2)));
    let refusal = create(&mut client, &folder.path().join("third")).unwrap_err();
    assert!(refusal.contains("export_roots"), "{refusal}");

    // What the configuration names may lie anywhere.
    configure(folder.path(), "export_roots = [\"roots\"]\n", &["first", "third"]);
    client.call("feedrail_reload_config", &json!({})).unwrap();
    let host = host().build().unwrap();
    let controller = daemon.connect(&host);
    let third = controller.namespace(Nsid(2)).wait().unwrap();
    assert!(third.read_to_vec(0, SIZE_BYTES).wait().unwrap() == Bytes::new(3).take(SIZE_BYTES));
}

#[test]
fn a_read_only_socket_takes_no_changes() {
    let folder = folder_with(&["first", "second"]);
    let daemon = start(folder.path(), "");
    let path = folder.path().join("reading");
    let mut client = ManagementClient::connect(&path);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
    let subsystems = client.call("nvmf_get_subsystems", &json!({})).unwrap();
    assert_eq!(subsystems[0]["nqn"], NQN);
    let refusal = create(&mut client, &folder.path().join("second")).unwrap_err();
    assert!(refusal.contains("read-only"), "{refusal}");
    daemon.wait_for_log("this socket is read-only");
}

#[test]
fn the_helper_ends_with_its_daemon_and_is_missed_without_it() {
    let folder = folder_with(&["first", "second"]);
    let mut daemon = start(folder.path(), "");
    let children = format!("/proc/{0}/task/{0}/children", daemon.id());
    let opener: u32 = fs::read_to_string(children).unwrap().trim().parse().unwrap();
    let runs = |id: u32| {
        let status = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        status.contains("(feedrail-opener) S") || status.contains("(feedrail-opener) R")
    };
    eventually("the helper runs", || runs(opener));
    daemon.crash();
    eventually("the helper ends", || !runs(opener));

    let daemon = start(folder.path(), "");
    let children = format!("/proc/{0}/task/{0}/children", daemon.id());
    let opener: i32 = fs::read_to_string(children).unwrap().trim().parse().unwrap();
    let opener = rustix::process::Pid::from_raw(opener).unwrap();
    rustix::process::kill_process(opener, rustix::process::Signal::KILL).unwrap();
    let mut client = ManagementClient::connect(&folder.path().join("socket"));
    let refusal = create(&mut client, &folder.path().join("second")).unwrap_err();
    assert!(refusal.contains("opens files for this one has ended"), "{refusal}");
}
