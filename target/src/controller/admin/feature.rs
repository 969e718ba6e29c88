//! Set Features and Get Features (Base, 5.1.25).

use std::sync::Arc;

use nvme_proto::feature::{
    AsyncEventConfig, ErrorRecovery, Feature, FeatureCapabilities, FeatureId, GetFeatures,
    QueueCounts, Select, SetFeatures, WriteProtection,
};
use nvme_proto::{Cid, IntoBytes, Nsid, Status};

use crate::controller::state::Controller;
use crate::controller::support::FeatureEntry;
use crate::inventory::namespace::Namespace;

/// Returns the table row of a feature that the controller supports. A command that gives an NSID
/// for a feature of the controller is refused.
fn find(
    controller: &Controller,
    fid: FeatureId,
    nsid: Nsid,
) -> Result<&'static FeatureEntry, Status> {
    let entry = controller.support.feature(fid).ok_or(Status::INVALID_FIELD.with_dnr())?;
    if !entry.is_of_namespace() && nsid.is_one() {
        return Err(Status::FEATURE_NOT_NAMESPACE_SPECIFIC.with_dnr());
    }
    Ok(entry)
}

/// Executes Set Features. Returns dword 0 of the response, or `None` if the response is sent later.
pub(super) fn set(
    controller: &Controller,
    cid: Cid,
    set: &SetFeatures,
) -> Result<Option<u32>, Status> {
    find(controller, set.feature.id(), set.nsid)?;
    if set.save {
        return Err(Status::FEATURE_IDENTIFIER_NOT_SAVEABLE.with_dnr());
    }
    match set.feature {
        Feature::Arbitration(arbitration) => controller.shared().features.arbitration = arbitration,
        Feature::ErrorRecovery(recovery) => recover(controller, set.nsid, recovery)?,
        // The write cache cannot be disabled; a host bypasses it with Force Unit Access.
        Feature::VolatileWriteCache { enabled: true } => {}
        Feature::VolatileWriteCache { enabled: false } => {
            return Err(Status::FEATURE_NOT_CHANGEABLE.with_dnr());
        }
        Feature::NumberOfQueues(wanted) => return grant_queues(controller, wanted).map(Some),
        Feature::AsyncEventConfig(config) => return configure_events(controller, config).map(Some),
        Feature::KeepAliveTimer { timeout_ms } => controller.set_keep_alive_ms(timeout_ms),
        // With NVMe-oF, a host sends its identifier only with Connect.
        Feature::HostIdentifier { .. } => return Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr()),
        Feature::NamespaceWriteProtection(state) => {
            return protect(controller, cid, set.nsid, state);
        }
        Feature::Other { .. } => return Err(Status::INVALID_FIELD.with_dnr()),
    }
    Ok(Some(0))
}

/// Value of the Error Recovery feature for every namespace: no time limit for retries (TLER), and
/// no error for reads of deallocated blocks (DULBE), which return zeros.
const ERROR_RECOVERY: ErrorRecovery = ErrorRecovery::new();

fn recover(controller: &Controller, nsid: Nsid, wanted: ErrorRecovery) -> Result<(), Status> {
    if nsid != Nsid::ALL {
        namespace(controller, nsid)?;
    }
    if wanted.deallocated_error() {
        return Err(Status::INVALID_FIELD.with_dnr());
    }
    if wanted.time_limit() != ERROR_RECOVERY.time_limit() {
        return Err(Status::FEATURE_NOT_CHANGEABLE.with_dnr());
    }
    Ok(())
}

fn grant_queues(controller: &Controller, wanted: QueueCounts) -> Result<u32, Status> {
    let mut shared = controller.shared();
    if shared.members.has_io_queues() {
        return Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr());
    }
    let granted = wanted.usable().min(controller.limits.io_queues);
    shared.features.io_queues = granted;
    Ok(Feature::NumberOfQueues(QueueCounts::pairs(granted)).value())
}

