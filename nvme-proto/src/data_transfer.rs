//! Length and direction of a command's data.

use crate::DataDirection;

/// Data transfer that the fields of a command imply. The SGL must describe at least as many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataTransfer {
    /// Direction of the transfer; [`DataDirection::None`] for a command without data.
    pub direction: DataDirection,
    /// Length in bytes; 0 for [`DataDirection::None`].
    pub length_bytes: u64,
}

impl DataTransfer {
    /// No data is transferred.
    pub const NONE: Self = Self { direction: DataDirection::None, length_bytes: 0 };

    pub(crate) const fn to_host(length_bytes: u64) -> Self {
        Self { direction: DataDirection::ControllerToHost, length_bytes }
    }

    pub(crate) const fn from_host(length_bytes: u64) -> Self {
        Self { direction: DataDirection::HostToController, length_bytes }
    }
}
