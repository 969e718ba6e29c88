//! Commands Supported and Effects, 05h.

use bitfield_struct::bitfield;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

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
    /// Submission and execution restrictions, CSE: 0 none, 1 none other on the namespace, 2 none other at all.
    #[bits(3)]
    pub restrictions: u8,
    /// UUID selection supported.
    pub uuid_selection: bool,
    /// Scope, CSP.
    #[bits(12)]
    pub scope: u16,
}

impl CommandEffects {
    /// Supported, and changes nothing.
    pub const SUPPORTED: Self = Self::new().with_supported(true);
    /// Supported, and may change blocks.
    pub const WRITES: Self = Self::SUPPORTED.with_block_content_change(true);
}
