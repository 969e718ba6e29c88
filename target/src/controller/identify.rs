//! Identify: what hosts are told about controllers and namespaces.

use std::sync::Arc;

use nvme_proto::feature::FeatureId;
use nvme_proto::identify::{
    Cmic, Cns, ControllerType, Dlfeat, FileInfo, IdDescriptor, Identify, IdentifyController,
    IdentifyControllerNvm, IdentifyNamespace, IdentifyNamespaceIndependent, IdentifyNamespaceNvm,
    NamespaceList, Nmic, Nsattr, Nstat, Nwpc, Ofcs, Sgls, Vwc, write_descriptors,
};
use nvme_proto::{
    AsciiField, Csi, FromZeros, IntoBytes, LbaFormat, Nqn, NqnField, Nsid, Status, U16, U32, U64,
    U128,
};

use super::support::Support;
use super::{Controller, Kind, fabrics};
use crate::identity;
use crate::limits::{ABORTS, ASYNC_EVENT_REQUESTS, ERROR_LOG_ENTRIES, KEEP_ALIVE_GRANULARITY};
use crate::namespace::Namespace;
use crate::subsystem::Subsystem;

/// 128-bit host identifiers, and traffic based keep alive.
const CTRATT: u32 = 1 << 0 | 1 << 6;
/// One slot of firmware, read-only.
const FRMW: u8 = 1 << 1 | 1;
/// Entries of submission (64 bytes) and completion queues (16 bytes), required and maximum.
const SQES: u8 = 0x66;
const CQES: u8 = 0x44;
/// What writes should be multiples of where blocks are smaller: the page of most file systems.
const PREFERRED_BYTES: u32 = 4096;

/// Fills `data`, which is zeros.
pub(super) fn write(
    controller: &Controller,
    identify: &Identify,
    data: &mut [u8],
) -> Result<(), Status> {
    let subsystem = match &controller.kind {
        Kind::Nvm(subsystem) => subsystem,
        Kind::Discovery if identify.cns == Cns::CONTROLLER => {
            put(data, &discovery_controller(controller));
            return Ok(());
        }
        Kind::Discovery => return Err(Status::INVALID_FIELD.with_dnr()),
    };
    match identify.cns {
        Cns::CONTROLLER => put(data, &nvm_controller(controller, subsystem)),
        Cns::ACTIVE_NAMESPACES => put(data, &active_namespaces(subsystem, identify.nsid)?),
        Cns::NAMESPACE => of_namespace(subsystem, identify.nsid, data, |n, data| {
            put(data, &namespace(controller.support, n));
        })?,
        Cns::NAMESPACE_DESCRIPTORS => {
            let found = subsystem.namespace(identify.nsid).ok_or(INVALID_NAMESPACE)?;
            descriptors(found, data);
        }
        Cns::INDEPENDENT_NAMESPACE => {
            of_namespace(subsystem, identify.nsid, data, |n, data| put(data, &independent(n)))?;
        }
        cns => return of_command_set(subsystem, cns, identify, data),
    }
    Ok(())
}

const INVALID_NAMESPACE: Status = Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr();

/// What takes an I/O command set, of which there is one.
fn of_command_set(
    subsystem: &Subsystem,
    cns: Cns,
    identify: &Identify,
    data: &mut [u8],
) -> Result<(), Status> {
    if identify.csi != Csi::NVM {
        return Err(Status::INVALID_FIELD.with_dnr());
    }
    match cns {
        Cns::IO_COMMAND_SET_NAMESPACE => of_namespace(subsystem, identify.nsid, data, |_, data| {
            put(data, &IdentifyNamespaceNvm::new_zeroed());
        }),
        Cns::IO_COMMAND_SET_CONTROLLER => {
            put(data, &IdentifyControllerNvm::new_zeroed());
            Ok(())
        }
        Cns::IO_COMMAND_SET_ACTIVE_NAMESPACES => {
            put(data, &active_namespaces(subsystem, identify.nsid)?);
            Ok(())
        }
        _ => Err(Status::INVALID_FIELD.with_dnr()),
    }
}

/// An NSID without a namespace, but in range, is described by zeros (Base, 5.1.13.1).
fn of_namespace(
    subsystem: &Subsystem,
    nsid: Nsid,
    data: &mut [u8],
    describe: impl FnOnce(&Namespace, &mut [u8]),
) -> Result<(), Status> {
    match subsystem.namespace(nsid) {
        Some(namespace) => describe(namespace, data),
        None if nsid.0 == 0 || nsid.0 > subsystem.highest_nsid() => return Err(INVALID_NAMESPACE),
        None => {}
    }
    Ok(())
}

