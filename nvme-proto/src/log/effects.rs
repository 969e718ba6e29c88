//! What commands and features do: Commands Supported and Effects, 05h, and Feature Identifiers
//! Supported and Effects, 12h.

use bitfield_struct::bitfield;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::feature::FeatureId;
use crate::{AdminOpcode, NvmOpcode, Reserved};

/// Commands Supported and Effects (Base, 5.1.12.1.6): one entry for each opcode.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct EffectsLog {
    admin: [CommandEffects; 256],
    io: [CommandEffects; 256],
    reserved_2048: Reserved<2048>,
}

const _: () = assert!(size_of::<EffectsLog>() == 4096);

impl EffectsLog {
    /// No command supported.
    pub const EMPTY: Self = Self {
        admin: [CommandEffects::new(); 256],
        io: [CommandEffects::new(); 256],
        reserved_2048: Reserved::ZERO,
    };

    /// What is said of an admin command.
    pub fn admin(&self, opcode: AdminOpcode) -> CommandEffects {
        self.admin[usize::from(opcode.0)]
    }

    /// What is said of an I/O command.
    pub fn io(&self, opcode: NvmOpcode) -> CommandEffects {
        self.io[usize::from(opcode.0)]
    }

    /// Says what an admin command does.
    pub fn set_admin(&mut self, opcode: AdminOpcode, effects: CommandEffects) {
        self.admin[usize::from(opcode.0)] = effects;
    }

    /// Says what an I/O command does.
    pub fn set_io(&mut self, opcode: NvmOpcode, effects: CommandEffects) {
        self.io[usize::from(opcode.0)] = effects;
    }
}

/// What a command does.
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct CommandEffects {
    /// Supported, CSUPP.
    pub supported: bool,
    /// May change blocks, LBCC.
    pub block_content_change: bool,
    /// May change what Identify says of a namespace, NCC.
    pub namespace_capability_change: bool,
    /// May change the set of namespaces, NIC.
    pub namespace_inventory_change: bool,
    /// May change the capabilities of the controller, CCC.
    pub controller_capability_change: bool,
    #[bits(9)]
    __: u16,
    /// Submission and execution relaxations, CSER.
    #[bits(2)]
    pub relaxations: u8,
    /// Submission and execution restrictions, CSE: 0 none, 1 none other on the namespace, 2 none
    /// other at all.
    #[bits(3)]
    pub restrictions: u8,
    /// UUID selection supported.
    pub uuid_selection: bool,
    /// What it may act on, CSP.
    #[bits(12)]
    pub scope: Scope,
}

impl CommandEffects {
    /// Supported, and changes nothing.
    pub const SUPPORTED: Self = Self::new().with_supported(true);
    /// Supported, and may change blocks.
    pub const WRITES: Self = Self::SUPPORTED.with_block_content_change(true);
}

/// What a command or feature acts on; none of it where that is not said.
#[bitfield(u16)]
#[derive(PartialEq, Eq)]
pub struct Scope {
    /// One namespace.
    pub namespace: bool,
    /// One controller.
    pub controller: bool,
    /// One NVM set.
    pub nvm_set: bool,
    /// One endurance group.
    pub endurance_group: bool,
    /// One domain.
    pub domain: bool,
    /// The NVM subsystem.
    pub subsystem: bool,
    #[bits(10)]
    __: u16,
}

impl Scope {
    /// One namespace.
    pub const NAMESPACE: Self = Self::new().with_namespace(true);
    /// One controller.
    pub const CONTROLLER: Self = Self::new().with_controller(true);
}

/// Feature Identifiers Supported and Effects (Base, 5.1.12.1.18): one entry for each feature.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(transparent)]
pub struct FeatureEffectsLog([FeatureEffects; 256]);

const _: () = assert!(size_of::<FeatureEffectsLog>() == 1024);

impl FeatureEffectsLog {
    /// No feature supported.
    pub const EMPTY: Self = Self([FeatureEffects::new(); 256]);

    /// What is said of a feature.
    pub fn feature(&self, fid: FeatureId) -> FeatureEffects {
        self.0[usize::from(fid.0)]
    }

    /// Says what setting a feature does.
    pub fn set_feature(&mut self, fid: FeatureId, effects: FeatureEffects) {
        self.0[usize::from(fid.0)] = effects;
    }
}

/// What setting a feature does.
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct FeatureEffects {
    /// Supported, FSUPP.
    pub supported: bool,
    /// May change blocks, UDCC.
    pub block_content_change: bool,
    /// May change what Identify says of a namespace, NCC.
    pub namespace_capability_change: bool,
    /// May change the set of namespaces, NIC.
    pub namespace_inventory_change: bool,
    /// May change the capabilities of the controller, CCC.
    pub controller_capability_change: bool,
    #[bits(14)]
    __: u16,
    /// UUID selection supported.
    pub uuid_selection: bool,
    /// What it belongs to, FSP.
    #[bits(12)]
    pub scope: Scope,
}
