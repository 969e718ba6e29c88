//! Result of the method `feedrail_trace_commands`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rdma::Time;
use serde_json::{Value, json};

use super::rpc::{RpcError, params};
use crate::controller::Controller;
use crate::controller::IoKind;
use crate::controller::command_trace::{MAX_TRACED, TraceRecord, TracedCommand};

/// Longest duration of a trace in milliseconds. The call of the client blocks for this time.
const MAX_TIME_MS: u64 = 60_000;

params! {
    /// Parameters of the method: duration in milliseconds, and most commands to record.
    TraceParams { time_ms: u64, limit: Option<usize> }
}

impl TraceParams {
    pub(super) fn bounds(&self) -> Result<(Duration, usize), RpcError> {
        if !(1..=MAX_TIME_MS).contains(&self.time_ms) {
            let message = format!("time_ms: is not between 1 and {MAX_TIME_MS}");
            return Err(RpcError::invalid_params(message));
        }
        let limit = self.limit.unwrap_or(MAX_TRACED);
        if !(1..=MAX_TRACED).contains(&limit) {
            return Err(RpcError::invalid_params(format!(
                "limit: is not between 1 and {MAX_TRACED}"
            )));
        }
        Ok((Duration::from_millis(self.time_ms), limit))
    }
}

/// Describes the commands of a trace. Subsystem and host are null if the controller no longer
/// exists.
pub(super) fn describe_trace(record: &TraceRecord, controllers: &[Arc<Controller>]) -> Value {
    let hosts: BTreeMap<_, _> = controllers
        .iter()
        .filter_map(|one| Some((one.cntlid, (one.subsystem()?.nqn, one.host.nqn.to_string()))))
        .collect();
    let describe = |command: &TracedCommand| {
        let TracedCommand { cntlid, qid, cid, work, arrived, stages, succeeded } = command;
        let of = hosts.get(cntlid);
        json!({
            "subnqn": of.map(|(nqn, _)| nqn.to_string()),
            "hostnqn": of.map(|(_, host)| host),
            "cntlid": cntlid.0,
            "qid": qid.0,
            "cid": cid.0,
            "nsid": work.nsid.0,
            "opcode": opcode(work.kind),
            "offset_bytes": work.offset_bytes,
            "length_bytes": work.length_bytes,
            "succeeded": succeeded,
            "received_ns": record.unix_nanos(*arrived),
            "buffer_ns": nanos(stages.buffer),
            "fetch_ns": nanos(stages.fetch),
            "storage_ns": nanos(stages.storage),
        })
    };
    json!({
        "commands": record.commands.iter().map(describe).collect::<Value>(),
        "dropped": record.dropped,
    })
}

impl TraceRecord {
    fn unix_nanos(&self, time: Time) -> u64 {
        self.origin_unix_nanos.saturating_add(time.as_nanos())
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn opcode(kind: IoKind) -> &'static str {
    match kind {
        IoKind::Read { .. } | IoKind::ReadZeros => "read",
        IoKind::ReadRanges { .. } => "read-ranges",
        IoKind::Write { .. } => "write",
        IoKind::Flush => "flush",
        IoKind::WriteZeroes { .. } => "write-zeroes",
        IoKind::Compare { .. } => "compare",
        IoKind::Deallocate => "dataset-management",
    }
}
