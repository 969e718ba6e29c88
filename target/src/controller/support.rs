//! Tables of supported commands, pages and features. Identify, the log pages about them, and the
//! dispatch of commands all follow from these tables.

use nvme_proto::feature::{AsyncEventConfig, FeatureId};
use nvme_proto::identify::{Cns, Lpa, Nwpc, Oacs, Oaes, Ofcs, Oncs, Vwc};
use nvme_proto::log::{
    CommandEffects, EffectsLog, FeatureEffects, FeatureEffectsLog, LogId, Scope, SupportedLogPages,
};
use nvme_proto::{AdminOpcode, NvmOpcode, U16};

use super::kind::ControllerKind;

/// Controllers that implement an entry of the tables below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offer {
    /// Every controller implements it.
    Always,
    /// Discovery controllers implement it.
    Discovery,
    /// I/O controllers implement it.
    Io,
    /// I/O controllers with a writable namespace implement it.
    Writable,
    /// I/O controllers, unless the configuration disables deallocation.
    Deallocate,
}

/// Properties of a controller that decide on its support. They are fixed for its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Support {
    Discovery,
    Io {
        /// Whether it has a namespace that hosts may write.
        writable: bool,
        /// Whether hosts may deallocate blocks.
        deallocate: bool,
    },
}

struct AdminEntry {
    opcode: AdminOpcode,
    offer: Offer,
    effects: CommandEffects,
    /// OACS bits that the command sets.
    oacs: Oacs,
}

struct NvmEntry {
    opcode: NvmOpcode,
    offer: Offer,
    effects: CommandEffects,
    /// ONCS bits that the command sets.
    oncs: Oncs,
}

/// Row of the table of Identify data structures.
pub(super) struct CnsEntry {
    cns: Cns,
    offer: Offer,
    /// Whether CSI names an I/O command set. If false, CSI is ignored.
    pub(super) takes_csi: bool,
    pub(super) describe: Describe,
}

/// Contents of an Identify data structure, and the meaning of NSID for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Describe {
    /// The controller. The NSID is ignored.
    Controller,
    /// Identify Controller of the NVM command set. NSID is ignored.
    ControllerOfCommandSet,
    /// A namespace. All zeros if the NSID is in range but no namespace has it (Base, 5.1.13.1), as
    /// for the next two.
    Namespace,
    /// Identify Namespace of the NVM command set.
    NamespaceOfCommandSet,
    /// Identify Namespace common to all command sets.
    IndependentNamespace,
    /// Descriptors of an existing namespace.
    NamespaceDescriptors,
    /// NSIDs of the namespaces above the given one.
    NamespacesAbove,
}

/// Row of the table of log pages.
pub(super) struct PageEntry {
    lid: LogId,
    offer: Offer,
    /// Log Page Attributes bits that the page sets.
    lpa: Lpa,
    pub(super) content: PageContent,
}

/// Contents of a log page.
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
    /// Whether Set Features can change it.
    pub(super) changeable: bool,
}

impl FeatureEntry {
    /// Whether it belongs to a namespace.
    pub(super) fn is_of_namespace(&self) -> bool {
        self.effects.scope().namespace()
    }
}

/// I/O commands have no scope: Linux before 6.4 logs each that has one as unusual.
const READS: CommandEffects = CommandEffects::SUPPORTED;
const WRITES: CommandEffects = CommandEffects::WRITES;
const OF_CONTROLLER: CommandEffects = CommandEffects::SUPPORTED.with_scope(Scope::CONTROLLER);

