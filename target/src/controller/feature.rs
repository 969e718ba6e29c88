//! Features (Base, 5.1.25): what a host may tune of its controller.

use nvme_proto::feature::{
    Arbitration, AsyncEventConfig, Feature, FeatureCapabilities, FeatureId, GetFeatures,
    QueueCounts, Select, SetFeatures, WriteProtection,
};
use nvme_proto::{Cid, IntoBytes, Nsid, Status};

use super::Controller;
use crate::subsystem::Subsystem;

/// The features of one controller. None survives a reset.
#[derive(Debug)]
pub(super) struct Features {
    arbitration: Arbitration,
    pub(super) async_events: AsyncEventConfig,
    io_queues: u16,
}

impl Features {
    /// Defaults; every queue is granted until the host asks for fewer.
    pub(super) fn new(io_queues: u16) -> Self {
        Self {
            arbitration: Arbitration::new().with_burst(7),
            async_events: AsyncEventConfig::new(),
            io_queues,
        }
    }

    pub(super) fn io_queues(&self) -> u16 {
        self.io_queues
    }
}

/// The features that controllers have; the discovery service has fewer.
const NVM: [FeatureId; 7] = [
    FeatureId::ARBITRATION,
    FeatureId::VOLATILE_WRITE_CACHE,
    FeatureId::NUMBER_OF_QUEUES,
    FeatureId::ASYNC_EVENT_CONFIG,
    FeatureId::KEEP_ALIVE_TIMER,
    FeatureId::HOST_IDENTIFIER,
    FeatureId::NAMESPACE_WRITE_PROTECTION,
];
const DISCOVERY: [FeatureId; 2] = [FeatureId::ASYNC_EVENT_CONFIG, FeatureId::KEEP_ALIVE_TIMER];

pub(super) fn supported(controller: &Controller) -> &'static [FeatureId] {
    if controller.is_discovery() { &DISCOVERY } else { &NVM }
}

fn check(controller: &Controller, fid: FeatureId, nsid: Nsid) -> Result<(), Status> {
    if !supported(controller).contains(&fid) {
        return Err(Status::INVALID_FIELD.with_dnr());
    }
    if fid != FeatureId::NAMESPACE_WRITE_PROTECTION && nsid.is_one() {
        return Err(Status::FEATURE_NOT_NAMESPACE_SPECIFIC.with_dnr());
    }
    Ok(())
}

/// Sets a feature; dword 0 of the response, or nothing if the response comes later.
pub(super) fn set(
    controller: &Controller,
    cid: Cid,
    set: &SetFeatures,
) -> Result<Option<u32>, Status> {
    check(controller, set.feature.id(), set.nsid)?;
    if set.save {
        return Err(Status::FEATURE_IDENTIFIER_NOT_SAVEABLE.with_dnr());
    }
    match set.feature {
        Feature::Arbitration(arbitration) => controller.shared().features.arbitration = arbitration,
        // There is one whenever something can be written, and no way round it but Force Unit Access.
        Feature::VolatileWriteCache { enabled: true } => {}
        Feature::VolatileWriteCache { enabled: false } => {
            return Err(Status::FEATURE_NOT_CHANGEABLE.with_dnr());
        }
        Feature::NumberOfQueues(wanted) => return grant_queues(controller, wanted).map(Some),
        Feature::AsyncEventConfig(config) => return configure_events(controller, config).map(Some),
        Feature::KeepAliveTimer { timeout_ms } => controller.set_keep_alive_ms(timeout_ms),
        // Over fabrics it comes with Connect.
        Feature::HostIdentifier { .. } => return Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr()),
        Feature::NamespaceWriteProtection(state) => {
            return protect(controller, cid, set.nsid, state);
        }
        Feature::Other { .. } => return Err(Status::INVALID_FIELD.with_dnr()),
    }
    Ok(Some(0))
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

/// Notices that are not offered can not be asked for; critical warnings can, and never come.
fn configure_events(controller: &Controller, config: AsyncEventConfig) -> Result<u32, Status> {
    let offered = if controller.is_discovery() {
        AsyncEventConfig::new().with_discovery_log(true)
    } else {
        AsyncEventConfig::new().with_namespace_attribute(true)
    };
    let offered = offered.with_smart_critical_warnings(0xFF).into_bits();
    if config.into_bits() & !offered != 0 {
        return Err(Status::INVALID_FIELD.with_dnr());
    }
    controller.shared().features.async_events = config;
    Ok(0)
}

/// What was written before is on the medium when the response to a protection comes.
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
    let namespace = namespace(controller.subsystem(), nsid)?;
    if !namespace.writable && !protected {
        return Err(Status::FEATURE_NOT_CHANGEABLE.with_dnr());
    }
    if namespace.writable && namespace.protect(protected) {
        controller.tell_namespace_changed(nsid);
    }
    let later = protected && namespace.writable && controller.begin_protection(cid, namespace);
    Ok((!later).then_some(0))
}

fn namespace(
    subsystem: Option<&std::sync::Arc<Subsystem>>,
    nsid: Nsid,
) -> Result<&std::sync::Arc<crate::namespace::Namespace>, Status> {
    let found = subsystem.and_then(|subsystem| subsystem.namespace(nsid));
    found.ok_or(Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr())
}

/// A feature's value: dword 0 of the response, or in the data.
pub(super) fn get(
    controller: &Controller,
    get: &GetFeatures,
    data: &mut [u8],
) -> Result<u32, Status> {
    check(controller, get.fid, get.nsid)?;
    if get.select == Select::CAPABILITIES {
        return Ok(capabilities(get.fid).into_bits());
    }
    // Nothing is saved, and select other than this is not offered: the value is always the current one.
    let shared = controller.shared();
    let feature = match get.fid {
        FeatureId::ARBITRATION => Feature::Arbitration(shared.features.arbitration),
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
            let namespace = namespace(controller.subsystem(), get.nsid)?;
            Feature::NamespaceWriteProtection(match namespace.write_protected() {
                true => WriteProtection::Protected,
                false => WriteProtection::None,
            })
        }
        _ => return Err(Status::INVALID_FIELD.with_dnr()),
    };
    Ok(feature.value())
}

fn capabilities(fid: FeatureId) -> FeatureCapabilities {
    let fixed = [FeatureId::VOLATILE_WRITE_CACHE, FeatureId::HOST_IDENTIFIER];
    FeatureCapabilities::new()
        .with_changeable(!fixed.contains(&fid))
        .with_namespace_specific(fid == FeatureId::NAMESPACE_WRITE_PROTECTION)
}

impl Controller {
    /// Tells every controller of the subsystem but this one, whose host knows.
    fn tell_namespace_changed(&self, nsid: Nsid) {
        let (Some(registry), Some(subsystem)) = (self.registry.upgrade(), self.subsystem()) else {
            return;
        };
        for other in registry.controllers() {
            let same = other.subsystem().is_some_and(|of| std::sync::Arc::ptr_eq(of, subsystem));
            if same && other.cntlid != self.cntlid {
                other.namespace_changed(nsid);
            }
        }
    }
}
