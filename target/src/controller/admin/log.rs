//! Get Log Page: builds the supported log pages.

use std::sync::Arc;

use nvme_proto::log::{
    CriticalWarning, FirmwareSlotLog, FirmwareSlots, GetLogPage, LogId, LogOffset, SmartLog,
};
use nvme_proto::{AsciiField, FromZeros, IntoBytes, Status, U128};

use super::{ana_log, discovery_log};
use crate::controller::associations::Associations;
use crate::controller::state::{Controller, SharedState};
use crate::controller::support::PageContent;
use crate::derived_ids;
use crate::inventory::subsystem::Subsystem;
use crate::limits::ERROR_LOG_ENTRIES;

/// Log Specific Parameter bit of the ANA page: groups without their namespaces (RGO).
const RETURN_GROUPS_ONLY: u8 = 1;

/// Writes the part of the page that a Get Log Page command requests to `data`, which is all zeros.
/// Bytes beyond the end of the page stay zeros; an offset beyond the end is an error.
///
/// The page is built and its events are cleared under one lock, to report later changes again.
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
    let page = controller.support.page(get.lid).ok_or(Status::INVALID_LOG_PAGE.with_dnr())?;
    let page = match page.content {
        PageContent::SupportedPages => supported_pages(controller),
        PageContent::Errors => errors(&shared),
        PageContent::Smart => smart(controller),
        PageContent::FirmwareSlots => firmware_slots(),
        PageContent::ChangedNamespaces => changed_namespaces(&shared),
        PageContent::Ana => ana_log::page(controller, get.lsp & RETURN_GROUPS_ONLY != 0),
        PageContent::Effects => effects(controller),
        PageContent::FeatureEffects => feature_effects(controller),
        PageContent::NvmeMiEffects => nvme_mi_effects(),
        PageContent::Discovery => discovery_log::page(controller),
    };
    let wanted = usize::try_from(offset).ok().and_then(|offset| page.get(offset..));
    let wanted = wanted.ok_or(Status::INVALID_FIELD.with_dnr())?;
    data.iter_mut().zip(wanted).for_each(|(to, from)| *to = *from);
    if !get.retain_event {
        shared.async_events.clear(get.lid);
    }
    Ok(())
}

fn supported_pages(controller: &Controller) -> Vec<u8> {
    controller.support.supported_pages().as_bytes().to_vec()
}

fn errors(shared: &SharedState) -> Vec<u8> {
    let mut page: Vec<u8> =
        shared.errors.entries().flat_map(|entry| entry.as_bytes()).copied().collect();
    page.resize(ERROR_LOG_ENTRIES * 64, 0);
    page
}

/// Returns the SMART / Health Information page. Its counts are those of the whole subsystem, since
/// a controller ends with its association. It reports no temperature, since there is no sensor.
fn smart(controller: &Controller) -> Vec<u8> {
    controller.subsystem().map_or_else(Vec::new, |subsystem| {
        smart_log(controller.associations.upgrade(), subsystem).as_bytes().to_vec()
    })
}

fn smart_log(associations: Option<Arc<Associations>>, subsystem: &Arc<Subsystem>) -> SmartLog {
    let io = associations.map(|associations| associations.inventory().io_stats_of(subsystem));
    let io = io.unwrap_or_default();
    let mut log = SmartLog::new_zeroed();
    log.available_spare = 100;
    let degraded = subsystem.namespaces().iter().any(|namespace| namespace.health().is_degraded());
    log.critical_warning = CriticalWarning::new().with_reliability(degraded);
    log.data_units_read = U128::new(data_units(io.read_bytes));
    log.data_units_written = U128::new(data_units(io.written_bytes));
    log.host_read_commands = U128::new(u128::from(io.reads) + u128::from(io.compares));
    log.host_write_commands = U128::new(u128::from(io.writes));
    log.media_errors = U128::new(subsystem.errors.media().into());
    log.error_log_entries = U128::new(subsystem.errors.entries().into());
    log
}

/// Converts bytes to SMART data units of 1000 * 512 bytes, rounded up.
fn data_units(bytes: u64) -> u128 {
    u128::from(bytes.div_ceil(512 * 1000))
}

fn changed_namespaces(shared: &SharedState) -> Vec<u8> {
    shared.async_events.changed().as_bytes().to_vec()
}

fn firmware_slots() -> Vec<u8> {
    let mut log = FirmwareSlotLog::new_zeroed();
    log.active = FirmwareSlots::new().with_current(1);
    log.revisions[0] = AsciiField::new(derived_ids::FIRMWARE).unwrap_or_default();
    log.as_bytes().to_vec()
}

fn effects(controller: &Controller) -> Vec<u8> {
    controller.support.effects().as_bytes().to_vec()
}

fn feature_effects(controller: &Controller) -> Vec<u8> {
    controller.support.feature_effects().as_bytes().to_vec()
}

/// Returns the NVMe-MI Commands Supported and Effects page: none is supported.
fn nvme_mi_effects() -> Vec<u8> {
    vec![0; 4096]
}
