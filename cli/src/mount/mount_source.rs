//! Argument of `mount`: a subsystem, or a manifest in a file or a namespace.

use std::fs;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use feedrail_dataset::manifest::{KeyPath, Manifest, TargetEntry};
use feedrail_dataset::url::{self, NamespaceChoice, SourceUrl};
use feedrail_initiator::SubsystemAddress;
use feedrail_mount::{MountSource, SourceTarget};

use crate::options::Local;
use crate::session;
use crate::shards;

/// The longest manifest that is read from a namespace, in bytes.
const MANIFEST_BYTES: u64 = 1 << 30;

/// The first argument of `mount`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MountArg {
    /// Text of the argument, which tables of mounts show.
    text: String,
    kind: SourceKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum SourceKind {
    /// The manifest of a data set.
    File(PathBuf),
    /// A subsystem, or the namespace of a manifest.
    Url(Box<SourceUrl>),
}

impl FromStr for MountArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let kind = if text.starts_with("nvmf://") {
            let parsed = text.parse().map_err(|error: url::Error| error.to_string())?;
            SourceKind::Url(Box::new(parsed))
        } else {
            SourceKind::File(text.into())
        };
        Ok(Self { text: text.to_owned(), kind })
    }
}

impl MountArg {
    /// Finds what it names.
    pub(super) fn resolve(&self, local: &Local) -> Result<MountSource> {
        Ok(self.kind.resolve(local)?.named(self.text.clone()))
    }
}

impl SourceKind {
    fn resolve(&self, local: &Local) -> Result<MountSource> {
        match self {
            Self::File(path) => {
                let about = || path.display().to_string();
                let json = fs::read(path).with_context(about)?;
                manifest(&json, local).with_context(about)
            }
            Self::Url(url) => match &url.namespace {
                None => Ok(MountSource::subsystem(target(url)?)),
                Some(choice) => {
                    let json = read(url, choice, local).with_context(|| url.to_string())?;
                    let about = || format!("{url} is not the manifest of a data set");
                    manifest(&json, local).with_context(about)
                }
            },
        }
    }
}

fn target(url: &SourceUrl) -> Result<SourceTarget> {
    let address = SubsystemAddress { address: shards::address(&url.target)?, nqn: url.nqn };
    let whole = SourceUrl { namespace: None, ..url.clone() };
    Ok(SourceTarget { address, url: whole.to_string(), options: None })
}

fn read(url: &SourceUrl, choice: &NamespaceChoice, local: &Local) -> Result<Vec<u8>> {
    let controller = session::host(local)?.connect(target(url)?.address).wait()?;
    let namespace = match choice {
        NamespaceChoice::Nsid(nsid) => controller.namespace(*nsid).wait()?,
        NamespaceChoice::Name(name) => controller.namespace_named(name.as_str()).wait()?,
    };
    let bytes = namespace.size_bytes();
    ensure!(bytes <= MANIFEST_BYTES, "{bytes} bytes are too many for a manifest");
    let mut json = vec![0; usize::try_from(bytes)?];
    namespace.read_at(0, &mut json)?;
    Ok(json)
}

fn manifest(json: &[u8], local: &Local) -> Result<MountSource> {
    let manifest = Manifest::parse(json)?;
    let target = |entry: &TargetEntry| {
        let (url, nqn) = (entry.url.clone(), entry.nqn);
        let target = target(&SourceUrl { target: url, nqn, namespace: None })?;
        let files = [&entry.dhchap_secret_file, &entry.dhchap_ctrl_secret_file];
        let [secret, ctrl_secret] = files.map(|file| file.as_ref().map(KeyPath::as_path));
        let options = local.options()?.or_key_files(secret, ctrl_secret)?;
        Ok(SourceTarget { options: Some(options), ..target })
    };
    let targets = manifest.targets().iter().map(|(_, entry)| target(entry));
    let targets = targets.collect::<Result<_>>()?;
    Ok(MountSource::manifest(Arc::new(manifest), targets))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_a_url_by_its_scheme() {
        let parse = |text: &str| text.parse::<MountArg>().map(|it| it.kind);
        assert!(matches!(
            parse("nvmf://192.0.2.1/nqn.2026-01.io.feedrail:a"),
            Ok(SourceKind::Url(_))
        ));
        assert_eq!(parse("data/manifest.json"), Ok(SourceKind::File("data/manifest.json".into())));
        assert!(parse("nvmf://192.0.2.1").is_err());
    }
}
