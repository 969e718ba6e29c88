//! A TCP connection that carries as much as it can.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::net::sockopt::set_tcp_congestion;

use super::namespace::NetworkNamespace;

const BUFFER_BYTES: usize = 256 << 10;

/// How often both sides look whether the flow is over.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// One flow, until it is dropped.
pub(super) struct TcpFlow {
    received: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    sides: Vec<JoinHandle<()>>,
}

impl TcpFlow {
    /// Starts a flow with a congestion control of the kernel's.
    pub(super) fn start(
        from: &NetworkNamespace,
        to: &NetworkNamespace,
        congestion_control: &str,
    ) -> Result<Self> {
        let listener = to.run(|| Ok(TcpListener::bind((to.addresses()[0], 0))?))?;
        let address = listener.local_addr()?;
        let source = from.run(|| Ok(TcpStream::connect(address)?))?;
        set_tcp_congestion(&source, congestion_control)
            .with_context(|| format!("the kernel has no {congestion_control}"))?;
        let (sink, _) = listener.accept()?;
        source.set_write_timeout(Some(LOOK_EVERY))?;
        sink.set_read_timeout(Some(LOOK_EVERY))?;
        let (received, over) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (counted, seen) = (Arc::clone(&received), Arc::clone(&over));
        let receiver = thread::spawn(move || receive(sink, &counted, &seen));
        let seen = Arc::clone(&over);
        let sender = thread::spawn(move || send(source, &seen));
        Ok(Self { received, over, sides: vec![sender, receiver] })
    }

    /// Bytes that have arrived so far.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

impl Drop for TcpFlow {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for side in self.sides.drain(..) {
            // It cannot panic.
            let _ = side.join();
        }
    }
}

fn send(mut source: TcpStream, over: &AtomicBool) {
    let bytes = vec![0x5a; BUFFER_BYTES];
    while !over.load(Ordering::Relaxed) {
        if source.write(&bytes).is_err_and(|error| !is_timeout(error.kind())) {
            return;
        }
    }
}

fn receive(mut sink: TcpStream, received: &AtomicU64, over: &AtomicBool) {
    let mut buffer = vec![0; BUFFER_BYTES];
    while !over.load(Ordering::Relaxed) {
        match sink.read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => drop(received.fetch_add(length as u64, Ordering::Relaxed)),
            Err(error) if is_timeout(error.kind()) => {}
            Err(_) => return,
        }
    }
}

fn is_timeout(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
