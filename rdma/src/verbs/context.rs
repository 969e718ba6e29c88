//! The devices that librdmacm has opened.
#![expect(unsafe_code, reason = "calls rdma-core")]

use core::ffi::{CStr, c_int};
use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use crossbeam::queue::SegQueue;

use super::abi::*;
use super::handle::{Channel, Id, set_nonblocking};
use super::library::{Library, LoadError, library};
use super::quirks::DeviceFeature;
use crate::{Caps, DeviceEvent};

/// The reason why verbs cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The libraries cannot be used.
    #[error(transparent)]
    Library(#[from] LoadError),
    /// The libraries can be used, but there is no device.
    #[error("no RDMA device: {0}")]
    NoDevice(String),
    /// The devices were opened by a process that this one was forked from.
    #[error(
        "RDMA devices do not work in a process that was forked after they were opened: start it as a new program (spawn \
         or forkserver, not fork), or fork before the first device is opened"
    )]
    Forked,
    /// No RDMA device has the address.
    #[error("no RDMA device serves {0}")]
    NotServed(IpAddr),
    /// The address belongs to no interface of this machine.
    #[error("{0} is not an address of this machine: `ip address` lists those that are")]
    NotLocal(IpAddr),
    /// The device's transport is iWARP.
    #[error("RDMA device {0} speaks iWARP, which is not supported")]
    Iwarp(String),
    /// librdmacm failed to find the device for the address.
    #[error("librdmacm does not say which device serves {address}: {reason}")]
    System {
        /// The local address that was asked for.
        address: IpAddr,
        /// The error of librdmacm, as text.
        reason: String,
    },
}

/// Properties of an RDMA device, as `ibv_query_device` returns them.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Limits and features of the device.
    pub caps: Caps,
    /// The reason why SEND with Invalidate is not used; `None` if it is.
    pub no_send_with_invalidate: Option<&'static str>,
    /// The reason why memory windows are not used; `None` if they are.
    pub no_memory_windows: Option<&'static str>,
    /// The vendor id in `ibv_device_attr`, the key of the list of known faults.
    pub vendor_id: u32,
    /// Firmware version, as the device reports it.
    pub firmware: String,
    /// Number of physical ports; ports are numbered from 1.
    pub ports: u8,
    /// Number of completion vectors, over which the groups are spread.
    pub completion_vectors: u32,
}

/// Lists all RDMA devices of the machine.
///
/// # Errors
/// The machine has no device that can be opened, or the libraries cannot be used.
pub fn devices() -> Result<Vec<DeviceInfo>, VerbsError> {
    let list = DeviceList::get(library()?)?;
    let infos: Vec<_> = list.contexts().filter_map(|raw| list.info(raw)).collect();
    match infos.is_empty() {
        true => Err(VerbsError::NoDevice(obstacle().unwrap_or_else(|| {
            "none can be opened; install its driver (Debian: ibverbs-providers)".into()
        }))),
        false => Ok(infos),
    }
}

/// The array of open devices from `rdma_get_devices`. That call also closes devices that were
/// removed from the machine, except those in another array or with an identifier.
struct DeviceList {
    library: &'static Library,
    raw: *mut *mut ibv_context,
    count: usize,
}

impl DeviceList {
    fn get(library: &'static Library) -> Result<Self, VerbsError> {
        // librdmacm opens devices once per process, and a forked child inherits that state but not
        // the mapped doorbells and queues.
        static OPENER: OnceLock<u32> = OnceLock::new();
        let process = std::process::id();
        if OPENER.get().is_some_and(|opener| *opener != process) {
            return Err(VerbsError::Forked);
        }
        let mut count: c_int = 0;
        // SAFETY: the function writes the count and returns null or an array of that many contexts.
        let raw = unsafe { (library.cm.rdma_get_devices)(&raw mut count) };
        if raw.is_null() {
            let error = io::Error::last_os_error();
            return Err(VerbsError::NoDevice(obstacle().unwrap_or_else(|| error.to_string())));
        }
        OPENER.get_or_init(|| process);
        Ok(Self { library, raw, count: usize::try_from(count).unwrap_or(0) })
    }

    fn contexts(&self) -> impl Iterator<Item = *mut ibv_context> + '_ {
        // SAFETY: the array has `count` valid contexts, which stay open as long as it is not freed.
        (0..self.count).map(|index| unsafe { *self.raw.add(index) })
    }

    fn info(&self, raw: *mut ibv_context) -> Option<DeviceInfo> {
        // SAFETY: the context is one of the list, which keeps it open.
        let attr = unsafe { query(self.library, raw) }?;
        // SAFETY: as above.
        Some(unsafe { info(self.library, raw, &attr) })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the array came from rdma_get_devices.
        unsafe { (self.library.cm.rdma_free_devices)(self.raw) };
    }
}

