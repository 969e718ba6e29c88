//! Tables of supported commands, Identify data structures, log pages and features. The Identify
//! fields and log pages that report support, and the dispatch of commands, follow from these
//! tables.

use nvme_proto::feature::{AsyncEventConfig, FeatureId};
use nvme_proto::identify::{Cns, Lpa, Nwpc, Oacs, Oaes, Ofcs, Oncs, Vwc};
use nvme_proto::log::{
    CommandEffects, EffectsLog, FeatureEffects, FeatureEffectsLog, LogId, Scope, SupportedLogPages,
};
use nvme_proto::{AdminOpcode, NvmOpcode, U16};

use super::kind::ControllerKind;

/// Condition under which a controller supports an entry of the tables below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offer {
    Always,
    Discovery,
    Io,
    /// I/O controllers whose subsystem has a writable namespace, or may get one.
    Writable,
    /// I/O controllers, unless the configuration disables deallocation.
    Deallocate,
}

/// Properties of a controller that decide which table entries it supports. They never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Support {
    Discovery,
    Io {
        /// Whether the subsystem has a namespace that hosts may write, or may get one.
        writable: bool,
        /// Whether hosts may deallocate blocks.
        deallocate: bool,
    },
}

/// Row of the table of admin commands.
struct AdminEntry {
    opcode: AdminOpcode,
    offer: Offer,
    effects: CommandEffects,
    /// Bits of OACS that are set because of the command.
    oacs: Oacs,
}

/// Row of the table of I/O commands.
struct NvmEntry {
    opcode: NvmOpcode,
    offer: Offer,
    effects: CommandEffects,
    /// Bits of ONCS that are set because of the command.
    oncs: Oncs,
}

/// Row of the table of Identify data structures.
pub(super) struct CnsEntry {
    cns: Cns,
    offer: Offer,
    /// Whether CSI selects an I/O command set. If false, CSI is ignored.
    pub(super) takes_csi: bool,
    pub(super) describe: Describe,
}

/// Identify data structure, and the meaning of NSID for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Describe {
    /// Identify Controller. NSID is ignored.
    Controller,
    /// Identify Controller of the NVM command set. NSID is ignored.
    ControllerOfCommandSet,
    /// Identify Namespace. All zeros if the NSID is in range but no namespace has it (Base,
    /// 5.1.13.1), as for the next two.
    Namespace,
    /// Identify Namespace of the NVM command set.
    NamespaceOfCommandSet,
    /// I/O Command Set Independent Identify Namespace.
    IndependentNamespace,
    /// Namespace Identification Descriptor list of an existing namespace.
    NamespaceDescriptors,
    /// Active Namespace ID list: the NSIDs greater than the given one.
    NamespacesAbove,
}

/// Row of the table of log pages.
pub(super) struct PageEntry {
    lid: LogId,
    offer: Offer,
    /// Bits of LPA that are set because of the page.
    lpa: Lpa,
    pub(super) content: PageContent,
}

/// Log page whose contents are built for Get Log Page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageContent {
    SupportedPages,
    Errors,
    Smart,
    FirmwareSlots,
    ChangedNamespaces,
    Ana,
    Effects,
    FeatureEffects,
    NvmeMiEffects,
    Discovery,
}

/// Row of the table of features.
pub(super) struct FeatureEntry {
    fid: FeatureId,
    offer: Offer,
    effects: FeatureEffects,
    /// Whether Set Features can change the value.
    pub(super) changeable: bool,
}

impl FeatureEntry {
    /// Whether each namespace has its own value.
    pub(super) fn is_of_namespace(&self) -> bool {
        self.effects.scope().namespace()
    }
}

/// Effects of I/O commands. Their scope is not reported: Linux before 6.4 logs each I/O command
/// with a scope as unusual.
const READS: CommandEffects = CommandEffects::SUPPORTED;
const WRITES: CommandEffects = CommandEffects::WRITES;
const OF_CONTROLLER: CommandEffects = CommandEffects::SUPPORTED.with_scope(Scope::CONTROLLER);

