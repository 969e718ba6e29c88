//! Conversion between this crate's work requests and those of `roce-proto`.

use roce_proto::cm::Agreement;
use roce_proto::rc;
use roce_proto::wire::RnrTimer;

use crate::{GroupStats, Op, PushError, QpConfig, SendFlags, Sge, Wc, WcOpcode, WcStatus};

/// Maximum number of scatter-gather elements of a request, whatever the queue pair was granted.
pub(super) const MAX_SGE: usize = rc::SGE_MAX;

pub(super) fn op(op: Op) -> rc::SendOp {
    match op {
        Op::Send => rc::SendOp::Send,
        Op::SendWithInvalidate { rkey } => rc::SendOp::SendWithInvalidate { rkey },
        Op::RdmaWrite { remote_addr, rkey } => rc::SendOp::RdmaWrite { remote_addr, rkey },
        Op::RdmaRead { remote_addr, rkey } => rc::SendOp::RdmaRead { remote_addr, rkey },
        Op::LocalInvalidate { rkey } => rc::SendOp::LocalInvalidate { rkey },
        Op::Bind(bind) => rc::SendOp::Bind(rc::BindWindow {
            window: bind.window.0,
            rkey: bind.rkey,
            region: bind.region.0,
            addr: bind.addr,
            length: bind.length,
            access: bind.access.bits(),
        }),
    }
}

pub(super) fn flags(flags: SendFlags) -> rc::SendOptions {
    rc::SendOptions {
        fence: flags.contains(SendFlags::FENCE),
        signaled: flags.contains(SendFlags::SIGNALED),
        solicited: flags.contains(SendFlags::SOLICITED),
    }
}

/// Copies a scatter-gather list into `room`; returns its length.
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

pub(super) fn to_config(config: &QpConfig) -> rc::QueuePairConfig {
    rc::QueuePairConfig {
        send_wr: config.send_wr,
        recv_wr: config.recv_wr,
        send_sge: config.send_sge,
        recv_sge: config.recv_sge,
        inline_bytes: config.inline_bytes,
    }
}

pub(super) fn from_config(config: &rc::QueuePairConfig) -> QpConfig {
    QpConfig {
        send_wr: config.send_wr,
        recv_wr: config.recv_wr,
        send_sge: config.send_sge,
        recv_sge: config.recv_sge,
        inline_bytes: config.inline_bytes,
    }
}

/// RNR timer code that peers get when no receive is posted: 0.64 ms.
const MIN_RNR_TIMER: u8 = 12;

pub(super) fn connection(agreement: &Agreement) -> rc::ConnectionParams {
    rc::ConnectionParams {
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
        // Only Feedrail peers announce the UDP source port of their packets.
        reports_overflow: agreement.peer_udp_source.is_some(),
        selective_recovery: agreement.selective_recovery,
    }
}

pub(super) fn completion(qpn: u32, completion: &rc::WorkCompletion) -> Wc {
    let opcode = match completion.work {
        rc::CompletedWork::Send => WcOpcode::SEND,
        rc::CompletedWork::RdmaWrite => WcOpcode::RDMA_WRITE,
        rc::CompletedWork::RdmaRead => WcOpcode::RDMA_READ,
        rc::CompletedWork::Bind => WcOpcode::BIND_WINDOW,
        rc::CompletedWork::LocalInvalidate => WcOpcode::LOCAL_INVALIDATE,
        rc::CompletedWork::Receive => WcOpcode::RECV,
        rc::CompletedWork::ReceiveWriteImmediate => WcOpcode::RECV_RDMA_WITH_IMM,
    };
    let status = status(completion.status);
    let wc = Wc::new(completion.wr_id, qpn, status, opcode, completion.byte_length);
    match completion.received {
        rc::ReceivedInfo::Invalidated(rkey) => wc.with_invalidated(rkey),
        rc::ReceivedInfo::Plain | rc::ReceivedInfo::Immediate(_) => wc,
    }
}

fn status(status: rc::WorkStatus) -> WcStatus {
    match status {
        rc::WorkStatus::Success => WcStatus::SUCCESS,
        rc::WorkStatus::LocalLength => WcStatus::LOCAL_LENGTH_ERROR,
        rc::WorkStatus::LocalOperation => WcStatus::LOCAL_QP_OPERATION_ERROR,
        rc::WorkStatus::LocalProtection => WcStatus::LOCAL_PROTECTION_ERROR,
        rc::WorkStatus::Flushed => WcStatus::FLUSHED,
        rc::WorkStatus::WindowBind => WcStatus::WINDOW_BIND_ERROR,
        rc::WorkStatus::BadResponse => WcStatus::BAD_RESPONSE,
        rc::WorkStatus::LocalAccess => WcStatus::LOCAL_ACCESS_ERROR,
        rc::WorkStatus::RemoteInvalidRequest => WcStatus::REMOTE_INVALID_REQUEST,
        rc::WorkStatus::RemoteAccess => WcStatus::REMOTE_ACCESS_ERROR,
        rc::WorkStatus::RemoteOperation => WcStatus::REMOTE_OPERATION_ERROR,
        rc::WorkStatus::RetryExceeded => WcStatus::RETRY_EXCEEDED,
        rc::WorkStatus::RnrRetryExceeded => WcStatus::RNR_RETRY_EXCEEDED,
    }
}

pub(super) fn add_counters(stats: &mut GroupStats, counters: &rc::QueuePairCounters) {
    let rc::QueuePairCounters {
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
        ecn_marked_packets,
        notifications_sent,
        notifications_handled,
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
    stats.np_ecn_marked_packets += ecn_marked_packets;
    stats.np_cnp_sent += notifications_sent;
    stats.rp_cnp_handled += notifications_handled;
}
