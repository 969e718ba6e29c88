//! The daemon as a process: its output, its addresses, and its end.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// A folder with files and a configuration in it.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a folder") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn file(&self, name: &str, bytes: usize) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, vec![0x5A; bytes]).expect("written");
        path
    }

    /// Writes a configuration with one subsystem, given its part below `allow_any_host`.
    fn config(&self, rest: &str) -> PathBuf {
        let path = self.path("feedrail.toml");
        let text = format!(
            "provider = \"soft\"\nstate_dir = \"state\"\n[[port]]\naddress = \"{}:4420\"\n[[subsystem]]\n\
             nqn = \"nqn.2026-01.io.feedrail:t\"\nallow_any_host = true\n{rest}\n",
            address()
        );
        std::fs::write(&path, text).expect("written");
        path
    }
}

/// A loopback address that other processes hardly use.
fn address() -> Ipv4Addr {
    let mut random = [0; 3];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .expect("random bytes");
    Ipv4Addr::new(127, random[0].max(1), random[1], random[2].clamp(1, 254))
}

fn daemon<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_feedrail-target"));
    command
        .args(arguments)
        .env_remove("RUST_LOG")
        .env_remove("NOTIFY_SOCKET")
        .env_remove("STATE_DIRECTORY");
    command
}

fn output<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Output {
    daemon(arguments).output().expect("it starts")
}

/// Asserts a failure with exactly one line of error, apart from the log, and nothing on standard
/// output.
#[track_caller]
fn assert_refused<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>, expected: &[&str]) {
    let output = output(arguments);
    let errors = String::from_utf8(output.stderr).expect("text");
    assert!(!output.status.success(), "{errors}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    let lines: Vec<_> =
        errors.lines().filter(|line| line.starts_with("feedrail-target: ")).collect();
    let [line] = lines[..] else { panic!("one line: {errors}") };
    for part in expected {
        assert!(line.contains(part), "{line}\n  does not say: {part}");
    }
}

fn check(config: &Path) -> [&OsStr; 3] {
    [OsStr::new("--check"), OsStr::new("--config"), config.as_os_str()]
}

/// A daemon that is killed if the test does not end it.
struct Running {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        Self { child, lines }
    }

    fn line(&mut self) -> Value {
        let line = self.lines.next().expect("a line").expect("text");
        serde_json::from_str(&line).expect("JSON")
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it lives");
    }

    fn wait(&mut self) -> std::process::ExitStatus {
        self.child.wait().expect("it ends")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_example_configuration_is_accepted() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/feedrail.toml");
    let output = output(check(&example));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).expect("text");
    let checked: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(checked.len(), 2);
    assert_eq!(checked[0]["event"], "checked");
    assert_eq!(checked[0]["nqn"], "nqn.2026-01.io.feedrail:scratch");
}

#[test]
fn the_example_configuration_has_only_known_keys() {
    // Keys that are commented out must be valid too, if they have a value.
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/feedrail.toml");
    let text = std::fs::read_to_string(&path).expect("there");
    let shown = |line: &str| match line.strip_prefix('#') {
        Some(rest)
            if rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '[')
                && !rest.contains("\"...\"") =>
        {
            rest.to_owned()
        }
        _ => line.to_owned(),
    };
    let all: Vec<_> = text.lines().map(shown).collect();
    let config = feedrail_target::Config::from_toml(&path, &all.join("\n")).expect("valid");
    let slow_command = Some(std::time::Duration::from_secs(1));
    let defaults = feedrail_target::config::Limits::default();
    assert_eq!(config.limits, feedrail_target::config::Limits { slow_command, ..defaults });
    assert_eq!(config.subsystems[1].directories.len(), 1);
}