/// Admin commands. The scope is not reported where it depends on the command's fields. None of
/// these commands has a bit in OACS.
const ADMIN: [AdminEntry; 8] = [
    admin(AdminOpcode::GET_LOG_PAGE, Offer::Always, CommandEffects::SUPPORTED, Oacs::new()),
    admin(AdminOpcode::IDENTIFY, Offer::Always, CommandEffects::SUPPORTED, Oacs::new()),
    admin(AdminOpcode::ABORT, Offer::Io, OF_CONTROLLER, Oacs::new()),
    // The effect (NCC) is that of Namespace Write Protection.
    admin(
        AdminOpcode::SET_FEATURES,
        Offer::Always,
        CommandEffects::SUPPORTED.with_namespace_capability_change(true),
        Oacs::new(),
    ),
    admin(AdminOpcode::GET_FEATURES, Offer::Always, CommandEffects::SUPPORTED, Oacs::new()),
    admin(AdminOpcode::ASYNC_EVENT_REQUEST, Offer::Always, OF_CONTROLLER, Oacs::new()),
    admin(AdminOpcode::KEEP_ALIVE, Offer::Always, OF_CONTROLLER, Oacs::new()),
    admin(AdminOpcode::FABRICS, Offer::Always, OF_CONTROLLER, Oacs::new()),
];

const NVM: [NvmEntry; 8] = [
    nvm(NvmOpcode::FLUSH, Offer::Io, READS, Oncs::new()),
    nvm(NvmOpcode::WRITE, Offer::Io, WRITES, Oncs::new()),
    nvm(NvmOpcode::READ, Offer::Io, READS, Oncs::new()),
    nvm(NvmOpcode::READ_RANGES, Offer::Io, READS, Oncs::new()),
    nvm(NvmOpcode::COMPARE, Offer::Io, READS, Oncs::new().with_compare(true)),
    nvm(NvmOpcode::WRITE_ZEROES, Offer::Io, WRITES, Oncs::new().with_write_zeroes(true)),
    nvm(
        NvmOpcode::DATASET_MANAGEMENT,
        Offer::Deallocate,
        WRITES,
        Oncs::new().with_dataset_management(true),
    ),
    nvm(NvmOpcode::FABRICS, Offer::Io, READS, Oncs::new()),
];

/// FUSES: no fused operations. The parser of `nvme-proto` refuses their commands.
const FUSES: U16 = U16::ZERO;

const IDENTIFY: [CnsEntry; 8] = [
    cns(Cns::NAMESPACE, Offer::Io, Describe::Namespace),
    cns(Cns::CONTROLLER, Offer::Always, Describe::Controller),
    cns(Cns::ACTIVE_NAMESPACES, Offer::Io, Describe::NamespacesAbove),
    cns(Cns::NAMESPACE_DESCRIPTORS, Offer::Io, Describe::NamespaceDescriptors),
    of_command_set(Cns::IO_COMMAND_SET_NAMESPACE, Describe::NamespaceOfCommandSet),
    of_command_set(Cns::IO_COMMAND_SET_CONTROLLER, Describe::ControllerOfCommandSet),
    of_command_set(Cns::IO_COMMAND_SET_ACTIVE_NAMESPACES, Describe::NamespacesAbove),
    cns(Cns::INDEPENDENT_NAMESPACE, Offer::Io, Describe::IndependentNamespace),
];

const PAGES: [PageEntry; 10] = [
    page(LogId::SUPPORTED_PAGES, Offer::Always, Lpa::new(), PageContent::SupportedPages),
    page(LogId::ERROR, Offer::Always, Lpa::new(), PageContent::Errors),
    page(LogId::SMART, Offer::Io, Lpa::new(), PageContent::Smart),
    page(LogId::FIRMWARE_SLOT, Offer::Io, Lpa::new(), PageContent::FirmwareSlots),
    page(LogId::CHANGED_NAMESPACES, Offer::Io, Lpa::new(), PageContent::ChangedNamespaces),
    page(LogId::EFFECTS, Offer::Io, Lpa::new().with_effects(true), PageContent::Effects),
    // LPA has one bit for this page, the next one, and scopes in the previous one.
    page(
        LogId::FEATURE_EFFECTS,
        Offer::Io,
        Lpa::new().with_supported_pages(true),
        PageContent::FeatureEffects,
    ),
    page(LogId::NVME_MI_EFFECTS, Offer::Io, Lpa::new(), PageContent::NvmeMiEffects),
    page(LogId::ANA, Offer::Io, Lpa::new(), PageContent::Ana),
    page(LogId::DISCOVERY, Offer::Discovery, Lpa::new(), PageContent::Discovery),
];

