//! The Identify data and log pages of a hostile target.

use nvme_proto::identify::{
    Cns, ControllerType, FileInfo, IdDescriptor, Identify, IdentifyController, IdentifyNamespace,
    NamespaceList, RangeListOffer, Sgls, write_descriptors,
};
use nvme_proto::log::{DiscoveryEntry, DiscoveryHeader};
use nvme_proto::{Cntlid, FromZeros, IntoBytes, LbaFormat, Nsid};

/// Bytes of a page.
pub(super) const PAGE_BYTES: usize = 4096;

/// The pages of one execution; they begin as a good target's.
pub(super) struct IdentifyPages {
    controller: IdentifyController,
    namespace: IdentifyNamespace,
    list: NamespaceList,
    descriptors: [u8; PAGE_BYTES],
    discovery: [u8; PAGE_BYTES],
}

impl IdentifyPages {
    /// Pages of a target with one namespace of `blocks` blocks.
    pub(super) fn new(blocks: u64, in_capsule_bytes: u32) -> Self {
        let mut controller = IdentifyController::blank();
        controller.cntrltype = ControllerType::IO;
        controller.mdts = 2;
        controller.sgls = Sgls::new().with_supported(1).with_keyed(true).with_offset(true);
        controller.ioccsz.set((64 + in_capsule_bytes) / 16);
        controller.iorcsz.set(1);
        controller.maxcmd.set(16);
        controller.kas.set(10);
        controller.msdbd = 1;
        controller.nn.set(1);
        controller.set_range_list_offer(&RangeListOffer { ranges: 4, bytes: PAGE_BYTES as u32 });
        let mut namespace = IdentifyNamespace::new_zeroed();
        namespace.nsze.set(blocks);
        namespace.ncap.set(blocks);
        namespace.nuse.set(blocks);
        namespace.lbaf[0] = LbaFormat::new(512).expect("a power of two");
        namespace.set_file_info(&FileInfo::new(blocks * 512, "shard").with_generation(1));
        let mut descriptors = [0; PAGE_BYTES];
        write_descriptors(&mut descriptors, &[IdDescriptor::Uuid([7; 16])]);
        let mut discovery = [0; PAGE_BYTES];
        let header = DiscoveryHeader::new(1, 2);
        let entry = DiscoveryEntry::blank();
        let log = [header.as_bytes(), entry.as_bytes(), entry.as_bytes()].concat();
        discovery[..log.len()].copy_from_slice(&log);
        let list = NamespaceList::new([Nsid(1)]);
        Self { controller, namespace, list, descriptors, discovery }
    }

    /// Changes a byte of one of them.
    pub(super) fn change_byte(&mut self, page: u8, at: u16, with: u8) {
        let page = match page % 5 {
            0 => self.controller.as_mut_bytes(),
            1 => self.namespace.as_mut_bytes(),
            2 => self.list.as_mut_bytes(),
            3 => &mut self.descriptors,
            _ => &mut self.discovery,
        };
        page[usize::from(at) % PAGE_BYTES] ^= with;
    }

    /// Says which controller it is.
    pub(super) fn set_cntlid(&mut self, cntlid: u16) {
        self.controller.set_cntlid(Cntlid(cntlid));
    }

    /// The data that Identify asks for.
    pub(super) fn identify(&self, command: &Identify) -> &[u8] {
        match command.cns {
            Cns::CONTROLLER => self.controller.as_bytes(),
            Cns::NAMESPACE => self.namespace.as_bytes(),
            Cns::ACTIVE_NAMESPACES => self.list.as_bytes(),
            _ => &self.descriptors,
        }
    }

    /// The discovery log page.
    pub(super) fn discovery(&self) -> &[u8] {
        &self.discovery
    }
}
