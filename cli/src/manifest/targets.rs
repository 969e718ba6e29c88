//! Names of targets in a manifest.

use std::collections::BTreeMap;
use std::str::FromStr;

use anyhow::{Result, ensure};
use feedrail_dataset::Name;
use feedrail_dataset::manifest::{ShardEntry, TargetEntry};
use feedrail_dataset::url::SourceUrl;

use crate::secret_args::KeyFiles;
use crate::shards::SubsystemUrl;

/// Value of `--target`: a subsystem of a target, and optionally its name in the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedTarget {
    name: Option<Name>,
    subsystem: SubsystemUrl,
}

impl FromStr for NamedTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, url) = match text.split_once("=nvmf://") {
            Some((name, _)) => (Some(name), &text[name.len() + 1..]),
            None => (None, text),
        };
        let name = name.map(str::parse).transpose();
        let name = name.map_err(|error: feedrail_dataset::InvalidName| error.to_string())?;
        let SourceUrl { target, nqn, namespace } = url.parse().map_err(|error| {
            let error: feedrail_dataset::url::Error = error;
            error.to_string()
        })?;
        match namespace {
            Some(_) => Err("the URL of a target ends with the NQN of a subsystem".to_owned()),
            None => Ok(Self { name, subsystem: SubsystemUrl { target, nqn } }),
        }
    }
}

/// Names of targets: those of `--target`, and `target-1` and so on for others.
#[derive(Debug)]
pub(super) struct TargetNames {
    names: BTreeMap<SubsystemUrl, Name>,
    /// Names of the targets that serve the shards in files, in the order of their options.
    of_files: Vec<Name>,
}

impl TargetNames {
    /// # Errors
    /// One target has two names, or two targets have the same.
    pub(super) fn new(given: &[NamedTarget]) -> Result<Self> {
        let mut this = Self { names: BTreeMap::new(), of_files: Vec::new() };
        for NamedTarget { name, subsystem } in given {
            let Some(name) = name else { continue };
            ensure!(!this.names.values().any(|known| known == name), "two targets called {name}");
            let before = this.names.insert(subsystem.clone(), name.clone());
            ensure!(before.is_none(), "the target {name} has another name as well");
        }
        this.of_files = given.iter().map(|target| this.of(&target.subsystem)).collect();
        Ok(this)
    }

    pub(super) fn of_files(&self) -> Vec<Name> {
        self.of_files.clone()
    }

    pub(super) fn of(&mut self, subsystem: &SubsystemUrl) -> Name {
        if let Some(name) = self.names.get(subsystem) {
            return name.clone();
        }
        let mut numbered = (1_u32..).map(|number| format!("target-{number}"));
        let is_free = |name: &Name| !self.names.values().any(|known| known == name);
        let name = numbered.find_map(|name| name.parse().ok().filter(is_free));
        let name: Name = name.expect("there are fewer targets than numbers");
        self.names.insert(subsystem.clone(), name.clone());
        name
    }

    /// Returns the manifest entries of the targets that serve a shard.
    pub(super) fn into_entries(
        self,
        shards: &[ShardEntry<Name>],
        keys: &KeyFiles,
    ) -> BTreeMap<Name, TargetEntry> {
        let has_one = |name: &Name| shards.iter().any(|shard| shard.replicas.contains(name));
        let used = self.names.into_iter().filter(|(_, name)| has_one(name));
        let entry = |SubsystemUrl { target, nqn }| TargetEntry {
            dhchap_ctrl_secret_file: keys.controller.clone(),
            dhchap_secret_file: keys.host.clone(),
            nqn,
            url: target,
        };
        used.map(|(subsystem, name)| (name, entry(subsystem))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "nvmf://192.0.2.1/nqn.2026-01.org.example:a";

    fn target(text: &str) -> NamedTarget {
        text.parse().unwrap()
    }

    #[test]
    fn a_target_may_have_a_name() {
        assert_eq!(target(URL).name, None);
        assert_eq!(target(&format!("a={URL}")).name, Some("a".parse().unwrap()));
        for wrong in ["a=", "nvmf://192.0.2.1", &format!("{URL}/train.bin"), &format!("={URL}")] {
            assert!(wrong.parse::<NamedTarget>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_are_given_once() {
        let other = URL.replace(":a", ":b");
        let named = target(&format!("target-1={other}"));
        let mut names = TargetNames::new(&[target(URL), named.clone()]).unwrap();
        assert_eq!(names.of_files(), ["target-2", "target-1"].map(|name| name.parse().unwrap()));
        assert_eq!(names.of(&named.subsystem).as_str(), "target-1");
        let twice = target(&format!("a={other}"));
        assert!(TargetNames::new(&[named.clone(), twice]).is_err());
        assert!(TargetNames::new(&[named, target(&format!("target-1={URL}"))]).is_err());
    }
}
