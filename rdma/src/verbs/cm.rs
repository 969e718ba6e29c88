//! The connection manager: one event channel of librdmacm.
#![expect(unsafe_code, reason = "calls rdma-core")]

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::time::Duration;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Once};

use libc::sockaddr_storage;
use socket2::SockAddr;

use super::abi::*;
use super::context::Context;
use super::group::VerbsGroupHandle;
use super::handle::{Channel, Id, check};
use super::queue_pair::VerbsQp;
use super::shared::{Verbs, VerbsDevice};
use crate::{
    Caps, CmError, CmEvent, ConnId, ConnOptions, ConnParams, ConnectFailure, ConnectionManager,
    PrivateData, QpConfig, Time,
};

/// Maximum number of pending connection requests of a listener.
const BACKLOG: c_int = 128;
/// Maximum private data of a REQ besides librdmacm's own header, and of a REJ, in bytes.
const REQUEST_PRIVATE_MAX: usize = 56;
const REJECT_PRIVATE_MAX: usize = 148;

/// The connection manager of one device.
pub struct VerbsCm {
    connections: BTreeMap<ConnId, VerbsConnection>,
    next: u64,
    local_ip: IpAddr,
    caps: Caps,
    context: Arc<Context>,
    channel: Arc<Channel>,
}

struct VerbsConnection {
    id: Arc<Id>,
    /// Options of the connection; for a listener, those of its incoming connections.
    options: ConnOptions,
    route_timeout: Duration,
}

impl VerbsCm {
    pub(crate) fn new(context: &Arc<Context>, caps: &Caps, local_ip: IpAddr) -> io::Result<Self> {
        let channel = Channel::open(context.library)?;
        let (context, caps) = (Arc::clone(context), caps.clone());
        Ok(Self { connections: BTreeMap::new(), next: 1, local_ip, caps, context, channel })
    }

    fn next_conn(&mut self) -> ConnId {
        let conn = ConnId(self.next);
        self.next += 1;
        conn
    }

    fn create_id(&mut self, options: &ConnOptions) -> io::Result<(ConnId, Id)> {
        let conn = self.next_conn();
        let id = Id::create(&self.channel, conn.0)?;
        id.set_options(options)?;
        Ok((conn, id))
    }

    fn id(&self, conn: ConnId) -> Result<&Arc<Id>, CmError> {
        Ok(&self.connections.get(&conn).ok_or(CmError::UnknownConnection)?.id)
    }

    fn insert(&mut self, conn: ConnId, id: Id, options: ConnOptions, route_timeout: Duration) {
        let connection = VerbsConnection { id: Arc::new(id), options, route_timeout };
        self.connections.insert(conn, connection);
    }

    /// Builds librdmacm's parameters, with depths limited to those of the device: larger ones are
    /// an error to librdmacm.
    fn conn_param(&self, params: &ConnParams) -> rdma_conn_param {
        let caps = &self.caps;
        let private_data = params.private_data.as_slice();
        rdma_conn_param {
            private_data: private_data.as_ptr().cast(),
            private_data_len: u8::try_from(private_data.len()).expect("196 at the most"),
            responder_resources: params.responder_resources.min(caps.max_responder_resources),
            initiator_depth: params.initiator_depth.min(caps.max_initiator_depth),
            flow_control: 1,
            retry_count: params.retry_count,
            rnr_retry_count: params.rnr_retry_count,
            srq: 0,
            qp_num: 0,
        }
    }