const FEATURES: [FeatureEntry; 8] = [
    feature(FeatureId::ARBITRATION, Offer::Io, Scope::CONTROLLER, true),
    feature(FeatureId::ERROR_RECOVERY, Offer::Io, Scope::NAMESPACE, false),
    feature(FeatureId::VOLATILE_WRITE_CACHE, Offer::Writable, Scope::CONTROLLER, false),
    feature(FeatureId::NUMBER_OF_QUEUES, Offer::Io, Scope::CONTROLLER, true),
    feature(FeatureId::ASYNC_EVENT_CONFIG, Offer::Always, Scope::CONTROLLER, true),
    feature(FeatureId::KEEP_ALIVE_TIMER, Offer::Always, Scope::CONTROLLER, true),
    feature(FeatureId::HOST_IDENTIFIER, Offer::Io, Scope::CONTROLLER, false),
    changes_namespace(feature(
        FeatureId::NAMESPACE_WRITE_PROTECTION,
        Offer::Writable,
        Scope::NAMESPACE,
        true,
    )),
];

impl Support {
    pub(super) fn of(kind: &ControllerKind) -> Self {
        match kind {
            ControllerKind::Discovery(_) => Self::Discovery,
            ControllerKind::Nvm(subsystem) => {
                let namespaces = subsystem.namespaces();
                // A writable namespace may be added later.
                let writable =
                    subsystem.managed || namespaces.iter().any(|namespace| namespace.writable);
                Self::Io { writable, deallocate: subsystem.deallocate }
            }
        }
    }

    const fn has(self, offer: Offer) -> bool {
        match (offer, self) {
            (Offer::Always, _) | (Offer::Discovery, Self::Discovery) => true,
            (Offer::Io, Self::Io { .. }) => true,
            (Offer::Writable, Self::Io { writable, .. }) => writable,
            (Offer::Deallocate, Self::Io { deallocate, .. }) => deallocate,
            (_, Self::Discovery) | (Offer::Discovery, Self::Io { .. }) => false,
        }
    }

    /// Whether hosts may deallocate blocks.
    pub(super) const fn deallocates(self) -> bool {
        self.has(Offer::Deallocate)
    }

    fn admin(self) -> impl Iterator<Item = &'static AdminEntry> {
        ADMIN.iter().filter(move |entry| self.has(entry.offer))
    }

    fn nvm(self) -> impl Iterator<Item = &'static NvmEntry> {
        NVM.iter().filter(move |entry| self.has(entry.offer))
    }

    fn pages(self) -> impl Iterator<Item = &'static PageEntry> {
        PAGES.iter().filter(move |entry| self.has(entry.offer))
    }

    fn features(self) -> impl Iterator<Item = &'static FeatureEntry> {
        FEATURES.iter().filter(move |entry| self.has(entry.offer))
    }

    /// Whether an admin command is supported.
    pub(super) fn has_admin(self, opcode: AdminOpcode) -> bool {
        self.admin().any(|entry| entry.opcode == opcode)
    }

    fn has_nvm(self, opcode: NvmOpcode) -> bool {
        self.nvm().any(|entry| entry.opcode == opcode)
    }

    /// Returns the opcodes of the supported I/O commands.
    pub(super) fn io_opcodes(self) -> Opcodes {
        let mut opcodes = Opcodes::default();
        self.nvm().for_each(|entry| opcodes.add(entry.opcode));
        opcodes
    }

    /// Returns the row of a CNS value, if the controller supports it.
    pub(super) fn cns(self, cns: Cns) -> Option<&'static CnsEntry> {
        IDENTIFY.iter().find(|entry| entry.cns == cns && self.has(entry.offer))
    }

    /// Returns the row of a log page, if it is supported.
    pub(super) fn page(self, lid: LogId) -> Option<&'static PageEntry> {
        self.pages().find(|entry| entry.lid == lid)
    }

    /// Returns the row of a feature, if it is supported.
    pub(super) fn feature(self, fid: FeatureId) -> Option<&'static FeatureEntry> {
        self.features().find(|entry| entry.fid == fid)
    }

    /// Returns Optional Admin Command Support (OACS).
    pub(super) fn oacs(self) -> Oacs {
        let bits = self.admin().map(|entry| entry.oacs.into_bits().get());
        Oacs::from_bits(bits.fold(0, |all, bits| all | bits).into())
    }

    pub(super) const fn fuses(self) -> U16 {
        FUSES
    }

    /// Returns Optional Fabrics Commands Support (OFCS): Disconnect, if there are I/O queues.
    pub(super) fn ofcs(self) -> Ofcs {
        Ofcs::new().with_disconnect(self.has_nvm(NvmOpcode::FABRICS))
    }

    /// Returns Volatile Write Cache (VWC). A Flush with the broadcast NSID is refused.
    pub(super) fn vwc(self) -> Vwc {
        let present = self.feature(FeatureId::VOLATILE_WRITE_CACHE).is_some();
        let flush_all = if self.has_nvm(NvmOpcode::FLUSH) { 2 } else { 0 };
        Vwc::new().with_present(present).with_flush_all(flush_all)
    }

    /// Returns Namespace Write Protection Capabilities (NWPC).
    pub(super) fn nwpc(self) -> Nwpc {
        let supported = self.feature(FeatureId::NAMESPACE_WRITE_PROTECTION).is_some();
        Nwpc::new().with_supported(supported)
    }

    /// Returns Optional NVM Command Support (ONCS).
    pub(super) fn oncs(self) -> Oncs {
        let bits = self.nvm().map(|entry| entry.oncs.into_bits().get());
        Oncs::from_bits(bits.fold(0, |all, bits| all | bits).into())
    }

    /// Returns Log Page Attributes (LPA). Every page can be read in parts (offset and length).
    pub(super) fn lpa(self) -> Lpa {
        let bits = self.pages().map(|entry| entry.lpa.into_bits());
        Lpa::from_bits(bits.fold(0, |all, bits| all | bits)).with_extended_data(true)
    }

    /// Notices that hosts may enable with Set Features (Asynchronous Event Configuration).
    pub(super) const fn notices(self) -> AsyncEventConfig {
        match self {
            Self::Discovery => AsyncEventConfig::new().with_discovery_log(true),
            Self::Io { .. } => {
                AsyncEventConfig::new().with_namespace_attribute(true).with_ana_change(true)
            }
        }
    }

    /// Returns Optional Asynchronous Events Supported (OAES), whose bits are those of the notices.
    pub(super) fn oaes(self) -> Oaes {
        Oaes::from_bits(self.notices().into_bits().into())
    }

    /// Returns the Supported Log Pages page (LID 0).
    pub(super) fn supported_pages(self) -> SupportedLogPages {
        let lids: Vec<_> = self.pages().map(|entry| entry.lid).collect();
        SupportedLogPages::new(&lids)
    }

    /// Returns the Commands Supported and Effects page.
    pub(super) fn effects(self) -> EffectsLog {
        let mut log = EffectsLog::EMPTY;
        self.admin().for_each(|entry| log.set_admin(entry.opcode, entry.effects));
        self.nvm().for_each(|entry| log.set_io(entry.opcode, entry.effects));
        log
    }

    /// Returns the Feature Identifiers Supported and Effects page.
    pub(super) fn feature_effects(self) -> FeatureEffectsLog {
        let mut log = FeatureEffectsLog::EMPTY;
        self.features().for_each(|entry| log.set_feature(entry.fid, entry.effects));
        log
    }
}