#[test]
fn unfit_files_are_reported_with_their_line() {
    let place = Place::new();
    let config = place.config("[[subsystem.namespace]]\npath = \"missing.bin\"");
    assert_refused(
        check(&config),
        &["feedrail.toml:8: subsystem.namespace: ", "missing.bin: No such file"],
    );

    let config = place.config("[[subsystem.namespace]]\npath = \".\"");
    assert_refused(check(&config), &["feedrail.toml:8: ", "is a directory"]);

    place.file("empty.bin", 0);
    let config = place.config("[[subsystem.namespace]]\npath = \"empty.bin\"");
    assert_refused(check(&config), &["empty.bin", "is empty"]);

    let config =
        place.config("[[subsystem.namespace]]\nkind = \"block\"\npath = \"feedrail.toml\"");
    assert_refused(check(&config), &["is not a block device"]);

    place.file("ragged.bin", 1000);
    let config = place.config(
        "[[subsystem.namespace]]\npath = \"ragged.bin\"\nread_only = false\nlba_bytes = 512",
    );
    assert_refused(check(&config), &["1000 bytes", "truncate -s 1024 "]);
    let config = place.config("[[subsystem.namespace]]\npath = \"ragged.bin\"\nread_only = true");
    assert!(output(check(&config)).status.success(), "read-only any size will do");

    let config =
        place.config("[[subsystem.namespace]]\nkind = \"memory\"\nsize_bytes = \"1048576TiB\"");
    assert_refused(
        check(&config),
        &["feedrail.toml:8: subsystem.namespace: ", "make its size_bytes smaller"],
    );

    let config = place.config("[[subsystem.directory]]\npath = \"nothing\"");
    assert_refused(check(&config), &["subsystem.directory: ", "nothing: No such file"]);
}

#[test]
fn check_reports_all_obstacles() {
    let place = Place::new();
    std::fs::create_dir(place.path("shards")).expect("made");
    place.file("shards/a.tar", 700);
    place.file("no-folder", 1);
    let path = place.path("feedrail.toml");
    let text = "provider = \"soft\"\nstate_dir = \"no-folder/state\"\ncores = [0, 1023]\n\
         metrics = \"192.0.2.78:9420\"\n\
         [[port]]\naddress = \"192.0.2.77\"\n\
         [[subsystem]]\nnqn = \"nqn.2026-01.io.feedrail:files\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\npath = \"missing.bin\"\n[[subsystem.namespace]]\npath = \"gone.bin\"\n\
         [[subsystem]]\nnqn = \"nqn.2026-01.io.feedrail:shards\"\nallow_any_host = true\n\
         [[subsystem.directory]]\npath = \"shards\"\n";
    std::fs::write(&path, text).expect("written");
    let output = output(check(&path));
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let errors = String::from_utf8(output.stderr).expect("text");
    let lines: Vec<_> =
        errors.lines().filter_map(|line| line.strip_prefix("feedrail-target: ")).collect();
    for part in
        ["missing.bin", "gone.bin", "no-folder/state", "core 1023", "192.0.2.77", "192.0.2.78:9420"]
    {
        let about = lines.iter().filter(|line| line.contains(part)).count();
        assert_eq!(about, 1, "{part}: {errors}");
    }
    assert_eq!(lines.len(), 6, "{errors}");
}

/// Configurations that pass `--check` start; refused ones do not, for the same reason.
#[test]
fn check_and_start_agree() {
    let place = Place::new();
    place.file("file", 1);
    let config = place.config("[[subsystem.namespace]]\nkind = \"null\"\nsize_bytes = 512");
    let text = std::fs::read_to_string(&config).expect("there");
    let long = format!("management = \"{}\"", "s".repeat(120));
    for (line, part) in [
        ("management = \"none/socket\"", "none: No such file"),
        ("management = \"file\"", "is not a socket"),
        ("management = \"file/socket\"", "not a directory"),
        (&*long, "give a shorter path"),
        ("metrics = \"192.0.2.78:9420\"", "192.0.2.78:9420: Cannot assign"),
        ("cores = 500", "must be 1 to 255"),
        ("cores = [1023]", "core 1023"),
    ] {
        std::fs::write(&config, format!("{line}\n{text}")).expect("written");
        assert_refused(check(&config), &[part]);
        assert_refused([OsStr::new("--config"), config.as_os_str()], &[part]);
    }
}

