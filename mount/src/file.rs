//! The file of a namespace, or of several that have the same bytes.

use std::time::Duration;

use feedrail_initiator::{NamespaceInfo, Nsid};
use uuid::Uuid;

/// Seconds from 1970 to 2000.
const YEAR_2000: Duration = Duration::from_secs(946_684_800);
/// Bits of a generation that become seconds: 17 years of them.
const SECONDS_BITS: u32 = 29;

/// Properties of a namespace whose bytes are those that were read before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) size_bytes: u64,
    pub(crate) uuid: Option<[u8; 16]>,
    pub(crate) nguid: Option<[u8; 16]>,
    pub(crate) eui64: Option<[u8; 8]>,
    pub(crate) generation: Option<u64>,
}

impl Identity {
    pub(crate) fn of(info: &NamespaceInfo) -> Self {
        Self {
            size_bytes: info.size_bytes,
            uuid: info.uuid,
            nguid: info.nguid,
            eui64: info.eui64,
            generation: info.generation,
        }
    }
}

/// A namespace that has the bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileReplica {
    /// Number of its target.
    pub(crate) target: usize,
    pub(crate) nsid: Nsid,
    pub(crate) identity: Identity,
}

impl FileReplica {
    /// Whether a namespace that was opened is this one.
    pub(crate) fn is(&self, info: &NamespaceInfo) -> bool {
        self.identity == Identity::of(info)
    }
}

/// One version of a file: other bytes are another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileVersion {
    pub(crate) size_bytes: u64,
    pub(crate) uuid: Option<[u8; 16]>,
    pub(crate) generation: Option<u64>,
    /// Where to read it from, the best first.
    pub(crate) replicas: Vec<FileReplica>,
}

impl FileVersion {
    pub(crate) fn of_namespace(target: usize, info: &NamespaceInfo) -> Self {
        let replica = FileReplica { target, nsid: info.nsid, identity: Identity::of(info) };
        Self {
            size_bytes: info.size_bytes,
            uuid: info.uuid,
            generation: info.generation,
            replicas: vec![replica],
        }
    }

    /// Whether another version has the same bytes: then pages of the one are pages of the other.
    pub(crate) fn is_same_as(&self, other: &Self) -> bool {
        let of = |file: &Self| (file.size_bytes, file.uuid, file.generation);
        if of(self) != of(other) {
            return false;
        }
        // A file of nowhere keeps its pages until it is somewhere else.
        let replicas = |file: &Self| file.replicas.first().map(|first| first.identity.clone());
        replicas(self).zip(replicas(other)).is_none_or(|(one, other)| one == other)
            || self.replicas.iter().any(|one| other.replicas.contains(one))
    }

    /// A time that differs where generations do, and is the same on all machines: no time of any
    /// event. Between 2000 and 2017; `None` without a generation.
    pub(crate) fn modified(&self) -> Option<Duration> {
        let generation = self.generation?;
        let seconds = generation >> (u64::BITS - SECONDS_BITS);
        let rest = generation & (u64::MAX >> SECONDS_BITS);
        Some(YEAR_2000 + Duration::new(seconds, (rest % 1_000_000_000) as u32))
    }

    pub(crate) fn uuid_text(&self) -> Option<String> {
        self.uuid.map(|uuid| Uuid::from_bytes(uuid).to_string())
    }

    /// The generation as text, of 16 hexadecimal digits.
    pub(crate) fn generation_text(&self) -> Option<String> {
        self.generation.map(|generation| format!("{generation:016x}"))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A version of a file at target 0.
    pub(crate) fn version(nsid: u32, size_bytes: u64, generation: u64) -> FileVersion {
        let identity = Identity {
            size_bytes,
            uuid: Some([nsid as u8; 16]),
            nguid: None,
            eui64: None,
            generation: Some(generation),
        };
        FileVersion {
            size_bytes,
            uuid: identity.uuid,
            generation: identity.generation,
            replicas: vec![FileReplica { target: 0, nsid: Nsid(nsid), identity }],
        }
    }

    #[test]
    fn other_bytes_are_another_version() {
        let one = version(1, 10, 7);
        assert!(one.is_same_as(&one.clone()));
        let moved = FileVersion {
            replicas: vec![FileReplica { nsid: Nsid(9), ..one.replicas[0].clone() }],
            ..one.clone()
        };
        assert!(one.is_same_as(&moved), "another number is no change of bytes");
        for other in [version(2, 10, 7), version(1, 11, 7), version(1, 10, 8)] {
            assert!(!one.is_same_as(&other));
        }
    }

    #[test]
    fn generations_are_times() {
        let modified = |generation| version(1, 1, generation).modified().unwrap();
        assert_eq!(modified(0), YEAR_2000);
        assert_eq!(modified(1) - YEAR_2000, Duration::from_nanos(1));
        assert_ne!(modified(1 << 60), modified(1 << 61));
        assert!(modified(u64::MAX) < YEAR_2000 + Duration::from_secs(1 << SECONDS_BITS));
        let untold = FileVersion { generation: None, ..version(1, 1, 1) };
        assert_eq!(untold.modified(), None);
    }
}
