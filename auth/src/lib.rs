//! In-band authentication of NVMe over Fabrics: DH-HMAC-CHAP as sans-IO state machines.
//!
//! [`HostAuth`] runs one transaction of a host, [`ControllerAuth`] all transactions of a
//! controller's queue. They do no I/O and read no clock. Exponentiations are work that the caller
//! executes where it likes ([`HostWork`], [`ControllerWork`]; [`WorkSlots`] bounds them).
//!
//! A [`Secret`] is what operators configure, and an [`AuthKey`] is what it becomes for an NQN.
//! [`read_key_file`] reads a secret. Secrets are zeroed when they are dropped, compared in constant
//! time and never printed; [`Secret::to_representation`] is the exception.
//!
//! Source, cited by section: *NVM Express Base Specification*, revision 2.1 ("Base").
#![forbid(unsafe_code)]

mod controller;
mod digest;
mod group;
mod group_primes;
mod hash;
mod host;
mod host_entry;
mod key_agreement;
mod key_file;
mod negotiation;
mod outcome;
mod random;
mod response;
mod secret;
mod sequence;
mod work_slots;

pub use controller::{
    ControllerAuth, ControllerWork, ControllerWorkResult, HostKeys, ReceiveReaction, SendReaction,
    TimeoutReaction, WorkId,
};
pub use digest::AuthDigest;
pub use group::DhGroup;
pub use hash::HashFunction;
pub use host::{HostAuth, HostSetup, HostStep, HostWork, HostWorkResult};
pub use host_entry::{
    HostEntry, HostEntryError, HostSecrets, check_hosts, groups_from_names, hashes_from_names,
};
pub use key_agreement::{InvalidPublicValue, KeyPair, PublicValue, SharedSecret};
pub use key_file::{KeyFileError, KeyFileProblem, read_key_file, read_key_file_with};
pub use negotiation::{AuthOffer, AuthPolicy, Preference};
pub use outcome::{AuthEvent, Authenticated, HostAuthError};
pub use random::RandomBytes;
pub use response::{Parties, ResponseInput};
pub use secret::{AuthKey, InvalidSecret, Secret, Transformation};
pub use sequence::SequenceNumbers;
pub use work_slots::WorkSlots;
