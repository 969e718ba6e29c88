//! Which way `auto` goes to a target on the same machine.

use std::fs;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use feedrail_initiator::{ControllerOptions, Host, Namespace, RdmaProvider};
use feedrail_tests::process::{
    Bytes, Daemon, DaemonOptions, empty_slice, feedrail, host, loopback_address,
};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::Value;

const SIZE_BYTES: usize = 1 << 20;

struct Disk {
    folder: tempfile::TempDir,
    content: Vec<u8>,
}

impl Disk {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let content = Bytes::new(9).take(SIZE_BYTES);
        fs::write(folder.path().join("disk.img"), &content).unwrap();
        Self { folder, content }
    }

    fn options(&self) -> DaemonOptions {
        let path: &Path = self.folder.path();
        DaemonOptions::files([path.join("disk.img")])
    }

    /// A daemon with this provider at an address.
    fn serve(&self, address: SocketAddr, provider: &str) -> Daemon {
        self.options().at(address).arg("--provider").arg(provider).start()
    }
}

fn address() -> SocketAddr {
    SocketAddr::new(loopback_address(), 4420)
}

/// The provider that `feedrail perf` used, which read something.
fn provider_of_perf(daemon: &Daemon, options: &[&str], faults: Option<&str>) -> String {
    let program = feedrail(["perf", "-o", "json", "--bs", "4k", "--number-ios", "50"]);
    let program = program.args(daemon.options()).args(options);
    let program = match faults {
        Some(faults) => program.env("FEEDRAIL_SOFT_FAULTS", faults),
        None => program,
    };
    let report: Value = serde_json::from_slice(&program.run().success()).unwrap();
    assert_eq!(report["results"]["read"]["total_ios"], 50);
    let provider = report["provider"].as_str().unwrap();
    provider.split(':').next().unwrap().to_owned()
}

/// The providers of a host, without their reasons.
fn providers(host: &Host) -> Vec<String> {
    let name = |line: String| line.split(':').next().unwrap_or_default().to_owned();
    host.providers().into_iter().map(name).collect()
}

fn check(namespace: &Namespace, content: &[u8]) {
    assert!(namespace.read_to_vec(0, content.len()).wait().unwrap() == content);
}

/// A socket with the name of the listener of shared memory at an address.
fn take_name(address: SocketAddr) -> OwnedFd {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    );
    let socket = socket.unwrap();
    rustix::net::bind(&socket, &name_of(address)).unwrap();
    socket
}

fn name_of(address: SocketAddr) -> SocketAddrUnix {
    let name = format!("feedrail-shm/{address}");
    SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()
}

#[test]
fn memory_is_shared_where_both_sides_leave_the_choice_to_us() {
    let disk = Disk::new();
    let daemon = disk.options().start();
    assert_eq!(daemon.listening()["shared_memory"], true);
    assert_eq!(provider_of_perf(&daemon, &[], None), "shm");
    assert!(feedrail(["read"]).args(daemon.options()).run().success() == disk.content);
    assert_eq!(provider_of_perf(&daemon, &["--provider", "soft"], None), "soft");
    assert_eq!(provider_of_perf(&daemon, &["--provider", "shm"], None), "shm");
}

#[test]
fn one_side_that_wants_the_network_gets_it() {
    let disk = Disk::new();
    let daemon = disk.serve(address(), "soft");
    assert_eq!(daemon.listening()["shared_memory"], false);
    assert_eq!(provider_of_perf(&daemon, &[], None), "soft");
    assert!(feedrail(["read"]).args(daemon.options()).run().success() == disk.content);
    assert!(
        feedrail(["read", "--provider", "shm"])
            .args(daemon.options())
            .run()
            .failure()
            .contains("shares memory")
    );
}