#[test]
fn a_missing_core_is_reported() {
    let place = Place::new();
    let config = place.config("[[subsystem.namespace]]\nkind = \"null\"\nsize_bytes = 512");
    let text = std::fs::read_to_string(&config).expect("there");
    std::fs::write(&config, format!("cores = [1023]\n{text}")).expect("written");
    assert_refused([OsStr::new("--config"), config.as_os_str()], &["core 1023", "cpu/online"]);
}

#[test]
fn files_without_permission_are_reported() {
    if rustix::process::geteuid().is_root() {
        eprintln!("skipped: root may read everything");
        return;
    }
    use std::os::unix::fs::PermissionsExt as _;
    let place = Place::new();
    let secret = place.file("secret.bin", 512);
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o000)).expect("set");
    let config = place.config("[[subsystem.namespace]]\npath = \"secret.bin\"");
    assert_refused(
        check(&config),
        &["secret.bin: Permission denied", "must be allowed to open it"],
    );
}

#[test]
fn bad_configurations_and_command_lines_are_reported() {
    let place = Place::new();
    let config = place.config("serial = 5");
    assert_refused(
        check(&config),
        &["feedrail.toml:8:10: subsystem.serial: invalid type: integer"],
    );
    let config = place.config("serial = \"x");
    assert_refused(check(&config), &["feedrail.toml:8:"]);
    assert_refused(
        check(&place.path("none.toml")),
        &["none.toml: cannot read the configuration: No such file"],
    );
    assert_refused(["--listen", "127.0.0.1"], &["nothing to export; name files"]);
    assert_refused(["a.bin"], &["no address to listen on; add --listen IP:4420"]);
    let usage = output(["--listen", "224.0.0.1", "x"]);
    assert_eq!(usage.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&usage.stderr).contains("is no address of an interface"));
    for filter in ["wran", "a=b=c"] {
        let usage = output(["--listen", "127.0.0.1", "--log", filter, "x"]);
        assert_eq!(usage.status.code(), Some(2), "{filter}");
        let errors = String::from_utf8_lossy(&usage.stderr);
        assert!(errors.contains("--log") && errors.contains("error, warn, info"), "{errors}");
    }
    let help = output(["--help"]);
    assert!(help.status.success());
    let text = String::from_utf8(help.stdout).expect("text");
    for option in
        ["--config", "--listen", "--writable", "--nqn", "--provider", "--check", "--log", "--cores"]
    {
        assert!(text.contains(option), "{option}");
    }
}

#[test]
fn a_foreign_address_is_reported() {
    let place = Place::new();
    let file = place.file("a.bin", 4096);
    let arguments = ["--provider", "soft", "--listen", "192.0.2.77", file.to_str().expect("text")];
    assert_refused(arguments, &["192.0.2.77"]);
}

#[test]
fn check_keeps_nothing_and_serving_keeps_nsids() {
    let place = Place::new();
    std::fs::create_dir(place.path("shards")).expect("made");
    place.file("shards/b.tar", 700);
    let config = place.config("[[subsystem.directory]]\npath = \"shards\"\nsuffix = \".tar\"");
    assert!(output(check(&config)).status.success());
    assert!(!place.path("state").exists());

    let mut running = Running::start(daemon([OsStr::new("--config"), config.as_os_str()]));
    assert_eq!(running.line()["namespaces"], 1);
    running.signal(Signal::TERM);
    assert!(running.wait().success());
    let kept = std::fs::read_dir(place.path("state")).expect("made").count();
    assert_eq!(kept, 1);
}

