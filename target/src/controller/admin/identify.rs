//! Identify: builds the data structures about controllers and namespaces.

use std::sync::Arc;

use nvme_proto::identify::{
    Cmic, ControllerType, Dlfeat, FileInfo, IdDescriptor, Identify, IdentifyController,
    IdentifyControllerNvm, IdentifyNamespace, IdentifyNamespaceIndependent, IdentifyNamespaceNvm,
    NamespaceList, Nmic, Nsattr, Nstat, RangeListOffer, Sgls, write_descriptors,
};
use nvme_proto::nvm::ListedRange;
use nvme_proto::{
    AsciiField, Csi, FromZeros, IntoBytes, LbaFormat, Nqn, NqnField, Nsid, Status, U16, U32, U64,
    U128,
};

use crate::config::Eui64;
use crate::controller::fabrics;
use crate::controller::kind::ControllerKind;
use crate::controller::state::Controller;
use crate::controller::support::{Describe, Support};
use crate::derived_ids;
use crate::inventory::namespace::Namespace;
use crate::inventory::subsystem::Subsystem;
use crate::limits::turn::{CACHED_READ_BYTES, LISTED_RANGES};
use crate::limits::{
    ABORTS, ANA_GROUPS, ANA_TRANSITION, ASYNC_EVENT_REQUESTS, ERROR_LOG_ENTRIES,
    KEEP_ALIVE_GRANULARITY, Limits,
};

/// Controller Attributes (CTRATT): 128-bit host identifiers, and traffic based keep alive.
const CTRATT: u32 = 1 << 0 | 1 << 6;
/// ANA capabilities (ANACAP): all five ANA states, and namespaces whose ANAGRPID does not change.
const ANACAP: u8 = 1 << 6 | 0x1F;
/// Firmware Updates (FRMW): one firmware slot, which is read-only.
const FRMW: u8 = 1 << 1 | 1;
/// Submission queue entry size, required and maximum, as powers of two: 2^6 bytes.
const SQES: u8 = 0x66;
const CQES: u8 = 0x44;
/// Preferred granularity of writes and deallocation in bytes (NPWG, NPDG), if blocks are smaller.
const PREFERRED_BYTES: u32 = 4096;

/// Writes the data structure that an Identify command requests to `data`, which is all zeros.
pub(super) fn write(
    controller: &Controller,
    identify: &Identify,
    data: &mut [u8],
) -> Result<(), Status> {
    let support = controller.support;
    let entry = support.cns(identify.cns).ok_or(INVALID_FIELD)?;
    if entry.takes_csi && identify.csi != Csi::NVM {
        return Err(INVALID_FIELD);
    }
    let subsystem = || controller.subsystem().ok_or(INVALID_FIELD);
    match entry.describe {
        Describe::Controller => self::controller(controller, data),
        Describe::ControllerOfCommandSet => controller_of_command_set(data),
        Describe::Namespace => {
            in_range(controller, subsystem()?, identify.nsid)?.into_iter().for_each(|found| {
                namespace(support, &found, data);
                controller.note_identified(&found);
            })
        }
        Describe::NamespaceOfCommandSet => in_range(controller, subsystem()?, identify.nsid)?
            .into_iter()
            .for_each(|_| namespace_of_command_set(data)),
        Describe::IndependentNamespace => in_range(controller, subsystem()?, identify.nsid)?
            .into_iter()
            .for_each(|found| independent_namespace(&found, data)),
        Describe::NamespaceDescriptors => {
            subsystem()?;
            let found = controller.namespace(identify.nsid).ok_or(INVALID_NAMESPACE)?;
            namespace_descriptors(&found, data);
            controller.note_identified(&found);
        }
        Describe::NamespacesAbove => {
            put(data, &namespaces_above(controller, subsystem()?, identify.nsid)?);
        }
    }
    Ok(())
}

const INVALID_FIELD: Status = Status::INVALID_FIELD.with_dnr();
const INVALID_NAMESPACE: Status = Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr();

