//! The daemon as an operator meets it: start, wrong starts, signals, neighbours, limits.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use feedrail_tests::process::{
    Bytes, Daemon, DaemonOptions, Ended, Program, binary, eventually, feedrail, loopback_address,
    write_configuration,
};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

const SIZE_BYTES: usize = 300_007;

fn shard() -> (TempDir, PathBuf, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shard.bin");
    let content = Bytes::new(1).take(SIZE_BYTES);
    fs::write(&path, &content).unwrap();
    (folder, path, content)
}

fn read_all(daemon: &Daemon) -> Vec<u8> {
    feedrail(["read"]).args(daemon.options()).run().success()
}

/// The error of a daemon that must not start: one line, on standard error, and no success.
#[track_caller]
fn refused(started: Result<Daemon, Ended>) -> String {
    let ended = started.expect_err("the daemon must not start");
    assert!(ended.status.code().is_some_and(|code| code != 0), "{ended:?}");
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    let errors = ended.stderr.lines().filter(|line| line.contains("feedrail-target: ")).count();
    assert!(errors <= 1 && !ended.stderr.trim().is_empty(), "{}", ended.stderr);
    ended.stderr
}

#[test]
fn two_daemons_on_one_machine() {
    let (_one_folder, one_path, one_content) = shard();
    let (_other_folder, other_path, mut other_content) = shard();
    other_content.reverse();
    fs::write(&other_path, &other_content).unwrap();
    let one = Daemon::serving([&one_path]);
    let other = Daemon::serving([&other_path]);
    assert!(read_all(&one) == one_content);
    assert!(read_all(&other) == other_content);
    assert!(one.terminate().0.success());
    assert!(read_all(&other) == other_content);
}

#[test]
fn the_log_comes_in_the_format_that_its_reader_wants() {
    let (folder, path, content) = shard();
    let log = |options: DaemonOptions| {
        let daemon = options.start();
        assert!(read_all(&daemon) == content);
        daemon.wait_for_log("connected");
        let log = daemon.log();
        assert!(daemon.terminate().0.success());
        log
    };
    let as_objects = |log: &str| -> Vec<Value> {
        log.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    };
    let options = || DaemonOptions::files([&path]).env("NO_COLOR", "1");

    let objects = as_objects(&log(options().arg("--log-format").arg("json")));
    let is_connect = |object: &&Value| object["message"].as_str().unwrap().contains("connected");
    let connect = objects.iter().find(is_connect).expect("a host is named");
    assert_eq!(connect["level"], "INFO");
    assert!(connect["host"].as_str().unwrap().starts_with("nqn."), "{connect}");
    assert!(connect["timestamp"].as_str().unwrap().contains('T'), "{connect}");

    let lines = log(options().arg("--log-format").arg("journal"));
    let has_priority = |line: &str| line.starts_with("<6>") || line.starts_with("<4>");
    assert!(lines.lines().all(has_priority), "{lines}");
    // Where systemd says that its journal reads standard error, and where it speaks of another.
    let stream = "JOURNAL_STREAM=$(stat -Lc %d:%i /dev/stderr) exec \"$0\" \"$@\"";
    let lines = log(options().wrapped_by(["sh", "-c", stream]));
    assert!(lines.lines().all(has_priority), "{lines}");
    let lines = log(options().env("JOURNAL_STREAM", "1:2"));
    assert!(
        lines.lines().all(|line| line.contains(" INFO ") || line.contains(" WARN ")),
        "{lines}"
    );

    // An error that ends the process is a line of the same kind.
    let missing = folder.path().join("missing");
    let line = refused(DaemonOptions::files([&missing]).arg("--log-format=json").try_start());
    let objects = as_objects(&line);
    assert_eq!(objects.last().unwrap()["level"], "ERROR");
    assert!(objects.last().unwrap()["message"].as_str().unwrap().contains("missing"), "{line}");
}

#[test]
fn slow_commands_are_logged_with_what_took_the_time() {
    let folder = tempfile::tempdir().unwrap();
    let configuration = |slow_ms: u32| {
        let text = format!(
            "state_dir = \"state\"\n[limits]\nslow_command_ms = {slow_ms}\n\
             [[port]]\naddress = \"{}:4420\"\n\
             [[subsystem]]\nnqn = \"nqn.2026-01.io.feedrail:slow\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\nkind = \"memory\"\nsize_bytes = \"64KiB\"\n\
             [subsystem.namespace.faults]\ndelay_us = 300000\n",
            loopback_address()
        );
        let configuration = write_configuration(folder.path(), &text);
        DaemonOptions::default().arg("--config").arg(configuration).start()
    };
    let read = |daemon: &Daemon| {
        feedrail(["read", "--length", "4096"]).args(daemon.options()).run().success();
    };
    let daemon = configuration(100);
    read(&daemon);
    daemon.wait_for_log("slow command: read of 4096 bytes at 0");
    let log = daemon.log();
    let line = log.lines().find(|line| line.contains("slow command")).unwrap();
    let millis = |field: &str| -> u64 {
        let (_, rest) = line.split_once(field).expect(line);
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().expect(line)
    };
    assert!(millis(" storage_ms=") >= 100, "{line}");
    let stages = [" buffer_ms=", " fetch_ms=", " storage_ms="].map(millis);
    assert!(millis(" total_ms=").abs_diff(stages.iter().sum()) < 3, "{line}");
    assert!(line.contains("nqn.2026-01.io.feedrail:slow") && line.contains(" nsid=1 "), "{line}");
    assert!(daemon.terminate().0.success());
    let daemon = configuration(600_000);
    read(&daemon);
    assert!(!daemon.log().contains("slow command"));
}

