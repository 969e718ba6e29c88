//! The daemon as a service manager sees it: ready, watched, reloaded, stopped.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use feedrail_tests::process::{
    Daemon, DaemonOptions, ManagementClient, eventually, feedrail, host, loopback_address,
    write_configuration,
};
use tempfile::TempDir;

/// Limit for messages that come immediately or never.
const PROMPTLY: Duration = Duration::from_secs(30);

/// A service manager's socket.
struct ServiceManager {
    folder: TempDir,
    socket: UnixDatagram,
}

impl ServiceManager {
    fn new() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(PROMPTLY)).unwrap();
        Self { folder, socket }
    }

    /// Starts a daemon that is to feed its watchdog this often or more.
    fn start(&self, watchdog: Option<Duration>) -> Daemon {
        let file = self.folder.path().join("shard.bin");
        std::fs::write(&file, [7; 4096]).unwrap();
        let path = self.folder.path().join("notify");
        let options = DaemonOptions::files([file]).env("NOTIFY_SOCKET", path.to_str().unwrap());
        match watchdog {
            Some(time) => options.env("WATCHDOG_USEC", &time.as_micros().to_string()).start(),
            None => options.start(),
        }
    }

    fn next(&self) -> String {
        let mut bytes = [0; 256];
        let length = self.socket.recv(&mut bytes).expect("the daemon says something");
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }
}

#[test]
fn a_service_is_ready_watched_and_stopped() {
    let manager = ServiceManager::new();
    let daemon = manager.start(Some(Duration::from_millis(50)));
    assert_eq!(manager.next(), "READY=1");
    let host = host().build().unwrap();
    let namespace = daemon.open(&host);
    // Idle and at work.
    for _ in 0..20 {
        assert_eq!(manager.next(), "WATCHDOG=1");
        namespace.read_to_vec(0, 4096).wait().unwrap();
    }
    let (status, _) = daemon.terminate();
    assert!(status.success());
    let last = std::iter::repeat_with(|| manager.next()).find(|state| state != "WATCHDOG=1");
    assert_eq!(last.as_deref(), Some("STOPPING=1"));
}

#[test]
fn a_daemon_that_nobody_watches_feeds_nothing() {
    let manager = ServiceManager::new();
    let daemon = manager.start(None);
    assert_eq!(manager.next(), "READY=1");
    let (status, _) = daemon.terminate();
    assert!(status.success());
    assert_eq!(manager.next(), "STOPPING=1");
}

/// A daemon that gets no processor time feeds nothing: the service manager would restart it.
#[test]
fn a_daemon_that_stands_still_is_noticed() {
    let manager = ServiceManager::new();
    let daemon = manager.start(Some(Duration::from_millis(50)));
    assert_eq!(manager.next(), "READY=1");
    assert_eq!(manager.next(), "WATCHDOG=1");
    daemon.signal(rustix::process::Signal::STOP);
    manager.socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    eventually("it is silent", || manager.socket.recv(&mut [0; 256]).is_err());
    daemon.signal(rustix::process::Signal::CONT);
    manager.socket.set_read_timeout(Some(PROMPTLY)).unwrap();
    assert_eq!(manager.next(), "WATCHDOG=1");
}

/// The command of `ExecReload=` in the unit, for a target with another socket.
fn reload_command(socket: &str) -> Vec<String> {
    let unit = include_str!("../../../target/examples/feedrail-target.service");
    let setting = |key: &str| unit.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    let (reload, start) = (setting("ExecReload="), setting("ExecStart="));
    let (_, path) = start.split_once("--management ").unwrap();
    assert!(reload.contains(path), "{reload}: the target of the unit listens on {path}");
    let words = reload.strip_prefix("/usr/bin/feedrail ").expect("our own command");
    words.split(' ').map(|word| if word == path { socket } else { word }.to_owned()).collect()
}

#[test]
fn a_reload_of_the_unit_fails_where_the_configuration_is_refused() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let socket = folder.path().join("socket");
    let configuration = format!(
        "provider = \"soft\"\n[[port]]\naddress = \"{}\"\n\
         [[subsystem]]\nnqn = \"nqn.2026-01.io.feedrail:unit\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nkind = \"null\"\nsize_bytes = 4096\n",
        loopback_address()
    );
    let path = write_configuration(folder.path(), &configuration);
    let options = DaemonOptions::default().arg("--config").arg(&path);
    let _daemon = options.arg("--management").arg(&socket).start();
    drop(ManagementClient::connect(&socket));
    let reload = || feedrail(reload_command(socket.to_str().unwrap())).run();
    assert_eq!(reload().success(), b"nothing to change\n");
    std::fs::write(&path, format!("{configuration}no_such_key = 1\n")).unwrap();
    let refused = reload().failure();
    assert!(refused.contains("no_such_key"), "{refused}");
    std::fs::write(&path, configuration).unwrap();
    assert_eq!(reload().success(), b"nothing to change\n");
}