fn put<T: IntoBytes + zerocopy::Immutable>(data: &mut [u8], value: &T) {
    data.iter_mut().zip(value.as_bytes()).for_each(|(to, from)| *to = *from);
}

fn active_namespaces(subsystem: &Subsystem, after: Nsid) -> Result<NamespaceList, Status> {
    if after >= Nsid::MAX {
        return Err(INVALID_NAMESPACE);
    }
    let nsids = subsystem.namespaces().iter().map(|namespace| namespace.nsid);
    Ok(NamespaceList::new(nsids.filter(|nsid| *nsid > after)))
}

/// What both kinds of controller say.
fn common(controller: &Controller, nqn: Nqn) -> IdentifyController {
    let limits = &controller.limits;
    let mut id = IdentifyController::blank();
    id.set_cntlid(controller.cntlid);
    id.fr = AsciiField::new(identity::FIRMWARE).unwrap_or_default();
    id.mdts = limits.mdts();
    id.ver = fabrics::VERSION;
    id.ctratt = U32::new(CTRATT);
    id.kas = U16::new((KEEP_ALIVE_GRANULARITY.as_millis() / 100) as u16);
    id.aerl_z = ASYNC_EVENT_REQUESTS as u8 - 1;
    id.elpe_z = ERROR_LOG_ENTRIES as u8 - 1;
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
    let mut id = common(controller, Nqn::DISCOVERY);
    id.sn = AsciiField::new(&identity::discovery_serial()).unwrap_or_default();
    id.mn = AsciiField::new(identity::MODEL).unwrap_or_default();
    id.cntrltype = ControllerType::DISCOVERY;
    id.dctype = 1;
    id.oaes = controller.support.oaes();
    id.lpa = controller.support.lpa();
    // It has no I/O queues; hosts clamp what they would ask for on others and tell their log.
    id.maxcmd = U16::new(controller.limits.queue_depth);
    id
}

fn nvm_controller(controller: &Controller, subsystem: &Subsystem) -> IdentifyController {
    let support = controller.support;
    let cached = support.feature(FeatureId::VOLATILE_WRITE_CACHE).is_some();
    let protectable = support.feature(FeatureId::NAMESPACE_WRITE_PROTECTION).is_some();
    let mut id = common(controller, subsystem.nqn);
    id.sn = subsystem.serial;
    id.mn = subsystem.model;
    id.rab = 6;
    id.cmic = Cmic::new().with_multiple_ports(true).with_multiple_controllers(true);
    id.oaes = support.oaes();
    id.cntrltype = ControllerType::IO;
    id.acl_z = ABORTS as u8 - 1;
    id.frmw = FRMW;
    id.lpa = controller.support.lpa();
    id.maxcmd = U16::new(controller.limits.queue_depth);
    id.nn = U32::new(subsystem.highest_nsid());
    id.mnan = id.nn;
    id.oncs = support.oncs();
    id.vwc = Vwc::new().with_present(cached).with_flush_all(2);
    id.nwpc = Nwpc::new().with_supported(protectable);
    id.ofcs = Ofcs::new().with_disconnect(true);
    id
}

fn namespace(support: Support, namespace: &Namespace) -> IdentifyNamespace {
    let mut id = IdentifyNamespace::new_zeroed();
    id.nsze = U64::new(namespace.size_blocks);
    id.ncap = id.nsze;
    id.nuse = id.nsze;
    id.nmic = shared();
    id.dlfeat =
        Dlfeat::new().with_read_behavior(1).with_write_zeroes_deallocates(support.deallocates());
    id.nvmcap = U128::new(u128::from(namespace.size_blocks) << namespace.lba_shift);
    id.nguid = namespace.nguid;
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
    let info = FileInfo::new(namespace.exact_bytes, &namespace.name);
    id.set_file_info(&info.with_generation(namespace.generation()));
    id
}

fn independent(namespace: &Namespace) -> IdentifyNamespaceIndependent {
    let mut id = IdentifyNamespaceIndependent::new_zeroed();
    id.nmic = shared();
    id.nsattr = attributes(namespace);
    id.nstat = Nstat::new().with_nrdy(true);
    id
}

fn shared() -> Nmic {
    Nmic::new().with_shared(true)
}

fn attributes(namespace: &Namespace) -> Nsattr {
    Nsattr::new().with_write_protected(namespace.write_protected())
}

fn descriptors(namespace: &Arc<Namespace>, data: &mut [u8]) {
    let uuid = IdDescriptor::Uuid(namespace.uuid.into_bytes());
    let nguid = IdDescriptor::Nguid(namespace.nguid);
    let csi = IdDescriptor::Csi(Csi::NVM);
    match namespace.nguid {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] => write_descriptors(data, &[uuid, csi]),
        _ => write_descriptors(data, &[uuid, nguid, csi]),
    }
}
