//! UUIDs, NGUIDs and EUI-64s of namespaces. A host takes namespaces that share one for paths to one
//! disk.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::str::FromStr;

use nvme_proto::Nqn;
use uuid::Uuid;

use super::{Medium, NamespaceConfig};
use crate::derived_ids::SubsystemIdentity;

/// A kind of identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum IdentifierKind {
    /// The UUID of a namespace.
    Uuid,
    /// The Namespace Globally Unique Identifier.
    Nguid,
    /// The IEEE Extended Unique Identifier.
    Eui64,
}

/// An IEEE Extended Unique Identifier, written as 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eui64(pub [u8; 8]);

impl FromStr for Eui64 {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_hex = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = is_hex.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        number.map(|id| Self(id.to_be_bytes())).ok_or("must be 16 hexadecimal digits")
    }
}

impl fmt::Display for Eui64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

impl fmt::Display for IdentifierKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Uuid => "UUID",
            Self::Nguid => "NGUID",
            Self::Eui64 => "EUI-64",
        })
    }
}

/// An identifier that cannot be that of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum IdentifierError {
    /// Zeros, which stand for no identifier.
    #[error("the nil {0} identifies nothing; leave it out, or give a real one")]
    Nil(IdentifierKind),
    /// A namespace of other data has it.
    #[error(
        "has the {kind} {id} of \"{other}\" of {nqn}; hosts would take them for one disk, so give it one of its own"
    )]
    Taken {
        kind: IdentifierKind,
        id: String,
        /// The name of the namespace that has it.
        other: String,
        /// The subsystem of that namespace.
        nqn: String,
    },
}

/// The NGUID of a namespace that was given none: the bytes of its UUID, as SPDK has it.
pub(crate) fn derived_nguid(uuid: Uuid) -> [u8; 16] {
    uuid.into_bytes()
}

/// The identifiers of a namespace.
fn of(namespace: &NamespaceConfig) -> impl Iterator<Item = (IdentifierKind, String)> {
    let nguid = Uuid::from_bytes(namespace.nguid).simple().to_string();
    let always =
        [(IdentifierKind::Uuid, namespace.uuid.to_string()), (IdentifierKind::Nguid, nguid)];
    let eui64 = namespace.eui64.map(|id| (IdentifierKind::Eui64, id.to_string()));
    always.into_iter().chain(eui64)
}

/// Identifiers in use, each with a namespace that has it.
#[derive(Debug, Default)]
pub(crate) struct Identifiers(BTreeMap<(IdentifierKind, String), User>);

#[derive(Clone, Debug)]
struct User {
    nqn: Nqn,
    name: String,
    medium: Medium,
    of_dataset: bool,
}

impl Identifiers {
    /// Adds those of a namespace.
    ///
    /// # Errors
    /// One is nil, or a namespace of other data has it. Two subsystems have the same data where
    /// they export one file or device, or files of one name in one dataset.
    pub(crate) fn add(
        &mut self,
        identity: &SubsystemIdentity,
        namespace: &NamespaceConfig,
    ) -> Result<(), IdentifierError> {
        let of_dataset = identity.has_dataset()
            && namespace.uuid == namespace.medium.namespace_uuid(identity, &namespace.name);
        let user = User {
            nqn: identity.nqn(),
            name: namespace.name.clone(),
            medium: namespace.medium.clone(),
            of_dataset,
        };
        for (kind, id) in of(namespace) {
            if id.bytes().all(|byte| matches!(byte, b'0' | b'-')) {
                return Err(IdentifierError::Nil(kind));
            }
            match self.0.entry((kind, id.clone())) {
                Entry::Vacant(free) => {
                    free.insert(user.clone());
                }
                Entry::Occupied(taken) if taken.get().has_data_of(&user) => {}
                Entry::Occupied(taken) => {
                    let User { nqn, name, .. } = taken.get();
                    let (nqn, other) = (nqn.to_string(), name.clone());
                    return Err(IdentifierError::Taken { kind, id, other, nqn });
                }
            }
        }
        Ok(())
    }
}

impl User {
    fn has_data_of(&self, other: &Self) -> bool {
        let is_one_file = self.medium.path().is_some() && self.medium == other.medium;
        self.nqn != other.nqn && (is_one_file || self.of_dataset && other.of_dataset)
    }
}

/// True if two namespaces have an identifier in common.
pub(crate) fn share_one(one: &NamespaceConfig, other: &NamespaceConfig) -> bool {
    let is_same_eui64 = one.eui64.is_some() && one.eui64 == other.eui64;
    one.uuid == other.uuid || one.nguid == other.nguid || is_same_eui64
}
