//! Property Get and Property Set.

use zerocopy::little_endian::U32;

use crate::registers::Property;
use crate::{FabricsType, Sqe, Status};

/// Property Get (Base, 6.5): dwords 0 and 1 of the completion have the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PropertyGet {
    /// Property to read, identified by its offset in bytes.
    pub property: Property,
    /// Size of the access.
    pub size: PropertySize,
}

impl PropertyGet {
    /// Decodes command dwords 10 (size) and 11 (offset); the opcode is not checked.
    ///
    /// # Errors
    /// Invalid Field in Command, with Do Not Retry, for a size that is neither 4 nor 8 bytes.
    pub fn parse(sqe: &Sqe) -> Result<Self, Status> {
        Ok(Self { property: Property(sqe.cdw11.get()), size: PropertySize::parse(sqe)? })
    }

    /// Encodes the command; [`Sqe::with_cid`] and [`Sqe::with_data`] add the identifier and the
    /// data pointer.
    pub fn to_sqe(&self) -> Sqe {
        let mut sqe = Sqe::fabrics(FabricsType::PROPERTY_GET);
        sqe.cdw10 = self.size.to_dword();
        sqe.cdw11 = U32::new(self.property.0);
        sqe
    }
}

/// Property Set (Base, 6.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PropertySet {
    /// Property to write, identified by its offset in bytes.
    pub property: Property,
    /// Size of the access.
    pub size: PropertySize,
    /// Value to write; only the low half for an access of 4 bytes.
    pub value: u64,
}

impl PropertySet {
    /// Decodes command dwords 10 (size), 11 (offset), 12 and 13 (value); the opcode is not checked.
    ///
    /// # Errors
    /// Invalid Field in Command, with Do Not Retry, for a size that is neither 4 nor 8 bytes.
    pub fn parse(sqe: &Sqe) -> Result<Self, Status> {
        let size = PropertySize::parse(sqe)?;
        let high = match size {
            PropertySize::FourBytes => 0,
            PropertySize::EightBytes => sqe.cdw13.get(),
        };
        let value = u64::from(sqe.cdw12.get()) | u64::from(high) << 32;
        Ok(Self { property: Property(sqe.cdw11.get()), size, value })
    }

    /// Encodes the command; [`Sqe::with_cid`] and [`Sqe::with_data`] add the identifier and the
    /// data pointer.
    pub fn to_sqe(&self) -> Sqe {
        let mut sqe = Sqe::fabrics(FabricsType::PROPERTY_SET);
        sqe.cdw10 = self.size.to_dword();
        sqe.cdw11 = U32::new(self.property.0);
        sqe.cdw12 = U32::new(self.value as u32);
        sqe.cdw13 = U32::new((self.value >> 32) as u32);
        sqe
    }
}

/// Size of an access to a property, bits 2:0 of command dword 10.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PropertySize {
    /// Four bytes, coded as 0.
    FourBytes,
    /// Eight bytes, coded as 1.
    EightBytes,
}

impl PropertySize {
    fn parse(sqe: &Sqe) -> Result<Self, Status> {
        match sqe.cdw10.get() & 0b111 {
            0 => Ok(Self::FourBytes),
            1 => Ok(Self::EightBytes),
            _ => Err(Status::INVALID_FIELD.with_dnr()),
        }
    }

    fn to_dword(self) -> U32 {
        match self {
            Self::FourBytes => U32::new(0),
            Self::EightBytes => U32::new(1),
        }
    }
}