    /// Takes one event off the channel, copies it and acknowledges it, if any.
    fn receive(&self) -> Option<RawEvent> {
        let functions = &self.context.library.cm;
        let mut event = null_mut();
        loop {
            let guard = self.channel.lock_queue_pairs();
            // SAFETY: the channel is alive and does not block; the place is ours.
            let rc = unsafe { (functions.rdma_get_cm_event)(self.channel.raw, &raw mut event) };
            drop(guard);
            if rc == 0 {
                break;
            }
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::Interrupted => continue,
                io::ErrorKind::WouldBlock => {}
                _ => tracing::error!("connection-management events: {error}"),
            }
            return None;
        }
        // SAFETY: the event is valid until it is acknowledged, and everything is copied out of it.
        let copied = unsafe { RawEvent::copy(event) };
        // SAFETY: it was just received, and is acknowledged once.
        unsafe { (functions.rdma_ack_cm_event)(event) };
        Some(copied)
    }

    /// Translates an event for the consumer; `None` for events that it does not see.
    fn translate(&mut self, event: &RawEvent) -> Option<CmEvent> {
        if event.kind == cm_event::CONNECT_REQUEST {
            return Some(self.connect_request(event));
        }
        let conn = ConnId(event.name);
        let connection = self.connections.get(&conn)?;
        let params = event.params;
        match event.kind {
            cm_event::ADDR_RESOLVED => return connection.resolve_route(conn),
            cm_event::ROUTE_RESOLVED => return Some(CmEvent::Resolved { conn }),
            cm_event::ESTABLISHED => {
                connection.id.note_ready();
                return Some(CmEvent::Established { conn, params });
            }
            cm_event::DISCONNECTED => {
                // librdmacm leaves the queue pair as it is until we disconnect as well.
                connection.id.disconnect();
                // The kernel sets the status to ETIMEDOUT when the peer did not answer.
                return Some(CmEvent::Disconnected { conn, confirmed: event.status == 0 });
            }
            // Bonding moved the address, so the path is gone.
            cm_event::ADDR_CHANGE => {
                connection.id.disconnect();
                return Some(CmEvent::Disconnected { conn, confirmed: false });
            }
            _ => {}
        }
        let end = match event.kind {
            cm_event::DEVICE_REMOVAL => CmEvent::DeviceRemoved { conn },
            cm_event::REJECTED => {
                let reason = u16::try_from(event.status).unwrap_or(0);
                CmEvent::Rejected { conn, reason, private_data: params.private_data }
            }
            kind => CmEvent::ConnectFailed { conn, failure: failure(kind)? },
        };
        connection.id.note_end();
        Some(end)
    }

    fn connect_request(&mut self, event: &RawEvent) -> CmEvent {
        let conn = self.next_conn();
        // SAFETY: the new identifier is ours from this event on; its context is a number that is
        // never followed.
        unsafe { (*event.id).context = conn.0 as *mut c_void };
        let id = Id::from_raw(&self.channel, event.id);
        let listener = ConnId(event.listener);
        let options = self.connections.get(&listener).map(|listener| listener.options);
        let options = options.unwrap_or_default();
        if let Err(error) = id.set_options(&options) {
            // The error affects all connections, and peers decide how many there are: log it once.
            static SAID: Once = Once::new();
            SAID.call_once(|| {
                tracing::warn!("connections do not have their listener's type of service: {error}");
            });
        }
        self.insert(conn, id, options, Duration::ZERO);
        CmEvent::ConnectRequest {
            listener,
            conn,
            params: event.params,
            peer: event.peer,
            process: None,
        }
    }
}

/// The failure that an event of this kind reports; `None` if it is no failure to connect.
fn failure(kind: u32) -> Option<ConnectFailure> {
    match kind {
        cm_event::ADDR_ERROR => Some(ConnectFailure::Address),
        cm_event::ROUTE_ERROR => Some(ConnectFailure::Route),
        cm_event::CONNECT_ERROR | cm_event::UNREACHABLE => Some(ConnectFailure::Unreachable),
        _ => None,
    }
}

impl VerbsConnection {
    /// Starts the resolution of the route, the second step of `resolve`.
    fn resolve_route(&self, conn: ConnId) -> Option<CmEvent> {
        let timeout_ms = c_int::try_from(self.route_timeout.as_millis()).unwrap_or(c_int::MAX);
        let resolve = self.id.library().cm.rdma_resolve_route;
        // SAFETY: the identifier is alive and its address is resolved.
        match check(unsafe { resolve(self.id.raw, timeout_ms) }) {
            Ok(()) => None,
            Err(_) => Some(CmEvent::ConnectFailed { conn, failure: ConnectFailure::Route }),
        }
    }
}

/// A copy of an event, so that the event can be acknowledged immediately: `rdma_destroy_id` blocks
/// until the events of the identifier are acknowledged.
struct RawEvent {
    kind: u32,
    status: c_int,
    id: *mut rdma_cm_id,
    name: u64,
    listener: u64,
    peer: SocketAddr,
    params: ConnParams,
}

impl RawEvent {
    /// # Safety
    /// The event must not be acknowledged yet.
    unsafe fn copy(event: *const rdma_cm_event) -> Self {
        // SAFETY: an event that is not acknowledged names a live identifier, and its private data
        // is readable. The connection parameters are the union's meaning for a connected port
        // space.
        unsafe {
            let id = (*event).id;
            let listener = (*event).listen_id;
            Self {
                kind: (*event).event,
                status: (*event).status,
                id,
                name: (*id).context as u64,
                listener: if listener.is_null() { 0 } else { (*listener).context as u64 },
                peer: socket_addr(&(*id).route.addr.dst_addr),
                params: conn_params(&(*event).param.conn),
            }
        }
    }
}

/// # Safety
/// The private data must be readable.
unsafe fn conn_params(raw: &rdma_conn_param) -> ConnParams {
    let private_data = if raw.private_data.is_null() {
        PrivateData::EMPTY
    } else {
        let length = usize::from(raw.private_data_len).min(PrivateData::MAX);
        // SAFETY: passed on to the caller; the length is librdmacm's.
        let bytes = unsafe { core::slice::from_raw_parts(raw.private_data.cast::<u8>(), length) };
        PrivateData::new(bytes).unwrap_or_default()
    };
    ConnParams {
        responder_resources: raw.responder_resources,
        initiator_depth: raw.initiator_depth,
        retry_count: raw.retry_count,
        rnr_retry_count: raw.rnr_retry_count,
        private_data,
    }
}