/// Returns the namespace with the NSID; `None` if NSID is valid (at most NN) but not active.
fn in_range(
    controller: &Controller,
    subsystem: &Subsystem,
    nsid: Nsid,
) -> Result<Option<Arc<Namespace>>, Status> {
    let found = controller.namespace(nsid);
    match found.is_some() || (1..=subsystem.most_nsid()).contains(&nsid.0) {
        true => Ok(found),
        false => Err(INVALID_NAMESPACE),
    }
}

fn put<T: IntoBytes + zerocopy::Immutable>(data: &mut [u8], value: &T) {
    data.iter_mut().zip(value.as_bytes()).for_each(|(to, from)| *to = *from);
}

fn namespaces_above(
    controller: &Controller,
    subsystem: &Subsystem,
    nsid: Nsid,
) -> Result<NamespaceList, Status> {
    if nsid >= Nsid::MAX {
        return Err(INVALID_NAMESPACE);
    }
    let namespaces = subsystem.namespaces();
    let seen = namespaces.iter().filter(|namespace| namespace.is_visible_to(&controller.host));
    let nsids = seen.map(|namespace| namespace.nsid);
    Ok(NamespaceList::new(nsids.filter(|active| *active > nsid)))
}

fn controller(controller: &Controller, data: &mut [u8]) {
    match &controller.kind {
        ControllerKind::Nvm(subsystem) => put(data, &nvm_controller(controller, subsystem)),
        ControllerKind::Discovery(_) => put(data, &discovery_controller(controller)),
    }
}

/// Writes Identify Controller of the NVM command set, all zeros: no field of it is supported.
fn controller_of_command_set(data: &mut [u8]) {
    put(data, &IdentifyControllerNvm::new_zeroed());
}

/// Returns Identify Controller with the fields that I/O and discovery controllers share.
fn common(controller: &Controller, nqn: Nqn) -> IdentifyController {
    let (limits, support) = (&controller.limits, controller.support);
    let mut id = IdentifyController::blank();
    id.set_cntlid(controller.cntlid);
    id.fr = AsciiField::new(derived_ids::FIRMWARE).unwrap_or_default();
    id.mdts = limits.mdts();
    id.ver = fabrics::VERSION;
    id.ctratt = U32::new(CTRATT);
    id.kas = U16::new((KEEP_ALIVE_GRANULARITY.as_millis() / 100) as u16);
    id.aerl_z = ASYNC_EVENT_REQUESTS as u8 - 1;
    id.elpe_z = ERROR_LOG_ENTRIES as u8 - 1;
    id.oaes = support.oaes();
    id.oacs = support.oacs();
    id.lpa = support.lpa();
    id.oncs = support.oncs();
    id.fuses = support.fuses();
    id.vwc = support.vwc();
    id.nwpc = support.nwpc();
    id.ofcs = support.ofcs();
    // Discovery controllers report it too, although they have no I/O queues: hosts limit the depth
    // of all queues to MAXCMD, and log that.
    id.maxcmd = U16::new(limits.queue_depth);
    id.sqes = SQES;
    id.cqes = CQES;
    id.sgls = Sgls::new()
        .with_supported(1)
        .with_keyed(true)
        .with_longer_than_data(true)
        .with_offset(limits.in_capsule_data_bytes > 0);
    id.subnqn = NqnField::from(nqn);
    id.ioccsz = U32::new((64 + limits.in_capsule_data_bytes) / 16);
    id.iorcsz = U32::new(1);
    id.msdbd = 1;
    id
}

fn discovery_controller(controller: &Controller) -> IdentifyController {
    let mut id = common(controller, controller.discovery_nqn());
    id.sn = derived_ids::discovery_serial();
    id.mn = derived_ids::MODEL;
    id.cntrltype = ControllerType::DISCOVERY;
    id.dctype = 1;
    id
}

fn nvm_controller(controller: &Controller, subsystem: &Subsystem) -> IdentifyController {
    let mut id = common(controller, subsystem.nqn);
    id.sn = subsystem.serial;
    id.mn = subsystem.model;
    id.rab = 6;
    id.cmic = Cmic::new().with_multiple_ports(true).with_multiple_controllers(true).with_ana(true);
    id.cntrltype = ControllerType::IO;
    id.acl_z = ABORTS as u8 - 1;
    id.frmw = FRMW;
    id.nn = U32::new(subsystem.most_nsid());
    id.mnan = id.nn;
    let quiesce = controller.limits.command_quiesce.as_nanos().div_ceil(1_000_000);
    id.cqt = U16::new(u16::try_from(quiesce).unwrap_or(u16::MAX));
    id.anatt = ANA_TRANSITION.as_secs() as u8;
    id.anacap = ANACAP;
    id.anagrpmax = U32::new(ANA_GROUPS);
    id.nanagrpid = id.anagrpmax;
    if let Some(offer) = range_list_offer(&controller.limits) {
        id.set_range_list_offer(&offer);
    }
    id
}

