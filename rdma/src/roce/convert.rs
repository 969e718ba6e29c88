//! Between the interface's work requests and the engine's.

use roce_proto::cm::Agreement;
use roce_proto::rc;
use roce_proto::wire::RnrTimer;

use crate::{GroupStats, Op, PushError, QpConfig, SendFlags, Sge, Wc, WcOpcode, WcStatus};

/// The most elements that an inline request may name, whatever the queue pair was granted.
pub(super) const MAX_SGE: usize = rc::SGE_MAX;

pub(super) fn op(op: Op) -> rc::SendOp {
    match op {
        Op::Send => rc::SendOp::Send,
        Op::SendWithInvalidate { rkey } => rc::SendOp::SendWithInvalidate { rkey },
        Op::RdmaWrite { remote_addr, rkey } => rc::SendOp::RdmaWrite { remote_addr, rkey },
        Op::RdmaRead { remote_addr, rkey } => rc::SendOp::RdmaRead { remote_addr, rkey },
        Op::LocalInvalidate { rkey } => rc::SendOp::LocalInvalidate { rkey },
        Op::Bind(bind) => rc::SendOp::Bind(rc::Bind {
            window: bind.window.0,
            rkey: bind.rkey,
            region: bind.region.0,
            addr: bind.addr,
            length: bind.length,
            access: bind.access.bits(),
        }),
    }
}

pub(super) fn flags(flags: SendFlags) -> rc::SendFlags {
    rc::SendFlags {
        fence: flags.contains(SendFlags::FENCE),
        signaled: flags.contains(SendFlags::SIGNALED),
        solicited: flags.contains(SendFlags::SOLICITED),
    }
}

/// A list of elements, copied; `None` if it is longer than any queue pair is granted.
pub(super) fn sges(sges: &[Sge], room: &mut [rc::LocalSge; MAX_SGE]) -> Result<usize, PushError> {
    let room = room.get_mut(..sges.len()).ok_or(PushError::TooManySges)?;
    for (place, sge) in room.iter_mut().zip(sges) {
        *place = rc::LocalSge { addr: sge.addr, length: sge.length, lkey: sge.lkey };
    }
    Ok(sges.len())
}

pub(super) fn push_error(error: rc::PostError) -> PushError {
    match error {
        rc::PostError::TooManySges => PushError::TooManySges,
        rc::PostError::QueueFull => PushError::QueueFull,
        rc::PostError::InlineTooLong => PushError::InlineTooLong,
        rc::PostError::InlineRead => PushError::Unsupported,
    }
}

pub(super) fn to_config(config: &QpConfig) -> rc::QpConfig {
    rc::QpConfig {
        send_wr: config.send_wr,
        recv_wr: config.recv_wr,
        send_sge: config.send_sge,
        recv_sge: config.recv_sge,
        inline_bytes: config.inline_bytes,
    }
}

pub(super) fn from_config(config: &rc::QpConfig) -> QpConfig {
    QpConfig {
        send_wr: config.send_wr,
        recv_wr: config.recv_wr,
        send_sge: config.send_sge,
        recv_sge: config.recv_sge,
        inline_bytes: config.inline_bytes,
    }
}

/// How long a peer is told to wait when no receive is posted: 0.64 ms.
const MIN_RNR_TIMER: u8 = 12;

pub(super) fn connection(agreement: &Agreement) -> rc::Connection {
    rc::Connection {
        remote_qpn: agreement.remote_qpn,
        path_mtu: agreement.path_mtu,
        send_psn: agreement.send_psn,
        recv_psn: agreement.recv_psn,
        retry_count: agreement.retry_count,
        rnr_retry_count: agreement.rnr_retry_count,
        ack_timeout_exponent: agreement.ack_timeout.get(),
        min_rnr_timer: RnrTimer::new(MIN_RNR_TIMER),
        initiator_depth: agreement.initiator_depth,
        responder_resources: agreement.responder_resources,
    }
}

pub(super) fn completion(qpn: u32, completion: &rc::Completion) -> Wc {
    let opcode = match completion.work {
        rc::Work::Send => WcOpcode::SEND,
        rc::Work::RdmaWrite => WcOpcode::RDMA_WRITE,
        rc::Work::RdmaRead => WcOpcode::RDMA_READ,
        rc::Work::Bind => WcOpcode::BIND_WINDOW,
        rc::Work::LocalInvalidate => WcOpcode::LOCAL_INVALIDATE,
        rc::Work::Receive => WcOpcode::RECV,
        rc::Work::ReceiveWriteImmediate => WcOpcode::RECV_RDMA_WITH_IMM,
    };
    let status = status(completion.status);
    let wc = Wc::new(completion.wr_id, qpn, status, opcode, completion.byte_length);
    match completion.received {
        rc::Received::Invalidated(rkey) => wc.with_invalidated(rkey),
        rc::Received::Plain | rc::Received::Immediate(_) => wc,
    }
}

fn status(status: rc::Status) -> WcStatus {
    match status {
        rc::Status::Success => WcStatus::SUCCESS,
        rc::Status::LocalLength => WcStatus::LOCAL_LENGTH_ERROR,
        rc::Status::LocalOperation => WcStatus::LOCAL_QP_OPERATION_ERROR,
        rc::Status::LocalProtection => WcStatus::LOCAL_PROTECTION_ERROR,
        rc::Status::Flushed => WcStatus::FLUSHED,
        rc::Status::WindowBind => WcStatus::WINDOW_BIND_ERROR,
        rc::Status::BadResponse => WcStatus::BAD_RESPONSE,
        rc::Status::LocalAccess => WcStatus::LOCAL_ACCESS_ERROR,
        rc::Status::RemoteInvalidRequest => WcStatus::REMOTE_INVALID_REQUEST,
        rc::Status::RemoteAccess => WcStatus::REMOTE_ACCESS_ERROR,
        rc::Status::RemoteOperation => WcStatus::REMOTE_OPERATION_ERROR,
        rc::Status::RetryExceeded => WcStatus::RETRY_EXCEEDED,
        rc::Status::RnrRetryExceeded => WcStatus::RNR_RETRY_EXCEEDED,
    }
}

pub(super) fn add_counters(stats: &mut GroupStats, counters: &rc::Counters) {
    let rc::Counters {
        packets_sent,
        packets_received,
        payload_bytes_sent,
        payload_bytes_received,
        packets_retransmitted,
        packets_dropped,
        ack_timeouts,
        sequence_naks_sent,
        sequence_naks_received,
        rnr_naks_sent,
        rnr_naks_received,
        spurious_timeouts: _,
    } = *counters;
    stats.packets_sent += packets_sent;
    stats.packets_received += packets_received;
    stats.payload_bytes_sent += payload_bytes_sent;
    stats.payload_bytes_received += payload_bytes_received;
    stats.packets_retransmitted += packets_retransmitted;
    stats.packets_dropped += packets_dropped;
    stats.ack_timeouts += ack_timeouts;
    stats.sequence_naks_sent += sequence_naks_sent;
    stats.sequence_naks_received += sequence_naks_received;
    stats.rnr_naks_sent += rnr_naks_sent;
    stats.rnr_naks_received += rnr_naks_received;
}