fn socket_addr(storage: &sockaddr_storage) -> SocketAddr {
    let mut address = socket2::SockAddrStorage::zeroed();
    // SAFETY: the view has the layout of `sockaddr_storage`, which is plain data.
    unsafe { *address.view_as::<sockaddr_storage>() = *storage };
    let length = size_of::<sockaddr_storage>().try_into().expect("128 fits");
    // SAFETY: the storage is initialised in its whole length.
    let address = unsafe { SockAddr::new(address, length) };
    address.as_socket().unwrap_or(SocketAddr::new(IpAddr::V4([0; 4].into()), 0))
}

impl ConnectionManager<Verbs> for VerbsCm {
    fn listen(&mut self, addr: SocketAddr, options: &ConnOptions) -> Result<ConnId, CmError> {
        let (conn, id) = self.create_id(options)?;
        if addr.is_ipv6() {
            // Otherwise an IPv6 listener takes the IPv4 port as well.
            id.option(OPTION_ID_AFONLY, 1 as c_int)?;
        }
        id.bind(addr)?;
        // SAFETY: the identifier is alive and bound.
        check(unsafe { (self.context.library.cm.rdma_listen)(id.raw, BACKLOG) })?;
        self.insert(conn, id, *options, Duration::ZERO);
        Ok(conn)
    }

    fn resolve(
        &mut self,
        _now: Time,
        to: SocketAddr,
        timeout: Duration,
        options: &ConnOptions,
    ) -> Result<ConnId, CmError> {
        let (conn, id) = self.create_id(options)?;
        let source = SockAddr::from(SocketAddr::new(self.local_ip, 0));
        let to = SockAddr::from(to);
        let timeout_ms = c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX);
        let resolve = self.context.library.cm.rdma_resolve_addr;
        // SAFETY: the identifier is alive; both are socket addresses of their families.
        check(unsafe { resolve(id.raw, source.as_ptr().cast(), to.as_ptr().cast(), timeout_ms) })?;
        self.insert(conn, id, *options, timeout);
        Ok(conn)
    }

    fn create_qp(
        &mut self,
        conn: ConnId,
        group: &VerbsGroupHandle,
        domain: &VerbsDevice,
        config: &QpConfig,
    ) -> Result<VerbsQp, CmError> {
        let id = self.id(conn)?;
        let domain = domain.domain();
        if id.verbs() != domain.raw_context() {
            let message = "the connection does not go through the RDMA device that was opened";
            return Err(CmError::Io(io::Error::other(message)));
        }
        Ok(VerbsQp::create(domain, &self.caps, id, &group.0, config)?)
    }

    fn connect(&mut self, _now: Time, conn: ConnId, params: &ConnParams) -> Result<(), CmError> {
        if params.private_data.as_slice().len() > REQUEST_PRIVATE_MAX {
            return Err(CmError::PrivateDataTooLong);
        }
        let id = self.id(conn)?;
        let mut param = self.conn_param(params);
        let _guard = id.channel.lock_queue_pairs();
        // SAFETY: the identifier is alive; the private data lives through the call.
        Ok(check(unsafe { (self.context.library.cm.rdma_connect)(id.raw, &raw mut param) })?)
    }

    fn accept(&mut self, _now: Time, conn: ConnId, params: &ConnParams) -> Result<(), CmError> {
        let id = self.id(conn)?;
        let mut param = self.conn_param(params);
        let guard = id.channel.lock_queue_pairs();
        // SAFETY: as for connect.
        check(unsafe { (self.context.library.cm.rdma_accept)(id.raw, &raw mut param) })?;
        drop(guard);
        // The queue pair is in RTS now; commands may arrive, and be answered, before the peer's
        // RTU.
        id.note_ready();
        Ok(())
    }

    fn reject(&mut self, _now: Time, conn: ConnId, private: &[u8]) -> Result<(), CmError> {
        if private.len() > REJECT_PRIVATE_MAX {
            return Err(CmError::PrivateDataTooLong);
        }
        let connection = self.connections.remove(&conn).ok_or(CmError::UnknownConnection)?;
        let length = u8::try_from(private.len()).expect("148 at the most");
        let reject = self.context.library.cm.rdma_reject;
        // SAFETY: the identifier is alive, and the private data has that length.
        Ok(check(unsafe { reject(connection.id.raw, private.as_ptr().cast(), length) })?)
    }

    fn disconnect(&mut self, _now: Time, conn: ConnId) {
        if let Ok(id) = self.id(conn) {
            id.disconnect();
        }
    }

    fn close(&mut self, conn: ConnId) {
        self.connections.remove(&conn);
    }

    fn poll(&mut self, _now: Time) -> Option<CmEvent> {
        loop {
            let event = self.receive()?;
            if let Some(event) = self.translate(&event) {
                return Some(event);
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        None
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: we hold the channel, and with it its descriptor.
        Some(unsafe { BorrowedFd::borrow_raw((*self.channel.raw).fd) })
    }

    fn local_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        let id = self.id(conn).ok()?;
        // SAFETY: the identifier is alive.
        Some(socket_addr(unsafe { &(*id.raw).route.addr.src_addr }))
    }
}