/// An open device. librdmacm owns it and keeps it open as long as an identifier is bound to it.
pub(crate) struct Context {
    pub(crate) library: &'static Library,
    pub(crate) raw: *mut ibv_context,
    pub(crate) data_path: DataPath,
    /// The features that the device reports, `enum ibv_device_cap_flags`.
    pub(crate) cap_flags: u32,
    pub(crate) info: DeviceInfo,
    /// The event queues of the handles that use the device; each gets all events.
    pub(crate) listeners: Mutex<Vec<Weak<Events>>>,
    /// Regions that the device refused to deregister.
    pub(crate) leaked_regions: AtomicU64,
    /// The identifier that keeps the device open; `None` in tests with a fake library.
    pub(crate) anchor: Option<Id>,
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.anchor.take().is_some() {
            // Lists the devices, so that librdmacm closes this one if it was removed.
            drop(DeviceList::get(self.library));
        }
    }
}

/// Asynchronous events for one handle of a device.
pub(crate) type Events = SegQueue<DeviceEvent>;

/// The driver's functions that libibverbs' inline functions call through the context.
#[derive(Clone, Copy)]
pub(crate) struct DataPath {
    pub(crate) poll_cq: PollCq,
    pub(crate) req_notify_cq: ReqNotifyCq,
    pub(crate) post_send: PostSend,
    pub(crate) post_recv: PostRecv,
}

impl DataPath {
    fn of(ops: &ibv_context_ops) -> Option<Self> {
        Some(Self {
            poll_cq: ops.poll_cq?,
            req_notify_cq: ops.req_notify_cq?,
            post_send: ops.post_send?,
            post_recv: ops.post_recv?,
        })
    }
}

// SAFETY: libibverbs serialises what it must; contexts may be used from any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// Returns the device that owns a local address and its port number, found by binding an identifier
/// to the address.
pub(crate) fn context_of(address: IpAddr) -> Result<(Arc<Context>, u8), VerbsError> {
    /// Contexts that are open. A second open of a device shares its context, since libibverbs
    /// reports each asynchronous event once.
    static OPEN: Mutex<Vec<Weak<Context>>> = Mutex::new(Vec::new());
    let explain = |error: io::Error| match error.raw_os_error() {
        Some(libc::ENODEV) => VerbsError::NotServed(address),
        Some(libc::EADDRNOTAVAIL) => VerbsError::NotLocal(address),
        _ => {
            let reason = obstacle().unwrap_or_else(|| error.to_string());
            VerbsError::System { address, reason }
        }
    };
    let library = library()?;
    // Refreshes librdmacm's list, so that devices added since are included.
    let _list = DeviceList::get(library)?;
    let channel = Channel::open(library).map_err(explain)?;
    let id = Id::create(&channel, 0).map_err(explain)?;
    id.bind(SocketAddr::new(address, 0)).map_err(explain)?;
    let (raw, port) = (id.verbs(), id.port());
    if raw.is_null() {
        return Err(VerbsError::NotServed(address));
    }
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let found = open.iter().filter_map(Weak::upgrade).find(|context| context.raw == raw);
    if let Some(context) = found {
        return Ok((context, port));
    }
    let context = Arc::new(Context::open(library, id).ok_or(VerbsError::NotServed(address))?);
    open.retain(|other| other.strong_count() > 0);
    open.push(Arc::downgrade(&context));
    Ok((context, port))
}

/// The likely reason why this process cannot use the device files; `None` if none is found.
pub(crate) fn obstacle() -> Option<String> {
    let folder = Path::new("/dev/infiniband");
    if !folder.join("rdma_cm").exists() {
        return Some("/dev/infiniband/rdma_cm is missing; load it with `modprobe rdma_ucm`".into());
    }
    let is_ours = |name: &str| name == "rdma_cm" || name.starts_with("uverbs");
    let files = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let denied = files
        .filter(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(is_ours))
        .find(|path| File::options().read(true).write(true).open(path).is_err());
    denied.map(|path| {
        format!("{} cannot be opened; this user needs read and write access", path.display())
    })
}

impl Context {
    /// Creates the context of the device that an identifier is bound to.
    fn open(library: &'static Library, anchor: Id) -> Option<Self> {
        let raw = anchor.verbs();
        // SAFETY: the identifier keeps the context open.
        let attr = unsafe { query(library, raw) }?;
        // SAFETY: as above.
        let Some(data_path) = DataPath::of(unsafe { &(*raw).ops }) else {
            tracing::warn!("the driver of an RDMA device has no data path");
            return None;
        };
        // SAFETY: an open context has a file descriptor for its events, and names its device.
        let async_fd = unsafe { (*raw).async_fd };
        if let Err(error) = set_nonblocking(async_fd) {
            tracing::warn!("asynchronous events of an RDMA device are off: {error}");
        }
        // SAFETY: the context is open.
        let info = unsafe { info(library, raw, &attr) };
        Some(Self {
            library,
            raw,
            data_path,
            cap_flags: attr.device_cap_flags,
            info,
            listeners: Mutex::default(),
            leaked_regions: AtomicU64::new(0),
            anchor: Some(anchor),
        })
    }

    /// Returns a queue that gets all events of the device from now on.
    pub(crate) fn listen(&self) -> Arc<Events> {
        let events = Arc::default();
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(Arc::downgrade(&events));
        events
    }