#[test]
fn an_unread_log_blocks_nothing() {
    let (_folder, path, content) = shard();
    let mut options = DaemonOptions::files([&path]).arg("--log").arg("trace");
    options.unread_log = true;
    let daemon = options.start();
    for _ in 0..3 {
        assert!(read_all(&daemon) == content);
    }
    assert_eq!(daemon.stats()["event"], "stats");
    assert!(daemon.terminate().0.success());
}

#[test]
fn a_hangup_does_not_end_it() {
    let (_folder, path, content) = shard();
    let daemon = Daemon::serving([&path]);
    daemon.signal(Signal::HUP);
    daemon.wait_for_log("SIGHUP is ignored");
    assert!(read_all(&daemon) == content);
    assert!(daemon.terminate().0.success());
}

#[test]
fn a_port_in_use_is_named() {
    let (_folder, path, content) = shard();
    let first = Daemon::serving([&path]);
    let line = refused(DaemonOptions::files([&path]).at(first.address()).try_start());
    assert!(line.contains(&first.address().ip().to_string()), "{line}");
    assert!(line.contains("in use"), "{line}");
    assert!(read_all(&first) == content, "the first one does not notice");
}

#[test]
fn a_foreign_address_is_named() {
    let (_folder, path, _) = shard();
    let address = SocketAddr::from(([192, 0, 2, 1], 4420));
    let line = refused(DaemonOptions::files([path]).at(address).try_start());
    assert!(line.contains("192.0.2.1"), "{line}");
}

#[test]
fn an_unusable_address_does_not_stop_the_others() {
    let (_folder, path, content) = shard();
    let daemon = DaemonOptions::files([&path]).arg("--listen").arg("192.0.2.1:4420").start();
    assert!(read_all(&daemon) == content);
    let failed = daemon.not_listening();
    assert_eq!(failed["address"], "192.0.2.1:4420");
    let reason = failed["reason"].as_str().unwrap();
    assert!(reason.contains("192.0.2.1 is not an address of this machine"), "{reason}");
    daemon.wait_for_log(reason);
    // No host learns of the subsystem at an address where it is not.
    let log = feedrail(["discover"]).args(daemon.address_options()).run().success();
    assert!(!String::from_utf8(log).unwrap().contains("192.0.2.1"));
}

#[test]
fn a_taken_port_does_not_stop_the_others() {
    let (_folder, path, content) = shard();
    let first = Daemon::serving([&path]);
    let second =
        DaemonOptions::files([&path]).arg("--listen").arg(first.address().to_string()).start();
    assert!(second.not_listening()["reason"].as_str().unwrap().contains("in use"));
    assert!(read_all(&first) == content && read_all(&second) == content);
}

#[test]
fn files_that_cannot_be_exported() {
    let (folder, path, _) = shard();
    let missing = folder.path().join("missing.bin");
    let line = refused(DaemonOptions::files([&missing]).try_start());
    assert!(line.contains("missing.bin"), "{line}");

    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let line = refused(DaemonOptions::files([&empty]).try_start());
    assert!(line.contains("empty: holds no file to export"), "{line}");

    let line = refused(DaemonOptions::files([&path]).arg("--writable").try_start());
    assert!(line.contains("truncate"), "says how to make it writable: {line}");
}

/// The message of `--check` about a configuration that it refuses.
fn check_refused(options: DaemonOptions) -> String {
    refused(options.arg("--check").try_start())
}

#[test]
fn check_beside_a_running_target_disturbs_nothing() {
    let (_folder, path, content) = shard();
    let running = Daemon::serving([&path]);
    let checked = DaemonOptions::files([&path]).at(running.address()).arg("--check").try_start();
    let checked = checked.expect_err("it does not listen");
    assert!(checked.status.success(), "{checked:?}");
    assert!(checked.stderr.contains("in use: by a target that runs"), "{}", checked.stderr);
    assert!(read_all(&running) == content);
}

#[test]
fn check_reports_refused_io_uring() {
    let (_folder, path, _) = shard();
    let mut options = DaemonOptions::files([&path]);
    options.without_io_uring = true;
    let line = check_refused(options);
    assert!(line.contains("io_uring"), "{line}");
}