/// Set of opcodes, as a bitmap of 256 bits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Opcodes([u64; 4]);

impl Opcodes {
    fn add(&mut self, opcode: NvmOpcode) {
        self.0[usize::from(opcode.0 / 64)] |= 1 << (opcode.0 % 64);
    }

    pub(super) fn contains(&self, opcode: NvmOpcode) -> bool {
        self.0[usize::from(opcode.0 / 64)] >> (opcode.0 % 64) & 1 != 0
    }
}

const fn admin(
    opcode: AdminOpcode,
    offer: Offer,
    effects: CommandEffects,
    oacs: Oacs,
) -> AdminEntry {
    AdminEntry { opcode, offer, effects, oacs }
}

const fn cns(cns: Cns, offer: Offer, describe: Describe) -> CnsEntry {
    CnsEntry { cns, offer, takes_csi: false, describe }
}

/// Row for I/O controllers, since only these have I/O command sets.
const fn of_command_set(cns: Cns, describe: Describe) -> CnsEntry {
    CnsEntry { cns, offer: Offer::Io, takes_csi: true, describe }
}

const fn nvm(opcode: NvmOpcode, offer: Offer, effects: CommandEffects, oncs: Oncs) -> NvmEntry {
    NvmEntry { opcode, offer, effects, oncs }
}

const fn page(lid: LogId, offer: Offer, lpa: Lpa, content: PageContent) -> PageEntry {
    PageEntry { lid, offer, lpa, content }
}

const fn feature(fid: FeatureId, offer: Offer, scope: Scope, changeable: bool) -> FeatureEntry {
    let effects = FeatureEffects::new().with_supported(true).with_scope(scope);
    FeatureEntry { fid, offer, effects, changeable }
}

/// Row for a feature whose change also changes Identify Namespace (Namespace Capability Change).
const fn changes_namespace(entry: FeatureEntry) -> FeatureEntry {
    FeatureEntry { effects: entry.effects.with_namespace_capability_change(true), ..entry }
}
