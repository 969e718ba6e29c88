//! What controllers support, said once. Identify, the log pages about commands, pages and features, and what becomes
//! of a command, all follow from these tables.
//!
//! Fused operations are in none of them, nor is any command that Identify's OACS has a bit for.

use nvme_proto::feature::{AsyncEventConfig, FeatureId};
use nvme_proto::identify::{Lpa, Oaes, Oncs};
use nvme_proto::log::{
    CommandEffects, EffectsLog, FeatureEffects, FeatureEffectsLog, LogId, Scope, SupportedLogPages,
};
use nvme_proto::{AdminOpcode, NvmOpcode};

use super::{Controller, Kind, Shared, discovery, log};

/// Which controllers have something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offer {
    /// All.
    Always,
    /// Those of the discovery service.
    Discovery,
    /// I/O controllers.
    Io,
    /// I/O controllers with a namespace that hosts may write.
    Writable,
    /// I/O controllers, unless the configuration keeps hosts from giving space back.
    Deallocate,
}

/// What of a controller decides about what it supports. It does not change while the controller lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Support {
    Discovery,
    Io {
        /// It has a namespace that hosts may write.
        writable: bool,
        /// Hosts may give space back.
        deallocate: bool,
    },
}

struct AdminEntry {
    opcode: AdminOpcode,
    offer: Offer,
    effects: CommandEffects,
}

struct NvmEntry {
    opcode: NvmOpcode,
    offer: Offer,
    effects: CommandEffects,
    /// What ONCS says of it.
    oncs: Oncs,
}

/// A log page.
pub(super) struct PageEntry {
    lid: LogId,
    offer: Offer,
    /// What LPA says of it.
    lpa: Lpa,
    /// Its bytes.
    pub(super) make: fn(&Controller, &Shared) -> Vec<u8>,
}

/// A feature.
pub(super) struct FeatureEntry {
    fid: FeatureId,
    offer: Offer,
    effects: FeatureEffects,
    /// Set Features can give it another value.
    pub(super) changeable: bool,
}

impl FeatureEntry {
    /// Whether it belongs to a namespace.
    pub(super) fn is_of_namespace(&self) -> bool {
        self.effects.scope().namespace()
    }
}

const READS: CommandEffects = CommandEffects::SUPPORTED.with_scope(Scope::NAMESPACE);
const WRITES: CommandEffects = CommandEffects::WRITES.with_scope(Scope::NAMESPACE);
const OF_CONTROLLER: CommandEffects = CommandEffects::SUPPORTED.with_scope(Scope::CONTROLLER);

/// Scopes are left out where they depend on what is asked for.
const ADMIN: [AdminEntry; 8] = [
    admin(AdminOpcode::GET_LOG_PAGE, Offer::Always, CommandEffects::SUPPORTED),
    admin(AdminOpcode::IDENTIFY, Offer::Always, CommandEffects::SUPPORTED),
    admin(AdminOpcode::ABORT, Offer::Io, OF_CONTROLLER),
    // Write protection.
    admin(
        AdminOpcode::SET_FEATURES,
        Offer::Always,
        CommandEffects::SUPPORTED.with_namespace_capability_change(true),
    ),
    admin(AdminOpcode::GET_FEATURES, Offer::Always, CommandEffects::SUPPORTED),
    admin(AdminOpcode::ASYNC_EVENT_REQUEST, Offer::Always, OF_CONTROLLER),
    admin(AdminOpcode::KEEP_ALIVE, Offer::Always, OF_CONTROLLER),
    admin(AdminOpcode::FABRICS, Offer::Always, OF_CONTROLLER),
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
    nvm(NvmOpcode::FABRICS, Offer::Io, OF_CONTROLLER, Oncs::new()),
];

