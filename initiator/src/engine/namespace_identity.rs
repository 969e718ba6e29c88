//! The identity of a namespace, by which changes are detected after a reconnect.

use nvme_proto::identify::{Descriptors, IdDescriptor, IdentifyNamespace};
use nvme_proto::{Nsid, Status, view};

use crate::engine::block_plan::Geometry;
use crate::types::error::{Error, ErrorKind};

/// Identifiers, size and format of a namespace, as the controller reports them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamespaceIdentity {
    pub(crate) nsid: Nsid,
    pub(crate) blocks: u64,
    pub(crate) block_bytes: u64,
    /// Length of the file behind it, if the target reports that; else the size of all blocks.
    pub(crate) size_bytes: u64,
    pub(crate) name: Option<String>,
    /// Number that changes when the bytes may have changed, if the target reports it.
    pub(crate) generation: Option<u64>,
    pub(crate) write_protected: bool,
    pub(crate) uuid: Option<[u8; 16]>,
    pub(crate) nguid: Option<[u8; 16]>,
    pub(crate) eui64: Option<[u8; 8]>,
    /// Identifier of its ANA group, 0 for none. Not part of the identity, since it depends on the
    /// path.
    pub(crate) ana_group: u32,
}

/// Returns whether this status of Identify (CNS 03h) means that the controller does not support the
/// descriptors, as those before NVMe 1.3.
pub(crate) fn lacks_descriptors(status: Status) -> bool {
    status.is(Status::INVALID_FIELD)
}

impl NamespaceIdentity {
    /// Parses Identify Namespace (CNS 00h).
    pub(crate) fn parse(nsid: Nsid, data: &[u8]) -> Result<Self, Error> {
        let namespace: &IdentifyNamespace = view(data)?;
        let blocks = namespace.nsze.get();
        if blocks == 0 {
            return Err(
                ErrorKind::NoNamespace("there is no active namespace of this number").into()
            );
        }
        let format = namespace
            .lba_format()
            .ok_or(ErrorKind::Malformed("a namespace names an LBA format that it does not have"))?;
        if format.ms.get() != 0 {
            return Err(ErrorKind::Unsupported("namespaces with metadata").into());
        }
        let block_bytes: u64 = format
            .block_bytes()
            .ok_or(ErrorKind::Malformed("a namespace has blocks of no valid size"))?
            .into();
        let capacity = blocks
            .checked_mul(block_bytes)
            .ok_or(ErrorKind::Malformed("a namespace is larger than 2^64 bytes"))?;
        let file = namespace.file_info();
        // A length that does not fit the number of blocks is ignored: it is wrong, or of another
        // namespace.
        let file = file.filter(|file| file.length_bytes().div_ceil(block_bytes) == blocks);
        Ok(Self {
            nsid,
            blocks,
            block_bytes,
            size_bytes: file.map_or(capacity, |file| file.length_bytes()),
            name: file.map(|file| file.name().to_owned()),
            generation: file.and_then(|file| file.generation()),
            write_protected: namespace.nsattr.write_protected(),
            uuid: None,
            nguid: some_id(namespace.nguid),
            eui64: some_id(namespace.eui64),
            ana_group: namespace.anagrpid.get(),
        })
    }

    /// Adds the Namespace Identification Descriptors (CNS 03h).
    pub(crate) fn add_descriptors(&mut self, data: &[u8]) {
        for descriptor in Descriptors::new(data) {
            match descriptor {
                IdDescriptor::Uuid(id) => self.uuid = some_id(id),
                IdDescriptor::Nguid(id) => self.nguid = some_id(id),
                IdDescriptor::Eui64(id) => self.eui64 = some_id(id),
                IdDescriptor::Csi(_) => {}
            }
        }
    }

    /// Returns the difference to another identity as text; `None` if the namespace is the same.
    /// Write protection is not compared.
    pub(crate) fn difference(&self, other: &Self) -> Option<String> {
        if self.uuid != other.uuid {
            return Some(changed("its UUID", text(&self.uuid), text(&other.uuid)));
        }
        if self.nguid != other.nguid {
            return Some(changed("its NGUID", text(&self.nguid), text(&other.nguid)));
        }
        if self.eui64 != other.eui64 {
            return Some(changed("its EUI64", text(&self.eui64), text(&other.eui64)));
        }
        if self.block_bytes != other.block_bytes {
            return Some(changed("its block size", self.block_bytes, other.block_bytes));
        }
        if self.size_bytes != other.size_bytes || self.blocks != other.blocks {
            return Some(changed("its size", self.size_bytes, other.size_bytes));
        }
        // Compared only if a generation was reported when the namespace was opened.
        if self.generation.is_some() && self.generation != other.generation {
            return Some("the file behind it was replaced or modified".to_owned());
        }
        None
    }

