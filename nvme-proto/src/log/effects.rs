//! Log pages Commands Supported and Effects, 05h, and Feature Identifiers Supported and Effects,
//! 12h.

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
    /// Page without any supported command.
    pub const EMPTY: Self = Self {
        admin: [CommandEffects::new(); 256],
        io: [CommandEffects::new(); 256],
        reserved_2048: Reserved::ZERO,
    };

    /// Returns the entry of an admin command.
    pub fn admin(&self, opcode: AdminOpcode) -> CommandEffects {
        self.admin[usize::from(opcode.0)]
    }

    /// Returns the entry of an I/O command.
    pub fn io(&self, opcode: NvmOpcode) -> CommandEffects {
        self.io[usize::from(opcode.0)]
    }

    /// Sets the entry of an admin command.
    pub fn set_admin(&mut self, opcode: AdminOpcode, effects: CommandEffects) {
        self.admin[usize::from(opcode.0)] = effects;
    }

    /// Sets the entry of an I/O command.
    pub fn set_io(&mut self, opcode: NvmOpcode, effects: CommandEffects) {
        self.io[usize::from(opcode.0)] = effects;
    }
}

/// Whether a command is supported, and its effects.
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct CommandEffects {
    /// Bit 0: the command is supported, CSUPP.
    pub supported: bool,
    /// LBCC: the command may change the content of logical blocks.
    pub block_content_change: bool,
    /// NCC: the command may change capabilities of a namespace.
    pub namespace_capability_change: bool,
    /// NIC: the command may change the number of namespaces.
    pub namespace_inventory_change: bool,
    /// CCC: the command may change capabilities of the controller.
    pub controller_capability_change: bool,
    #[bits(9)]
    __: u16,
    /// Command submission and execution relaxations, CSER.
    #[bits(2)]
    pub relaxations: u8,
    /// Command submission and execution restrictions, CSE: 0 none; 1 no other command for the same
    /// namespace may be outstanding; 2 no other command for any namespace.
    #[bits(3)]
    pub restrictions: u8,
    /// Bit 19: the command supports UUID selection.
    pub uuid_selection: bool,
    /// Bits 31:20: scope that the command acts on, CSP.
    #[bits(12)]
    pub scope: Scope,
}

impl CommandEffects {
    /// Supported command without effects.
    pub const SUPPORTED: Self = Self::new().with_supported(true);
    /// Supported command that may change the content of logical blocks.
    pub const WRITES: Self = Self::SUPPORTED.with_block_content_change(true);
}

/// Scope of a command or feature; 0 if not reported.
#[bitfield(u16)]
#[derive(PartialEq, Eq)]
pub struct Scope {
    /// Bit 0: a single namespace.
    pub namespace: bool,
    /// Bit 1: a single controller.
    pub controller: bool,
    /// Bit 2: a single NVM set.
    pub nvm_set: bool,
    /// Bit 3: a single endurance group.
    pub endurance_group: bool,
    /// Bit 4: a single domain.
    pub domain: bool,
    /// Bit 5: the whole NVM subsystem.
    pub subsystem: bool,
    #[bits(10)]
    __: u16,
}

impl Scope {
    /// Scope of a single namespace.
    pub const NAMESPACE: Self = Self::new().with_namespace(true);
    /// Scope of a single controller.
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
    /// Page without any supported feature.
    pub const EMPTY: Self = Self([FeatureEffects::new(); 256]);

    /// Returns the entry of a feature.
    pub fn feature(&self, fid: FeatureId) -> FeatureEffects {
        self.0[usize::from(fid.0)]
    }

    /// Sets the entry of a feature.
    pub fn set_feature(&mut self, fid: FeatureId, effects: FeatureEffects) {
        self.0[usize::from(fid.0)] = effects;
    }
}

/// Whether a feature is supported, and the effects of setting it.
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct FeatureEffects {
    /// Bit 0: the feature is supported, FSUPP.
    pub supported: bool,
    /// UDCC: setting it may change the content of logical blocks.
    pub block_content_change: bool,
    /// NCC: setting it may change capabilities of a namespace.
    pub namespace_capability_change: bool,
    /// NIC: setting it may change the number of namespaces.
    pub namespace_inventory_change: bool,
    /// CCC: setting it may change capabilities of the controller.
    pub controller_capability_change: bool,
    #[bits(14)]
    __: u16,
    /// Bit 19: the feature supports UUID selection.
    pub uuid_selection: bool,
    /// Bits 31:20: scope of the feature, FSP.
    #[bits(12)]
    pub scope: Scope,
}