#[test]
fn faults_on_purpose_take_the_network() {
    let disk = Disk::new();
    let faults = "duplicate=1%,seed=3";
    let daemon = disk.options().start();
    assert_eq!(provider_of_perf(&daemon, &[], Some(faults)), "soft");
    drop(daemon);
    let daemon = disk.options().env("FEEDRAIL_SOFT_FAULTS", faults).start();
    assert_eq!(daemon.listening()["shared_memory"], false);
    assert_eq!(provider_of_perf(&daemon, &[], None), "soft");
}

#[test]
fn a_target_whose_name_is_taken_serves_over_the_network() {
    let disk = Disk::new();
    let address = address();
    let _taken = take_name(address);
    let daemon = disk.serve(address, "auto");
    assert_eq!(daemon.listening()["shared_memory"], false);
    daemon.wait_for_log("hosts on this machine use the network");
    assert_eq!(daemon.log().matches("use the network").count(), 1, "{}", daemon.log());
    assert_eq!(provider_of_perf(&daemon, &[], None), "soft");
}

#[test]
fn a_name_with_too_many_connections_keeps_no_host_and_the_target_gets_it_back() {
    let disk = Disk::new();
    let address = address();
    let taken = take_name(address);
    rustix::net::listen(&taken, 0).unwrap();
    let fill = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let socket = socket.unwrap();
        rustix::net::connect(&socket, &name_of(address)).ok().map(|()| socket)
    };
    let waiting: Vec<_> = std::iter::from_fn(fill).collect();
    let daemon = disk.serve(address, "auto");
    let host = host().build().unwrap();
    check(&daemon.open(&host), &disk.content);
    assert_eq!(providers(&host), ["soft"]);
    // It was not tried to share memory.
    assert_eq!(host.counters().reconnects, 0);
    drop((waiting, taken));
    daemon.wait_for_log("hosts on this machine may share memory again");
    assert_eq!(provider_of_perf(&daemon, &[], None), "shm");
}

#[test]
fn an_attempt_that_fails_goes_on_over_the_network() {
    let disk = Disk::new();
    let address = address();
    // It takes connections and never answers.
    let silent = take_name(address);
    rustix::net::listen(&silent, 64).unwrap();
    let daemon = disk.serve(address, "soft");
    let options = ControllerOptions::default().connect_timeout(Duration::from_millis(300));
    let host = host().controller_options(options).build().unwrap();
    let namespace = daemon.open(&host);
    check(&namespace, &disk.content);
    assert_eq!(providers(&host), ["soft"]);
}

/// A host keeps reading, whichever way to the target works after it was started again.
#[test]
fn each_reconnect_takes_the_way_that_there_is() {
    let disk = Disk::new();
    let address = address();
    let host = host().io_timeout(Duration::from_secs(30)).build().unwrap();
    let mut daemon = disk.serve(address, "auto");
    let namespace = daemon.open(&host);
    for (provider, expected) in
        [("soft", "soft"), ("auto", "shm"), ("shm", "shm"), ("soft", "soft"), ("shm", "shm")]
    {
        check(&namespace, &disk.content);
        daemon.kill();
        // Registered for the provider before, and waits for the next one.
        let waiting = namespace.read(4096, empty_slice(100_000));
        daemon = disk.serve(address, provider);
        let outcome = waiting.wait();
        outcome.result.unwrap();
        assert!(outcome.slice.to_vec() == disk.content[4096..104_096], "{provider}");
        assert_eq!(providers(&host), [expected], "{provider}");
    }
    check(&namespace, &disk.content);
    assert_eq!(host.counters().reconnects, 5);
}

#[test]
fn a_provider_that_was_asked_for_is_kept() {
    let disk = Disk::new();
    let address = address();
    let host = host().provider(RdmaProvider::Shm).build().unwrap();
    let mut daemon = disk.serve(address, "auto");
    let namespace = daemon.open(&host);
    check(&namespace, &disk.content);
    daemon.kill();
    daemon = disk.serve(address, "soft");
    assert!(host.connect(daemon.target()).wait().is_err());
    daemon.kill();
    let _daemon = disk.serve(address, "auto");
    check(&namespace, &disk.content);
    assert_eq!(providers(&host), ["shm"]);
}
