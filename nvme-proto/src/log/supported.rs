//! Supported Log Pages, 00h.

use bitfield_struct::bitfield;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::LogId;

/// Supported Log Pages (Base, 5.1.12.1.1): one entry for each log page identifier.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(transparent)]
pub struct SupportedLogPages(pub [SupportedPage; 256]);

const _: () = assert!(size_of::<SupportedLogPages>() == 1024);

impl SupportedLogPages {
    /// Creates the page: `pages` are supported, without index offsets.
    pub fn new(pages: &[LogId]) -> Self {
        let mut supported = Self([SupportedPage::new(); 256]);
        for page in pages {
            supported.0[usize::from(page.0)].set_supported(true);
        }
        supported
    }

    /// Returns the entry of page `lid`.
    pub fn page(&self, lid: LogId) -> SupportedPage {
        self.0[usize::from(lid.0)]
    }
}

/// Whether a log page is supported, and how.
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct SupportedPage {
    /// Bit 0: the page is supported, LSUPP.
    pub supported: bool,
    /// Bit 1: index offsets are supported, IOS.
    pub index_offset: bool,
    #[bits(14)]
    __: u16,
    /// Bits 31:16: LID specific parameter.
    pub specific: u16,
}
