//! Identification of a work request, packed into its `wr_id`.

/// Kind of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkKind {
    /// Receive of a command capsule; `index` is that of the receive.
    Receive,
    /// RDMA READ of data from the host; `index` is the slot.
    Fetch,
    /// RDMA WRITE of data to the host, which completes only if it fails; `index` is the slot.
    Data,
    /// Send of a response capsule; `index` is the slot.
    Response,
}

/// Identifier of a work request: bits 63-62 of `wr_id` are the kind, 61-32 the key of the
/// connection, 31-0 the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WorkId {
    pub(super) kind: WorkKind,
    pub(super) connection: usize,
    pub(super) index: u32,
}

impl WorkId {
    pub(super) fn to_bits(self) -> u64 {
        (self.kind as u64) << 62 | (self.connection as u64) << 32 | u64::from(self.index)
    }

    pub(super) fn from_bits(bits: u64) -> Self {
        let kind = match bits >> 62 {
            0 => WorkKind::Receive,
            1 => WorkKind::Fetch,
            2 => WorkKind::Data,
            _ => WorkKind::Response,
        };
        Self { kind, connection: (bits >> 32 & 0x3FFF_FFFF) as usize, index: bits as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_packing() {
        let kinds = [WorkKind::Receive, WorkKind::Fetch, WorkKind::Data, WorkKind::Response];
        for kind in kinds {
            for (connection, index) in [(0, 0), (0x3FFF_FFFF, u32::MAX), (77, 5)] {
                let id = WorkId { kind, connection, index };
                assert_eq!(WorkId::from_bits(id.to_bits()), id);
            }
        }
    }
}
