//! Notifications to systemd about the state of the daemon (the `sd_notify` protocol: datagrams to
//! the socket that `NOTIFY_SOCKET` names).

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use rustix::time::{ClockId, clock_gettime};

/// Reports that the target listens, or has completed a reload (`READY=1`).
pub(super) fn ready() {
    send("READY=1");
}

/// Reports that a reload of the configuration begins (`RELOADING=1`). [`ready`] reports its end.
pub(super) fn reloading() {
    let now = clock_gettime(ClockId::Monotonic);
    // This clock is never negative.
    let micros = now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000;
    send(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
}

/// Reports that the target begins to stop (`STOPPING=1`).
pub(super) fn stopping() {
    send("STOPPING=1");
}

/// Reports that all threads make progress (`WATCHDOG=1`).
pub(super) fn watchdog() {
    send("WATCHDOG=1");
}

fn send(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&name),
    };
    let sent = address
        .and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    if let Err(error) = sent {
        tracing::warn!(%error, state, "cannot notify the service manager");
    }
}