const PAGES: [PageEntry; 9] = [
    page(LogId::SUPPORTED_PAGES, Offer::Always, Lpa::new(), log::supported_pages),
    page(LogId::ERROR, Offer::Always, Lpa::new(), log::errors),
    page(LogId::SMART, Offer::Io, Lpa::new(), log::smart),
    page(LogId::FIRMWARE_SLOT, Offer::Io, Lpa::new(), log::firmware_slots),
    page(LogId::CHANGED_NAMESPACES, Offer::Io, Lpa::new(), log::changed_namespaces),
    page(LogId::EFFECTS, Offer::Io, Lpa::new().with_effects(true), log::effects),
    // The bit for this page and the next, and for scopes in the one before.
    page(
        LogId::FEATURE_EFFECTS,
        Offer::Io,
        Lpa::new().with_supported_pages(true),
        log::feature_effects,
    ),
    page(LogId::NVME_MI_EFFECTS, Offer::Io, Lpa::new(), log::nvme_mi_effects),
    page(LogId::DISCOVERY, Offer::Discovery, Lpa::new(), discovery::page),
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
    pub(super) fn of(kind: &Kind) -> Self {
        match kind {
            Kind::Discovery => Self::Discovery,
            Kind::Nvm(subsystem) => {
                let writable = subsystem.namespaces().iter().any(|namespace| namespace.writable);
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

    /// Whether hosts may give space back.
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

    /// Whether an admin command is there.
    pub(super) fn has_admin(self, opcode: AdminOpcode) -> bool {
        self.admin().any(|entry| entry.opcode == opcode)
    }

    /// The opcodes of the I/O commands that are there.
    pub(super) fn io_opcodes(self) -> Opcodes {
        let mut opcodes = Opcodes::default();
        self.nvm().for_each(|entry| opcodes.add(entry.opcode));
        opcodes
    }

    /// A log page, if it is there.
    pub(super) fn page(self, lid: LogId) -> Option<&'static PageEntry> {
        self.pages().find(|entry| entry.lid == lid)
    }

    /// A feature, if it is there.
    pub(super) fn feature(self, fid: FeatureId) -> Option<&'static FeatureEntry> {
        self.features().find(|entry| entry.fid == fid)
    }

    /// Optional NVM command support.
    pub(super) fn oncs(self) -> Oncs {
        let bits = self.nvm().map(|entry| entry.oncs.into_bits().get());
        Oncs::from_bits(bits.fold(0, |all, bits| all | bits).into())
    }

    /// Log page attributes. Every page is read in parts.
    pub(super) fn lpa(self) -> Lpa {
        let bits = self.pages().map(|entry| entry.lpa.into_bits());
        Lpa::from_bits(bits.fold(0, |all, bits| all | bits)).with_extended_data(true)
    }

    /// Notices that hosts may ask for.
    pub(super) const fn notices(self) -> AsyncEventConfig {
        match self {
            Self::Discovery => AsyncEventConfig::new().with_discovery_log(true),
            Self::Io { .. } => AsyncEventConfig::new().with_namespace_attribute(true),
        }
    }

    /// Optional asynchronous events supported, whose bits are those of the notices.
    pub(super) fn oaes(self) -> Oaes {
        Oaes::from_bits(self.notices().into_bits().into())
    }

    /// Supported Log Pages.
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

/// A set of opcodes, quick to ask.
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

const fn admin(opcode: AdminOpcode, offer: Offer, effects: CommandEffects) -> AdminEntry {
    AdminEntry { opcode, offer, effects }
}

const fn nvm(opcode: NvmOpcode, offer: Offer, effects: CommandEffects, oncs: Oncs) -> NvmEntry {
    NvmEntry { opcode, offer, effects, oncs }
}

const fn page(
    lid: LogId,
    offer: Offer,
    lpa: Lpa,
    make: fn(&Controller, &Shared) -> Vec<u8>,
) -> PageEntry {
    PageEntry { lid, offer, lpa, make }
}

const fn feature(fid: FeatureId, offer: Offer, scope: Scope, changeable: bool) -> FeatureEntry {
    let effects = FeatureEffects::new().with_supported(true).with_scope(scope);
    FeatureEntry { fid, offer, effects, changeable }
}

/// What Identify says of the namespace changes with it.
const fn changes_namespace(entry: FeatureEntry) -> FeatureEntry {
    FeatureEntry { effects: entry.effects.with_namespace_capability_change(true), ..entry }
}
