//! A fake rdma-core for tests: one device per thread, whose behaviour the test sets.
#![expect(unsafe_code, reason = "stands in for C functions")]

use core::ffi::{c_int, c_uint, c_void};
use core::mem::{take, zeroed};
use core::ptr::null_mut;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use super::abi::*;
use super::context::{Context, DataPath, DeviceInfo};
use super::domain::Domain;
use super::handle::{Channel, Id};
use super::library::{Library, RdmaCm, Verbs};
use super::requests::{Token, WorkQueueKind};
use crate::{Caps, Wc, WcOpcode, WcStatus};

/// The requests that the device got, and its completions that are not polled yet.
#[derive(Default)]
pub(crate) struct Device {
    /// Identifiers of the requests that it accepted.
    pub(crate) sends: Vec<u64>,
    pub(crate) receives: Vec<u64>,
    /// Number of sends that it accepts before it refuses; `None` for no limit.
    pub(crate) refuses_after: Option<usize>,
    pub(crate) doorbells: usize,
    /// Completions that are not polled: of sends, and of receives.
    completions: [VecDeque<Wc>; 2],
    /// The completion queues in the same order, in which they are created.
    queues: Vec<*mut ibv_cq>,
    /// Whether each queue is armed; `events` has the indexes of the queues whose event was not
    /// taken yet.
    pub(crate) armed: [bool; 2],
    events: VecDeque<usize>,
    /// Number of events that were taken and not acknowledged.
    pub(crate) unacknowledged: u32,
    /// Number of times that a queue pair was moved to ERROR.
    pub(crate) errors: usize,
    /// Whether it refuses to deregister memory.
    pub(crate) keeps_regions: bool,
    /// Objects that were created and destroyed, in order.
    pub(crate) log: Vec<&'static str>,
}

thread_local! {
    static DEVICE: RefCell<Device> = RefCell::default();
}

/// Calls `look` with this thread's device.
pub(crate) fn device<T>(look: impl FnOnce(&mut Device) -> T) -> T {
    DEVICE.with_borrow_mut(look)
}

/// Adds a completion with this status for a request, and an event if the queue is armed.
pub(crate) fn complete(wr_id: u64, status: WcStatus) {
    let index = match Token::from_wr_id(wr_id).queue {
        WorkQueueKind::Send => 0,
        WorkQueueKind::Receive => 1,
    };
    device(|device| {
        device.completions[index].push_back(Wc::new(wr_id, 0, status, WcOpcode::SEND, 0));
        if take(&mut device.armed[index]) {
            device.events.push_back(index);
        }
    });
}

/// An open context whose calls go to this thread's [`Device`].
pub(crate) fn context(max_cqe: u32) -> Arc<Context> {
    let library = Box::leak(Box::new(Library { verbs: verbs(), cm: cm() }));
    Arc::new(Context {
        library,
        raw: null_mut(),
        data_path: DataPath { poll_cq, req_notify_cq, post_send, post_recv },
        cap_flags: 0,
        info: DeviceInfo {
            caps: Caps { max_cqe, ..Caps::software("fake0") },
            no_send_with_invalidate: None,
            no_memory_windows: None,
            vendor_id: 0,
            firmware: String::new(),
            ports: 1,
            completion_vectors: 1,
        },
        listeners: Mutex::default(),
        leaked_regions: AtomicU64::new(0),
        anchor: None,
    })
}

/// A protection domain of the fake device.
pub(crate) fn domain(context: &Arc<Context>) -> Arc<Domain> {
    Domain::allocate(context).expect("a protection domain")
}

/// An identifier for the creation of a queue pair.
pub(crate) fn id(context: &Context) -> Arc<Id> {
    let channel = Channel::open(context.library).expect("a channel");
    Arc::new(Id::create(&channel, 0).expect("an identifier"))
}

fn verbs() -> Verbs {
    Verbs {
        ibv_alloc_pd,
        ibv_dealloc_pd,
        ibv_reg_mr,
        ibv_dereg_mr,
        ibv_create_comp_channel,
        ibv_destroy_comp_channel,
        ibv_create_cq,
        ibv_resize_cq,
        ibv_destroy_cq,
        ibv_get_cq_event,
        ibv_ack_cq_events,
        ibv_modify_qp,
        ..Verbs::absent()
    }
}

fn cm() -> RdmaCm {
    RdmaCm {
        rdma_create_event_channel,
        rdma_destroy_event_channel,
        rdma_create_id,
        rdma_destroy_id,
        rdma_create_qp,
        rdma_destroy_qp,
        ..RdmaCm::absent()
    }
}

fn event_fd() -> c_int {
    // SAFETY: the call has no preconditions.
    unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) }
}

/// # Safety
/// The pointer came from a box.
unsafe fn free<T>(pointer: *mut T) {
    // SAFETY: passed on to the caller.
    drop(unsafe { Box::from_raw(pointer) });
}

unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    Box::into_raw(Box::new(ibv_pd { context, handle: 0 }))
}

unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: made above.
    unsafe { free(pd) };
    device(|device| device.log.push("protection domain deallocated"));
    0
}

unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    _: *mut c_void,
    _: usize,
    _: c_int,
) -> *mut ibv_mr {
    // SAFETY: all-zero is a valid value of this plain C struct.
    Box::into_raw(Box::new(ibv_mr { pd, ..unsafe { zeroed() } }))
}

unsafe extern "C" fn ibv_dereg_mr(region: *mut ibv_mr) -> c_int {
    if device(|device| device.keeps_regions) {
        return libc::EBUSY;
    }
    // SAFETY: made above.
    unsafe { free(region) };
    device(|device| device.log.push("region deregistered"));
    0
}

unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    Box::into_raw(Box::new(ibv_comp_channel { context, fd: event_fd(), refcnt: 0 }))
}

unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: made above, and the descriptor is its own.
    unsafe {
        libc::close((*channel).fd);
        free(channel);
    }
    0
}

unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    _vector: c_int,
) -> *mut ibv_cq {
    device(|device| {
        let handle = device.queues.len() as u32;
        let queue = Box::into_raw(Box::new(ibv_cq { context, channel, cq_context, handle, cqe }));
        device.queues.push(queue);
        queue
    })
}

unsafe extern "C" fn ibv_get_cq_event(
    _: *mut ibv_comp_channel,
    queue: *mut *mut ibv_cq,
    _: *mut *mut c_void,
) -> c_int {
    let Some(event) = device(|device| device.events.pop_front()) else { return -1 };
    device(|device| {
        device.unacknowledged += 1;
        // SAFETY: the caller's.
        unsafe { *queue = device.queues[event] };
    });
    0
}

unsafe extern "C" fn ibv_ack_cq_events(_: *mut ibv_cq, events: c_uint) {
    device(|device| device.unacknowledged -= events);
}

unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: made above.
    unsafe { (*cq).cqe = cqe };
    device(|device| device.log.push("completion queue resized"));
    0
}

unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: made above.
    unsafe { free(cq) };
    device(|device| device.log.push("completion queue destroyed"));
    0
}

unsafe extern "C" fn ibv_modify_qp(_: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the caller's.
    assert_eq!(unsafe { ((*attr).qp_state, mask) }, (QPS_ERR, QP_STATE));
    device(|device| device.errors += 1);
    0
}

/// # Safety
/// The queue was made above and lives.
unsafe fn index_of(queue: *mut ibv_cq) -> usize {
    // SAFETY: the caller's.
    unsafe { (*queue).handle as usize }
}

unsafe extern "C" fn poll_cq(queue: *mut ibv_cq, room: c_int, out: *mut Wc) -> c_int {
    // SAFETY: the caller's.
    let index = unsafe { index_of(queue) };
    let mut count = 0;
    while count < room
        && let Some(wc) = device(|device| device.completions[index].pop_front())
    {
        // SAFETY: there is room for that many.
        unsafe { out.add(count as usize).write(wc) };
        count += 1;
    }
    count
}

unsafe extern "C" fn req_notify_cq(queue: *mut ibv_cq, _solicited_only: c_int) -> c_int {
    // SAFETY: the caller's.
    let index = unsafe { index_of(queue) };
    device(|device| device.armed[index] = true);
    0
}

unsafe extern "C" fn post_send(
    _: *mut ibv_qp,
    mut request: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    device(|device| {
        device.doorbells += 1;
        while !request.is_null() {
            if device.refuses_after == Some(device.sends.len()) {
                // SAFETY: the caller's.
                unsafe { *bad = request };
                return libc::ENOMEM;
            }
            // SAFETY: the list is linked and ends in null.
            unsafe {
                device.sends.push((*request).wr_id);
                request = (*request).next;
            }
        }
        0
    })
}

unsafe extern "C" fn post_recv(
    _: *mut ibv_qp,
    mut request: *mut ibv_recv_wr,
    _bad: *mut *mut ibv_recv_wr,
) -> c_int {
    device(|device| {
        while !request.is_null() {
            // SAFETY: as for sends.
            unsafe {
                device.receives.push((*request).wr_id);
                request = (*request).next;
            }
        }
        0
    })
}

unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    Box::into_raw(Box::new(rdma_event_channel { fd: event_fd() }))
}

unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: as for a completion channel.
    unsafe {
        libc::close((*channel).fd);
        free(channel);
    }
}

unsafe extern "C" fn rdma_create_id(
    _: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    _context: *mut c_void,
    _port_space: c_uint,
) -> c_int {
    // SAFETY: all-zero is a valid value of this plain C struct; the place is the caller's.
    unsafe { *id = Box::into_raw(Box::new(zeroed::<rdma_cm_id>())) };
    0
}

unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: made above.
    unsafe { free(id) };
    device(|device| device.log.push("identifier destroyed"));
    0
}

unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    _: *mut ibv_pd,
    _: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: all-zero is a valid value of this plain C struct; the identifier is alive.
    unsafe { (*id).qp = Box::into_raw(Box::new(zeroed::<ibv_qp>())) };
    0
}

unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    // SAFETY: made above.
    unsafe { free((*id).qp) };
    device(|device| device.log.push("queue pair destroyed"));
}
