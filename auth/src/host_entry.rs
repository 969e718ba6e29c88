//! Hosts of a target's configuration that have to authenticate.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use nvme_proto::{HostNqn, Nqn};
use serde::{Deserialize, Deserializer, de};

use crate::controller::HostKeys;
use crate::group::DhGroup;
use crate::hash::HashFunction;
use crate::key_file::{KeyFileError, read_key_file_with};
use crate::negotiation::{AuthPolicy, Preference};
use crate::secret::Secret;

/// `[[subsystem.host]]`: a host of a subsystem, its key files, and what it may negotiate.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostEntry {
    /// NQN of the host.
    #[serde(deserialize_with = "from_text")]
    pub nqn: HostNqn,
    /// File with the secret of the host.
    pub dhchap_key: PathBuf,
    /// File with the secret of the subsystem towards this host.
    pub dhchap_ctrl_key: Option<PathBuf>,
    /// Allowed hash functions, the preferred one first; those of the target if it is missing.
    #[serde(default, deserialize_with = "hashes_from_names")]
    pub hashes: Vec<HashFunction>,
    /// Allowed groups, the preferred one first; `null` is the null group. Those of the target if it
    /// is missing.
    #[serde(default, deserialize_with = "groups_from_names")]
    pub groups: Vec<Option<DhGroup>>,
}

/// Secrets of a host's entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSecrets {
    /// Secret of the host.
    pub host: Secret,
    /// Secret of the subsystem towards the host.
    pub controller: Option<Secret>,
}

impl HostEntry {
    /// Reads the key files.
    ///
    /// # Errors
    /// [`KeyFileError`] of the first file that is refused.
    pub fn read_secrets(&self) -> Result<HostSecrets, KeyFileError> {
        self.read_secrets_with(&|path| File::open(path))
    }

    /// Reads the key files as [`HostEntry::read_secrets`] does, with a function that opens them.
    ///
    /// # Errors
    /// [`KeyFileError`] of the first file that is refused.
    pub fn read_secrets_with(
        &self,
        open: &dyn Fn(&Path) -> io::Result<File>,
    ) -> Result<HostSecrets, KeyFileError> {
        let read = |path: &PathBuf| read_key_file_with(path, open);
        let controller = self.dhchap_ctrl_key.as_ref().map(read).transpose()?;
        Ok(HostSecrets { host: read(&self.dhchap_key)?, controller })
    }

    /// Hash functions and groups that the host may negotiate; those of `target` where the entry
    /// names none.
    pub fn policy(&self, target: &AuthPolicy) -> AuthPolicy {
        AuthPolicy {
            hashes: selection(&self.hashes).unwrap_or_else(|| target.hashes.clone()),
            groups: selection(&self.groups).unwrap_or_else(|| target.groups.clone()),
        }
    }
}

impl HostSecrets {
    /// Makes the keys of the host and of the subsystem.
    pub fn keys(&self, host: &HostNqn, subsystem: &Nqn) -> HostKeys {
        HostKeys {
            host: self.host.key_for(&host.0),
            controller: self.controller.as_ref().map(|secret| secret.key_for(subsystem)),
        }
    }
}

/// Mistake in the hosts of a subsystem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostEntryError {
    /// A host has several entries.
    #[error("the host {0} has two entries in one subsystem: remove one of them")]
    Repeated(Box<HostNqn>),
    /// Two names have one secret that is used as it is, so that one can pass for the other.
    #[error(
        "{} and {} contain the same secret without a transformation (DHHC-1:00), so that one host \
         could pass for the other: make a new one with `feedrail gen-dhchap-key`",
        .first.display(),
        .second.display()
    )]
    Shared {
        /// File with the secret.
        first: PathBuf,
        /// File with the secret again.
        second: PathBuf,
    },
}

/// Checks that each host has one entry, and that no untransformed secret belongs to two names
/// (Base, 8.3.4.5.7).
///
/// # Errors
/// [`HostEntryError`] for the first mistake.
pub fn check_hosts(hosts: &[(HostEntry, HostSecrets)]) -> Result<(), HostEntryError> {
    let mut by_nqn = BTreeMap::new();
    for (entry, _) in hosts {
        if by_nqn.insert(entry.nqn, ()).is_some() {
            return Err(HostEntryError::Repeated(Box::new(entry.nqn)));
        }
    }
    let secrets: Vec<(&PathBuf, &Secret)> = hosts
        .iter()
        .flat_map(|(entry, secrets)| {
            let controller = entry.dhchap_ctrl_key.as_ref().zip(secrets.controller.as_ref());
            [(&entry.dhchap_key, &secrets.host)].into_iter().chain(controller)
        })
        .filter(|(_, secret)| secret.transformation().code() == 0)
        .collect();
    for (at, (first, secret)) in secrets.iter().enumerate() {
        if let Some((second, _)) = secrets[at + 1..].iter().find(|(_, other)| other == secret) {
            let (first, second) = ((*first).clone(), (*second).clone());
            return Err(HostEntryError::Shared { first, second });
        }
    }
    Ok(())
}

fn selection<T: Copy>(items: &[T]) -> Option<Preference<T>> {
    let preferred = items.first().copied()?;
    Some(Preference { preferred: Some(preferred), allowed: items.to_vec() })
}

fn from_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<HostNqn, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
}

