//! Identity of this host: its Host NQN and Host Identifier.

use std::path::Path;

use anyhow::{Context, Result};
use nvme_proto::{HostId, HostNqn};
use uuid::Uuid;

use crate::options::Local;

const UUID_NQN_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// Host NQN and Host Identifier. They belong together: a target may refuse one NQN with two
/// identifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostIdArgs {
    pub(crate) nqn: HostNqn,
    pub(crate) id: HostId,
}

impl HostIdArgs {
    /// Takes the identity from the command line, else from nvme-cli's files, else generates one.
    pub(crate) fn from_args(local: &Local) -> Result<Self> {
        Self::choose(local.hostnqn, local.hostid, Path::new("/etc/nvme"))
    }

    /// Generates an identity for this run.
    pub(crate) fn generated() -> Self {
        let id = HostId(Uuid::new_v4().into_bytes());
        Self { nqn: HostNqn::from_host_id(id), id }
    }

    fn choose(nqn: Option<HostNqn>, id: Option<HostId>, configuration: &Path) -> Result<Self> {
        let from_file = nqn.is_none();
        let Some(nqn) = nqn.map_or_else(|| read_nqn(configuration), |nqn| Ok(Some(nqn)))? else {
            let generated = Self::generated();
            return Ok(id.map_or(generated, |id| Self { nqn: HostNqn::from_host_id(id), id }));
        };
        // The identifier in the file belongs to the NQN in the file, not to one from the command
        // line.
        let of_file = || first_line(&configuration.join("hostid"))?.parse().ok();
        let of_file = || if from_file { of_file() } else { None };
        let id = id.or_else(of_file).unwrap_or_else(|| id_of(nqn));
        Ok(Self { nqn, id })
    }
}

fn read_nqn(configuration: &Path) -> Result<Option<HostNqn>> {
    let path = configuration.join("hostnqn");
    let Some(line) = first_line(&path) else { return Ok(None) };
    let nqn = line.parse().with_context(|| format!("{} has no usable host NQN", path.display()))?;
    Ok(Some(nqn))
}

/// Host Identifier from the UUID in a Host NQN, or else one derived from the NQN, always the same.
fn id_of(nqn: HostNqn) -> HostId {
    let in_name = nqn.as_str().strip_prefix(UUID_NQN_PREFIX).and_then(|uuid| uuid.parse().ok());
    in_name.unwrap_or_else(|| {
        HostId(Uuid::new_v5(&Uuid::NAMESPACE_OID, nqn.as_str().as_bytes()).into_bytes())
    })
}

fn first_line(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    text.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "7f1c4c7e-6c1c-4a51-9fd0-0b6a0c7f8a11";

    fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        directory
    }

    fn nqn(text: &str) -> HostNqn {
        text.parse().unwrap()
    }

    #[test]
    fn the_identifier_follows_the_name() {
        let empty = directory(&[]);
        let choose = |nqn, id| HostIdArgs::choose(nqn, id, empty.path()).unwrap();
        let generated = choose(None, None);
        assert_eq!(generated.nqn, HostNqn::from_host_id(generated.id));
        assert_ne!(generated, choose(None, None));

        let id: HostId = ID.parse().unwrap();
        assert_eq!(choose(None, Some(id)).nqn, HostNqn::from_host_id(id));
        assert_eq!(choose(Some(HostNqn::from_host_id(id)), None).id, id);

        let named = |name: &str| choose(Some(nqn(name)), None);
        assert_eq!(named("nqn.2026-01.a:b"), named("nqn.2026-01.a:b"));
        assert_ne!(named("nqn.2026-01.a:b").id, named("nqn.2026-01.a:c").id);
    }

    #[test]
    fn files_are_used_together() {
        let files = directory(&[("hostnqn", "nqn.2026-01.a:b\n"), ("hostid", &format!("{ID}\n"))]);
        let identity = HostIdArgs::choose(None, None, files.path()).unwrap();
        assert_eq!(identity.nqn, nqn("nqn.2026-01.a:b"));
        assert_eq!(identity.id, ID.parse().unwrap());

        let other = HostIdArgs::choose(Some(nqn("nqn.2026-01.a:c")), None, files.path()).unwrap();
        assert_ne!(other.id, identity.id);
    }

    #[test]
    fn an_unusable_file_is_named() {
        let long = format!("nqn.{}", "a".repeat(300));
        let files = directory(&[("hostnqn", &long)]);
        let error = format!("{:#}", HostIdArgs::choose(None, None, files.path()).unwrap_err());
        assert!(error.contains("hostnqn"), "{error}");
    }
}
