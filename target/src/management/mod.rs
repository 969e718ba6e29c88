//! Management socket: JSON-RPC 2.0 over a Unix stream socket, for changes to the exports at run
//! time.
//!
//! One thread accepts clients, and each client has a thread, so that a client that does not read,
//! or sends half a request, blocks only itself. The target's I/O threads are not involved.

mod ana;
mod audit;
mod bdev;
mod bdev_methods;
mod config;
mod config_toml;
mod frame;
mod iostat;
mod keyring;
mod keyring_methods;
mod limit_calls;
mod load;
mod method;
mod method_params;
mod namespace_methods;
mod qos;
mod role;
mod rpc;
mod socket;
mod socket_place;
mod spdk_framework;
mod spdk_params;
mod stats;
mod subsystem;
mod subsystem_methods;
mod trace;

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rdma::LocalPeer;
use rustix::event::{PollFd, PollFlags};
use serde_json::Value;

use self::audit::AuditedCall;
use self::frame::FrameSplitter;
use self::method::Methods;
use self::role::SocketRole;
use self::rpc::{BadCall, RpcCall, RpcError, RpcRequest};
use self::socket::Socket;
pub use self::socket_place::SocketError;
pub(crate) use self::socket_place::SocketPlace;
use crate::config::Config;
use crate::driver::clock::Clock;
use crate::listeners::Listeners;
use crate::reloader::Reloader;

/// Most concurrent clients. A further one replaces the client that has been idle for longest.
const MAX_CLIENTS: usize = 32;
/// Time after which a client that does not read its response is disconnected.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(1);
/// Size of a client's read buffer in bytes.
const READ_BYTES: usize = 16 << 10;

/// Handle of the management socket. Dropping it disconnects all clients and ends the threads.
#[derive(Debug)]
pub(crate) struct Management {
    /// Other end of `Server::stopped`; dropping it ends the thread that accepts clients.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    clients: Arc<Clients>,
}

/// Connected clients, shared by their threads.
#[derive(Debug, Default)]
struct Clients(Mutex<ClientList>);

#[derive(Debug, Default)]
struct ClientList {
    /// Connected clients, the one that has been idle for longest first.
    live: Vec<Client>,
    /// Number of the next client.
    next: u64,
}

#[derive(Debug)]
struct Client {
    number: u64,
    /// Second handle of the connection, for closing it from another thread.
    stream: UnixStream,
    /// Whether a method is running for the client, which is then not replaced.
    busy: bool,
}

impl Management {
    /// Starts the sockets of a configuration.
    ///
    /// # Errors
    /// A socket cannot be created, a process listens on it, or a thread cannot be started.
    pub(crate) fn start_all(
        config: &Config,
        listeners: Arc<Listeners>,
        reloader: Option<Arc<Reloader>>,
    ) -> Result<Vec<Self>, SocketError> {
        let methods = Arc::new(Methods::new(listeners, reloader));
        let full = config.management.iter().map(|path| (path, SocketRole::Full));
        let sockets =
            full.chain(config.management_read_only.iter().map(|path| (path, SocketRole::ReadOnly)));
        sockets.map(|(path, role)| Self::start(path, role, Arc::clone(&methods))).collect()
    }

    /// Creates the socket at `path` and starts the thread that accepts clients.
    fn start(path: &Path, role: SocketRole, methods: Arc<Methods>) -> Result<Self, SocketError> {
        let socket = Socket::listen(path, role)?;
        let failed = |error| SocketError::Listen { path: path.to_owned(), error };
        let (stop, stopped) = UnixStream::pair().map_err(failed)?;
        let clients = Arc::new(Clients::default());
        let server = Server { socket, stopped, clients: Arc::clone(&clients), methods };
        let builder = std::thread::Builder::new().name("feedrail-manage".into());
        let thread = builder.spawn(move || server.run()).map_err(failed)?;
        let read_only = role == SocketRole::ReadOnly;
        tracing::info!(path = %path.display(), read_only, "management socket");
        Ok(Self { stop: Some(stop), thread: Some(thread), clients })
    }
}

impl Drop for Management {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.clients.end();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the management thread panicked");
        }
        // A client may have connected before the thread ended.
        self.clients.end();
    }
}

struct Server {
    socket: Socket,
    /// Readable once [`Management`] is dropped.
    stopped: UnixStream,
    clients: Arc<Clients>,
    methods: Arc<Methods>,
}

impl Server {
    fn run(self) {
        let clock = Clock::new();
        let mut next_second = clock.now() + SECOND;
        loop {
            let mut fds = [
                PollFd::new(&self.stopped, PollFlags::IN),
                PollFd::new(&self.socket, PollFlags::IN),
            ];
            let second = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
            // A wait that a signal interrupts is merely shorter.
            let _ = rustix::event::poll(&mut fds, Some(&second));
            if clock.now() >= next_second {
                next_second = clock.now() + SECOND;
                self.methods.second_passed();
            }
            if !fds[0].revents().is_empty() {
                return;
            }
            match self.socket.accept() {
                Ok(Some((stream, peer))) => self.take(stream, peer),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%error, "the management socket cannot accept a client");
                    // If file descriptors have run out, an immediate retry would fail as well.
                    let pause = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
                    let _ = rustix::event::poll(&mut fds[..1], Some(&pause));
                }
            }
        }
    }

    /// Starts a thread that serves a client.
    fn take(&self, stream: UnixStream, peer: LocalPeer) {
        let started = self.clients.add(&stream).and_then(|number| {
            let conversation = Conversation {
                number,
                stream,
                peer,
                role: self.socket.role(),
                clients: Arc::clone(&self.clients),
                methods: Arc::clone(&self.methods),
            };
            let builder = std::thread::Builder::new().name("feedrail-rpc".into());
            builder.spawn(move || conversation.run()).map(drop).inspect_err(|_| {
                self.clients.remove(number);
            })
        });
        if let Err(error) = started {
            tracing::warn!(%error, "a client of the management socket is refused");
        }
    }
}