/// Deserializes the hash functions of a host, a list that must not be empty.
///
/// # Errors
/// An error of the deserializer, an unknown name, or an empty list.
pub fn hashes_from_names<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<HashFunction>, D::Error> {
    let hash = |name: &String| HashFunction::named(name);
    list(deserializer, hash, "a hash function: sha256, sha384, sha512")
}

/// Deserializes the groups of a host, a list that must not be empty.
///
/// # Errors
/// An error of the deserializer, an unknown name, or an empty list.
pub fn groups_from_names<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<Option<DhGroup>>, D::Error> {
    let group = |name: &String| DhGroup::named(name);
    list(
        deserializer,
        group,
        "a group: null, ffdhe2048, ffdhe3072, ffdhe4096, ffdhe6144, ffdhe8192",
    )
}

/// Reads a list of names, which must not be empty.
fn list<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    item: impl Fn(&String) -> Option<T>,
    expected: &str,
) -> Result<Vec<T>, D::Error> {
    let names = Vec::<String>::deserialize(deserializer)?;
    if names.is_empty() {
        return Err(de::Error::custom(format_args!(
            "an empty list allows nothing: name {expected}"
        )));
    }
    let unknown = |name| de::Error::custom(format_args!("{name:?} is not {expected}"));
    names.iter().map(|name| item(name).ok_or_else(|| unknown(name))).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::secret::Transformation;

    fn parse(text: &str) -> Result<HostEntry, String> {
        toml::from_str(text).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn an_entry_has_files_and_a_policy() {
        let entry = parse(
            "nqn = 'nqn.2026-01.a:h'\ndhchap_key = '/k'\ndhchap_ctrl_key = '/c'\n\
             hashes = ['sha512', 'sha384']\ngroups = ['ffdhe8192', 'null']",
        );
        let entry = entry.expect("an entry");
        let policy = entry.policy(&AuthPolicy::default());
        assert_eq!(policy.hashes.preferred, Some(HashFunction::Sha512));
        assert_eq!(policy.groups.allowed, [Some(DhGroup::Ffdhe8192), None]);
        let short = parse("nqn = 'nqn.2026-01.a:h'\ndhchap_key = '/k'").expect("an entry");
        assert_eq!(short.policy(&AuthPolicy::default()), AuthPolicy::default());
        assert_eq!(short.dhchap_ctrl_key, None);
    }

    #[test]
    fn mistakes_in_entries_are_named() {
        for (text, word) in [
            ("dhchap_key = '/k'", "nqn"),
            ("nqn = 'nqn.2026-01.a:h'", "dhchap_key"),
            ("nqn = ''\ndhchap_key = '/k'", "empty"),
            ("nqn = 'a'\ndhchap_key = '/k'\nkey = 'x'", "unknown field `key`"),
            ("nqn = 'a'\ndhchap_key = '/k'\nhashes = ['sha1']", "\"sha1\" is not a hash function"),
            (
                "nqn = 'a'\ndhchap_key = '/k'\ngroups = ['ffdhe1024']",
                "\"ffdhe1024\" is not a group",
            ),
            ("nqn = 'a'\ndhchap_key = '/k'\ngroups = []", "allows nothing"),
        ] {
            let message = parse(text).expect_err(text);
            assert!(message.contains(word), "{word}: {message}");
        }
    }

    #[test]
    fn secrets_are_read_and_keys_are_made() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("host.key");
        let secret =
            Secret::new(Transformation::Hmac(HashFunction::Sha256), &[7; 32]).expect("a length");
        fs::write(&path, &*secret.to_representation()).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its owner may");
        let text = format!("nqn = 'nqn.2026-01.a:h'\ndhchap_key = {:?}", path);
        let mut entry = parse(&text).expect("an entry");
        let secrets = entry.read_secrets().expect("one file");
        assert_eq!(secrets, HostSecrets { host: secret.clone(), controller: None });
        let keys = secrets.keys(&entry.nqn, &Nqn::DISCOVERY);
        assert_eq!(keys.host, secret.key_for(&entry.nqn.0));
        entry.dhchap_ctrl_key = Some(folder.path().join("missing.key"));
        let message = entry.read_secrets().expect_err("no file").to_string();
        assert!(message.contains("missing.key"), "{message}");
    }

    #[test]
    fn hosts_and_untransformed_secrets_are_unique() {
        let host = |name: &str, code, byte| {
            let entry = parse(&format!("nqn = {name:?}\ndhchap_key = '/{name}'"));
            let transformation = Transformation::of(code).expect("0 to 3");
            let host = Secret::new(transformation, &[byte; 32]).expect("a length");
            (entry.expect("an entry"), HostSecrets { host, controller: None })
        };
        let check = |hosts: &[_]| check_hosts(hosts);
        assert_eq!(check(&[host("a", 0, 1), host("b", 0, 2)]), Ok(()));
        assert_eq!(check(&[host("a", 1, 1), host("b", 1, 1)]), Ok(()), "names make keys differ");
        let repeated = check(&[host("a", 0, 1), host("a", 0, 2)]);
        assert!(matches!(repeated, Err(HostEntryError::Repeated(_))), "{repeated:?}");
        let shared = check(&[host("a", 0, 1), host("b", 0, 1)]).expect_err("shared").to_string();
        assert!(shared.contains("/a and /b"), "{shared}");
        let (mut entry, mut secrets) = host("a", 0, 1);
        entry.dhchap_ctrl_key = Some("/c".into());
        secrets.controller = Some(secrets.host.clone());
        let both = check(&[(entry, secrets)]).expect_err("shared").to_string();
        assert!(both.contains("/a and /c"), "{both}");
    }
}