#[test]
fn it_listens_counts_and_ends() {
    let place = Place::new();
    let file = place.file("a.bin", 18_071);
    let address = format!("{}:4420", address());
    let arguments =
        ["--provider", "soft", "--nqn", "nqn.2026-01.io.feedrail:quick", "--listen", &address];
    let mut command = daemon(arguments);
    command.arg(&file);
    let socket_path = place.path("notify");
    let socket = UnixDatagram::bind(&socket_path).expect("bound");
    socket.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
    command.env("NOTIFY_SOCKET", &socket_path);
    let mut running = Running::start(command);

    let listening = running.line();
    assert_eq!(listening["event"], "listening");
    assert_eq!(listening["address"], address);
    assert_eq!(listening["provider"], "soft");
    assert!(listening["reason"].as_str().is_some_and(|reason| !reason.is_empty()));
    assert_eq!(listening["nqn"], "nqn.2026-01.io.feedrail:quick");
    assert_eq!(running.line(), serde_json::json!({ "event": "ready", "metrics": null }));
    let mut datagram = [0; 64];
    let length = socket.recv(&mut datagram).expect("told");
    assert_eq!(&datagram[..length], b"READY=1");

    running.signal(Signal::USR1);
    let stats = running.line();
    assert_eq!((&stats["event"], &stats["io"]["reads"]), (&"stats".into(), &0.into()));
    assert!(stats["resident_bytes"].as_u64().is_some_and(|bytes| bytes > 1 << 20));
    for key in [
        "uptime_ms",
        "associations",
        "connections",
        "system_calls",
        "network",
        "pool",
        "peer_errors",
    ] {
        assert!(!stats[key].is_null(), "{key}");
    }

    running.signal(Signal::TERM);
    assert_eq!(running.line()["event"], "stats");
    assert!(running.wait().success());
    let length = socket.recv(&mut datagram).expect("told");
    assert_eq!(&datagram[..length], b"STOPPING=1");
}

/// Returns `/status.json` of the metrics address.
fn status(metrics: &str) -> Value {
    let mut stream = TcpStream::connect(metrics).expect("connected");
    stream.write_all(b"GET /status.json HTTP/1.1\r\nHost: a\r\n\r\n").expect("sent");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("text");
    let (_, body) = response.split_once("\r\n\r\n").expect("a head");
    serde_json::from_str(body).expect("JSON")
}

#[test]
fn the_status_page_has_the_addresses_of_a_reload() {
    let place = Place::new();
    let [first, second] = [(); 2].map(|()| format!("{}:4420", address()));
    let foreign = "192.0.2.78:4420";
    let metrics = format!("{}:9420", address());
    let configure = |ports: &[(u16, &str)]| {
        let port =
            |(id, address): &(u16, &str)| format!("[[port]]\nid = {id}\naddress = \"{address}\"\n");
        let text = format!(
            "provider = \"soft\"\nstate_dir = \"state\"\nmanagement = \"socket\"\nmetrics = \"{metrics}\"\n\
             {}[[subsystem]]\nnqn = \"nqn.2026-01.io.feedrail:t\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\nkind = \"null\"\nsize_bytes = 4096\n",
            ports.iter().map(port).collect::<String>()
        );
        std::fs::write(place.path("feedrail.toml"), text).expect("written");
    };
    let addresses = || {
        let status = status(&metrics);
        let list = status["addresses"]["first"].as_array().expect("a list").clone();
        let state = |one: &Value| {
            let of = |key: &str| one[key].as_str().unwrap_or_default().to_owned();
            assert!(!of("reason").is_empty(), "{one}");
            (of("address"), of("state"), of("provider"))
        };
        list.iter().map(state).collect::<std::collections::BTreeSet<_>>()
    };
    let listening = |address: &str| (address.to_owned(), "listening".into(), "soft".into());
    configure(&[(1, &first), (2, foreign)]);
    let mut running =
        Running::start(daemon([OsStr::new("--config"), place.path("feedrail.toml").as_os_str()]));
    while running.line()["event"] != "ready" {}
    let not_listening = (foreign.to_owned(), "not_listening".into(), String::new());
    assert_eq!(addresses(), [listening(&first), not_listening].into());
    configure(&[(1, &first), (3, &second)]);
    running.signal(Signal::HUP);
    // The reload takes a moment. A page is kept for 100 ms.
    let reloaded = [listening(&first), listening(&second)].into();
    while addresses() != reloaded {
        assert!(running.child.try_wait().expect("a child").is_none());
        let pause = rustix::event::Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        rustix::event::poll(&mut [], Some(&pause)).expect("a pause");
    }
    running.signal(Signal::TERM);
    assert!(running.wait().success());
}