    /// Copies pending events to the queues of all handles, since libibverbs reports each event
    /// once.
    pub(crate) fn fetch_events(&self) -> io::Result<()> {
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(event) = self.next_event()? {
            listeners.iter().filter_map(Weak::upgrade).for_each(|events| events.push(event));
        }
        Ok(())
    }

    fn next_event(&self) -> io::Result<Option<DeviceEvent>> {
        let functions = &self.library.verbs;
        let mut event = ibv_async_event { element: core::ptr::null_mut(), event_type: 0 };
        // SAFETY: the context is open, and its events do not block; the struct is ours.
        while unsafe { (functions.ibv_get_async_event)(self.raw, &raw mut event) } != 0 {
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::WouldBlock => return Ok(None),
                io::ErrorKind::Interrupted => {}
                _ => return Err(error),
            }
        }
        let translated = translate(&event);
        // SAFETY: the event was just received and is acknowledged once.
        unsafe { (functions.ibv_ack_async_event)(&raw mut event) };
        Ok(Some(translated))
    }
}

fn translate(event: &ibv_async_event) -> DeviceEvent {
    match event.event_type {
        async_event::CQ_ERR => DeviceEvent::CqError,
        async_event::QP_FATAL | async_event::QP_REQ_ERR | async_event::QP_ACCESS_ERR => {
            // SAFETY: these events name a queue pair, which cannot be destroyed before the event is
            // acknowledged.
            DeviceEvent::QpFatal { qpn: unsafe { (*event.element.cast::<ibv_qp>()).qp_num } }
        }
        async_event::DEVICE_FATAL => DeviceEvent::DeviceFatal,
        async_event::PORT_ACTIVE => DeviceEvent::PortUp,
        async_event::PORT_ERR => DeviceEvent::PortDown,
        other => DeviceEvent::Other(other.cast_unsigned()),
    }
}

/// Queries the limits of a device; `None` on failure, which is logged.
///
/// # Safety
/// The context is open.
unsafe fn query(library: &Library, raw: *mut ibv_context) -> Option<ibv_device_attr> {
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut attr: ibv_device_attr = unsafe { core::mem::zeroed() };
    // SAFETY: the caller promises an open context; the struct is ours.
    if unsafe { (library.verbs.ibv_query_device)(raw, &raw mut attr) } != 0 {
        tracing::warn!("an RDMA device does not answer: {}", io::Error::last_os_error());
        return None;
    }
    Some(attr)
}

/// # Safety
/// The context is open.
unsafe fn info(library: &Library, raw: *mut ibv_context, attr: &ibv_device_attr) -> DeviceInfo {
    // SAFETY: an open context points to its device, whose name is a C string for as long as the
    // context is open.
    let (name, transport, vectors) = unsafe {
        let device = (*raw).device;
        let name = CStr::from_ptr((library.verbs.ibv_get_device_name)(device));
        (name.to_string_lossy().into_owned(), (*device).transport_type, (*raw).num_comp_vectors)
    };
    let obstacle = |feature: DeviceFeature| feature.obstacle(attr.device_cap_flags, attr.vendor_id);
    let firmware = attr.fw_ver.split(|byte| *byte == 0).next().unwrap_or_default();
    DeviceInfo {
        caps: caps(name, transport, library, attr),
        no_send_with_invalidate: obstacle(DeviceFeature::SendWithInvalidate),
        no_memory_windows: obstacle(DeviceFeature::MemoryWindows),
        vendor_id: attr.vendor_id,
        firmware: String::from_utf8_lossy(firmware).into_owned(),
        ports: attr.phys_port_cnt,
        completion_vectors: u32::try_from(vectors).unwrap_or(1).max(1),
    }
}

fn caps(name: String, transport: c_int, library: &Library, attr: &ibv_device_attr) -> Caps {
    let has =
        |feature: DeviceFeature| feature.obstacle(attr.device_cap_flags, attr.vendor_id).is_none();
    let software = name.starts_with("rxe") || name.starts_with("siw");
    Caps {
        iwarp: transport == TRANSPORT_IWARP,
        max_wr: unsigned(attr.max_qp_wr),
        max_sge: unsigned(attr.max_sge),
        max_cqe: unsigned(attr.max_cqe),
        max_initiator_depth: byte(attr.max_qp_init_rd_atom),
        max_responder_resources: byte(attr.max_qp_rd_atom),
        max_region_bytes: attr.max_mr_size,
        memory_windows: has(DeviceFeature::MemoryWindows),
        send_with_invalidate: has(DeviceFeature::SendWithInvalidate),
        // rxe and siw cannot access the memory of another device.
        dma_buf: library.verbs.ibv_reg_dmabuf_mr.is_some() && !software,
        software,
        trains: false,
        ..Caps::software(name)
    }
}

fn unsigned(value: c_int) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

fn byte(value: c_int) -> u8 {
    u8::try_from(value.clamp(0, 255)).unwrap_or(u8::MAX)
}