/// Stores which asynchronous events the host wants. Refuses notices that the controller does not
/// support, but accepts all SMART critical warnings, even those that never occur.
fn configure_events(controller: &Controller, config: AsyncEventConfig) -> Result<u32, Status> {
    let offered = controller.support.notices().with_smart_critical_warnings(0xFF).into_bits();
    if config.into_bits() & !offered != 0 {
        return Err(Status::INVALID_FIELD.with_dnr());
    }
    controller.shared().features.async_events = config;
    Ok(0)
}

/// Sets or clears the write protection of a namespace. The response to a protection is sent once
/// earlier writes are on the medium.
fn protect(
    controller: &Controller,
    cid: Cid,
    nsid: Nsid,
    state: WriteProtection,
) -> Result<Option<u32>, Status> {
    let protected = match state {
        WriteProtection::None => false,
        WriteProtection::Protected => true,
        WriteProtection::UntilPowerCycle | WriteProtection::Permanent => {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
    };
    let namespace = namespace(controller, nsid)?;
    controller.ana.access(namespace.ana_group)?;
    if !namespace.writable && !protected {
        return Err(Status::FEATURE_NOT_CHANGEABLE.with_dnr());
    }
    if !namespace.writable {
        return Ok(Some(0));
    }
    let later = match protected {
        true => {
            let first = namespace.protect(true);
            if first {
                controller.notify_namespace_changed(nsid);
            }
            controller.begin_protection(cid, &namespace, first)
        }
        false => {
            let later = controller.begin_lifting(cid, &namespace);
            if !later && namespace.protect(false) {
                controller.notify_namespace_changed(nsid);
            }
            later
        }
    };
    Ok((!later).then_some(0))
}

fn namespace(controller: &Controller, nsid: Nsid) -> Result<Arc<Namespace>, Status> {
    controller.namespace(nsid).ok_or(Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr())
}

/// Executes Get Features. Returns dword 0 of the response; a Host Identifier is written to `data`.
pub(super) fn get(
    controller: &Controller,
    get: &GetFeatures,
    data: &mut [u8],
) -> Result<u32, Status> {
    let entry = find(controller, get.fid, get.nsid)?;
    if get.select == Select::CAPABILITIES {
        return Ok(capabilities(entry).into_bits());
    }
    // Select is not supported and nothing is saved, so this is always the current value.
    let shared = controller.shared();
    let feature = match get.fid {
        FeatureId::ARBITRATION => Feature::Arbitration(shared.features.arbitration),
        FeatureId::ERROR_RECOVERY => {
            namespace(controller, get.nsid)?;
            Feature::ErrorRecovery(ERROR_RECOVERY)
        }
        FeatureId::VOLATILE_WRITE_CACHE => Feature::VolatileWriteCache { enabled: true },
        FeatureId::NUMBER_OF_QUEUES => {
            Feature::NumberOfQueues(QueueCounts::pairs(shared.features.io_queues))
        }
        FeatureId::ASYNC_EVENT_CONFIG => Feature::AsyncEventConfig(shared.features.async_events),
        FeatureId::KEEP_ALIVE_TIMER => {
            Feature::KeepAliveTimer { timeout_ms: controller.keep_alive_ms() }
        }
        FeatureId::HOST_IDENTIFIER if get.value & 1 == 0 => {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        FeatureId::HOST_IDENTIFIER => {
            let id = controller.host.id;
            data.iter_mut().zip(id.as_bytes()).for_each(|(to, from)| *to = *from);
            Feature::HostIdentifier { extended: true }
        }
        FeatureId::NAMESPACE_WRITE_PROTECTION => {
            let namespace = namespace(controller, get.nsid)?;
            Feature::NamespaceWriteProtection(match namespace.write_protected() {
                true => WriteProtection::Protected,
                false => WriteProtection::None,
            })
        }
        _ => return Err(Status::INVALID_FIELD.with_dnr()),
    };
    Ok(feature.value())
}

fn capabilities(entry: &FeatureEntry) -> FeatureCapabilities {
    FeatureCapabilities::new()
        .with_changeable(entry.changeable)
        .with_namespace_specific(entry.is_of_namespace())
}