impl Clients {
    /// Adds a client and returns its number. If there are too many, it disconnects the one that has
    /// been idle for longest, or refuses the new one if methods run for all.
    fn add(&self, stream: &UnixStream) -> io::Result<u64> {
        let mut list = self.list();
        if list.live.len() >= MAX_CLIENTS {
            let Some(at) = list.live.iter().position(|client| !client.busy) else {
                let error =
                    RpcError::refused("all places are taken by clients with running methods");
                let response = rpc::line(&rpc::response(&Value::Null, Err(error)));
                let _ = stream.set_nonblocking(true).and_then(|()| (&*stream).write_all(&response));
                return Err(io::Error::other("too many clients"));
            };
            end(&list.live.remove(at).stream);
        }
        let number = list.next;
        list.next += 1;
        list.live.push(Client { number, stream: stream.try_clone()?, busy: false });
        Ok(number)
    }

    /// Records that a client has sent a request (`busy`) or received its response.
    fn mark(&self, number: u64, busy: bool) {
        let mut list = self.list();
        let Some(at) = list.live.iter().position(|client| client.number == number) else { return };
        let client = list.live.remove(at);
        list.live.push(Client { busy, ..client });
    }

    fn remove(&self, number: u64) {
        self.list().live.retain(|client| client.number != number);
    }

    fn end(&self) {
        self.list().live.iter().for_each(|client| end(&client.stream));
    }

    fn list(&self) -> MutexGuard<'_, ClientList> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn end(stream: &UnixStream) {
    // An error means that the client has disconnected.
    let _ = stream.shutdown(std::net::Shutdown::Both);
}

/// Thread that serves one client.
struct Conversation {
    number: u64,
    stream: UnixStream,
    peer: LocalPeer,
    role: SocketRole,
    clients: Arc<Clients>,
    methods: Arc<Methods>,
}

impl Conversation {
    fn run(mut self) {
        // An error means that the client has disconnected, or does not read its responses.
        let _ = self.talk();
        end(&self.stream);
        self.clients.remove(self.number);
    }

    fn talk(&mut self) -> io::Result<()> {
        self.stream.set_nonblocking(false)?;
        self.stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
        let mut frames = FrameSplitter::default();
        let mut bytes = vec![0; READ_BYTES];
        loop {
            let count = match self.stream.read(&mut bytes) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            frames.push(&bytes[..count]);
            loop {
                match frames.next() {
                    Ok(None) => break,
                    Ok(Some(frame)) => {
                        self.clients.mark(self.number, true);
                        let reply = answer(&self.methods, (self.role, self.peer), frame);
                        self.clients.mark(self.number, false);
                        self.stream.write_all(&reply.response)?;
                        if reply.is_last {
                            return Ok(());
                        }
                    }
                    Err(error) => {
                        let error = RpcError::parse(error);
                        let response = rpc::response(&Value::Null, Err(error));
                        return self.stream.write_all(&rpc::line(&response));
                    }
                }
            }
        }
    }
}

/// Response to a frame, and whether it is the last.
struct RpcReply {
    /// Bytes to send; empty if the request was a notification.
    response: Vec<u8>,
    /// Whether to disconnect the client, because the frame is not JSON.
    is_last: bool,
}

fn answer(methods: &Methods, client: (SocketRole, LocalPeer), frame: &[u8]) -> RpcReply {
    let (response, is_last) = match RpcRequest::parse(frame) {
        Ok(RpcRequest::One(call)) => (answer_call(methods, client, Ok(call)), false),
        Ok(RpcRequest::Batch(calls)) => {
            let answers = calls.into_iter().filter_map(|call| answer_call(methods, client, call));
            let answers: Vec<_> = answers.collect();
            ((!answers.is_empty()).then_some(Value::Array(answers)), false)
        }
        Err(bad) => {
            let is_last = bad.error.is_parse_error();
            (answer_call(methods, client, Err(bad)), is_last)
        }
    };
    RpcReply { response: response.as_ref().map(rpc::line).unwrap_or_default(), is_last }
}

/// Executes one request. Returns the response; `None` for a notification.
fn answer_call(
    methods: &Methods,
    (role, peer): (SocketRole, LocalPeer),
    call: Result<RpcCall, BadCall>,
) -> Option<Value> {
    match call {
        Ok(RpcCall { method, params, id }) => {
            let audited = AuditedCall::of(&method, &params);
            let result = role.check(audited.as_ref()).and_then(|()| methods.call(&method, params));
            if let Some(audited) = audited {
                audited.log(peer, &result);
            }
            id.map(|id| rpc::response(&id, result))
        }
        Err(BadCall { id, error }) => Some(rpc::response(&id, Err(error))),
    }
}

#[cfg(test)]
mod tests;
