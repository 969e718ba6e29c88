//! `feedrail target top`: what a target's namespaces do, as tables, as JSON and in a terminal.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use feedrail_tests::process::{
    Daemon, DaemonOptions, Program, SetWhenDropped, binary, eventually, feedrail, host,
    loopback_address, write_configuration,
};
use serde_json::Value;
use tempfile::TempDir;

const NQN: &str = "nqn.2026-01.io.feedrail:top";

struct Managed {
    folder: TempDir,
    daemon: Daemon,
}

impl Managed {
    /// A target with two namespaces in memory.
    fn start() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let configuration = format!(
            r#"
            state_dir = "state"
            provider = "soft"
            [[port]]
            address = "{address}:4420"
            [[subsystem]]
            nqn = "{NQN}"
            allow_any_host = true
            [[subsystem.namespace]]
            kind = "memory"
            name = "quiet"
            size_bytes = "1MiB"
            [[subsystem.namespace]]
            kind = "memory"
            name = "busy"
            size_bytes = "1MiB"
            faults = {{ delay_us = 500 }}
            "#,
            address = loopback_address(),
        );
        let configuration = write_configuration(folder.path(), &configuration);
        let socket = folder.path().join("socket");
        let options = DaemonOptions::default().arg("--config").arg(configuration);
        let daemon = options.arg("--management").arg(&socket).start();
        eventually("the daemon has its management socket", || socket.exists());
        Self { folder, daemon }
    }

    fn socket(&self) -> String {
        self.folder.path().join("socket").display().to_string()
    }

    fn top(&self, options: &[&str]) -> Program {
        feedrail(["target", "top", "--socket", &self.socket(), "--interval", "0.3"]).args(options)
    }

    /// Does something while a host reads namespace 2.
    fn while_read<T>(&self, work: impl FnOnce() -> T) -> T {
        let host = host().build().unwrap();
        let controller = self.daemon.connect(&host);
        let namespace = controller.namespace(nvme_proto::Nsid(2)).wait().unwrap();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let _over_at_the_end = SetWhenDropped(&over);
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    namespace.read_to_vec(0, 4096).wait().unwrap();
                }
            });
            work()
        })
    }
}

#[test]
fn json_tells_what_each_namespace_does() {
    let managed = Managed::start();
    let options = ["--iterations", "2", "-o", "json"];
    let printed = managed.while_read(|| managed.top(&options).run().success());
    let printed = String::from_utf8(printed).unwrap();
    let reports: Vec<Value> =
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(reports.len(), 2, "{printed}");
    for report in &reports {
        assert!(report["interval_seconds"].as_f64().unwrap() > 0.2, "{report}");
        let [busy, quiet] = &report["namespaces"].as_array().unwrap()[..] else {
            panic!("two namespaces: {report}");
        };
        assert_eq!((&busy["name"], &busy["nsid"]), (&"busy".into(), &2.into()));
        let reads = busy["reads_per_second"].as_f64().unwrap();
        let bytes = busy["read_bytes_per_second"].as_f64().unwrap();
        assert!(reads > 0.0 && (bytes / reads - 4096.0).abs() < 1.0, "{report}");
        assert!(busy["read_latency_us"].as_f64().unwrap() >= 500.0, "{report}");
        assert_eq!(quiet["reads_per_second"], 0.0);
        assert_eq!(quiet["read_latency_us"], Value::Null);
        let hosts = report["hosts"].as_array().unwrap();
        assert_eq!((hosts.len(), &hosts[0]["nqn"]), (1, &NQN.into()), "{report}");
    }
}

#[test]
fn a_pipe_gets_tables() {
    let managed = Managed::start();
    let printed = managed.while_read(|| managed.top(&["--iterations", "1"]).run().success());
    let printed = String::from_utf8(printed).unwrap();
    assert!(!printed.contains('\u{1b}'), "{printed}");
    for expected in ["Reads/s", "busy", "quiet", "I/O queues", "nqn.2014-08.org.nvmexpress:uuid"] {
        assert!(printed.contains(expected), "no {expected} in\n{printed}");
    }
}

/// `script` gives it a terminal.
#[test]
fn a_terminal_gets_a_screen_that_q_ends() {
    let managed = Managed::start();
    let program = binary("feedrail").display().to_string();
    let command = format!(
        "stty rows 20 cols 150; {program} target top --socket {} --interval 0.2",
        managed.socket()
    );
    let log = managed.folder.path().join("terminal");
    let mut script = std::process::Command::new("script");
    script.args(["--quiet", "--flush", "--return", "--command", &command]).arg(&log);
    script.env("TERM", "xterm").stdin(std::process::Stdio::piped());
    let mut child = script.stdout(std::process::Stdio::null()).spawn().unwrap();
    let shown = || String::from_utf8_lossy(&std::fs::read(&log).unwrap_or_default()).into_owned();
    eventually("the tables are drawn", || shown().contains("busy") && shown().contains("Hosts"));
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"q").unwrap();
    let status =
        feedrail_tests::process::wait_at_most(&mut child, std::time::Duration::from_secs(60));
    if status.is_none() {
        child.kill().unwrap();
    }
    assert!(status.is_some_and(|status| status.success()), "{status:?}: {}", shown());
    assert!(shown().contains("\u{1b}[?1049l"), "the terminal is as it was: {}", shown());
}

#[test]
fn what_is_wrong_is_said() {
    let managed = Managed::start();
    let nowhere = Path::new("/nowhere/target.sock").display().to_string();
    let error = feedrail(["target", "top", "--socket", &nowhere]).run().failure();
    assert!(error.contains("no target listens"), "{error}");
    for interval in ["0", "-1", "NaN", "1e9"] {
        let socket = managed.socket();
        let interval = format!("--interval={interval}");
        let error = feedrail(["target", "top", "--socket", &socket, &interval]).run().failure();
        assert!(error.contains("0.1 to 3600"), "{error}");
    }
    let running = managed.top(&[]).start();
    drop(managed.daemon);
    let error = running.wait().failure();
    assert!(error.contains("the target hung up") || error.contains("no target"), "{error}");
}