    /// Returns the limits of commands to it.
    pub(crate) fn geometry(&self, max_transfer_bytes: u64) -> Result<Geometry, Error> {
        Geometry::new(self.block_bytes, max_transfer_bytes)
            .ok_or_else(|| ErrorKind::Unsupported("the namespace's block size").into())
    }
}

fn some_id<const N: usize>(id: [u8; N]) -> Option<[u8; N]> {
    (id != [0; N]).then_some(id)
}

fn changed(what: &str, from: impl core::fmt::Display, to: impl core::fmt::Display) -> String {
    format!("{what} was {from} and is now {to}")
}

fn text<const N: usize>(id: &Option<[u8; N]>) -> String {
    match id {
        Some(id) => id.iter().map(|byte| format!("{byte:02x}")).collect(),
        None => "none".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use nvme_proto::identify::{FileInfo, IdDescriptor, write_descriptors};
    use nvme_proto::{FromZeros, IntoBytes, LbaFormat};
    use proptest::prelude::*;

    use super::*;

    fn namespace(blocks: u64, length: Option<u64>) -> Vec<u8> {
        let mut namespace = IdentifyNamespace::new_zeroed();
        namespace.nsze.set(blocks);
        namespace.lbaf[0] = LbaFormat::new(4096).unwrap();
        if let Some(length) = length {
            namespace.set_file_info(&FileInfo::new(length, "shard"));
        }
        namespace.as_bytes().to_vec()
    }

    fn parse(data: &[u8]) -> NamespaceIdentity {
        NamespaceIdentity::parse(Nsid(1), data).unwrap()
    }

    #[test]
    fn a_fitting_exact_length_is_the_size() {
        assert_eq!(parse(&namespace(3, None)).size_bytes, 12_288);
        assert_eq!(parse(&namespace(3, Some(8_193))).size_bytes, 8_193);
        assert_eq!(parse(&namespace(3, Some(12_288))).size_bytes, 12_288);
        for wrong in [0, 8_192, 12_289, u64::MAX] {
            assert_eq!(parse(&namespace(3, Some(wrong))).size_bytes, 12_288);
        }
    }

    #[test]
    fn a_damaged_record_is_as_good_as_none() {
        let mut data = namespace(3, Some(8_193));
        data[400] ^= 1;
        assert_eq!(parse(&data).size_bytes, 12_288);
    }

    #[test]
    fn each_difference_is_noticed_and_named() {
        let same = parse(&namespace(3, Some(9_000)));
        assert_eq!(same.difference(&same.clone()), None);
        let mut other = same.clone();
        let mut descriptors = vec![0; 4096];
        write_descriptors(&mut descriptors, &[IdDescriptor::Uuid([3; 16])]);
        other.add_descriptors(&descriptors);
        assert!(same.difference(&other).unwrap().contains("UUID was none and is now 0303"));
        let shorter = parse(&namespace(3, Some(8_999)));
        assert!(same.difference(&shorter).unwrap().contains("size was 9000 and is now 8999"));
        let replaced = NamespaceIdentity { generation: Some(2), ..same.clone() };
        assert_eq!(same.difference(&replaced), None, "it told none before");
        let replaced_again = NamespaceIdentity { generation: Some(3), ..same.clone() };
        assert!(replaced.difference(&replaced_again).unwrap().contains("replaced"));
        assert!(replaced.difference(&same).is_some());
        let protected = NamespaceIdentity { write_protected: true, ..same.clone() };
        assert_eq!(same.difference(&protected), None);
    }

    proptest! {
        #[test]
        fn whatever_a_target_says_is_parsed_or_refused(
            mut data in prop::collection::vec(any::<u8>(), 0..4200),
            lbads in 0u8..70,
            flbas in any::<u8>(),
        ) {
            if data.len() > 200 {
                data[130] = lbads;
                data[26] = flbas;
            }
            if let Ok(mut identity) = NamespaceIdentity::parse(Nsid(1), &data) {
                prop_assert!(identity.size_bytes <= identity.blocks.saturating_mul(identity.block_bytes));
                identity.add_descriptors(&data);
                let _ = identity.geometry(1 << 20);
            }
        }
    }
}
