//! Log pages.

use std::sync::Arc;

use nvme_proto::log::{
    CommandEffects, EffectsLog, FirmwareSlotLog, FirmwareSlots, GetLogPage, LogId, LogOffset,
    SmartLog, SupportedLogPages,
};
use nvme_proto::{AdminOpcode, AsciiField, FromZeros, IntoBytes, NvmOpcode, Status, U128};

use super::{Controller, Kind, Shared, discovery, feature};
use crate::identity;
use crate::limits::ERROR_LOG_ENTRIES;
use crate::subsystem::Subsystem;

/// Commands that NVMe-MI would have: none. A page of zeros, which goes with that of the features.
const MI_EFFECTS: LogId = LogId(0x13);

const NVM_PAGES: [LogId; 8] = [
    LogId::SUPPORTED_PAGES,
    LogId::ERROR,
    LogId::SMART,
    LogId::FIRMWARE_SLOT,
    LogId::CHANGED_NAMESPACES,
    LogId::EFFECTS,
    LogId::FEATURE_EFFECTS,
    MI_EFFECTS,
];
const DISCOVERY_PAGES: [LogId; 3] = [LogId::SUPPORTED_PAGES, LogId::ERROR, LogId::DISCOVERY];

/// Fills `data`, which is zeros, with the part of the page that the command wants. Beyond the end of the page
/// it stays zeros; an offset beyond the end is an error.
///
/// The page is made, and its events are cleared, under one lock: what happens later is told again.
pub(super) fn write(
    controller: &Controller,
    get: &GetLogPage,
    data: &mut [u8],
) -> Result<(), Status> {
    let LogOffset::Bytes(offset) = get.offset else {
        return Err(Status::INVALID_FIELD.with_dnr());
    };
    if get.nsid.is_one() && get.lid == LogId::SMART {
        return Err(Status::INVALID_FIELD.with_dnr());
    }
    let mut shared = controller.shared();
    let page = page(controller, &shared, get.lid)?;
    let wanted = usize::try_from(offset).ok().and_then(|offset| page.get(offset..));
    let wanted = wanted.ok_or(Status::INVALID_FIELD.with_dnr())?;
    data.iter_mut().zip(wanted).for_each(|(to, from)| *to = *from);
    if !get.retain_event {
        shared.async_events.clear(get.lid);
    }
    Ok(())
}

fn page(controller: &Controller, shared: &Shared, lid: LogId) -> Result<Vec<u8>, Status> {
    let bytes = |page: &dyn Fn(&Arc<Subsystem>) -> Vec<u8>| match &controller.kind {
        Kind::Nvm(subsystem) => Ok(page(subsystem)),
        Kind::Discovery => Err(Status::INVALID_LOG_PAGE.with_dnr()),
    };
    match lid {
        LogId::SUPPORTED_PAGES => Ok(supported_pages(controller).as_bytes().to_vec()),
        LogId::ERROR => Ok(errors(shared)),
        LogId::DISCOVERY if controller.is_discovery() => Ok(discovery::page(controller)),
        LogId::SMART => bytes(&|subsystem| smart(controller, subsystem).as_bytes().to_vec()),
        LogId::FIRMWARE_SLOT => bytes(&|_| firmware_slots().as_bytes().to_vec()),
        LogId::CHANGED_NAMESPACES => bytes(&|_| shared.async_events.changed().as_bytes().to_vec()),
        LogId::EFFECTS => bytes(&|_| effects().as_bytes().to_vec()),
        LogId::FEATURE_EFFECTS => bytes(&|_| feature_effects(controller)),
        MI_EFFECTS => bytes(&|_| vec![0; 4096]),
        _ => Err(Status::INVALID_LOG_PAGE.with_dnr()),
    }
}

fn supported_pages(controller: &Controller) -> SupportedLogPages {
    SupportedLogPages::new(if controller.is_discovery() { &DISCOVERY_PAGES } else { &NVM_PAGES })
}

fn errors(shared: &Shared) -> Vec<u8> {
    let mut page: Vec<u8> =
        shared.errors.entries().flat_map(|entry| entry.as_bytes()).copied().collect();
    page.resize(ERROR_LOG_ENTRIES * 64, 0);
    page
}

/// All of it is the whole subsystem's: an association is too short-lived to have a health. There is no temperature to tell.
fn smart(controller: &Controller, subsystem: &Arc<Subsystem>) -> SmartLog {
    let registry = controller.registry.upgrade();
    let io = registry.map(|registry| registry.io_stats_of(subsystem)).unwrap_or_default();
    let mut log = SmartLog::new_zeroed();
    log.available_spare = 100;
    log.data_units_read = U128::new(data_units(io.read_bytes));
    log.data_units_written = U128::new(data_units(io.written_bytes));
    log.host_read_commands = U128::new(u128::from(io.reads) + u128::from(io.compares));
    log.host_write_commands = U128::new(u128::from(io.writes));
    log.media_errors = U128::new(subsystem.errors.media().into());
    log.error_log_entries = U128::new(subsystem.errors.entries().into());
    log
}

/// Thousands of 512 bytes, rounded up.
fn data_units(bytes: u64) -> u128 {
    u128::from(bytes.div_ceil(512 * 1000))
}

fn firmware_slots() -> FirmwareSlotLog {
    let mut log = FirmwareSlotLog::new_zeroed();
    log.active = FirmwareSlots::new().with_current(1);
    log.revisions[0] = AsciiField::new(identity::FIRMWARE).unwrap_or_default();
    log
}

fn effects() -> EffectsLog {
    let mut log = EffectsLog::EMPTY;
    for opcode in [
        AdminOpcode::GET_LOG_PAGE,
        AdminOpcode::IDENTIFY,
        AdminOpcode::ABORT,
        AdminOpcode::GET_FEATURES,
        AdminOpcode::ASYNC_EVENT_REQUEST,
        AdminOpcode::KEEP_ALIVE,
    ] {
        log.set_admin(opcode, CommandEffects::SUPPORTED);
    }
    let set = CommandEffects::SUPPORTED.with_namespace_capability_change(true);
    log.set_admin(AdminOpcode::SET_FEATURES, set);
    for opcode in [NvmOpcode::FLUSH, NvmOpcode::READ, NvmOpcode::COMPARE] {
        log.set_io(opcode, CommandEffects::SUPPORTED);
    }
    for opcode in [NvmOpcode::WRITE, NvmOpcode::WRITE_ZEROES, NvmOpcode::DATASET_MANAGEMENT] {
        log.set_io(opcode, CommandEffects::WRITES);
    }
    log
}

/// Feature Identifiers Supported and Effects (Base, 5.1.12.1.18): a dword per feature, bit 0 for supported,
/// bit 20 for one that belongs to a namespace, bit 21 for one of the controller.
fn feature_effects(controller: &Controller) -> Vec<u8> {
    let mut page = vec![0; 1024];
    for fid in feature::supported(controller) {
        let of_namespace = *fid == nvme_proto::feature::FeatureId::NAMESPACE_WRITE_PROTECTION;
        let effects = 1_u32 | if of_namespace { 1 << 20 } else { 1 << 21 };
        let at = usize::from(fid.0) * 4;
        page[at..at + 4].copy_from_slice(&effects.to_le_bytes());
    }
    page
}
