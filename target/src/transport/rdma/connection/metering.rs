//! Quotas of a command: that of its host, then that of its namespace.

use std::sync::Arc;

use ::rdma::Provider;

use super::data::HostData;
use super::request::{CompletionPermit, QuotaOwner, RequestStage, ThrottledCommand};
use super::{Connection, Ended, TurnContext};
use crate::controller::{CommandWork, IoKind, IoWork};
use crate::core_context::OperationOwner;
use crate::core_context::throttle::{MeteredCommand, WaitEnd, WaitKey};
use crate::qos::{Toll, TollDirection};

impl<P: Provider> Connection<P> {
    /// Continues a command if it is within the quotas from that of `first` on. Otherwise it waits.
    pub(super) fn meter(
        &mut self,
        context: &mut TurnContext<'_, P>,
        permit: CompletionPermit,
        work: CommandWork,
        host: HostData,
        first: QuotaOwner,
    ) -> Result<(), Ended> {
        let CommandWork::Io(io) = work else {
            return self.place_command(context, permit, &work, host);
        };
        let owners: &[QuotaOwner] = match first {
            QuotaOwner::Host => &[QuotaOwner::Host, QuotaOwner::Namespace],
            QuotaOwner::Namespace => &[QuotaOwner::Namespace],
        };
        for quota in owners {
            let Some(waits_as) = self.wait_for(context, &permit, &io, *quota) else { continue };
            let throttled = ThrottledCommand { permit, work: io, host, quota: *quota, waits_as };
            let request = self.slots.get(throttled.permit.slot());
            request.stage = RequestStage::AwaitingQuota(throttled);
            return Ok(());
        }
        self.place_command(context, permit, &work, host)
    }

    /// Takes the toll of a command from a quota; `Some` if the command has to wait.
    fn wait_for(
        &self,
        context: &mut TurnContext<'_, P>,
        permit: &CompletionPermit,
        work: &IoWork,
        quota: QuotaOwner,
    ) -> Option<WaitKey> {
        let toll = toll_of(work)?;
        let whose = self.request_key(context, permit.slot());
        let core = &mut *context.core;
        let of_host = self.queue.controller()?.quota.as_ref()?;
        let (quota, party) = match quota {
            QuotaOwner::Host => {
                let queue = usize::from(whose.transport) << 32 | whose.connection as usize;
                (of_host, queue)
            }
            QuotaOwner::Namespace => {
                (core.exports.namespace(work.namespace)?.quota(), Arc::as_ptr(of_host).addr())
            }
        };
        let command = MeteredCommand { whose, namespace: work.namespace, toll };
        core.throttle.pass(core.now, quota, party, command).err()
    }

    /// Continues a command that has waited for a quota.
    pub(in crate::transport::rdma) fn quota_passed(
        &mut self,
        context: &mut TurnContext<'_, P>,
        owner: OperationOwner,
        end: WaitEnd,
    ) -> Result<(), Ended> {
        let OperationOwner::Slot(slot) = owner else { return Ok(()) };
        let Some(throttled) = self.slots.get(slot).take_throttled() else { return Ok(()) };
        let ThrottledCommand { permit, work, host, quota, .. } = throttled;
        let next = match quota {
            QuotaOwner::Host => Some(QuotaOwner::Namespace),
            QuotaOwner::Namespace => None,
        };
        match (next, end) {
            (Some(next), WaitEnd::Due) => {
                return self.meter(context, permit, CommandWork::Io(work), host, next);
            }
            (Some(_), WaitEnd::Released) => {
                let namespace = context.core.exports.namespace(work.namespace);
                if let (Some(namespace), Some(toll)) = (namespace, toll_of(&work)) {
                    namespace.quota().take(context.core.now, toll);
                }
            }
            (None, _) => {}
        }
        self.place_command(context, permit, &CommandWork::Io(work), host)
    }
}

/// Toll of a command; `None` for commands that move no data of a medium.
fn toll_of(work: &IoWork) -> Option<Toll> {
    let direction = match work.kind {
        IoKind::Read { .. }
        | IoKind::ReadZeros
        | IoKind::ReadRanges { .. }
        | IoKind::Compare { .. } => TollDirection::Read,
        IoKind::Write { .. } => TollDirection::Write,
        IoKind::Flush | IoKind::WriteZeroes { .. } | IoKind::Deallocate => return None,
    };
    let ios = match work.kind {
        IoKind::ReadRanges { ranges } => ranges,
        _ => 1,
    };
    Some(Toll { direction, ios, bytes: work.length_bytes })
}
