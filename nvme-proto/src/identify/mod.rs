//! Identify (Base, 5.1.13; NVM, 4.1.5).

mod controller;
mod descriptor;
mod file_info;
mod independent;
mod list;
mod namespace;
mod nvm;
mod range_list_offer;

use bitfield_struct::bitfield;
use zerocopy::little_endian::U32;

pub use controller::{
    Cmic, ControllerType, Fcatt, IdentifyController, Lpa, Nwpc, Oacs, Oaes, Ofcs, Oncs, PowerState,
    Sgls, Vwc,
};
pub use descriptor::{
    DescriptorType, Descriptors, IdDescriptor, IdDescriptorHeader, write_descriptors,
};
pub use file_info::{FileInfo, MAX_NAME_BYTES};
pub use independent::{IdentifyNamespaceIndependent, Nstat};
pub use list::NamespaceList;
pub use namespace::{Dlfeat, Flbas, IdentifyNamespace, Nmic, Nsattr, Nsfeat};
pub use nvm::{IdentifyControllerNvm, IdentifyNamespaceNvm};
pub use range_list_offer::RangeListOffer;

use crate::{AdminOpcode, Cntlid, Csi, Nsid, Sqe};

/// Identify command. The controller always returns 4,096 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identify {
    /// Namespace, or the NSID after which a list begins.
    pub nsid: Nsid,
    /// Structure or list to return.
    pub cns: Cns,
    /// Controller, for those values of CNS that select one.
    pub cntid: Cntlid,
    /// CNS Specific Identifier field (CNSSID).
    pub cnssid: u16,
    /// I/O command set, for those values of CNS that select one.
    pub csi: Csi,
}

impl Identify {
    /// Size of the returned data in bytes.
    pub const DATA_BYTES: usize = 4096;

    /// Creates a request for a structure of the controller, or a list from its beginning.
    pub const fn new(cns: Cns) -> Self {
        Self::namespace(cns, Nsid::NONE)
    }

    /// Creates a request for a structure of namespace `nsid`, or a list of the NSIDs above it.
    pub const fn namespace(cns: Cns, nsid: Nsid) -> Self {
        Self { nsid, cns, cntid: Cntlid(0), cnssid: 0, csi: Csi::NVM }
    }

    pub(crate) fn parse(sqe: &Sqe) -> Self {
        let dw10 = Dw10::from_bits(sqe.cdw10.get());
        let dw11 = Dw11::from_bits(sqe.cdw11.get());
        Self {
            nsid: sqe.nsid(),
            cns: dw10.cns(),
            cntid: Cntlid(dw10.cntid()),
            cnssid: dw11.cnssid(),
            csi: dw11.csi(),
        }
    }

    /// Encodes the command; [`Sqe::with_cid`] and [`Sqe::with_data`] add the identifier and the
    /// data pointer.
    pub fn to_sqe(&self) -> Sqe {
        let mut sqe = Sqe::new(AdminOpcode::IDENTIFY.0).with_nsid(self.nsid);
        let dw10 = Dw10::new().with_cns(self.cns).with_cntid(self.cntid.0);
        let dw11 = Dw11::new().with_cnssid(self.cnssid).with_csi(self.csi);
        sqe.cdw10 = U32::new(dw10.into_bits());
        sqe.cdw11 = U32::new(dw11.into_bits());
        sqe
    }
}

#[bitfield(u32)]
#[derive(PartialEq, Eq)]
struct Dw10 {
    #[bits(8)]
    cns: Cns,
    __: u8,
    cntid: u16,
}

#[bitfield(u32)]
#[derive(PartialEq, Eq)]
struct Dw11 {
    cnssid: u16,
    __: u8,
    #[bits(8)]
    csi: Csi,
}

open_enum! {
    /// Controller or namespace structure, CNS: selects what Identify returns (Base, 5.1.13).
    pub struct Cns(u8) {
        NAMESPACE = 0x00, "Identify Namespace";
        CONTROLLER = 0x01, "Identify Controller";
        ACTIVE_NAMESPACES = 0x02, "Active Namespace ID list";
        NAMESPACE_DESCRIPTORS = 0x03, "Namespace Identification Descriptor list";
        NVM_SETS = 0x04, "NVM Set List";
        IO_COMMAND_SET_NAMESPACE = 0x05, "I/O Command Set specific Identify Namespace";
        IO_COMMAND_SET_CONTROLLER = 0x06, "I/O Command Set specific Identify Controller";
        IO_COMMAND_SET_ACTIVE_NAMESPACES = 0x07, "I/O Command Set specific Active Namespace ID list";
        INDEPENDENT_NAMESPACE = 0x08, "I/O Command Set Independent Identify Namespace";
        ALLOCATED_NAMESPACES = 0x10, "Allocated Namespace ID list";
        ALLOCATED_NAMESPACE = 0x11, "Identify Namespace, allocated";
        NAMESPACE_CONTROLLERS = 0x12, "Namespace Attached Controller list";
        SUBSYSTEM_CONTROLLERS = 0x13, "Controller list";
        PRIMARY_CONTROLLER_CAPABILITIES = 0x14, "Primary Controller Capabilities";
        SECONDARY_CONTROLLERS = 0x15, "Secondary Controller list";
        NAMESPACE_GRANULARITY = 0x16, "Namespace Granularity List";
        UUIDS = 0x17, "UUID List";
        IO_COMMAND_SETS = 0x1C, "I/O Command Set data structure";
    }
}