#[test]
fn two_machines_with_the_same_command_differ() {
    let place = Place::new();
    let file = place.file("a.bin", 512);
    let address = format!("{}:4420", address());
    let nqn = |machine: &str| {
        let mut command = daemon(["--provider", "soft", "--listen", &address]);
        command.arg(&file).env("FEEDRAIL_MACHINE_ID", machine);
        let mut running = Running::start(command);
        let nqn = running.line()["nqn"].as_str().expect("an NQN").to_owned();
        running.signal(Signal::TERM);
        assert!(running.wait().success());
        nqn
    };
    let [one, two] = ["1f", "2f"].map(|start| format!("{start}{}", "0".repeat(30)));
    assert_eq!(nqn(&one), nqn(&one));
    assert_ne!(nqn(&one), nqn(&two));
    let usage = output(["--machine-id", "5", "--listen", &address, "x"]);
    assert_eq!(usage.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&usage.stderr).contains("32 hexadecimal digits"));
}

/// A handler runs on any thread of the process, and is interrupted between its actions.
#[test]
#[expect(unsafe_code, reason = "signals one thread, which rustix cannot")]
fn one_signal_is_not_taken_for_two() {
    let place = Place::new();
    let file = place.file("a.bin", 512);
    for _ in 0..100 {
        let mut command =
            daemon(["--provider", "soft", "--listen", &format!("{}:4420", address())]);
        command.arg(&file).stderr(Stdio::null());
        let mut running = Running::start(command);
        running.line();
        let process = running.child.id();
        let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("it lives");
        let names = threads.map(|entry| entry.expect("listed").file_name());
        let numbers = names.map(|name| name.to_string_lossy().parse::<u32>().expect("a number"));
        let last = numbers.max().expect("it has threads");
        // SAFETY: tgkill(2) has no pointers; the child is not reaped yet, so its PID is not reused.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, last, libc::SIGTERM) };
        assert_eq!(sent, 0);
        assert!(running.wait().success());
    }
}

#[test]
fn sigint_ends_it_and_a_closed_pipe_does_not() {
    let place = Place::new();
    let file = place.file("a.bin", 512);
    let address = format!("{}:4420", address());
    let mut command = daemon(["--provider", "soft", "--listen", &address]);
    command.arg(&file);
    let mut running = Running::start(command);
    running.line();
    // Closes standard output from here on.
    let Running { child, .. } = &running;
    let pid = Pid::from_child(child);
    running.lines = {
        let empty = Command::new("true").stdout(Stdio::piped()).spawn().and_then(|mut child| {
            let out = child.stdout.take().expect("piped");
            child.wait()?;
            Ok(out)
        });
        BufReader::new(empty.expect("it starts")).lines()
    };
    kill_process(pid, Signal::USR1).expect("it lives");
    kill_process(pid, Signal::INT).expect("it lives");
    assert!(running.wait().success());
}

#[test]
fn a_blocked_standard_error_does_not_end_it() {
    let place = Place::new();
    let file = place.file("a.bin", 512);
    let full =
        || std::fs::File::options().write(true).open("/dev/full").expect("every Linux has it");
    let address = format!("{}:4420", address());
    let mut command = daemon(["--log", "trace", "--provider", "soft", "--listen", &address]);
    command.arg(&file).stderr(full());
    let mut running = Running::start(command);
    assert_eq!(running.line()["event"], "listening");
    assert_eq!(running.line()["event"], "ready");
    running.signal(Signal::TERM);
    assert_eq!(running.line()["event"], "stats");
    assert!(running.wait().success());

    let mut refused = daemon(["--listen", "127.0.0.1"]);
    let status = refused.stderr(full()).status().expect("it starts");
    assert_eq!(status.code(), Some(1), "{status}");
}