/// Scopes are omitted where they depend on the command's fields. OACS has no bit for these
/// commands.
const ADMIN: [AdminEntry; 8] = [
    admin(AdminOpcode::GET_LOG_PAGE, Offer::Always, CommandEffects::SUPPORTED, Oacs::new()),
    admin(AdminOpcode::IDENTIFY, Offer::Always, CommandEffects::SUPPORTED, Oacs::new()),
    admin(AdminOpcode::ABORT, Offer::Io, OF_CONTROLLER, Oacs::new()),
    // Write protection.
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

const NVM: [NvmEntry; 7] = [
    nvm(NvmOpcode::FLUSH, Offer::Io, READS, Oncs::new()),
    nvm(NvmOpcode::WRITE, Offer::Io, WRITES, Oncs::new()),
    nvm(NvmOpcode::READ, Offer::Io, READS, Oncs::new()),
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

/// Fused operations. The parser of `nvme-proto` refuses their commands.
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
    // One bit for this page and the next, and for scopes in the previous one.
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
            ControllerKind::Discovery => Self::Discovery,
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

    /// Opcodes of the supported I/O commands.
    pub(super) fn io_opcodes(self) -> Opcodes {
        let mut opcodes = Opcodes::default();
        self.nvm().for_each(|entry| opcodes.add(entry.opcode));
        opcodes
    }

    /// Row for a value of CNS, if the controller supports it.
    pub(super) fn cns(self, cns: Cns) -> Option<&'static CnsEntry> {
        IDENTIFY.iter().find(|entry| entry.cns == cns && self.has(entry.offer))
    }

    /// Row of a log page, if it is supported.
    pub(super) fn page(self, lid: LogId) -> Option<&'static PageEntry> {
        self.pages().find(|entry| entry.lid == lid)
    }

    /// Row of a feature, if it is supported.
    pub(super) fn feature(self, fid: FeatureId) -> Option<&'static FeatureEntry> {
        self.features().find(|entry| entry.fid == fid)
    }

    /// Optional admin command support.
    pub(super) fn oacs(self) -> Oacs {
        let bits = self.admin().map(|entry| entry.oacs.into_bits().get());
        Oacs::from_bits(bits.fold(0, |all, bits| all | bits).into())
    }

    /// Fused operation support (FUSES): no fused operations.
    pub(super) const fn fuses(self) -> U16 {
        FUSES
    }

    /// Optional fabrics command support: Disconnect is a command of I/O queues.
    pub(super) fn ofcs(self) -> Ofcs {
        Ofcs::new().with_disconnect(self.has_nvm(NvmOpcode::FABRICS))
    }

    /// Volatile write cache. A Flush with the broadcast NSID is refused.
    pub(super) fn vwc(self) -> Vwc {
        let present = self.feature(FeatureId::VOLATILE_WRITE_CACHE).is_some();
        let flush_all = if self.has_nvm(NvmOpcode::FLUSH) { 2 } else { 0 };
        Vwc::new().with_present(present).with_flush_all(flush_all)
    }

    /// Namespace write protection capabilities.
    pub(super) fn nwpc(self) -> Nwpc {
        let supported = self.feature(FeatureId::NAMESPACE_WRITE_PROTECTION).is_some();
        Nwpc::new().with_supported(supported)
    }

    /// Optional NVM command support.
    pub(super) fn oncs(self) -> Oncs {
        let bits = self.nvm().map(|entry| entry.oncs.into_bits().get());
        Oncs::from_bits(bits.fold(0, |all, bits| all | bits).into())
    }

    /// Log page attributes. Every page can be read in parts.
    pub(super) fn lpa(self) -> Lpa {
        let bits = self.pages().map(|entry| entry.lpa.into_bits());
        Lpa::from_bits(bits.fold(0, |all, bits| all | bits)).with_extended_data(true)
    }

    /// Notices that hosts may ask for.
    pub(super) const fn notices(self) -> AsyncEventConfig {
        match self {
            Self::Discovery => AsyncEventConfig::new().with_discovery_log(true),
            Self::Io { .. } => {
                AsyncEventConfig::new().with_namespace_attribute(true).with_ana_change(true)
            }
        }
    }

    /// Optional asynchronous events supported, whose bits are those of the notices.
    pub(super) fn oaes(self) -> Oaes {
        Oaes::from_bits(self.notices().into_bits().into())
    }

    /// The page Supported Log Pages (LID 0).
    pub(super) fn supported_pages(self) -> SupportedLogPages {
        let lids: Vec<_> = self.pages().map(|entry| entry.lid).collect();
        SupportedLogPages::new(&lids)
    }

    /// Commands Supported and Effects.
    pub(super) fn effects(self) -> EffectsLog {
        let mut log = EffectsLog::EMPTY;
        self.admin().for_each(|entry| log.set_admin(entry.opcode, entry.effects));
        self.nvm().for_each(|entry| log.set_io(entry.opcode, entry.effects));
        log
    }

    /// Feature Identifiers Supported and Effects.
    pub(super) fn feature_effects(self) -> FeatureEffectsLog {
        let mut log = FeatureEffectsLog::EMPTY;
        self.features().for_each(|entry| log.set_feature(entry.fid, entry.effects));
        log
    }
}

/// Set of opcodes as a bit map.
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

/// Row for controllers with I/O queues, as only these have command sets.
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

/// Row for a feature whose change also changes Identify Namespace.
const fn changes_namespace(entry: FeatureEntry) -> FeatureEntry {
    FeatureEntry { effects: entry.effects.with_namespace_capability_change(true), ..entry }
}
