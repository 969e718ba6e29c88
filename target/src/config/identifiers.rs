//! UUIDs, NGUIDs and EUI-64s of namespaces. A host takes two namespaces with an equal identifier
//! for paths to one disk.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use nvme_proto::Nqn;
use uuid::Uuid;

use super::values::Eui64;
use super::{Medium, NamespaceConfig};
use crate::derived_ids::SubsystemIdentity;

/// Identifier of a namespace. Identifiers of different kinds are never equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Identifier {
    /// Universally Unique Identifier, 128 bits.
    Uuid(Uuid),
    /// Namespace Globally Unique Identifier, 128 bits.
    Nguid(Uuid),
    /// IEEE Extended Unique Identifier, 64 bits.
    Eui64(Eui64),
}

impl Identifier {
    fn is_nil(self) -> bool {
        match self {
            Self::Uuid(id) | Self::Nguid(id) => id.is_nil(),
            Self::Eui64(Eui64(id)) => id == [0; 8],
        }
    }

    fn kind(self) -> &'static str {
        match self {
            Self::Uuid(_) => "UUID",
            Self::Nguid(_) => "NGUID",
            Self::Eui64(_) => "EUI-64",
        }
    }
}

impl fmt::Display for Identifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind();
        match self {
            Self::Uuid(id) => write!(f, "{kind} {id}"),
            Self::Nguid(id) => write!(f, "{kind} {}", id.simple()),
            Self::Eui64(id) => write!(f, "{kind} {id}"),
        }
    }
}

/// Reason that an identifier is refused for a namespace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum IdentifierError {
    /// The identifier is all zeros, which stands for no identifier. The field is its kind.
    #[error("the nil {0} identifies nothing; leave it out, or give a real one")]
    Nil(&'static str),
    /// A namespace with other data has the identifier.
    #[error(
        "has the {id} of \"{other}\" of {nqn}; hosts would take them for one disk, so give it one of its own"
    )]
    Taken {
        id: Identifier,
        /// Name of the namespace that has the identifier.
        other: String,
        /// Subsystem of that namespace.
        nqn: String,
    },
}

fn of(namespace: &NamespaceConfig) -> impl Iterator<Item = Identifier> {
    let nguid = Uuid::from_bytes(namespace.nguid);
    let always = [Identifier::Uuid(namespace.uuid), Identifier::Nguid(nguid)];
    always.into_iter().chain(namespace.eui64.map(Identifier::Eui64))
}

/// Identifiers in use, each with a namespace that has it.
#[derive(Debug, Default)]
pub(crate) struct Identifiers(BTreeMap<Identifier, User>);

#[derive(Clone, Debug)]
struct User {
    nqn: Nqn,
    name: String,
    medium: Medium,
    of_dataset: bool,
}

impl Identifiers {
    /// Adds the identifiers of a namespace.
    ///
    /// # Errors
    /// One is nil, or a namespace with other data has it. Two subsystems have the same data if they
    /// export the same file or device, or files with the same name of one dataset.
    pub(crate) fn add(
        &mut self,
        identity: &SubsystemIdentity,
        namespace: &NamespaceConfig,
    ) -> Result<(), IdentifierError> {
        let of_dataset = identity.has_dataset()
            && namespace.uuid == namespace.medium.namespace_uuid(identity, &namespace.name);
        let user = User {
            nqn: identity.nqn(),
            name: namespace.name.to_string(),
            medium: namespace.medium.clone(),
            of_dataset,
        };
        for id in of(namespace) {
            if id.is_nil() {
                return Err(IdentifierError::Nil(id.kind()));
            }
            match self.0.entry(id) {
                Entry::Vacant(free) => {
                    free.insert(user.clone());
                }
                Entry::Occupied(taken) if taken.get().has_data_of(&user) => {}
                Entry::Occupied(taken) => {
                    let User { nqn, name, .. } = taken.get();
                    let (nqn, other) = (nqn.to_string(), name.clone());
                    return Err(IdentifierError::Taken { id, other, nqn });
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

/// Whether two namespaces have an identifier in common.
pub(crate) fn share_one(one: &NamespaceConfig, other: &NamespaceConfig) -> bool {
    of(one).any(|id| of(other).any(|of_other| of_other == id))
}