#[test]
fn check_reports_an_oversized_pool() {
    let (folder, path, _) = shard();
    let text = format!(
        "[limits]\npool_bytes = \"2GiB\"\n[[port]]\naddress = \"127.0.0.1\"\n[[subsystem]]\n\
         nqn = \"nqn.2026-01.org.example:a\"\nallow_any_host = true\n[[subsystem.namespace]]\npath = {path:?}\n"
    );
    let config = write_configuration(folder.path(), &text);
    let options = DaemonOptions::default().arg("--config").arg(config);
    let line = check_refused(options.wrapped_by(["prlimit", "--as=1073741824"]));
    assert!(line.contains("limits.pool_bytes"), "{line}");
}

#[test]
fn a_broken_configuration_is_located() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_configuration(folder.path(), "\n[[port]]\naddress = 7\n");
    let line = refused(DaemonOptions::default().arg("--config").arg(&path).try_start());
    assert!(line.contains("feedrail.toml:3"), "file and line: {line}");
    assert!(line.contains("address"), "key: {line}");

    let checked = Program::new(binary("feedrail-target")).args([
        "--check".as_ref(),
        "--config".as_ref(),
        path.as_os_str(),
    ]);
    let outcome = checked.run();
    assert!(outcome.status.is_some_and(|status| !status.success()), "{outcome}");
    assert!(outcome.stderr.contains("feedrail.toml:3"), "{outcome}");
}

#[test]
fn a_kernel_that_refuses_io_uring() {
    let (_folder, path, _) = shard();
    for hidden in [false, true] {
        let mut options = DaemonOptions::files([&path]);
        (options.without_io_uring, options.hidden_io_uring) = (!hidden, hidden);
        let line = refused(options.try_start());
        let says_how = line.contains("io_uring_register") && line.contains("seccomp");
        assert!(says_how, "hidden: {hidden}, {line}");
    }
}

#[test]
fn sigterm_during_reads() {
    let (_folder, path, _) = shard();
    let daemon = Daemon::serving([&path]);
    let busy = [
        "--rw",
        "randread",
        "--bs",
        "4k",
        "--iodepth",
        "8",
        "--runtime",
        "30",
        "--timeout",
        "2000",
    ];
    let perf = feedrail(["perf"]).args(daemon.options()).args(busy).start();
    wait_for_reads(&daemon);
    let (status, stats) = daemon.terminate();
    assert!(status.success(), "{status}");
    let stats = stats.expect("the daemon tells its counters when it ends");
    assert!(stats["io"]["reads"].as_u64().is_some_and(|reads| reads > 0), "{stats}");
    let line = perf.wait().failure();
    assert!(line.starts_with("feedrail: "), "{line}");
}

fn wait_for_reads(daemon: &Daemon) {
    eventually("the daemon has served reads", || {
        daemon.stats()["io"]["reads"].as_u64().is_some_and(|reads| reads > 0)
    });
}

#[test]
fn a_killed_target_is_an_error_in_time() {
    let (_folder, path, _) = shard();
    let daemon = Daemon::serving([&path]);
    let busy = [
        "--rw",
        "randread",
        "--bs",
        "4k",
        "--iodepth",
        "8",
        "--runtime",
        "60",
        "--timeout",
        "1500",
    ];
    let perf =
        feedrail(["perf"]).args(daemon.options()).args(busy).limit(Duration::from_secs(30)).start();
    wait_for_reads(&daemon);
    let address = daemon.address();
    daemon.kill();
    let line = perf.wait().failure();
    assert!(line.contains(&address.ip().to_string()), "names the lost address: {line}");
}

#[test]
fn an_unprivileged_user_with_little_locked_memory() {
    if !rustix::process::getuid().is_root() {
        eprintln!("skipped: only root can become another user");
        return;
    }
    let (folder, path, content) = shard();
    for directory in [folder.path(), path.as_path()] {
        open_to_all(directory);
    }
    let home = tempfile::tempdir().unwrap();
    open_to_all(home.path());
    let daemon_copy = copy_for_all(home.path());
    for memlock_bytes in ["8388608", "65536"] {
        let limit = format!("--memlock={memlock_bytes}:{memlock_bytes}");
        // A user without other processes: the limit is for all processes of a user together.
        let user = 200_000 + Bytes::new(u64::from(std::process::id())).below(1 << 20);
        let user = format!("--reuid={}", user + u64::from(memlock_bytes == "65536"));
        let wrapper = [
            "prlimit",
            &limit,
            "setpriv",
            &user,
            "--regid=65534",
            "--clear-groups",
            "--bounding-set=-all",
            "--no-new-privs",
        ];
        let mut options = DaemonOptions::files([&path]).wrapped_by(wrapper);
        options.program = Some(daemon_copy.clone());
        let daemon = options.start();
        assert!(read_all(&daemon) == content);
        let names_the_limit = || daemon.log().to_lowercase().contains("memlock");
        eventually("the log names the limit", names_the_limit);
        assert!(daemon.terminate().0.success());
    }
}

fn open_to_all(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The build folder may be closed to other users.
fn copy_for_all(folder: &Path) -> PathBuf {
    let copy = folder.join("feedrail-target");
    // A child of another test could inherit a descriptor of ours that writes the copy, and then the
    // kernel refuses to run it.
    Program::new("cp").args([binary("feedrail-target"), copy.clone()]).run().success();
    open_to_all(&copy);
    copy
}
