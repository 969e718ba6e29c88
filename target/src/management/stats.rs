//! Results of `nvmf_get_stats` and `nvmf_subsystem_get_qpairs`.

use std::sync::Arc;

use feedrail_auth::{Authenticated, DhGroup};
use nvme_proto::Qid;
use serde_json::{Value, json};

use super::subsystem::describe_address;
use crate::controller::{Controller, QueueAuthState};
use crate::metrics::io_counters::IoStats;

/// Describes I/O counters in SPDK's fields, with one poll group per core. Connections are counted
/// over all poll groups, not for each as in SPDK.
pub(super) fn describe_stats(cores: &[IoStats], controllers: &[Arc<Controller>]) -> Value {
    let admin = controllers.iter().filter(|one| one.qids().contains(&Qid::ADMIN)).count();
    let io: usize = controllers.iter().map(|controller| controller.io_queues()).sum();
    let group = |(core, stats): (usize, &IoStats)| {
        json!({
            "name": format!("core-{core}"),
            "completed_nvme_io": completed(stats),
            "failed_nvme_io": stats.failed,
            "bytes_read": stats.read_bytes,
            "bytes_written": stats.written_bytes,
        })
    };
    json!({
        "current_admin_qpairs": admin,
        "current_io_qpairs": io,
        "poll_groups": cores.iter().enumerate().map(group).collect::<Value>(),
    })
}

fn completed(stats: &IoStats) -> u64 {
    let IoStats { reads, writes, flushes, write_zeroes, deallocates, compares, .. } = stats;
    reads + writes + flushes + write_zeroes + deallocates + compares
}

pub(super) fn describe_queues(controller: &Controller) -> Vec<Value> {
    let address = describe_address(&controller.port);
    let describe = |qid: Qid| {
        let mut described = json!({
            "cntlid": controller.cntlid.0,
            "qid": qid.0,
            "hostnqn": controller.host.nqn.to_string(),
            "peer": controller.peer.ip().to_string(),
            "listen_address": address,
        });
        if let Some(state) = controller.auth_state(qid) {
            described["auth"] = describe_auth(state);
        }
        described
    };
    controller.qids().into_iter().map(describe).collect()
}

/// Describes the authentication of a queue in SPDK's fields.
fn describe_auth(state: QueueAuthState) -> Value {
    match state {
        QueueAuthState::Negotiating => json!({ "state": "negotiate" }),
        QueueAuthState::Failed => json!({ "state": "error" }),
        QueueAuthState::Completed(Authenticated { hash, group, .. }) => json!({
            "state": "completed", "digest": hash.name(), "dhgroup": DhGroup::name_of(group),
        }),
    }
}