/// Returns the limits of Read Ranges; `None` if a capsule has no room for a list.
fn range_list_offer(limits: &Limits) -> Option<RangeListOffer> {
    let ranges =
        (limits.in_capsule_data_bytes / size_of::<ListedRange>() as u32).min(LISTED_RANGES);
    let bytes = limits.max_transfer_bytes.min(CACHED_READ_BYTES);
    (ranges > 0).then_some(RangeListOffer { ranges: ranges as u16, bytes })
}

fn namespace(support: Support, namespace: &Namespace, data: &mut [u8]) {
    let mut id = IdentifyNamespace::new_zeroed();
    id.nsze = U64::new(namespace.size_blocks);
    id.ncap = id.nsze;
    id.anagrpid = U32::new(namespace.ana_group.get());
    id.nuse = id.nsze;
    id.nmic = shared();
    id.dlfeat =
        Dlfeat::new().with_read_behavior(1).with_write_zeroes_deallocates(support.deallocates());
    id.nvmcap = U128::new(u128::from(namespace.size_blocks) << namespace.lba_shift);
    id.nguid = namespace.config.nguid;
    id.eui64 = namespace.config.eui64.map(|id| id.0).unwrap_or_default();
    id.nsattr = attributes(namespace);
    id.lbaf[0] = LbaFormat::new(namespace.lba_bytes()).unwrap_or_default();
    if let Some(allocated_bytes) = namespace.backend().allocated_bytes() {
        let allocated = allocated_bytes.div_ceil(namespace.lba_bytes().into());
        id.nsfeat.set_thin(true);
        id.nuse = U64::new(allocated.min(namespace.size_blocks));
    }
    if namespace.writable {
        let preferred_z = U16::new((PREFERRED_BYTES / namespace.lba_bytes()).max(1) as u16 - 1);
        id.nsfeat.set_optimal_fields(1);
        (id.npwg_z, id.npwa_z) = (preferred_z, preferred_z);
        (id.npdg_z, id.npda_z) = (preferred_z, preferred_z);
    }
    let info = FileInfo::new(namespace.exact_bytes, namespace.name());
    let info = info.with_generation(namespace.generation());
    let description = namespace.config.description.as_deref().unwrap_or_default();
    id.set_file_info(&info.with_description(description));
    put(data, &id);
}

/// Writes Identify Namespace of the NVM command set, all zeros: no field of it is supported.
fn namespace_of_command_set(data: &mut [u8]) {
    put(data, &IdentifyNamespaceNvm::new_zeroed());
}

fn independent_namespace(namespace: &Namespace, data: &mut [u8]) {
    let mut id = IdentifyNamespaceIndependent::new_zeroed();
    id.anagrpid = U32::new(namespace.ana_group.get());
    id.nmic = shared();
    id.nsattr = attributes(namespace);
    id.nstat = Nstat::new().with_nrdy(true);
    put(data, &id);
}

fn shared() -> Nmic {
    Nmic::new().with_shared(true)
}

fn attributes(namespace: &Namespace) -> Nsattr {
    Nsattr::new().with_write_protected(namespace.write_protected())
}

fn namespace_descriptors(namespace: &Namespace, data: &mut [u8]) {
    let uuid = IdDescriptor::Uuid(namespace.uuid().into_bytes());
    let nguid = IdDescriptor::Nguid(namespace.config.nguid);
    let csi = IdDescriptor::Csi(Csi::NVM);
    match namespace.config.eui64 {
        None => write_descriptors(data, &[uuid, nguid, csi]),
        Some(Eui64(id)) => write_descriptors(data, &[IdDescriptor::Eui64(id), nguid, uuid, csi]),
    }
}
